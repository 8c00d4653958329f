#include "cli/split_rates.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>

/// Measured rates as JSON and as options.
namespace baton::cli::split {
namespace {

constexpr double kTokensMax = 1e6;
constexpr size_t kSamplesMax = 10'000;
/// Hand-offs where nothing else is known: what was measured between two GPUs of one host, and between two pools in host memory.
constexpr double kGpuHandoffMs = 0.1, kGpuGbPerS = 250;
constexpr double kHostHandoffMs = 1.0, kHostGbPerS = 8;
constexpr uint32_t kGpuBlockTokens = 64, kGpuSequences = 256, kGpuStepTokens = 2048;

Expected<void> wrong(const std::string& field, const std::string& must) {
    return fail(ErrorCode::kInvalidArgument, field + " must be " + must, field);
}

/// Reads numbers of one object; the first that is wrong is kept as the error.
class Reader {
  public:
    Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}
    /// The number, within bounds; `fallback` where it is absent, an error where there is none.
    double number(const char* key, double low, double high, std::optional<double> fallback = std::nullopt) {
        const auto at = object_.find(key);
        if (at == object_.end() || at->is_null()) {
            if (!fallback && ok_) ok_ = wrong(where_ + key, "there");
            return fallback.value_or(low);
        }
        const double value = at->is_number() ? at->get<double>() : NAN;
        if (std::isfinite(value) && value >= low && value <= high) return value;
        char range[80];
        std::snprintf(range, sizeof range, "a number within %g..%g", low, high);
        if (ok_) ok_ = wrong(where_ + key, range);
        return low;
    }
    uint32_t count(const char* key, double low, std::optional<double> fallback = std::nullopt) {
        return static_cast<uint32_t>(number(key, low, kTokensMax, fallback));
    }
    [[nodiscard]] const Expected<void>& ok() const { return ok_; }

  private:
    const Json& object_;
    std::string where_;
    Expected<void> ok_;
};

constexpr double kMsMax = 1e9, kMsMin = 1e-6;

Expected<void> read_samples(const Json& json, const char* key, std::vector<StepSample>& out) {
    const auto list = json.find(key);
    if (list == json.end()) return {};
    if (!list->is_array() || list->size() > kSamplesMax) return wrong(key, "a list of at most 10000 objects");
    for (size_t i = 0; i < list->size(); ++i) {
        const std::string where = std::string(key) + "[" + std::to_string(i) + "]";
        if (!(*list)[i].is_object()) return wrong(where, "an object");
        Reader r((*list)[i], where + ".");
        const std::string_view kind = key;
        StepSample s;
        if (kind != "decode") {
            s.prompt_tokens = r.count("tokens", 1);
            s.position = r.count("position", 0, 0);
        }
        if (kind != "prefill") {
            s.rows = r.count("batch", 1);
            s.context = r.count("context", 1);
        }
        s.us = r.number("ms", kMsMin, kMsMax) * 1000;
        BATON_TRY(r.ok());
        out.push_back(s);
    }
    return {};
}

/// The lines of `baton bench engine --device cuda --json`.
Expected<void> read_lines(const Json& lines, std::vector<StepSample>& out) {
    if (!lines.is_array() || lines.size() > kSamplesMax) return wrong("lines", "a list of at most 10000 objects");
    for (size_t i = 0; i < lines.size(); ++i) {
        const std::string where = "lines[" + std::to_string(i) + "]";
        if (!lines[i].is_object()) return wrong(where, "an object");
        if (!lines[i].contains("ms")) continue;  // it did not fit
        Reader r(lines[i], where + ".");
        const std::string phase = text_of(lines[i], "phase");
        if (phase != "decode" && phase != "prefill") return wrong(where + ".phase", "decode or prefill");
        const uint32_t tokens = r.count("tokens", 1), batch = r.count("batch", 1);
        StepSample s;
        if (phase == "decode") s.rows = batch, s.context = tokens;
        else s.prompt_tokens = tokens;
        s.us = r.number("ms", kMsMin, kMsMax) * 1000;
        BATON_TRY(r.ok());
        out.push_back(s);
    }
    return {};
}

Expected<void> read_beside(const Json& json, Rates& rates) {
    const auto at = json.find("beside");
    if (at == json.end()) {  // replicas on the same cores have half of them each
        if (!rates.device) std::fill_n(&rates.beside[0][0], 4, 2.0);
        return {};
    }
    static constexpr const char* kKinds[] = {"prefill", "decode"};
    for (int of = 0; of < 2; ++of) {
        const auto row = at->find(kKinds[of]);
        if (!at->is_object() || row == at->end() || !row->is_object()) return wrong(std::string("beside.") + kKinds[of], "an object with prefill and decode");
        Reader r(*row, std::string("beside.") + kKinds[of] + ".");
        for (int with = 0; with < 2; ++with) rates.beside[of][with] = r.number(kKinds[with], 1, 1000);
        BATON_TRY(r.ok());
    }
    return {};
}

}  // namespace

