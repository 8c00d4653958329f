#include "worker/weight_store.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <random>

namespace baton::worker {
namespace {

using wire::WeightsState;

constexpr uint64_t kBytes = 64 * 1024;
constexpr uint64_t kAnn = 1, kBob = 2, kCat = 3;

/// A store and what it sent to each owner. Owners fill as replicas do.
class WeightStoreTest : public ::testing::Test {
  protected:
    struct Sent {
        WeightsState state;
        UniqueFd fd;
    };
    WeightStoreTest() : WeightStoreTest(1 << 20) {}
    explicit WeightStoreTest(uint64_t bytes_max)
        : store_({bytes_max}, [this](uint64_t owner, const wire::WeightsGrant& g, int fd) {
              EXPECT_EQ(g.state == WeightsState::kNone, fd < 0);
              EXPECT_FALSE(sent_.contains(owner)) << "two answers to " << owner;
              sent_[owner] = {g.state, UniqueFd(fd < 0 ? -1 : ::dup(fd))};
          }) {}

    void open(uint64_t owner, const char* model = "m", uint64_t bytes = kBytes) {
        store_.open(now_, owner, {{ReplicaId{owner}, Epoch{1}}, "uid", sha256(model), bytes});
    }
    /// The answer to an owner since the last look.
    std::optional<WeightsState> answer(uint64_t owner) {
        const auto it = sent_.find(owner);
        if (it == sent_.end()) return std::nullopt;
        const WeightsState state = it->second.state;
        fds_[owner] = std::move(it->second.fd);
        sent_.erase(it);
        return state;
    }
    void write(uint64_t owner, char c) { ASSERT_EQ(::pwrite(fds_[owner].get(), &c, 1, 5000), 1); }
    char read(uint64_t owner) {
        char c = 0;
        EXPECT_EQ(::pread(fds_[owner].get(), &c, 1, 5000), 1);
        return c;
    }
    void seal(uint64_t owner) { ASSERT_EQ(::fcntl(fds_[owner].get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL), 0); }
    void fill(uint64_t owner, char c) {
        write(owner, c);
        seal(owner);
        store_.filled(now_, owner, true);
    }
    WeightStore::Counts counts() const { return store_.counts(); }

