#include "baton/engine/engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <thread>

#include "unit/engine/fake_device.hpp"

namespace baton::engine {
namespace {

using namespace fake;

constexpr uint32_t kBlocks = 64;
constexpr uint32_t kBlockTokens = 4;

std::vector<TokenId> ids(uint32_t n, TokenId first) {
    std::vector<TokenId> out(n);
    for (uint32_t i = 0; i < n; ++i) out[i] = (first + static_cast<TokenId>(i)) % static_cast<TokenId>(kVocabulary);
    return out;
}

/// An engine over a fake device or CPU, and what it told the supervisor.
class Rig {
  public:
    explicit Rig(bool device, Role role = Role::kHybrid, int64_t spin_us = 0, uint32_t running = 8) {
        auto words = xavier::SharedPool::create_words(layout(kBlocks, kBlockTokens), 8);
        EXPECT_TRUE(words) << words.error().message;
        words_ = std::move(*words);
        Engine::Options options;
        options.core.self = ReplicaId{1};
        options.core.epoch = Epoch{1};
        options.core.role = role;
        options.core.block_tokens = kBlockTokens;
        options.core.blocks = kBlocks;
        options.core.max_model_len = 100;
        options.core.max_running = running;
        options.core.step_tokens = 2 * running;
        options.core.progress_slots = 8;
        options.stats_every_ms = 1;
        options.spin_us = spin_us;
        Engine::Callbacks callbacks;
        callbacks.act = [this](pd::Action action) { take(std::move(action)); };
        callbacks.stats = [](const wire::ReplicaStats&) {};
        callbacks.tokens_near = [this](int64_t until_us) {
            EXPECT_GT(until_us, 0);
            control.set([&] { near_at.push_back(control.collected); });
        };
        callbacks.failed = [this](const Error& e) {
            const std::lock_guard lock(mutex_);
            device_errors_.push_back(e.message);
        };
        engine_ = device ? Engine::start(options, std::make_unique<Device>(control, kBlocks, kBlockTokens, running), *words_, callbacks)
                         : Engine::start(options, std::make_unique<Cpu>(kBlocks, kBlockTokens, cpu_fail_at), *words_, callbacks);
    }
    ~Rig() {
        control.release();
        engine_.reset();
        EXPECT_EQ(control.wrong, std::vector<std::string>{});
    }

    void tell(wire::Message m) {
        engine_->post([m = std::move(m)](pd::ReplicaCore& core, TimeMs now) { core.on_supervisor(now, m); });
    }
    void run(const wire::Sequence& s) { tell(wire::Run{s}); }
    /// Runs on the engine thread, whatever the device does.
    wire::ReplicaStats stats() {
        std::promise<wire::ReplicaStats> promise;
        engine_->post([&](pd::ReplicaCore& core, TimeMs) { promise.set_value(core.stats()); });
        auto future = promise.get_future();
        const bool answered = future.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
        EXPECT_TRUE(answered);
        return answered ? future.get() : wire::ReplicaStats{};
    }
    bool wait_ended(uint64_t id) {
        return wait([&] { return ended_.count(id) != 0; });
    }
    bool wait_idle() {
        for (int i = 0; i < 20'000; ++i) {
            const auto s = stats();
            if (s.running + s.waiting + s.blocks_used == 0) return true;
            std::this_thread::yield();
        }
        return false;
    }
    std::vector<TokenId> tokens(uint64_t id) {
        const std::lock_guard lock(mutex_);
        return tokens_[id];
    }
    std::string failure(uint64_t id) {
        const std::lock_guard lock(mutex_);
        return failures_[id];
    }
    size_t batches() {
        const std::lock_guard lock(mutex_);
        return batches_;
    }
    std::vector<std::string> device_errors() {
        const std::lock_guard lock(mutex_);
        return device_errors_;
    }
    std::vector<wire::Message> to_peers() {
        const std::lock_guard lock(mutex_);
        return to_peers_;
    }

    Control control;
    std::vector<uint32_t> near_at;  ///< steps collected when it was told that tokens are near; guarded by the control's mutex
    std::atomic<uint32_t> cpu_fail_at{UINT32_MAX};
    std::unique_ptr<xavier::SharedPool> words_;
    std::unique_ptr<Engine> engine_;