Json to_json(const Rates& rates) {
    Json prefill = Json::array(), decode = Json::array(), mixed = Json::array();
    for (const StepSample& s : rates.samples) {
        Json row = Json::object();
        if (s.prompt_tokens > 0) row.update({{"tokens", s.prompt_tokens}, {"position", s.position}});
        if (s.rows > 0) row.update({{"batch", s.rows}, {"context", s.context}});
        row["ms"] = std::round(s.us) / 1000;
        (s.rows == 0 ? prefill : s.prompt_tokens == 0 ? decode : mixed).push_back(row);
    }
    const auto& b = rates.beside;
    return {{"engine", rates.engine}, {"device", rates.device ? "gpu" : "cpu"}, {"max_num_batched_tokens", rates.step_tokens},
            {"max_num_seqs", rates.sequences}, {"block_tokens", rates.block_tokens}, {"kv_tokens", rates.kv_tokens},
            {"kv_bytes_per_token", rates.kv_bytes_per_token}, {"handoff_ms", rates.handoff_ms}, {"handoff_gb_per_s", rates.handoff_gb_per_s},
            {"beside", {{"prefill", {{"prefill", b[0][0]}, {"decode", b[0][1]}}}, {"decode", {{"prefill", b[1][0]}, {"decode", b[1][1]}}}}},
            {"after_pause_ms", {{"prefill", rates.after_pause_ms[0]}, {"decode", rates.after_pause_ms[1]}}},
            {"prefill", prefill}, {"decode", decode}, {"mixed", mixed}};
}

Expected<Rates> parse_rates(const Json& json) {
    if (!json.is_object()) return fail(ErrorCode::kInvalidArgument, "rates must be a JSON object", "rates");
    Rates rates;
    const bool bench = json.contains("lines");
    const auto device = json.find("device");
    if (device != json.end() && *device != "gpu" && *device != "cpu") return fail(ErrorCode::kInvalidArgument, "device must be cpu or gpu", "device");
    rates.device = bench || (device != json.end() && *device == "gpu");
    rates.engine = text_of(json, bench ? "backend" : "engine");
    Reader r(json, "");
    rates.step_tokens = r.count("max_num_batched_tokens", 1, rates.device ? kGpuStepTokens : 512);
    rates.sequences = r.count("max_num_seqs", 1, rates.device ? kGpuSequences : 64);
    rates.block_tokens = r.count("block_tokens", 1, rates.device ? kGpuBlockTokens : 16);
    rates.kv_tokens = static_cast<uint64_t>(r.number("kv_tokens", 0, 1e12, 0));
    rates.kv_bytes_per_token = r.number("kv_bytes_per_token", 0, 1e9, 0);
    rates.handoff_ms = r.number("handoff_ms", 0, 1e6, rates.device ? kGpuHandoffMs : kHostHandoffMs);
    rates.handoff_gb_per_s = r.number("handoff_gb_per_s", 0, 1e6, rates.device ? kGpuGbPerS : kHostGbPerS);
    BATON_TRY(r.ok());
    if (bench) {
        BATON_TRY(read_lines(json["lines"], rates.samples));
    } else {
        for (const char* key : {"prefill", "decode", "mixed"}) BATON_TRY(read_samples(json, key, rates.samples));
    }
    BATON_TRY(read_beside(json, rates));
    if (const auto pause = json.find("after_pause_ms"); pause != json.end()) {
        if (!pause->is_object()) return fail(ErrorCode::kInvalidArgument, "after_pause_ms must be an object with prefill and decode", "after_pause_ms");
        Reader of(*pause, "after_pause_ms.");
        rates.after_pause_ms[0] = of.number("prefill", 0, kMsMax);
        rates.after_pause_ms[1] = of.number("decode", 0, kMsMax);
        BATON_TRY(of.ok());
    }
    return rates;
}

Expected<Rates> read_rates(const std::string& path) {
    std::ifstream in(path);
    if (!in) return fail(ErrorCode::kIo, "cannot read " + path, "rates");
    const Json json = Json::parse(in, nullptr, false);
    if (json.is_discarded()) return fail(ErrorCode::kInvalidArgument, path + " is not JSON", "rates");
    auto rates = parse_rates(json);
    if (!rates) return fail(rates.error().code, path + ": " + rates.error().message, rates.error().param);
    return rates;
}

Expected<std::vector<StepSample>> parse_points(const std::vector<std::string>& prefill, const std::vector<std::string>& decode) {
    std::vector<StepSample> out;
    const auto good = [](const std::string& text, int end, double ms) { return end > 0 && static_cast<size_t>(end) == text.size() && std::isfinite(ms) && ms >= kMsMin && ms <= kMsMax; };
    for (const std::string& text : prefill) {
        StepSample s;
        int end = 0;
        double ms = 0;
        if (std::sscanf(text.c_str(), "%7u:%lf%n", &s.prompt_tokens, &ms, &end) != 2 || !good(text, end, ms) || s.prompt_tokens < 1 || s.prompt_tokens > kTokensMax)
            return fail(ErrorCode::kInvalidArgument, "--prefill-ms: '" + text + "' is not TOKENS:MS, e.g. 512:11.5", "prefill_ms");
        s.us = ms * 1000;
        out.push_back(s);
    }
    for (const std::string& text : decode) {
        StepSample s;
        int end = 0;
        double ms = 0;
        if (std::sscanf(text.c_str(), "%7u@%7u:%lf%n", &s.rows, &s.context, &ms, &end) != 3 || !good(text, end, ms) || s.rows < 1 || s.rows > kTokensMax ||
            s.context < 1 || s.context > kTokensMax)
            return fail(ErrorCode::kInvalidArgument, "--decode-ms: '" + text + "' is not BATCH@CONTEXT:MS, e.g. 8@1024:4.5", "decode_ms");
        s.us = ms * 1000;
        out.push_back(s);
    }
    return out;
}

}  // namespace baton::cli::split