    TimeMs now_{1'000};
    std::map<uint64_t, Sent> sent_;
    std::map<uint64_t, UniqueFd> fds_;
    WeightStore store_;
};

TEST_F(WeightStoreTest, FirstFillsAndTheOthersWaitForIt) {
    open(kAnn);
    EXPECT_EQ(answer(kAnn), WeightsState::kFill);
    struct stat st {};
    ASSERT_EQ(::fstat(fds_[kAnn].get(), &st), 0);
    EXPECT_EQ(st.st_size, static_cast<off_t>(kBytes));
    EXPECT_EQ(::ftruncate(fds_[kAnn].get(), 0), -1) << "its size is sealed from the start";
    open(kBob);
    open(kCat);
    EXPECT_EQ(answer(kBob), std::nullopt);
    EXPECT_EQ(counts(), (WeightStore::Counts{1, 1, 0, 2}));
    fill(kAnn, 'a');
    EXPECT_EQ(answer(kAnn), std::nullopt) << "it has the file";
    EXPECT_EQ(answer(kBob), WeightsState::kReady);
    EXPECT_EQ(answer(kCat), WeightsState::kReady);
    EXPECT_EQ(read(kBob), 'a');
    EXPECT_EQ(counts(), (WeightStore::Counts{1, 0, 3, 0}));
}

TEST_F(WeightStoreTest, LaterOneGetsTheReadyFileAndCannotWriteIt) {
    open(kAnn);
    answer(kAnn);
    fill(kAnn, 'a');
    open(kBob);
    ASSERT_EQ(answer(kBob), WeightsState::kReady);
    EXPECT_EQ(read(kBob), 'a');
    const char c = 'b';
    EXPECT_EQ(::pwrite(fds_[kBob].get(), &c, 1, 0), -1);
    EXPECT_EQ(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds_[kBob].get(), 0), MAP_FAILED);
    EXPECT_EQ(::pwrite(fds_[kAnn].get(), &c, 1, 0), -1) << "nor can its filler";
}

TEST_F(WeightStoreTest, LostFillerIsReplacedInANewFile) {
    open(kAnn);
    answer(kAnn);
    write(kAnn, 'a');
    open(kBob);
    open(kCat);
    store_.gone(now_, kAnn);
    ASSERT_EQ(answer(kBob), WeightsState::kFill);
    EXPECT_EQ(read(kBob), '\0') << "nothing of the lost one's work is left";
    EXPECT_EQ(answer(kCat), std::nullopt);
    write(kAnn, 'x');  // it may live on, cut off
    fill(kBob, 'b');
    ASSERT_EQ(answer(kCat), WeightsState::kReady);
    EXPECT_EQ(read(kCat), 'b');
    store_.filled(now_, kAnn, true);  // on its way when the link closed
    EXPECT_EQ(counts(), (WeightStore::Counts{1, 0, 2, 0}));
}

TEST_F(WeightStoreTest, LostFillerWithNobodyWaitingLeavesNothing) {
    open(kAnn);
    answer(kAnn);
    store_.gone(now_, kAnn);
    EXPECT_EQ(counts(), WeightStore::Counts{});
    open(kBob);
    EXPECT_EQ(answer(kBob), WeightsState::kFill);
}

TEST_F(WeightStoreTest, FillerThatGivesUpIsReplacedAndMayAskAgain) {
    open(kAnn);
    answer(kAnn);
    open(kBob);
    store_.filled(now_, kAnn, false);
    EXPECT_EQ(answer(kBob), WeightsState::kFill);
    EXPECT_EQ(answer(kAnn), std::nullopt);
    open(kAnn);
    fill(kBob, 'b');
    EXPECT_EQ(answer(kAnn), WeightsState::kReady);
}

TEST_F(WeightStoreTest, FileThatIsNotSealedIsNotHandedOn) {
    open(kAnn);
    answer(kAnn);
    open(kBob);
    write(kAnn, 'a');
    store_.filled(now_, kAnn, true);
    ASSERT_EQ(answer(kBob), WeightsState::kFill);
    EXPECT_EQ(read(kBob), '\0');
}

TEST_F(WeightStoreTest, OneThatWaitsAndGoesIsForgotten) {
    open(kAnn);
    answer(kAnn);
    open(kBob);
    open(kCat);
    store_.gone(now_, kBob);
    store_.gone(now_, kAnn);
    EXPECT_EQ(answer(kBob), std::nullopt);
    EXPECT_EQ(answer(kCat), WeightsState::kFill);
    store_.gone(now_, kCat);
    EXPECT_EQ(counts(), WeightStore::Counts{});
}

TEST_F(WeightStoreTest, FillerThatTakesTooLongIsReplacedAndWhatItSaysLaterIsIgnored) {
    open(kAnn);
    answer(kAnn);
    open(kBob);
    now_ = now_ + (wire::weights_fill_ms(kBytes) - 1);
    store_.on_tick(now_);
    EXPECT_EQ(answer(kBob), std::nullopt);
    now_ = now_ + 1;
    store_.on_tick(now_);
    ASSERT_EQ(answer(kBob), WeightsState::kFill);
    fill(kAnn, 'a');
    EXPECT_EQ(counts(), (WeightStore::Counts{1, 1, 0, 0}));
    fill(kBob, 'b');
    store_.gone(now_, kAnn);
    EXPECT_EQ(counts(), (WeightStore::Counts{1, 0, 1, 0})) << "what it filled is its own affair";
    EXPECT_EQ(read(kAnn), 'a') << "and stays good for it";
}

TEST_F(WeightStoreTest, FileLivesUntilTheLastHolderGoes) {
    open(kAnn);
    answer(kAnn);
    fill(kAnn, 'a');
    open(kBob);
    answer(kBob);
    store_.gone(now_, kAnn);
    open(kCat);
    ASSERT_EQ(answer(kCat), WeightsState::kReady);
    EXPECT_EQ(read(kCat), 'a');
    store_.gone(now_, kBob);
    store_.gone(now_, kCat);
    store_.gone(now_, kCat);
    EXPECT_EQ(counts(), WeightStore::Counts{});
    open(kAnn);
    ASSERT_EQ(answer(kAnn), WeightsState::kFill);
    EXPECT_EQ(read(kAnn), '\0');
}

TEST_F(WeightStoreTest, ModelsDoNotMeet) {
    open(kAnn, "one");
    open(kBob, "two");
    EXPECT_EQ(answer(kAnn), WeightsState::kFill);
    EXPECT_EQ(answer(kBob), WeightsState::kFill);
    open(kCat, "two");
    fill(kAnn, 'a');
    EXPECT_EQ(answer(kCat), std::nullopt);
    fill(kBob, 'b');
    ASSERT_EQ(answer(kCat), WeightsState::kReady);
    EXPECT_EQ(read(kCat), 'b');
    EXPECT_EQ(counts(), (WeightStore::Counts{2, 0, 3, 0}));
}

TEST_F(WeightStoreTest, SizesThatCannotBeRightGetNothing) {
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, kBytes + 1, uint64_t{1} << 21, ~uint64_t{0}, uint64_t{1} << 63}) {
        open(kAnn, "m", bytes);
        EXPECT_EQ(answer(kAnn), WeightsState::kNone) << bytes;
    }
    EXPECT_EQ(counts(), WeightStore::Counts{});
    open(kAnn);
    answer(kAnn);
    open(kBob, "m", 2 * kBytes);
    EXPECT_EQ(answer(kBob), WeightsState::kNone) << "one key, two sizes";
    EXPECT_EQ(counts(), (WeightStore::Counts{1, 1, 0, 0}));
}

