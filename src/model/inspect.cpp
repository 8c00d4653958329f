// inspect_model: what a supervisor needs to serve a model whose weights other processes run.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "baton/base/limits.hpp"
#include "baton/model/model.hpp"
#include "gguf_vocabulary.hpp"
#include "layout_check.hpp"
#include "source.hpp"

namespace baton::model {
namespace {

void add_eos(ModelInfo& info, int64_t id) {
    if (id < 0 || id >= info.shape.vocab) return;
    const auto token = static_cast<TokenId>(id);
    if (std::find(info.eos.begin(), info.eos.end(), token) == info.eos.end())
        info.eos.push_back(token);
}

/// Adds an id, or each id of an array of them; anything else is left alone.
void add_eos(ModelInfo& info, const Json* ids) {
    if (ids == nullptr) return;
    if (ids->is_number_unsigned()) {
        const auto id = ids->get<uint64_t>();
        if (id <= INT32_MAX) add_eos(info, static_cast<int64_t>(id));
    } else if (ids->is_array()) {
        for (const Json& id : *ids) {
            if (!id.is_array()) add_eos(info, &id);
        }
    }
}

/// Name of the type that holds most of the weights' bytes, their sum, and how many weights they are.
void count_weights(const Source& source, ModelInfo& info) {
    std::map<std::string, uint64_t> bytes;
    for (const StoredTensor* t : source.tensors()) {
        bytes[t->type_name] += t->bytes.size();
        info.weight_bytes += t->bytes.size();
        info.parameters += std::accumulate(t->shape.begin(), t->shape.end(), uint64_t{1}, std::multiplies<>());
    }
    const auto most =
        std::max_element(bytes.begin(), bytes.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != bytes.end()) info.quantization = most->first;
}

/// Takes over a compiled template, or why it does not compile: the model still serves completions.
void compile_template(ModelInfo& info) {
    if (info.chat_template_source.empty()) return;
    auto compiled = text::ChatTemplate::compile(info.chat_template_source);
    if (compiled) {
        info.chat_template = std::move(*compiled);
    } else {
        info.chat_template_error = std::move(compiled).error().message;
    }
}

Expected<void> check_vocabulary(const ModelInfo& info) {
    if (info.tokenizer->vocab_size() > info.shape.vocab) {
        return fail(ErrorCode::kCorrupt,
                    "tokenizer has " + std::to_string(info.tokenizer->vocab_size()) +
                        " tokens, but the model only " + std::to_string(info.shape.vocab));
    }
    return {};
}

// GGUF

Expected<void> gguf_generation(const GgufFile& file, GenerationDefaults& g) {
    const auto number = [&](const char* key, std::optional<float>& out) -> Expected<void> {
        if (!file.has(key)) return {};
        BATON_TRY_ASSIGN(const double v, file.get_float(key));
        out = static_cast<float>(v);
        return {};
    };
    BATON_TRY(number("general.sampling.temp", g.temperature));
    BATON_TRY(number("general.sampling.top_p", g.top_p));
    BATON_TRY(number("general.sampling.penalty_repeat", g.repetition_penalty));
    if (file.has("general.sampling.top_k")) {
        BATON_TRY_ASSIGN(const uint64_t k, file.get_uint("general.sampling.top_k"));
        if (k <= INT32_MAX) g.top_k = static_cast<int32_t>(k);
    }
    return {};
}

Expected<void> inspect_gguf(const GgufFile& file, ModelInfo& info) {
    BATON_TRY_ASSIGN(text::GgufTokenizer t, gguf_tokenizer(file));
    info.bos = static_cast<TokenId>(t.bos);
    if (t.bos >= 0) info.bos_token = t.tokens[static_cast<size_t>(t.bos)];
    if (t.eos >= 0) info.eos_token = t.tokens[static_cast<size_t>(t.eos)];
    add_eos(info, t.eos);
    add_eos(info, t.eot);
    BATON_TRY_ASSIGN(const int64_t eom,
                     gguf_token_id(file, "tokenizer.ggml.eom_token_id", t.tokens.size()));
    add_eos(info, eom);
    // GGUF keeps one or two of the ids that end a turn; the rest are known by their spelling.
    for (size_t i = 0; i < t.tokens.size(); ++i) {
        constexpr int32_t kControl = 3;
        if (t.token_type[i] != kControl) continue;
        for (const char* name :
             {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>"}) {
            if (t.tokens[i] == name) add_eos(info, static_cast<int64_t>(i));
        }
    }
    BATON_TRY_ASSIGN(info.tokenizer, text::Tokenizer::from_gguf(std::move(t)));
    if (file.has("tokenizer.chat_template")) {
        BATON_TRY_ASSIGN(info.chat_template_source, file.get_string("tokenizer.chat_template"));
    }
    return gguf_generation(file, info.generation);
}

// Hugging Face directory

/// A side file's text, or empty when it is not there.
Expected<std::string> optional_file(const std::string& path) {
    auto text = read_file(path, limits::kModelStringBytesMax);
    if (!text && text.error().code == ErrorCode::kNotFound) return std::string();
    return text;
}

Expected<Json> optional_object(const std::string& text, const char* name) {
    if (text.empty()) return Json::object();
    BATON_TRY_ASSIGN(Json json, parse_json(text, name));
    if (!json.is_object())
        return fail(ErrorCode::kCorrupt, std::string(name) + " is not an object");
    return json;
}

/// "bos_token" and the like: a string, or an object with "content".
std::string token_spelling(const Json& config, const char* key) {
    const Json* v = member(config, key);
    if (v != nullptr && v->is_object()) v = member(*v, "content");
    return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}

/// "chat_template": a string, or a list of named ones of which "default" is meant.
std::string template_of(const Json& config) {
    const Json* v = member(config, "chat_template");
    if (v == nullptr) return {};
    if (v->is_string()) return v->get<std::string>();
    if (!v->is_array()) return {};
    for (const Json& entry : *v) {
        const Json* name = member(entry, "name");
        const Json* source = member(entry, "template");
        if (name != nullptr && *name == "default" && source != nullptr && source->is_string()) {
            return source->get<std::string>();
        }
    }
    return {};
}

Expected<void> hf_generation(const Json& config, GenerationDefaults& g) {
    const auto number = [&](const char* key, std::optional<float>& out) -> Expected<void> {
        if (member(config, key) == nullptr) return {};
        BATON_TRY_ASSIGN(const double v, float_member(config, key));
        out = static_cast<float>(v);
        return {};
    };
    BATON_TRY(number("temperature", g.temperature));
    BATON_TRY(number("top_p", g.top_p));
    BATON_TRY(number("repetition_penalty", g.repetition_penalty));
    if (member(config, "top_k") != nullptr) {
        BATON_TRY_ASSIGN(const uint64_t k, uint_member(config, "top_k", INT32_MAX));
        g.top_k = static_cast<int32_t>(k);
    }
    return {};
}

/// What config.json says of the weights, where they are not there: "BF16".
std::string weight_type(const Json& config) {
    const Json* type = member(config, "torch_dtype");
    if (type == nullptr) type = member(config, "dtype");
    if (type == nullptr) return {};
    return *type == "bfloat16" ? "BF16" : *type == "float16" ? "F16" : *type == "float32" ? "F32" : "";
}

Expected<void> inspect_directory(const Source& source, ModelInfo& info,
                                 std::vector<std::string>& side_files) {
    auto tokenizer = read_file(source.dir + "/tokenizer.json", limits::kModelHeaderBytesMax);
    if (!tokenizer && tokenizer.error().code == ErrorCode::kNotFound) {
        return fail(ErrorCode::kUnsupported, "the model directory has no tokenizer.json");
    }
    if (!tokenizer) return fail(std::move(tokenizer).error());
    BATON_TRY_ASSIGN(info.tokenizer, text::Tokenizer::from_json(*tokenizer));
    BATON_TRY_ASSIGN(std::string tokenizer_config,
                     optional_file(source.dir + "/tokenizer_config.json"));
    BATON_TRY_ASSIGN(std::string generation_config,
                     optional_file(source.dir + "/generation_config.json"));
    BATON_TRY_ASSIGN(std::string jinja, optional_file(source.dir + "/chat_template.jinja"));
    BATON_TRY_ASSIGN(const Json tokens, optional_object(tokenizer_config, "tokenizer_config.json"));
    BATON_TRY_ASSIGN(const Json generation,
                     optional_object(generation_config, "generation_config.json"));
    BATON_TRY_ASSIGN(const Json config, parse_json(source.config, "config.json"));

    info.bos_token = token_spelling(tokens, "bos_token");
    info.eos_token = token_spelling(tokens, "eos_token");
    if (!info.bos_token.empty()) info.bos = info.tokenizer->find(info.bos_token);
    if (info.bos < 0) {
        const Json* id = member(config, "bos_token_id");
        if (id != nullptr && id->is_number_unsigned() && id->get<uint64_t>() < info.shape.vocab) {
            info.bos = id->get<TokenId>();
        }
    }
    if (!info.eos_token.empty()) add_eos(info, info.tokenizer->find(info.eos_token));
    if (info.quantization.empty()) info.quantization = weight_type(config);
    const Json* eos = member(generation, "eos_token_id");
    add_eos(info, eos != nullptr ? eos : member(config, "eos_token_id"));
    info.chat_template_source = jinja.empty() ? template_of(tokens) : jinja;
    BATON_TRY(hf_generation(generation, info.generation));
    side_files = {std::move(*tokenizer), std::move(tokenizer_config), std::move(generation_config),
                  std::move(jinja)};
    return {};
}

}  // namespace

Expected<ModelInfo> inspect_model(const std::string& path, Weights weights) {
    BATON_TRY_ASSIGN(const Source source, open_source(path, weights));
    if (weights == Weights::kChecked) BATON_TRY(source.plan(/*copy=*/false));
    ModelInfo info;
    info.architecture = source.spec.architecture;
    info.family = source.spec.family;
    info.shape = source.spec.shape;
    info.context_length = source.spec.shape.context;
    info.sliding_window = source.spec.sliding_window;
    info.format = source.is_gguf() ? "gguf" : "safetensors";
    count_weights(source, info);
    std::vector<std::string> side_files;
    BATON_TRY(source.is_gguf() ? inspect_gguf(source.files->ggufs.front(), info)
                               : inspect_directory(source, info, side_files));
    BATON_TRY(check_vocabulary(info));
    compile_template(info);
    info.identity = model_identity(source, side_files);
    return info;
}

}  // namespace baton::model
