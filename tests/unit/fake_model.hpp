#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "baton/base/ids.hpp"
#include "baton/wire/messages.hpp"

/// A model whose next token is a function of all ids before it, for tests of what runs models.
namespace baton::fake_model {

inline constexpr uint32_t kVocabulary = 997;

/// The state after `token`; 0 before the first.
inline uint64_t mix(uint64_t state, TokenId token) {
    state = (state ^ static_cast<uint64_t>(static_cast<uint32_t>(token) + 1)) * 0x9E3779B97F4A7C15ull;
    return state ^ (state >> 29);
}
inline TokenId next_token(uint64_t state) { return static_cast<TokenId>(state % kVocabulary); }

/// Ids the model gives after `prompt`, `n` of them.
inline std::vector<TokenId> expected(const std::vector<TokenId>& prompt, size_t n) {
    uint64_t state = 0;
    for (const TokenId t : prompt) state = mix(state, t);
    std::vector<TokenId> out;
    while (out.size() < n) {
        out.push_back(next_token(state));
        state = mix(state, out.back());
    }
    return out;
}

/// A greedy sequence with a minute to go.
inline wire::Sequence sequence(uint64_t id, std::vector<TokenId> prompt, uint32_t max_tokens, uint32_t attempt = 1) {
    wire::Sequence s;
    s.ref = {SequenceId{id}, attempt};
    s.request_id = "r" + std::to_string(id);
    s.prompt = std::move(prompt);
    s.sampling.temperature = 0;
    s.sampling.max_tokens = max_tokens;
    s.time_left_ms = 60'000;
    return s;
}

}  // namespace baton::fake_model
