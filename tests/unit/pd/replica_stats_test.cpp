/// Figures for /metrics: each step, and each token's KV, is counted once.
#include <gtest/gtest.h>

#include <numeric>

#include "unit/pd/replica_core_rig.hpp"

namespace baton::pd {
namespace {

using namespace rig;

wire::Message run_of(uint64_t id, std::vector<TokenId> prompt, uint32_t tokens) {
    wire::Sequence s;
    s.ref.id = SequenceId{id};
    s.ref.attempt = 1;
    s.prompt = std::move(prompt);
    s.sampling.max_tokens = tokens;
    s.time_left_ms = 60'000;
    return wire::Run{s};
}

TEST(ReplicaStats, StepsAreCountedByTheirSequences) {
    Rig r(config(Role::kHybrid));
    uint64_t steps = 0, sequences = 0, rows = 0;
    std::vector<uint64_t> by_size(wire::kStepSizeBounds.size() + 1, 0);
    for (uint64_t id = 1; id <= 6; ++id) {
        r.supervise(run_of(id, ids(5 + static_cast<uint32_t>(id), static_cast<TokenId>(40 * id)), static_cast<uint32_t>(3 * id)));
        for (StepPlan p = r.plan(); !p.empty(); p = id < 6 ? StepPlan{} : r.plan()) {
            ++steps, sequences += p.items.size(), rows += p.tokens.size();
            size_t bucket = 0;
            while (bucket < wire::kStepSizeBounds.size() && p.items.size() > wire::kStepSizeBounds[bucket]) ++bucket;
            ++by_size[bucket];
            r.done(p);
        }
    }
    const wire::ReplicaStats s = r.core.stats();
    EXPECT_EQ(s.steps, steps);
    EXPECT_EQ(s.steps_by_size, by_size);
    EXPECT_EQ(s.step_sequences, sequences);
    EXPECT_EQ(s.step_rows, rows);
    EXPECT_GT(std::accumulate(by_size.begin() + 1, by_size.end(), uint64_t{0}), 0u) << "no step had more than one";
    EXPECT_EQ(s.prefill_tokens + s.generated_tokens, rows + 6) << "the last token of each is in no step";
}

TEST(ReplicaStats, StepsThatFailAreNotCounted) {
    Rig r(config(Role::kHybrid));
    r.supervise(run_of(1, ids(5), 3));
    const StepPlan p = r.plan();
    ASSERT_FALSE(p.empty());
    r.core.on_step_failed(r.now, p, "step_failed");
    r.pump();
    EXPECT_EQ(r.core.stats().steps, 0u);
    EXPECT_EQ(r.core.stats().step_sequences, 0u);
}

TEST(ReplicaStats, FoundAndComputedTokensAreThePrompt) {
    Rig r(config(Role::kHybrid));
    r.supervise(run_of(1, ids(22), 2));
    r.run_dry();
    EXPECT_EQ(r.core.stats().found_tokens, 0u);
    EXPECT_EQ(r.core.stats().prefill_tokens, 22u);
    r.supervise(run_of(2, ids(22), 2));
    r.run_dry();
    EXPECT_EQ(r.core.stats().found_tokens, 20u) << "five whole blocks";
    EXPECT_EQ(r.core.stats().prefill_tokens, 24u);
    EXPECT_EQ(r.core.stats().received_tokens, 0u);
}

TEST(ReplicaStats, AHandoffBringsWhatIsNotThere) {
    Rig r(config(Role::kDecode));
    r.link(kP);
    wire::Sequence s;
    s.ref.id = SequenceId{1};
    s.ref.attempt = 1;
    s.prompt = ids(22);
    s.sampling.max_tokens = 2;
    s.time_left_ms = 60'000;
    const auto take = [&](uint64_t id) {
        s.ref.id = SequenceId{id};
        r.peer(kP, offer(id, s));
        const StartPull& pull = r.pulls.back();
        uint64_t state = 0;
        for (uint32_t at = 0; at < pull.tokens; ++at) {
            state = mix(state, s.prompt[at]);
            if (at / kTokens >= pull.first_block) r.rows.at(size_t{pull.target_blocks.at(at / kTokens)} * kTokens + at % kTokens) = state;
        }
        r.pull_done(pull.pull, true);
        r.peer(kP, wire::Commit{OfferId{id}, {expected(s.prompt, 1)[0]}, {}});
        r.run_dry();
    };
    take(1);
    EXPECT_EQ(r.core.stats().received_tokens, 22u);
    EXPECT_EQ(r.core.stats().found_tokens, 0u);
    take(2);
    EXPECT_EQ(r.core.stats().received_tokens, 24u) << "the last block is not whole";
    EXPECT_EQ(r.core.stats().found_tokens, 20u);
    EXPECT_EQ(r.core.stats().prefill_tokens, 0u);
}

}  // namespace
}  // namespace baton::pd