TEST_F(WeightStoreTest, SecondQuestionOfALinkAndWordsOutOfTurnAreIgnored) {
    store_.filled(now_, kAnn, true);
    open(kAnn);
    answer(kAnn);
    open(kAnn, "another");
    EXPECT_EQ(answer(kAnn), std::nullopt);
    open(kBob);
    store_.filled(now_, kBob, true);  // it waits, it does not fill
    EXPECT_EQ(counts(), (WeightStore::Counts{1, 1, 0, 1}));
    fill(kAnn, 'a');
    answer(kBob);
    store_.filled(now_, kBob, false);
    store_.filled(now_, kAnn, false);
    EXPECT_EQ(counts(), (WeightStore::Counts{1, 0, 2, 0}));
}

class WithoutSharing : public WeightStoreTest {
  protected:
    WithoutSharing() : WeightStoreTest(0) {}
};

TEST_F(WithoutSharing, EverybodyIsSentAway) {
    open(kAnn);
    EXPECT_EQ(answer(kAnn), WeightsState::kNone);
    EXPECT_EQ(counts(), WeightStore::Counts{});
}

/// Random orders of everything that can happen: who waits always gets an answer in the end, an image never has two fillers,
/// and nothing is left when all are gone.
TEST_F(WeightStoreTest, NobodyIsForgottenInAnyOrder) {
    std::mt19937_64 random(11);
    for (int round = 0; round < 300; ++round) {
        std::map<uint64_t, WeightsState> have;  // of open links; kNone: no answer yet
        uint64_t next = 1'000u * static_cast<uint64_t>(round + 1);
        const auto take = [&] {
            for (auto& [owner, state] : have)
                if (const auto a = answer(owner)) state = *a;
        };
        for (int step = 0; step < 60; ++step) {
            const uint64_t dice = random() % 10;
            auto some = have.begin();
            if (!have.empty()) std::advance(some, static_cast<ptrdiff_t>(random() % have.size()));
            if (have.empty() || dice < 4) {
                have[next] = WeightsState::kNone;
                open(next++, random() % 2 == 0 ? "one" : "two");
            } else if (dice < 7) {
                store_.gone(now_, some->first);
                sent_.erase(some->first);
                have.erase(some);
            } else if (some->second == WeightsState::kFill) {
                some->second = WeightsState::kReady;
                if (dice == 7) store_.filled(now_, some->first, false);
                else fill(some->first, 'x');
            } else if (dice == 9) {
                now_ = now_ + wire::weights_fill_ms(kBytes) / 2;
                store_.on_tick(now_);
            }
            take();
            const auto c = counts();
            ASSERT_LE(c.images, 2u);
            ASSERT_EQ(c.waiting, static_cast<size_t>(std::count_if(have.begin(), have.end(), [](const auto& h) { return h.second == WeightsState::kNone; })));
            ASSERT_TRUE(c.waiting == 0 || c.filling > 0) << "somebody waits for nobody";
        }
        for (const auto& [owner, state] : have) store_.gone(now_, owner);
        sent_.clear();
        fds_.clear();
        ASSERT_EQ(counts(), WeightStore::Counts{});
    }
}

}  // namespace
}  // namespace baton::worker
