#include "openai/generation_fields.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "baton/openai/json.hpp"
#include "openai/constraint_fields.hpp"

namespace baton::openai {
namespace {

constexpr size_t kModelBytesMax = 256;

Expected<void> read_max_tokens(const Json& body, GenerationOptions& out, bool allow_no_tokens) {
    const int64_t low = allow_no_tokens ? 0 : 1;
    BATON_TRY_ASSIGN(const auto old_name, int_field(body, "max_tokens", low, INT64_MAX));
    BATON_TRY_ASSIGN(const auto new_name, int_field(body, "max_completion_tokens", low, INT64_MAX));
    out.max_tokens = new_name ? new_name : old_name;
    BATON_TRY_ASSIGN(const auto min_tokens, int_field(body, "min_tokens", 0, INT32_MAX));
    out.min_tokens = static_cast<uint32_t>(min_tokens.value_or(0));
    if (out.max_tokens && min_tokens.value_or(0) > *out.max_tokens) {
        return bad_field("min_tokens must be at most max_tokens, " +
                             std::to_string(*out.max_tokens) + ", not " +
                             std::to_string(*min_tokens),
                         "min_tokens");
    }
    return {};
}

Expected<void> read_sampling(const Json& body, GenerationOptions& out) {
    constexpr NumberRange kPenalty{-2, 2, "a number within -2..2"};
    BATON_TRY_ASSIGN(out.temperature,
                     number_field(body, "temperature", {0, 2, "a number within 0..2"}));
    BATON_TRY_ASSIGN(out.top_p, number_field(body, "top_p", {0, 1, "a number within 0..1"}));
    BATON_TRY_ASSIGN(out.min_p, number_field(body, "min_p", {0, 1, "a number within 0..1"}));
    BATON_TRY_ASSIGN(out.top_k, int_field(body, "top_k", -1, INT32_MAX));
    BATON_TRY_ASSIGN(out.presence_penalty, number_field(body, "presence_penalty", kPenalty));
    BATON_TRY_ASSIGN(out.frequency_penalty, number_field(body, "frequency_penalty", kPenalty));
    BATON_TRY_ASSIGN(out.repetition_penalty,
                     number_field(body, "repetition_penalty",
                                  {0, 1e30, "a finite number greater than 0", true}));
    BATON_TRY_ASSIGN(out.seed, int_field(body, "seed", INT64_MIN, INT64_MAX));
    if (out.seed == -1) out.seed.reset();
    return {};
}

Expected<void> read_counts(const Json& body, const ParseOptions& options, GenerationOptions& out) {
    BATON_TRY_ASSIGN(const auto n, int_field(body, "n", 1, static_cast<int64_t>(options.n_max)));
    out.n = static_cast<uint32_t>(n.value_or(1));
    BATON_TRY_ASSIGN(const auto best_of, int_field(body, "best_of", 1, INT32_MAX));
    if (best_of && *best_of != out.n)
        return bad_field(
            "best_of must be " + std::to_string(out.n) + " (n), not " + std::to_string(*best_of),
            "best_of");
    return {};
}

Expected<void> read_stop(const Json& body, GenerationOptions& out) {
    const Json* stop = find(body, "stop");
    if (stop == nullptr) return {};
    const auto add = [&](const Json& item) {
        if (!item.is_string()) return false;
        out.stop.push_back(item.get<std::string>());
        return !out.stop.back().empty() && out.stop.back().size() <= limits::kStopStringBytesMax;
    };
    const auto bad = [&] {
        return bad_field(
            "stop must be a non-empty string or an array of up to " +
                std::to_string(limits::kStopStringsMax) + " of them, each of at most " +
                std::to_string(limits::kStopStringBytesMax) + " bytes, not " + shown(*stop),
            "stop");
    };
    if (stop->is_array()) {
        if (stop->size() > limits::kStopStringsMax) return bad();
        return std::all_of(stop->begin(), stop->end(), add) ? Expected<void>() : bad();
    }
    return add(*stop) ? Expected<void>() : bad();
}

Expected<void> read_stop_token_ids(const Json& body, GenerationOptions& out) {
    const Json* ids = find(body, "stop_token_ids");
    if (ids == nullptr) return {};
    const auto bad = [&] {
        return bad_field("stop_token_ids must be an array of up to " +
                             std::to_string(limits::kStopTokenIdsMax) + " token ids, not " +
                             shown(*ids),
                         "stop_token_ids");
    };
    if (!ids->is_array() || ids->size() > limits::kStopTokenIdsMax) return bad();
    for (const Json& item : *ids) {
        const auto id = exact_int(item);
        if (!id || *id < 0 || *id > INT32_MAX) return bad();
        out.stop_token_ids.push_back(static_cast<TokenId>(*id));
    }
    return {};
}

Expected<void> read_logit_bias(const Json& body, GenerationOptions& out) {
    const Json* bias = find(body, "logit_bias");
    if (bias == nullptr) return {};
    const auto bad = [](std::string message) {
        return bad_field(std::move(message), "logit_bias");
    };
    if (!bias->is_object())
        return bad("logit_bias must be an object of token ids and biases, not " + shown(*bias));
    if (bias->size() > limits::kLogitBiasMax)
        return bad("logit_bias has " + std::to_string(bias->size()) + " entries; at most " +
                   std::to_string(limits::kLogitBiasMax) + " are allowed");
    for (const auto& [key, value] : bias->get_ref<const Json::object_t&>()) {
        TokenId id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        const bool canonical =
            error == std::errc{} && end == key.data() + key.size() && std::to_string(id) == key;
        if (!canonical || id < 0)
            return bad("the keys of logit_bias must be token ids, not " + shown(Json(key)));
        if (!value.is_number())
            return bad("the values of logit_bias must be numbers within -100..100, not " +
                       shown(value));
        out.logit_bias.emplace_back(
            id, static_cast<float>(std::clamp(value.get<double>(), -100.0, 100.0)));
    }
    return {};
}

Expected<void> read_logprobs(const Json& body, Route route, GenerationOptions& out) {
    constexpr int64_t kMax = limits::kTopLogprobsMax;
    if (route == Route::kCompletions) {
        BATON_TRY_ASSIGN(const auto count, int_field(body, "logprobs", 0, kMax));
        out.top_logprobs = static_cast<int32_t>(count.value_or(-1));
        return {};
    }
    BATON_TRY_ASSIGN(const auto wanted, bool_field(body, "logprobs"));
    BATON_TRY_ASSIGN(const auto count, int_field(body, "top_logprobs", 0, kMax));
    if (count && !wanted.value_or(false))
        return bad_field("top_logprobs needs logprobs to be true", "top_logprobs");
    if (wanted.value_or(false)) out.top_logprobs = static_cast<int32_t>(count.value_or(0));
    return {};
}

Expected<void> read_prompt_logprobs(const Json& body, GenerationOptions& out) {
    BATON_TRY_ASSIGN(const auto count, int_field(body, "prompt_logprobs", 0,
                                                 static_cast<int64_t>(limits::kTopLogprobsMax)));
    if (count && out.stream)
        return bad_field("prompt_logprobs needs stream to be false", "prompt_logprobs");
    out.prompt_logprobs = static_cast<int32_t>(count.value_or(-1));
    return {};
}

Expected<void> read_stream(const Json& body, GenerationOptions& out) {
    BATON_TRY_ASSIGN(const auto stream, bool_field(body, "stream"));
    out.stream = stream.value_or(false);
    const Json* options = find(body, "stream_options");
    if (options == nullptr) return {};
    if (!options->is_object())
        return bad_field("stream_options must be an object", "stream_options");
    if (!out.stream) return bad_field("stream_options needs stream to be true", "stream_options");
    const auto flag = [&](const char* name) -> Expected<bool> {
        auto value = bool_field(*options, name);
        if (!value) return bad_field(value.error().message, "stream_options");
        return value->value_or(false);
    };
    BATON_TRY_ASSIGN(out.include_usage, flag("include_usage"));
    BATON_TRY_ASSIGN(const bool continuous, flag("continuous_usage_stats"));
    out.continuous_usage = continuous && out.include_usage;
    return {};
}

Expected<void> read_request_id(const Json& body, const ParseOptions& options,
                               GenerationOptions& out) {
    BATON_TRY_ASSIGN(auto id, string_field(body, "request_id"));
    const bool in_body = id.has_value();
    out.request_id = id.value_or(options.header_request_id);
    if ((in_body || !out.request_id.empty()) &&
        !is_plain_name(out.request_id, limits::kRequestIdBytesMax)) {
        return bad_field("request_id must be 1 to " + std::to_string(limits::kRequestIdBytesMax) +
                             " printable ASCII characters",
                         in_body ? "request_id" : "X-Request-Id");
    }
    return {};
}

Expected<void> check_modalities(const Json& body) {
    const Json* modalities = find(body, "modalities");
    if (modalities == nullptr) return {};
    const bool text_only = modalities->is_array() &&
                           std::all_of(modalities->begin(), modalities->end(),
                                       [](const Json& item) { return item == "text"; });
    if (text_only) return {};
    return bad_field("modalities must be [\"text\"], not " + shown(*modalities), "modalities");
}

// Each of these changes the answer: ignoring it would be a lie.
constexpr std::array<std::pair<const char*, const char*>, 9> kNotBuilt = {{
    {"prompt_embeds", "prompt embeddings are not supported"},
    {"cache_salt", "salted prompts (cache_salt) are not supported"},
    {"suffix", "suffix is not supported"},
    {"chat_template", "a chat template in the request is not allowed"},
    {"functions", "functions is not supported; use tools"},
    {"function_call", "function_call is not supported; use tool_choice"},
    {"guided_whitespace_pattern", "guided_whitespace_pattern is not supported"},
    {"audio", "audio output is not supported"},
    {"lora_name", "LoRA adapters (lora_name) are not supported"},
}};
constexpr std::array<std::string_view, 5> kInternal = {"kv_transfer_params", "bootstrap_host",
                                                       "bootstrap_port", "bootstrap_room",
                                                       "data_parallel_rank"};
constexpr std::array<std::string_view, 71> kKnown = {"model",
                                                     "messages",
                                                     "prompt",
                                                     "max_tokens",
                                                     "max_completion_tokens",
                                                     "min_tokens",
                                                     "temperature",
                                                     "top_p",
                                                     "top_k",
                                                     "min_p",
                                                     "presence_penalty",
                                                     "frequency_penalty",
                                                     "repetition_penalty",
                                                     "seed",
                                                     "n",
                                                     "best_of",
                                                     "stop",
                                                     "stop_token_ids",
                                                     "include_stop_str_in_output",
                                                     "ignore_eos",
                                                     "skip_special_tokens",
                                                     "spaces_between_special_tokens",
                                                     "logit_bias",
                                                     "logprobs",
                                                     "top_logprobs",
                                                     "echo",
                                                     "add_special_tokens",
                                                     "timings",
                                                     "suffix",
                                                     "stream",
                                                     "stream_options",
                                                     "response_format",
                                                     "tools",
                                                     "tool_choice",
                                                     "parallel_tool_calls",
                                                     "chat_template_kwargs",
                                                     "enable_thinking",
                                                     "reasoning_effort",
                                                     "chat_template",
                                                     "add_generation_prompt",
                                                     "continue_final_message",
                                                     "prompt_logprobs",
                                                     "prompt_embeds",
                                                     "cache_salt",
                                                     "user",
                                                     "metadata",
                                                     "store",
                                                     "service_tier",
                                                     "safety_identifier",
                                                     "prompt_cache_key",
                                                     "verbosity",
                                                     "request_id",
                                                     "extra_body",
                                                     "guided_json",
                                                     "guided_regex",
                                                     "guided_choice",
                                                     "guided_grammar",
                                                     "guided_json_object",
                                                     "guided_decoding_backend",
                                                     "guided_whitespace_pattern",
                                                     "structured_outputs",
                                                     "functions",
                                                     "function_call",
                                                     "audio",
                                                     "lora_name",
                                                     "modalities",
                                                     "prediction",
                                                     "include_reasoning",
                                                     "use_beam_search",
                                                     "length_penalty",
                                                     "priority"};

bool is_set(const Json* value) {
    return value != nullptr && !(value->is_boolean() && !value->get<bool>()) &&
           !(value->is_string() && value->get_ref<const std::string&>().empty());
}

Expected<void> refuse_not_built(const Json& object) {
    for (const auto& [name, message] : kNotBuilt) {
        if (is_set(find(object, name))) return fail(ErrorCode::kUnsupported, message, name);
    }
    if (is_set(find(object, "use_beam_search"))) {
        return fail(ErrorCode::kUnsupported, "beam search is not supported", "use_beam_search");
    }
    return {};
}

Expected<void> refuse_internal(const Json& object) {
    for (const auto& [name, value] : object.get_ref<const Json::object_t&>()) {
        if (std::find(kInternal.begin(), kInternal.end(), name) != kInternal.end() ||
            name.starts_with("bootstrap_"))
            return bad_field(echo_input(name) + " is internal and not accepted from clients",
                             echo_input(name));
    }
    return {};
}

}  // namespace

bool is_plain_name(std::string_view text, size_t bytes_max) {
    return !text.empty() && text.size() <= bytes_max &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

Expected<std::string> read_model(const Json& body, const ParseOptions& options) {
    BATON_TRY_ASSIGN(auto model, string_field(body, "model"));
    if (!model && !options.default_model.empty()) return options.default_model;
    if (!model || model->empty()) return bad_field("the model is missing", "model");
    if (model->size() > kModelBytesMax || model->find('\0') != std::string::npos) {
        return bad_field("the model's name is malformed", "model");
    }
    return std::move(*model);
}

Expected<GenerationOptions> read_generation(const Json& body, const ParseOptions& options,
                                            Route route, bool allow_no_tokens) {
    GenerationOptions out;
    BATON_TRY(read_max_tokens(body, out, allow_no_tokens));
    BATON_TRY(read_sampling(body, out));
    BATON_TRY(read_counts(body, options, out));
    BATON_TRY(read_stop(body, out));
    BATON_TRY(read_stop_token_ids(body, out));
    BATON_TRY(read_logit_bias(body, out));
    BATON_TRY(read_logprobs(body, route, out));
    BATON_TRY(read_stream(body, out));
    BATON_TRY(read_prompt_logprobs(body, out));
    BATON_TRY_ASSIGN(out.constraint, read_constraint(body));
    BATON_TRY(read_request_id(body, options, out));
    BATON_TRY_ASSIGN(const auto include_stop, bool_field(body, "include_stop_str_in_output"));
    BATON_TRY_ASSIGN(const auto ignore_eos, bool_field(body, "ignore_eos"));
    BATON_TRY_ASSIGN(const auto skip_special, bool_field(body, "skip_special_tokens"));
    BATON_TRY_ASSIGN(const auto timings, bool_field(body, "timings"));
    BATON_TRY(bool_field(body, "spaces_between_special_tokens"));
    BATON_TRY(check_modalities(body));
    out.timings = timings.value_or(false);
    out.include_stop_str_in_output = include_stop.value_or(false);
    out.ignore_eos = ignore_eos.value_or(false);
    out.skip_special_tokens = skip_special.value_or(true);
    // Both would have the answer go on where it has to end.
    if (out.constraint.kind != wire::ConstraintKind::kNone && out.ignore_eos)
        return bad_field("ignore_eos does not go with a constraint on the answer", "ignore_eos");
    if (out.constraint.kind != wire::ConstraintKind::kNone && out.min_tokens > 0)
        return bad_field("min_tokens does not go with a constraint on the answer", "min_tokens");
    return out;
}

Expected<void> refuse_unsupported(const Json& body, const ParseOptions& options, Route route) {
    BATON_TRY(refuse_internal(body));
    for (const auto& [name, value] : body.get_ref<const Json::object_t&>()) {
        if (options.strict_fields &&
            std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
            return bad_field("unrecognized request argument: " + echo_input(name),
                             echo_input(name));
        }
    }
    BATON_TRY(refuse_not_built(body));
    const Json* extra = find(body, "extra_body");
    if (extra != nullptr) {
        if (!extra->is_object()) return bad_field("extra_body must be an object", "extra_body");
        BATON_TRY(refuse_not_built(*extra));
        BATON_TRY(refuse_internal(*extra));
    }
    if (route == Route::kCompletions && is_set(find(body, "tools"))) {
        return bad_field("tools belong to chat completions", "tools");
    }
    return {};
}

}  // namespace baton::openai