  private:
    template <class Condition>
    bool wait(Condition condition) {
        std::unique_lock lock(mutex_);
        return told_.wait_for(lock, std::chrono::seconds(20), condition);
    }
    void take(pd::Action action) {
        const std::lock_guard lock(mutex_);
        if (auto* peer = std::get_if<pd::ToPeer>(&action)) to_peers_.push_back(peer->message);
        const auto* m = std::get_if<pd::ToSupervisor>(&action);
        if (!m) return;
        if (const auto* batch = std::get_if<wire::TokenBatch>(&m->message)) {
            ++batches_;
            for (const auto& item : batch->items) {
                auto& mine = tokens_[item.ref.id.value];
                EXPECT_EQ(item.first_index, mine.size());
                for (const auto& t : item.tokens) mine.push_back(t.id);
                if (item.finish != wire::Finish::kNone) ended_[item.ref.id.value] = true;
            }
        } else if (const auto* failed = std::get_if<wire::SequenceFailed>(&m->message)) {
            failures_[failed->ref.id.value] = failed->reason;
            ended_[failed->ref.id.value] = true;
        }
        told_.notify_all();
    }

    std::mutex mutex_;
    std::condition_variable told_;
    std::map<uint64_t, std::vector<TokenId>> tokens_;
    std::map<uint64_t, std::string> failures_;
    std::map<uint64_t, bool> ended_;
    std::vector<wire::Message> to_peers_;
    std::vector<std::string> device_errors_;
    size_t batches_ = 0;
};

class BothKinds : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Engine, BothKinds, testing::Bool(),
                         [](const auto& kind) { return std::string(kind.param ? "Device" : "Cpu"); });

TEST_P(BothKinds, ManySequencesGetTheModelsAnswers) {
    Rig r(GetParam());
    for (uint64_t id = 1; id <= 20; ++id)
        r.run(sequence(id, ids(1 + static_cast<uint32_t>(id * 7 % 30), static_cast<TokenId>(id * 40)), 1 + static_cast<uint32_t>(id % 13)));
    for (uint64_t id = 1; id <= 20; ++id) {
        ASSERT_TRUE(r.wait_ended(id)) << id;
        EXPECT_EQ(r.tokens(id), expected(ids(1 + static_cast<uint32_t>(id * 7 % 30), static_cast<TokenId>(id * 40)), 1 + id % 13));
    }
    EXPECT_TRUE(r.wait_idle());
    if (GetParam()) {
        EXPECT_EQ(r.control.most_under_way, 2u);
        EXPECT_GT(r.control.pending_rows, 50u);
    }
}

TEST_P(BothKinds, AStopTokenEndsASequence) {
    Rig r(GetParam());
    auto s = sequence(1, ids(9, 5), 50);
    s.sampling.stop_ids = {expected(s.prompt, 6)[5]};
    r.run(s);
    ASSERT_TRUE(r.wait_ended(1));
    EXPECT_TRUE(r.wait_idle());
    EXPECT_EQ(r.tokens(1).back(), s.sampling.stop_ids[0]);
    EXPECT_LE(r.tokens(1).size(), 6u);
}

/// How long the engine thread looks without a pause.
class Waiting : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Engine, Waiting, testing::Values(0, 300, 1'000'000),
                         [](const auto& spin) { return "Spin" + std::to_string(spin.param); });

TEST_P(Waiting, SubmitsTheNextStepWhileOneRuns) {
    Rig r(true, Role::kHybrid, GetParam());
    r.control.hold();
    r.run(sequence(1, ids(5, 0), 9));
    ASSERT_TRUE(r.control.wait_until([&] { return r.control.submitted == 2; }));
    (void)r.stats();
    EXPECT_EQ(r.control.submitted, 2u) << "two steps, no more";
    EXPECT_EQ(r.batches(), 0u);
    for (uint32_t step = 1; step <= 4; ++step) {
        r.control.let(1);
        ASSERT_TRUE(r.control.wait_until([&] { return r.control.submitted == 2 + step; }));
        EXPECT_EQ(r.tokens(1).size(), step) << "a step's tokens leave before the next is planned";
    }
    r.control.release();
    ASSERT_TRUE(r.wait_ended(1));
    EXPECT_EQ(r.tokens(1), expected(ids(5, 0), 9));
    EXPECT_EQ(r.batches(), 9u);
}

