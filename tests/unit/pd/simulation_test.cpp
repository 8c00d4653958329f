#include "simulation.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

// The proof of the hand-off protocol: thousands of random worlds, each with its faults, and planted bugs that must be
// found. BATON_SIM_SEEDS: how many seeds. BATON_SIM_SEED: replay one, with a trace on the standard output.
namespace baton::pd::sim {
namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
constexpr uint64_t kSeeds = 2'000;
#else
constexpr uint64_t kSeeds = 20'000;
#endif

struct Totals {
    Report sum;
    uint64_t failed_seeds = 0;
    void add(const Report& r) {
        sum.events += r.events;
        sum.simulated_ms += r.simulated_ms;
        sum.requests += r.requests;
        sum.refused += r.refused;
        sum.finished += r.finished;
        sum.failed += r.failed;
        sum.aborted += r.aborted;
        sum.timed_out += r.timed_out;
        sum.tokens += r.tokens;
        sum.pending_rows += r.pending_rows;
        sum.void_rows += r.void_rows;
        sum.handoffs += r.handoffs;
        sum.fallbacks += r.fallbacks;
        sum.failovers += r.failovers;
        sum.kills += r.kills;
        sum.snapshots_read += r.snapshots_read;
    }
};

/// Seeds first, first + 2, … : half of all.
void run_shard(uint64_t first) {
    if (std::getenv("BATON_SIM_SEED") != nullptr) GTEST_SKIP() << "one seed is replayed";
    const uint64_t seeds = number_from("BATON_SIM_SEEDS", kSeeds);
    Totals totals;
    for (uint64_t seed = first; seed < seeds; seed += 2) {
        const Report report = Simulation(seed, draw_world(seed), false).run();
        totals.add(report);
        if (report.failure.empty()) continue;
        ADD_FAILURE() << "seed " << seed << " " << report.failure << "\nreplay: BATON_SIM_SEED=" << seed;
        if (++totals.failed_seeds >= 20) break;
    }
    const Report& s = totals.sum;
    std::printf("%llu events, %llu s simulated, %u requests: %u finished, %u failed, %u refused, %u aborted, %u late; "
                "%llu tokens, %llu rows ahead, %llu void, %llu hand-offs, %llu fallbacks, %llu failovers, %llu kills, %llu snapshot reads\n",
                static_cast<unsigned long long>(s.events), static_cast<unsigned long long>(s.simulated_ms / 1000), s.requests,
                s.finished, s.failed, s.refused, s.aborted, s.timed_out, static_cast<unsigned long long>(s.tokens),
                static_cast<unsigned long long>(s.pending_rows), static_cast<unsigned long long>(s.void_rows),
                static_cast<unsigned long long>(s.handoffs), static_cast<unsigned long long>(s.fallbacks),
                static_cast<unsigned long long>(s.failovers), static_cast<unsigned long long>(s.kills),
                static_cast<unsigned long long>(s.snapshots_read));
}

TEST(Simulation, EvenSeedsHold) { run_shard(0); }
TEST(Simulation, OddSeedsHold) { run_shard(1); }

TEST(Simulation, OneSeedIsReplayed) {
    if (std::getenv("BATON_SIM_SEED") == nullptr) GTEST_SKIP() << "BATON_SIM_SEED is not set";
    const uint64_t seed = number_from("BATON_SIM_SEED", 0);
    const Report report = Simulation(seed, draw_world(seed), true).run();
    EXPECT_EQ(report.failure, "");
}

TEST(Simulation, OneSeedAlwaysRunsTheSame) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        const Report one = Simulation(seed, draw_world(seed), false).run();
        const Report two = Simulation(seed, draw_world(seed), false).run();
        EXPECT_EQ(one.events, two.events);
        EXPECT_EQ(one.simulated_ms, two.simulated_ms);
        EXPECT_EQ(one.tokens, two.tokens);
    }
}

/// A step ahead or not, the answers are the same.
TEST(Simulation, StepsAheadGiveTheSameAnswers) {
    uint64_t compared = 0, ahead = 0;
    for (uint64_t seed = 0; seed < 600; ++seed) {
        World world = draw_world(seed);
        if (!world.calm) continue;
        world.core.steps_ahead = 0;
        const Report plain = Simulation(seed, world, false).run();
        run_ahead(world, static_cast<int64_t>(seed % 7));
        const Report pipelined = Simulation(seed, world, false).run();
        ASSERT_EQ(plain.failure + pipelined.failure, "") << "seed " << seed;
        ASSERT_EQ(plain.answers, pipelined.answers) << "seed " << seed;
        ASSERT_EQ(plain.pending_rows, 0u);
        compared += plain.answers.size();
        ahead += pipelined.pending_rows;
    }
    EXPECT_GT(compared, 200u);
    EXPECT_GT(ahead, 1'000u);
}

/// The first seed that finds the planted bug.
std::string found_within(uint64_t seeds, ReplicaCore::Faults planted, bool ahead = false) {
    for (uint64_t seed = 0; seed < seeds; ++seed) {
        World world = draw_world(seed);
        world.planted = planted;
        if (ahead) run_ahead(world, 5);
        const Report report = Simulation(seed, world, false).run();
        if (!report.failure.empty()) return "seed " + std::to_string(seed) + " " + report.failure;
    }
    return {};
}

TEST(Simulation, FindsAGenerationThatIsNotRaised) {
    const std::string found = found_within(3'000, {.skip_generation_raise = true});
    EXPECT_NE(found, "");
    std::printf("%s\n", found.c_str());
}

TEST(Simulation, FindsALostRelease) {
    const std::string found = found_within(200, {.lose_release = true});
    EXPECT_NE(found, "");
    std::printf("%s\n", found.c_str());
}

TEST(Simulation, FindsBlocksThatAreFreedUnderAStep) {
    const std::string found = found_within(200, {.free_under_step = true}, true);
    EXPECT_NE(found, "");
    std::printf("%s\n", found.c_str());
}

TEST(Simulation, FindsADoubleGrant) {
    const std::string found = found_within(200, {.double_grant = true});
    EXPECT_NE(found, "");
    std::printf("%s\n", found.c_str());
}

}  // namespace
}  // namespace baton::pd::sim
