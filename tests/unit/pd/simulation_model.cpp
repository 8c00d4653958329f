#include "simulation_model.hpp"

#include "baton/sched/sampler.hpp"

namespace baton::pd::sim {

uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = a ^ (b + 0x9e3779b97f4a7c15ULL + (a << 6) + (a >> 2));
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

void ModelState::read(uint64_t row) {
    rows = mix(rows, row);
    ++position;
}

uint64_t ModelState::compute(TokenId token) {
    const uint64_t row = mix(mix(rows, position), static_cast<uint64_t>(token));
    read(row);
    return row;
}

TokenId ModelState::next_token() const { return static_cast<TokenId>(mix(rows, 77) % kVocabulary); }

std::vector<uint64_t> rows_of(std::span<const TokenId> tokens) {
    ModelState state;
    std::vector<uint64_t> rows;
    rows.reserve(tokens.size());
    for (const TokenId t : tokens) rows.push_back(state.compute(t));
    return rows;
}

Expectation expect(const wire::Sequence& sequence, uint32_t max_model_len) {
    Expectation e;
    wire::Sequence s = sequence;
    ModelState state;
    for (const TokenId t : s.prompt) (void)state.compute(t);
    while (e.finish == wire::Finish::kNone) {
        const TokenId token = state.next_token();
        e.finish = sched::finish_after(s, token, max_model_len);
        s.emitted.push_back(token);
        (void)state.compute(token);
    }
    e.tokens = std::move(s.emitted);
    return e;
}

}  // namespace baton::pd::sim
