#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baton/base/ids.hpp"
#include "baton/wire/messages.hpp"

/// The simulated model: each KV row is a digest of all rows before it and of its token, and the next token is a digest of
/// all rows that the block table really holds. A wrong, stale or missing row anywhere gives another token.
namespace baton::pd::sim {

inline constexpr uint32_t kVocabulary = 30'000;

[[nodiscard]] uint64_t mix(uint64_t a, uint64_t b);

/// Runs tokens one by one after the rows in `state`.
struct ModelState {
    uint64_t rows = 0x5eed;  ///< digest of the rows so far
    uint32_t position = 0;
    /// Takes an existing row.
    void read(uint64_t row);
    /// Computes the row of the next token.
    [[nodiscard]] uint64_t compute(TokenId token);
    [[nodiscard]] TokenId next_token() const;
};

/// The KV rows of a sequence as an undisturbed model computes them.
[[nodiscard]] std::vector<uint64_t> rows_of(std::span<const TokenId> tokens);

/// What an undisturbed run of a sequence emits.
struct Expectation {
    std::vector<TokenId> tokens;
    wire::Finish finish = wire::Finish::kNone;
};
[[nodiscard]] Expectation expect(const wire::Sequence& sequence, uint32_t max_model_len);

}  // namespace baton::pd::sim
