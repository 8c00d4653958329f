#include <algorithm>

#include "baton/base/digest.hpp"
#include "baton/openai/request.hpp"

namespace baton::openai {
namespace {

/// SplitMix64: spreads the seeds of one request's choices.
uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t seed_of(const GenerationOptions& options, uint32_t choice) {
    if (!options.seed) return random_u64();
    const auto seed = static_cast<uint64_t>(*options.seed);
    return choice == 0 ? seed : mix(seed ^ mix(choice));
}

Expected<void> check_id(TokenId id, uint32_t vocab_size, const char* param) {
    if (id >= 0 && static_cast<uint32_t>(id) < vocab_size) return {};
    return fail(ErrorCode::kInvalidArgument,
                "token id " + std::to_string(id) + " is out of vocabulary", param);
}

double pick(const std::optional<double>& asked, const std::optional<double>& of_model,
            double fallback) {
    return asked.value_or(of_model.value_or(fallback));
}

void resolve_distribution(const GenerationOptions& options, const ModelLimits& model,
                          wire::Sampling& out) {
    double temperature = pick(options.temperature, model.temperature, 1.0);
    double top_p = pick(options.top_p, model.top_p, 1.0);
    // top_p 0 keeps the best token only: greedy. Very low temperatures overflow the logits: raised
    // as vLLM does.
    if (top_p <= 0.0) {
        temperature = 0.0;
        top_p = 1.0;
    }
    if (temperature > 0.0) temperature = std::max(temperature, 0.01);
    out.temperature = static_cast<float>(temperature);
    out.top_p = static_cast<float>(std::clamp(top_p, 1e-6, 1.0));
    out.min_p = static_cast<float>(pick(options.min_p, model.min_p, 0.0));
    const int64_t top_k = options.top_k.value_or(model.top_k.value_or(0));
    out.top_k = top_k <= 0 || top_k >= model.vocab_size ? 0 : static_cast<int32_t>(top_k);
    out.presence_penalty = static_cast<float>(options.presence_penalty.value_or(0.0));
    out.frequency_penalty = static_cast<float>(options.frequency_penalty.value_or(0.0));
    const double repetition = pick(options.repetition_penalty, model.repetition_penalty, 1.0);
    out.repetition_penalty = static_cast<float>(std::clamp(repetition, 1e-6, 1e6));
}

}  // namespace

Expected<void> check_prompt_ids(const std::vector<TokenId>& ids, uint32_t vocab_size) {
    if (ids.empty())
        return fail(ErrorCode::kInvalidArgument, "the prompt must not be empty", "prompt");
    for (const TokenId id : ids) BATON_TRY(check_id(id, vocab_size, "prompt"));
    return {};
}

Expected<wire::Sampling> resolve(const GenerationOptions& options, const ModelLimits& model,
                                 size_t prompt_tokens, uint32_t choice) {
    if (prompt_tokens >= model.context_tokens) {
        return fail(ErrorCode::kContextTooLong,
                    "the prompt has " + std::to_string(prompt_tokens) +
                        " tokens, but this model's maximum context length is " +
                        std::to_string(model.context_tokens) + " tokens");
    }
    wire::Sampling out;
    resolve_distribution(options, model, out);
    out.seed = seed_of(options, choice);
    const auto room = static_cast<int64_t>(model.context_tokens - prompt_tokens);
    out.max_tokens = static_cast<uint32_t>(std::min(options.max_tokens.value_or(room), room));
    out.min_tokens = std::min(options.min_tokens, out.max_tokens);
    for (const TokenId id : options.stop_token_ids)
        BATON_TRY(check_id(id, model.vocab_size, "stop_token_ids"));
    for (const auto& [id, bias] : options.logit_bias)
        BATON_TRY(check_id(id, model.vocab_size, "logit_bias"));
    out.stop_ids = options.stop_token_ids;
    if (!options.ignore_eos)
        out.stop_ids.insert(out.stop_ids.end(), model.eos_ids.begin(), model.eos_ids.end());
    std::sort(out.stop_ids.begin(), out.stop_ids.end());
    out.stop_ids.erase(std::unique(out.stop_ids.begin(), out.stop_ids.end()), out.stop_ids.end());
    out.logit_bias = options.logit_bias;
    out.top_logprobs = options.top_logprobs;
    out.constraint = options.constraint;
    return out;
}

}  // namespace baton::openai
