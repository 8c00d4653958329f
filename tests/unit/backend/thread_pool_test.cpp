#include "backend/thread_pool.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace baton::backend::test {
namespace {

TEST(ThreadPool, RunsEachChunkOnceAndShowsWhatItWrote) {
    for (const uint32_t threads : {1u, 2u, 5u}) {
        ThreadPool pool(threads);
        EXPECT_EQ(pool.threads(), threads);
        for (uint32_t round = 0; round < 3000; ++round) {
            const uint32_t chunks = round % 37;
            std::vector<uint32_t> count(chunks, 0);
            bool called = false;
            pool.run(
                chunks,
                [&](uint32_t chunk, uint32_t thread) {
                    ASSERT_LT(thread, threads);
                    count[chunk] += chunk + 1;
                },
                [&] { called = true; });
            EXPECT_TRUE(called);
            for (uint32_t c = 0; c < chunks; ++c) ASSERT_EQ(count[c], c + 1);
        }
    }
}

TEST(ThreadPool, WakesWorkersThatSleep) {
    ThreadPool pool(3);
    for (int round = 0; round < 20; ++round) {
        // Longer than the spin: workers sleep meanwhile, and the caller sleeps while the last chunk
        // runs.
        const auto start = std::chrono::steady_clock::now();
        while (std::chrono::steady_clock::now() - start < std::chrono::microseconds(300)) {
        }
        std::atomic<uint32_t> sum{0};
        pool.run(64, [&](uint32_t chunk, uint32_t thread) {
            const auto t = std::chrono::steady_clock::now();
            while (thread != 0 &&
                   std::chrono::steady_clock::now() - t < std::chrono::microseconds(60)) {
            }
            sum.fetch_add(chunk);
        });
        EXPECT_EQ(sum.load(), 64u * 63 / 2);
    }
}

// The end of a pool falls into every moment of a worker's loop, also right after its last job.
TEST(ThreadPool, EndsWheneverItIsAskedTo) {
    std::atomic<uint32_t> sum{0};
    uint32_t expected = 0;
    for (uint32_t round = 0; round < 12000; ++round) {
        ThreadPool pool(2 + round % 3);
        for (uint32_t job = 0; job < round % 4; ++job) {
            pool.run(3, [&](uint32_t, uint32_t) { sum.fetch_add(1, std::memory_order_relaxed); });
            expected += 3;
        }
    }
    EXPECT_EQ(sum.load(), expected);
}

TEST(ThreadPool, ManyPoolsOnFewCoresGoOn) {
    std::vector<std::thread> callers;
    std::atomic<uint64_t> total{0};
    for (int p = 0; p < 4; ++p) {
        callers.emplace_back([&] {
            ThreadPool pool(3);
            for (int round = 0; round < 500; ++round)
                pool.run(
                    8, [&](uint32_t, uint32_t) { total.fetch_add(1, std::memory_order_relaxed); });
        });
    }
    for (auto& c : callers) c.join();
    EXPECT_EQ(total.load(), 4u * 500 * 8);
}

}  // namespace
}  // namespace baton::backend::test
