#include "cli/sampling_settings.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>

namespace baton::cli {
namespace {

using Json = nlohmann::ordered_json;

enum class Kind : uint8_t { kReal, kInteger, kFlag, kTexts };

struct Setting {
    std::string_view name;
    std::string_view key;  ///< in the request
    Kind kind;
    double min, max;
    std::string_view meaning;
};

constexpr double kAny = 9e15;  // whole numbers are exact up to there
constexpr auto kSettings = std::to_array<Setting>({
    {"temperature", "temperature", Kind::kReal, 0, 2, "0 is greedy, higher is more random"},
    {"top_p", "top_p", Kind::kReal, 0, 1, "keep the likeliest tokens up to this probability"},
    {"top_k", "top_k", Kind::kInteger, -1, kAny, "keep so many of the likeliest tokens"},
    {"min_p", "min_p", Kind::kReal, 0, 1, "drop tokens below this share of the likeliest one's probability"},
    {"max_tokens", "max_tokens", Kind::kInteger, 1, kAny, "tokens to generate at most"},
    {"min_tokens", "min_tokens", Kind::kInteger, 0, kAny, "tokens to generate at least"},
    {"seed", "seed", Kind::kInteger, -kAny, kAny, "of the random choices"},
    {"stop", "stop", Kind::kTexts, 0, 0, "texts that end the answer, in quotes or separated by spaces"},
    {"repetition_penalty", "repetition_penalty", Kind::kReal, 0, 10, "above 1 makes tokens that occurred less likely"},
    {"presence_penalty", "presence_penalty", Kind::kReal, -2, 2, "the same for tokens of the answer, once"},
    {"frequency_penalty", "frequency_penalty", Kind::kReal, -2, 2, "the same, by how often they occurred"},
    {"ignore_eos", "ignore_eos", Kind::kFlag, 0, 0, "go on to max_tokens"},
    {"thinking", "enable_thinking", Kind::kFlag, 0, 0, "whether a reasoning model thinks first"},
});

tl::unexpected<Error> wrong(const Setting& s, const std::string& what) {
    return fail(ErrorCode::kInvalidArgument, std::string(s.name) + " must be " + what, std::string(s.name));
}

std::string plain(double value) {
    char buf[32];
    const auto [end, error] = std::to_chars(buf, buf + sizeof buf, value);
    return error == std::errc() ? std::string(buf, end) : "?";
}

std::string range(const Setting& s) {
    if (s.max < kAny) return "within " + plain(s.min) + ".." + plain(s.max);
    return s.min > -kAny ? "at least " + plain(s.min) : "a number";
}

/// Words separated by spaces; JSON strings in double quotes may hold anything, \n too.
Expected<Json> parse_texts(const Setting& s, std::string_view text) {
    Json out = Json::array();
    while (true) {
        const size_t begin = text.find_first_not_of(' ');
        if (begin == std::string_view::npos) break;
        text.remove_prefix(begin);
        size_t end = 0;
        if (text[0] == '"') {
            end = 1;
            while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2u : 1u;
            if (end >= text.size()) return wrong(s, "words, or texts in double quotes");
            ++end;
            Json one = Json::parse(text.substr(0, end), nullptr, false);
            if (!one.is_string()) return wrong(s, "words, or texts in double quotes");
            out.push_back(std::move(one));
        } else {
            end = std::min(text.find(' '), text.size());
            out.push_back(std::string(text.substr(0, end)));
        }
        text.remove_prefix(end);
    }
    if (out.empty()) return wrong(s, "words, or texts in double quotes");
    return out;
}

template <class T>
bool whole(std::string_view text, T& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size();
}

Expected<Json> parse(const Setting& s, std::string_view text) {
    switch (s.kind) {
        case Kind::kReal: {
            double value = 0;
            if (!whole(text, value) || !std::isfinite(value) || value < s.min || value > s.max) return wrong(s, range(s));
            return Json(value);
        }
        case Kind::kInteger: {
            int64_t value = 0;
            if (!whole(text, value) || static_cast<double>(value) < s.min || static_cast<double>(value) > s.max)
                return wrong(s, "a whole number" + (s.min > -kAny ? ", " + range(s) : ""));
            return Json(value);
        }
        case Kind::kFlag:
            if (text == "true" || text == "on" || text == "yes" || text == "True") return Json(true);
            if (text == "false" || text == "off" || text == "no" || text == "False") return Json(false);
            return wrong(s, "true or false");
        case Kind::kTexts: return parse_texts(s, text);
    }
    return wrong(s, "set");
}

/// "top-p" is top_p.
Expected<const Setting*> find(std::string_view name) {
    std::string spelled(name);
    std::replace(spelled.begin(), spelled.end(), '-', '_');
    for (const Setting& s : kSettings)
        if (s.name == spelled) return &s;
    std::string names;
    for (const Setting& s : kSettings) names += (names.empty() ? "" : ", ") + std::string(s.name);
    return fail(ErrorCode::kInvalidArgument, "there is no setting '" + std::string(name) + "'; there are " + names);
}

}  // namespace

Expected<void> SamplingSettings::set(std::string_view name, std::string_view text) {
    BATON_TRY_ASSIGN(const Setting* setting, find(name));
    BATON_TRY_ASSIGN(values_[std::string(setting->name)], parse(*setting, text));
    return {};
}

Expected<void> SamplingSettings::unset(std::string_view name) {
    BATON_TRY_ASSIGN(const Setting* setting, find(name));
    values_.erase(std::string(setting->name));
    return {};
}

void SamplingSettings::add_to(nlohmann::ordered_json& body) const {
    for (const Setting& s : kSettings)
        if (const auto it = values_.find(s.name); it != values_.end()) body[std::string(s.key)] = it->second;
}

std::vector<std::string> SamplingSettings::shown() const {
    std::vector<std::string> out;
    for (const Setting& s : kSettings)
        if (const auto it = values_.find(s.name); it != values_.end()) {
            std::string text;
            if (it->second.is_array())
                for (const Json& one : it->second) text += " " + one.dump(-1, ' ', false, Json::error_handler_t::replace);
            else
                text = " " + it->second.dump();
            out.push_back(std::string(s.name) + text);
        }
    return out;
}

const std::vector<SamplingSettings::Name>& SamplingSettings::names() {
    static const std::vector<Name> all = [] {
        std::vector<Name> out;
        for (const Setting& s : kSettings) out.push_back({s.name, s.meaning, s.kind == Kind::kFlag});
        return out;
    }();
    return all;
}

}  // namespace baton::cli
