#include "plan.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "baton/base/split_name.hpp"
#include "names.hpp"

namespace baton::hub {
namespace {

constexpr size_t kShardsMax = 1000;
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::array<std::string_view, 2> kNeeded = {"config.json", "tokenizer.json"};
constexpr std::array<std::string_view, 9> kTaken = {
    "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",             "tokenizer.model",       "chat_template.jinja",     "chat_template.json"};

bool has(const std::vector<std::string>& names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

std::string joined(const std::set<std::string>& items) {
    std::string out;
    for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
    return out;
}

tl::unexpected<Error> missing(const PullRequest& request, std::string_view name) {
    return fail(ErrorCode::kNotFound, request.repo + " has no " + std::string(name), "model_name");
}

/// The path without .gguf and without -00001-of-00003; 0 of 0: it is no part.
SplitName part_of(std::string_view path) {
    if (auto name = parse_split_name(path)) return std::move(*name);
    return {std::string(path.substr(0, path.size() - 5)), 0, 0};
}

bool is_gguf(std::string_view path) {
    const std::string name = lower(path.substr(path.rfind('/') + 1));
    return name.ends_with(".gguf") && !name.starts_with("mmproj") && name.size() > 5;
}

/// All parts of one GGUF, keyed by path without -NNNNN-of-NNNNN.
using GgufSets = std::map<std::string, std::vector<std::string>>;
GgufSets gguf_sets(const std::vector<std::string>& names) {
    GgufSets out;
    for (const std::string& name : names) {
        if (!is_gguf(name)) continue;
        out[part_of(name).stem].push_back(name);
    }
    for (auto& [key, parts] : out) std::sort(parts.begin(), parts.end());
    return out;
}

Expected<Plan> plan_of_set(const std::vector<std::string>& parts, const PullRequest& request) {
    Plan plan;
    plan.format = "ggufv2";
    plan.weights = parts;
    const uint32_t count = part_of(parts.front()).count;
    plan.split = count > 1;
    if (request.description_only) plan.weights.resize(1);  // it has the metadata
    const uint32_t needed = request.description_only ? std::min(count, 1u) : count;
    for (uint32_t i = 0; i < needed; ++i)
        if (i >= parts.size() || part_of(parts[i]).number != i + 1)
            return fail(ErrorCode::kNotFound, request.repo + " lacks part " + std::to_string(i + 1) + " of " + std::to_string(count) + " of " + parts.front(), "model_name");
    return plan;
}

Expected<Plan> plan_gguf(const std::vector<std::string>& names, const PullRequest& request) {
    const GgufSets sets = gguf_sets(names);
    if (sets.empty()) return missing(request, "GGUF file");
    if (!request.gguf_file.empty()) {
        for (const auto& [key, parts] : sets)
            if (has(parts, request.gguf_file)) return plan_of_set(parts, request);
        // The names of a registry and of the hub may differ in case.
        for (const auto& [key, parts] : sets)
            if (lower(parts.front()) == lower(request.gguf_file)) return plan_of_set(parts, request);
        if (request.quantization.empty()) return missing(request, request.gguf_file);
    }
    const std::string wanted = lower(request.quantization) == "none" ? "" : lower(request.quantization);
    std::set<std::string> offered;
    std::vector<const std::vector<std::string>*> fitting;
    for (const auto& [key, parts] : sets) {
        const std::string quantization = gguf_quantization(parts.front());
        offered.insert(quantization.empty() ? parts.front() : quantization);
        if (wanted.empty() || quantization == wanted) fitting.push_back(&parts);
    }
    if (fitting.size() == 1) return plan_of_set(*fitting.front(), request);
    if (fitting.empty())
        return fail(ErrorCode::kInvalidArgument, request.repo + " has no quantization " + in_quotes(request.quantization) + "; it has " + joined(offered), "quantization");
    return fail(ErrorCode::kInvalidArgument, request.repo + " has several GGUF files; choose a quantization: " + joined(offered), "quantization");
}

Expected<Plan> plan_safetensors(const std::vector<std::string>& names, const PullRequest& request) {
    const std::string quantization = lower(request.quantization);
    if (!quantization.empty() && quantization != "none")
        return fail(ErrorCode::kUnsupported, "quantization " + in_quotes(request.quantization) + " of safetensors is not supported by baton; use none", "quantization");
    Plan plan;
    plan.format = "pytorch";
    for (const std::string_view name : kNeeded) {
        if (!has(names, name)) return missing(request, name);
        plan.first.emplace_back(name);
    }
    for (const std::string_view name : kTaken)
        if (has(names, name)) plan.first.emplace_back(name);
    if (request.description_only) return plan;
    if (has(names, "model.safetensors")) plan.weights = {"model.safetensors"};
    else if (has(names, kIndexName)) plan.index = kIndexName;
    else return missing(request, "model.safetensors");
    return plan;
}

}  // namespace

std::string gguf_quantization(std::string_view file_name) {
    const std::string stem = lower(part_of(file_name).stem);
    static constexpr std::array<std::string_view, 34> kTypes = {
        "f32",    "f16",    "fp16",   "bf16", "q8_0", "q8_1", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q2_k_s", "q2_k_l", "q3_k_s", "q3_k_m", "q3_k_l", "q3_k_xl",
        "q4_k_s", "q4_k_m", "q4_k_l", "q5_k_s", "q5_k_m", "q5_k_l", "q6_k", "q6_k_l", "q4_k", "q5_k", "q3_k", "iq2_m", "iq3_m", "iq3_xs", "iq4_xs", "iq4_nl", "q8_k"};
    std::string best;
    for (const std::string_view type : kTypes) {
        if (type.size() < best.size() || !stem.ends_with(type)) continue;
        const size_t before = stem.size() - type.size();
        if (before == 0 || stem[before - 1] == '-' || stem[before - 1] == '.' || stem[before - 1] == '_') best = type;
    }
    return best;
}

Expected<Plan> plan_files(const std::vector<std::string>& names, const PullRequest& request) {
    if (!request.files.empty()) {
        Plan plan;
        for (const std::string& name : request.files) {
            if (!has(names, name)) return missing(request, name);
            plan.first.push_back(name);
        }
        return plan;
    }
    const std::string format = lower(request.format);
    if (format == "ggufv2" || format == "gguf" || format == "ggmlv3") return plan_gguf(names, request);
    if (format == "pytorch" || format == "safetensors") return plan_safetensors(names, request);
    if (!format.empty())
        return fail(ErrorCode::kUnsupported, "model_format " + in_quotes(request.format) + " is not supported by baton; use pytorch or ggufv2", "model_format");
    const bool gguf = std::any_of(names.begin(), names.end(), [](const std::string& n) { return is_gguf(n); });
    // Of what was only described before, a cache has no weights.
    const bool described = request.description_only && !gguf && has(names, kNeeded[0]) && has(names, kNeeded[1]);
    const bool safetensors = has(names, "model.safetensors") || has(names, kIndexName) || described;
    const bool unquantised = request.quantization.empty() || lower(request.quantization) == "none";
    if (safetensors && (unquantised || !gguf)) return plan_safetensors(names, request);
    if (gguf) return plan_gguf(names, request);
    const bool pickled = std::any_of(names.begin(), names.end(), [](const std::string& n) { return n.ends_with(".bin") || n.ends_with(".pt") || n.ends_with(".pth"); });
    if (pickled) return fail(ErrorCode::kUnsupported, request.repo + " has only pickled weights, which baton does not read; it needs safetensors or GGUF", "model_name");
    return fail(ErrorCode::kNotFound, request.repo + " has neither safetensors nor GGUF files", "model_name");
}

Expected<std::vector<std::string>> shards_of_index(std::string_view text) {
    const std::string what(kIndexName);
    BATON_TRY_ASSIGN(const Json json, parse_json(text, what));
    const auto map = json.is_object() ? json.find("weight_map") : json.end();
    if (!json.is_object() || map == json.end() || !map->is_object() || map->empty()) return fail(ErrorCode::kCorrupt, what + " has no weight_map");
    std::set<std::string> out;
    for (const Json& value : *map) {
        if (!value.is_string()) return fail(ErrorCode::kCorrupt, what + " names a shard that is no text");
        const std::string name = value.get<std::string>();
        BATON_TRY(check_file_path(name));
        if (!name.ends_with(".safetensors") || name.find('/') != std::string::npos) return fail(ErrorCode::kCorrupt, what + " names " + in_quotes(name));
        out.insert(name);
        if (out.size() > kShardsMax) return fail(ErrorCode::kCorrupt, what + " names too many shards");
    }
    return std::vector<std::string>(out.begin(), out.end());
}

}  // namespace baton::hub
