#include "cli/bench_load.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>

namespace baton::cli {
namespace {

/// Words that are one token in most vocabularies (scripts/make_random_model.py has each of them).
constexpr std::array<std::string_view, 64> kWords = {
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family",
    "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "program",
    "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area", "money", "story",
    "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head",
    "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law"};

/// Places in the text at which a generated prompt may begin: a power of two, so that an odd stride visits all.
constexpr uint64_t kPlaces = 1u << 18;
constexpr uint64_t kStride = 100'003;
constexpr uint32_t kDefaultRequests = 100;
constexpr double kArrivalsMax = 4e6;
constexpr uint32_t kTokensMax = 1'000'000;

Expected<void> wrong(const std::string& text) { return fail(ErrorCode::kInvalidArgument, text); }

}  // namespace

Expected<LoadPlan> LoadPlan::make(const BenchServeOptions& o) {
    LoadPlan plan;
    plan.model_json_ = Json(o.model).dump(-1, ' ', false, Json::error_handler_t::replace);
    plan.open_ = o.rate > 0 || o.interval_ms > 0;
    plan.ids_ = o.token_ids > 0;
    plan.warmup_ = o.warmup;
    BATON_TRY(plan.read_mix(o));
    plan.background_input_ = o.background_input;
    if (o.rate > 0 && o.interval_ms > 0) return fail(ErrorCode::kInvalidArgument, "either a rate or an interval");
    for (const std::string& text : o.slos) {
        double ttft = 0, itl = 0;
        if (!parse_slo(text, ttft, itl)) return fail(ErrorCode::kInvalidArgument, "'" + text + "' is not TTFT:ITL in milliseconds");
    }
    const uint64_t measured = o.requests > 0 ? o.requests : (o.duration_s > 0 ? UINT64_MAX - o.warmup : kDefaultRequests);
    plan.size_ = measured + o.warmup;
    if (plan.open_) plan.make_arrivals(o);
    else plan.staggered_ = std::min(o.warmup, o.concurrency);
    if (!o.dataset.empty()) BATON_TRY(plan.read_dataset(o.dataset));
    uint32_t longest = o.background > 0 ? o.background_input : 1;
    if (o.dataset.empty())
        for (const Lengths& l : plan.lengths_) longest = std::max(longest, l.input);
    plan.make_text(longest, o.token_ids, o.seed);
    if (o.dataset.empty()) plan.prefix_share_ = o.prefix_share;
    return plan;
}

Expected<void> LoadPlan::read_mix(const BenchServeOptions& o) {
    if (o.mix.empty()) lengths_.push_back({o.input_tokens, o.output_tokens});
    if (!o.mix.empty() && !o.dataset.empty()) return wrong("either a mix or a dataset");
    for (const std::string& text : o.mix) {
        Lengths l{};
        int end = 0;
        const bool read = std::sscanf(text.c_str(), "%7u:%7u%n", &l.input, &l.output, &end) == 2 && static_cast<size_t>(end) == text.size();
        if (!read || l.input < 1 || l.output < 1 || l.input > kTokensMax || l.output > kTokensMax)
            return wrong("mix: '" + text + "' is not IN:OUT, two numbers of tokens within 1..1000000");
        lengths_.push_back(l);
    }
    return {};
}

uint32_t LoadPlan::shared_tokens(uint64_t i) const { return static_cast<uint32_t>(std::lround(prefix_share_ * input_tokens(i))); }

uint32_t LoadPlan::output_tokens(uint64_t i) const {
    const uint32_t whole = lengths_[i % lengths_.size()].output;
    return i < staggered_ ? 1 + static_cast<uint32_t>(i * whole / staggered_) : whole;
}

void LoadPlan::make_arrivals(const BenchServeOptions& o) {
    std::mt19937_64 random(o.seed + 1);
    std::exponential_distribution<double> gap(o.rate > 0 ? o.rate : 1);
    double at_s = 0;
    while (due_us_.size() < size_ && static_cast<double>(due_us_.size()) < kArrivalsMax) {
        const double zero_s = due_us_.size() > warmup_ ? static_cast<double>(due_us_[warmup_]) / 1e6 : at_s;
        if (o.duration_s > 0 && due_us_.size() > warmup_ && at_s - zero_s >= o.duration_s) break;
        due_us_.push_back(static_cast<int64_t>(at_s * 1e6));
        at_s += o.rate > 0 ? gap(random) : o.interval_ms / 1000;
    }
    size_ = due_us_.size();
    const int64_t zero_us = size_ > warmup_ ? due_us_[warmup_] : 0;
    for (int64_t& due : due_us_) due -= zero_us;
}

Expected<void> LoadPlan::read_dataset(const std::string& path) {
    std::ifstream in(path);
    if (!in) return wrong("cannot read " + path);
    size_t number = 0;
    for (std::string line; std::getline(in, line);) {
        ++number;
        if (line.empty()) continue;
        const Json value = Json::parse(line, nullptr, false);
        Given request{"", lengths_.front().output};
        const Json* prompt = &value;
        if (value.is_object() && value.contains("prompt")) {
            prompt = &value["prompt"];
            if (const auto n = value.find("output_tokens"); n != value.end() && n->is_number_unsigned()) request.output_tokens = n->get<uint32_t>();
        }
        if (!prompt->is_string()) return wrong(path + " line " + std::to_string(number) + " is neither a string nor an object with a prompt");
        request.prompt = prompt->dump(-1, ' ', false, Json::error_handler_t::replace);
        given_.push_back(std::move(request));
    }
    return given_.empty() ? wrong(path + " has no prompts") : Expected<void>{};
}

void LoadPlan::make_text(uint32_t longest, uint32_t token_ids, uint64_t seed) {
    std::mt19937_64 random(seed);
    const uint64_t words = kPlaces + longest;
    starts_.reserve(words + 1);
    for (uint64_t i = 0; i < words; ++i) {
        starts_.push_back(static_cast<uint32_t>(text_.size()));
        if (token_ids > 0) text_ += std::to_string(random() % token_ids) + ',';
        else (text_ += kWords[random() % kWords.size()]) += ' ';
    }
    starts_.push_back(static_cast<uint32_t>(text_.size()));
}

std::string LoadPlan::piece(uint64_t at, uint32_t words) const {
    if (words == 0) return {};
    const uint64_t first = at % kPlaces;
    return text_.substr(starts_[first], starts_[first + words] - starts_[first] - 1);  // without the last separator
}

std::string LoadPlan::prompt(uint64_t i) const {
    if (!given_.empty()) return given_[i % given_.size()].prompt;
    const uint32_t all = input_tokens(i), shared = shared_tokens(i);
    std::string text = piece(kPlaces / 3, shared);
    if (shared > 0 && shared < all) text += ids_ ? ',' : ' ';
    text += piece(i * kStride, all - shared);
    return ids_ ? '[' + text + ']' : '"' + text + '"';
}

std::string LoadPlan::body(uint64_t i) const {
    if (!given_.empty()) return wrap(prompt(i), given_[i % given_.size()].output_tokens);
    return wrap(prompt(i), output_tokens(i));
}

std::string LoadPlan::background_body(uint64_t i, uint32_t output_tokens) const {
    const std::string text = piece((kPlaces - 1 - i) * kStride, background_input_);
    return wrap(ids_ ? '[' + text + ']' : '"' + text + '"', output_tokens);
}

std::string LoadPlan::wrap(const std::string& prompt, uint32_t output_tokens) const {
    std::string out;
    out.reserve(prompt.size() + model_json_.size() + 160);
    out.append("{\"model\":").append(model_json_).append(",\"prompt\":").append(prompt);
    out.append(",\"max_tokens\":").append(std::to_string(output_tokens));
    out.append(R"(,"stream":true,"temperature":0,"ignore_eos":true,"stream_options":{"include_usage":true}})");
    return out;
}

}  // namespace baton::cli