TEST_P(Waiting, ListensWhileTheDeviceWorks) {
    Rig r(true, Role::kHybrid, GetParam());
    r.control.hold();
    r.run(sequence(1, ids(5, 0), 9));
    ASSERT_TRUE(r.control.wait_until([&] { return r.control.submitted == 2; }));
    EXPECT_EQ(r.stats().running, 1u);
    r.tell(wire::Abort{{SequenceId{1}, 1}});
    const auto s = r.stats();
    EXPECT_EQ(s.running, 0u);
    EXPECT_GT(s.blocks_used, 0u) << "the device still writes there";
    r.run(sequence(2, ids(7, 100), 3));
    r.control.let(1);
    ASSERT_TRUE(r.control.wait_until([&] { return r.control.submitted == 3; }));
    r.control.release();
    ASSERT_TRUE(r.wait_ended(2));
    EXPECT_EQ(r.tokens(2), expected(ids(7, 100), 3));
    EXPECT_TRUE(r.tokens(1).empty());
    EXPECT_TRUE(r.wait_idle());
}

TEST(Engine, TellsThatTheTokensOfWideStepsAreNear) {
    constexpr uint32_t kWide = 32, kTokens = 6;
    Rig r(true, Role::kHybrid, 600'000'000, kWide);  // never naps
    r.control.hold();
    for (uint64_t id = 1; id <= kWide; ++id) r.run(sequence(id, ids(1, static_cast<TokenId>(id * 40)), kTokens));
    (void)r.stats();  // all are known: the third step has all of them
    for (uint32_t steps = 0; steps < 3; ++steps) {
        ASSERT_TRUE(r.control.wait_until([&] { return r.control.collected == steps; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(3));  // short steps are not announced
        r.control.let(1);
    }
    // The device holds the fourth until it was announced.
    ASSERT_TRUE(r.control.wait_until([&] { return r.control.collected == 3 && !r.near_at.empty() && r.near_at.back() == 3; }));
    ASSERT_TRUE(r.control.wait_until([&] { return !r.control.primed_at.empty() && r.control.primed_at.back() == 3; }));
    r.control.release();
    for (uint64_t id = 1; id <= kWide; ++id) {
        ASSERT_TRUE(r.wait_ended(id)) << id;
        EXPECT_EQ(r.tokens(id), expected(ids(1, static_cast<TokenId>(id * 40)), kTokens));
    }
    const std::lock_guard lock(r.control.mutex);
    EXPECT_EQ(std::ranges::adjacent_find(r.near_at), r.near_at.end()) << "at most once a step";
    EXPECT_EQ(std::ranges::adjacent_find(r.control.primed_at), r.control.primed_at.end()) << "at most once a step";
}

TEST(Engine, NarrowStepsAreNotAnnounced) {
    Rig r(true, Role::kHybrid, 600'000'000);
    r.control.hold();
    for (uint64_t id = 1; id <= 8; ++id) r.run(sequence(id, ids(1, static_cast<TokenId>(id * 40)), 6));
    for (uint32_t steps = 0; steps < 5; ++steps) {
        ASSERT_TRUE(r.control.wait_until([&] { return r.control.collected == steps; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        r.control.let(1);
    }
    r.control.release();
    for (uint64_t id = 1; id <= 8; ++id) ASSERT_TRUE(r.wait_ended(id)) << id;
    const std::lock_guard lock(r.control.mutex);
    EXPECT_TRUE(r.near_at.empty());
    EXPECT_TRUE(r.control.primed_at.empty());
}

TEST(Engine, WorkThatComesWhileOneStepRunsIsSubmittedAtOnce) {
    Rig r(true);
    r.control.hold();
    r.run(sequence(1, ids(5, 0), 1));  // one step in all: there is nothing to plan ahead
    ASSERT_TRUE(r.control.wait_until([&] { return r.control.submitted == 1; }));
    r.run(sequence(2, ids(5, 50), 1));
    EXPECT_TRUE(r.control.wait_until([&] { return r.control.submitted == 2; }));
    r.control.release();
    EXPECT_TRUE(r.wait_ended(1) && r.wait_ended(2));
}

TEST(Engine, AFailedSubmitFailsWhatRunsAndIsFinal) {
    for (const uint32_t at : {0u, 1u, 2u, 5u}) {
        Rig r(true);
        r.control.fail_submit_at = at;
        r.run(sequence(1, ids(5, 0), 20));
        ASSERT_TRUE(r.wait_ended(1));
        EXPECT_EQ(r.failure(1), "step_failed");
        EXPECT_TRUE(r.wait_idle());
        r.run(sequence(2, ids(5, 0), 20));
        ASSERT_TRUE(r.wait_ended(2));
        EXPECT_EQ(r.failure(2), "step_failed");
        EXPECT_EQ(r.device_errors(), std::vector<std::string>{"planted"});
        EXPECT_EQ(r.control.submitted, at + 1) << "a broken device is left alone";
        const auto given = r.tokens(1);
        const auto whole = expected(ids(5, 0), 20);
        EXPECT_TRUE(std::equal(given.begin(), given.end(), whole.begin()));
    }
}

TEST(Engine, AFailedCollectFailsWhatRunsAndIsFinal) {
    for (const uint32_t at : {0u, 1u, 4u}) {
        Rig r(true);
        r.control.fail_collect_at = at;
        r.run(sequence(1, ids(5, 0), 20));
        r.run(sequence(2, ids(5, 70), 20));
        ASSERT_TRUE(r.wait_ended(1) && r.wait_ended(2));
        EXPECT_EQ(r.failure(1), "step_failed");
        EXPECT_EQ(r.failure(2), "step_failed");
        EXPECT_TRUE(r.wait_idle());
        EXPECT_EQ(r.device_errors().size(), 1u);
    }
}

TEST(Engine, TooFewTokensAreADeviceError) {
    Rig r(true);
    r.control.forget_a_token_at = 2;
    r.run(sequence(1, ids(5, 0), 20));
    ASSERT_TRUE(r.wait_ended(1));
    EXPECT_EQ(r.failure(1), "step_failed");
    EXPECT_TRUE(r.wait_idle());
    EXPECT_EQ(r.device_errors(), std::vector<std::string>{"the device gave too few tokens"});
}

TEST(Engine, AFailedCpuStepFailsItsSequencesOnly) {
    Rig r(false);
    r.cpu_fail_at = 3;
    r.run(sequence(1, ids(5, 0), 20));
    ASSERT_TRUE(r.wait_ended(1));
    EXPECT_EQ(r.failure(1), "step_failed");
    r.run(sequence(2, ids(5, 0), 20));
    ASSERT_TRUE(r.wait_ended(2));
    EXPECT_EQ(r.tokens(2), expected(ids(5, 0), 20));
    EXPECT_TRUE(r.device_errors().empty());
}

TEST(Engine, StopsAfterTheStepsUnderWay) {
    Rig r(true);
    r.control.hold();
    r.run(sequence(1, ids(5, 0), 20));
    ASSERT_TRUE(r.control.wait_until([&] { return r.control.submitted == 2; }));
    std::thread stopper([&] { r.engine_->stop(); });
    EXPECT_TRUE(r.control.wait_until([&] { return r.control.waited_for; }));
    EXPECT_FALSE(r.control.destroyed);
    r.control.release();
    stopper.join();
    EXPECT_EQ(r.control.collected, 2u);
    EXPECT_EQ(r.control.submitted, 2u);
    EXPECT_TRUE(r.tokens(1).empty()) << "nobody is there to hear of them";
    r.engine_->post([](pd::ReplicaCore&, TimeMs) { ADD_FAILURE() << "posted after the end"; });
    r.engine_.reset();
    EXPECT_TRUE(r.control.destroyed);
}

TEST(Engine, StopsWhileIdle) {
    Rig r(true);
    EXPECT_EQ(r.stats().running, 0u);
    r.engine_->stop();
    r.engine_->stop();
}

TEST(Engine, PrefillStepsNameTheProgressWordOfTheirOffer) {
    Rig r(true, Role::kPrefill);
    const wire::ReplicaTarget decode{ReplicaId{2}, Epoch{1}};
    r.engine_->post([&](pd::ReplicaCore& core, TimeMs now) { core.on_peer_up(now, decode); });
    r.control.hold();
    r.tell(wire::Prefill{sequence(1, ids(40, 0), 9), decode});
    ASSERT_TRUE(r.control.wait_until([&] { return r.control.submitted == 2; }));
    r.control.release();
    for (int i = 0; i < 10'000 && r.tokens(1).empty(); ++i) (void)r.stats();
    EXPECT_EQ(r.tokens(1), expected(ids(40, 0), 1));
    const auto sent = r.to_peers();
    ASSERT_FALSE(sent.empty());
    const auto* offer = std::get_if<wire::Offer>(&sent[0]);
    ASSERT_NE(offer, nullptr);
    ASSERT_EQ(r.control.progress.size(), 3u);
    const uint32_t ends[] = {16, 32, 40};
    for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(r.control.progress[i], r.words_->progress_word(offer->progress_slot));
        EXPECT_EQ(r.control.progress_bases[i], xavier::progress_base(static_cast<uint32_t>(i * 16), ends[i]));
    }
    EXPECT_EQ(r.control.submitted, 3u) << "no row of a pending token";
}

}  // namespace
}  // namespace baton::engine
