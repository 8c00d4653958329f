#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "xavier_harness.hpp"

namespace baton::xavier::test {
namespace {

using kv::PoolOrder;

UniqueFd copy_of(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

/// A decode replica linked with one prefill pool of the same process by shm.
struct Shm {
    Shm(const kv::PoolLayout& pl, const kv::PoolLayout& dl, uint32_t slots = 8)
        : p(make_pool(pl, slots)), d(make_pool(dl, slots)), thread(TransferThread::start(*d, reports.callbacks())) {
        const auto added = thread->add_source(kPrefill, pl, slots, copy_of(p->fd()), nullptr);
        EXPECT_TRUE(added.has_value()) << added.error().message;
    }
    std::unique_ptr<SharedPool> p, d;
    Reports reports;
    std::unique_ptr<TransferThread> thread;
};

/// Computes the sequence in random chunks, publishing after random layers.
void prefill(SharedPool& p, const Handoff& h, std::mt19937& rng) {
    uint32_t begin = 0;
    while (begin < h.open.tokens) {
        const uint32_t end = std::min(h.open.tokens, begin + 1 + static_cast<uint32_t>(rng() % 23));
        for (uint32_t layer = 0; layer < p.layout().layers; ++layer) {
            write_layer(p, h.open.blocks, h.sequence, layer, begin, end);
            if (rng() % 2 == 0 || layer + 1 == p.layout().layers) p.set_progress(h.open.slot, begin, end, layer + 1);
        }
        begin = end;
    }
}

class ShmOrders : public testing::TestWithParam<std::pair<PoolOrder, PoolOrder>> {};
INSTANTIATE_TEST_SUITE_P(Orders, ShmOrders,
                         testing::Values(std::pair{PoolOrder::kBlockFirst, PoolOrder::kBlockFirst},
                                         std::pair{PoolOrder::kBlockFirst, PoolOrder::kKvFirst},
                                         std::pair{PoolOrder::kKvFirst, PoolOrder::kBlockFirst},
                                         std::pair{PoolOrder::kKvFirst, PoolOrder::kKvFirst}));

TEST_P(ShmOrders, RandomInterleavingsArriveWhole) {
    std::mt19937 rng(42);
    Shm s(layout_of(GetParam().first, 64), layout_of(GetParam().second, 80));
    for (uint64_t id = 1; id <= 120; ++id) {
        const uint32_t tokens = 1 + static_cast<uint32_t>(rng() % 200);
        const uint32_t complete = tokens / 4;
        const uint32_t have = rng() % 3 == 0 && complete > 0 ? static_cast<uint32_t>(rng() % (complete + 1)) : 0;
        Handoff h = make_handoff(rng, *s.p, *s.d, id, static_cast<uint32_t>(id % 8), tokens, have);
        s.p->open_progress(h.open);
        const bool early = rng() % 2 == 0;
        if (early) s.thread->start_pull(h.pull);
        prefill(*s.p, h, rng);
        if (!early) s.thread->start_pull(h.pull);
        const auto r = s.reports.pull(id);
        ASSERT_TRUE(r.ok) << r.reason;
        EXPECT_EQ(r.mover, "shm");
        EXPECT_EQ(r.bytes, (h.open.blocks.size() - have) * s.p->layout().block_bytes());
        ASSERT_EQ(wrong_bytes(*s.d, h.pull.target_blocks, h.sequence, have * 4, tokens), 0u);
        s.p->close_progress({h.open.slot, h.open.offer});
    }
}

TEST(TransferShm, ManyPullsAtOnce) {
    std::mt19937 rng(7);
    constexpr uint32_t kPulls = 12;
    Shm s(layout_of(PoolOrder::kBlockFirst, 40 * kPulls, 8, 16, 32), layout_of(PoolOrder::kKvFirst, 40 * kPulls, 8, 16, 32), kPulls);
    std::vector<Handoff> all;
    const auto from = some_blocks(rng, 40 * kPulls, 40 * kPulls), to = some_blocks(rng, 40 * kPulls, 40 * kPulls);
    for (uint32_t i = 0; i < kPulls; ++i) {
        Handoff h = make_handoff(rng, *s.p, *s.d, i + 1, i, 40 * 16 - i, 0);
        std::copy_n(from.begin() + i * 40, 40, h.open.blocks.begin());
        h.pull.source_blocks = h.open.blocks;
        std::copy_n(to.begin() + i * 40, 40, h.pull.target_blocks.begin());
        s.p->open_progress(h.open);
        s.thread->start_pull(h.pull);
        all.push_back(std::move(h));
    }
    // The chunks of all sequences in turn, as an engine would.
    for (uint32_t begin = 0; begin < 640; begin += 64)
        for (const Handoff& h : all)
            for (uint32_t layer = 0; layer < 8; ++layer) {
                const uint32_t end = std::min(begin + 64, h.open.tokens);
                write_layer(*s.p, h.open.blocks, h.sequence, layer, begin, end);
                s.p->set_progress(h.open.slot, begin, end, layer + 1);
            }
    for (const Handoff& h : all) {
        const auto r = s.reports.pull(h.pull.pull);
        ASSERT_TRUE(r.ok) << r.reason;
        EXPECT_EQ(wrong_bytes(*s.d, h.pull.target_blocks, h.sequence, 0, h.open.tokens), 0u);
    }
}

TEST(TransferShm, WhatWasThereBeforeTheOfferIsCopied) {
    // A prefix hit on P, or a sequence offered again to another D: no progress is ever published for it.
    std::mt19937 rng(2);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64));
    for (const uint32_t done : {8u, 30u, 50u}) {
        Handoff h = make_handoff(rng, *s.p, *s.d, done, 0, 50, 0);
        for (uint32_t layer = 0; layer < 3; ++layer) write_layer(*s.p, h.open.blocks, h.sequence, layer, 0, done);
        h.open.done_tokens = done;
        s.p->open_progress(h.open);
        s.thread->start_pull(h.pull);
        for (uint32_t layer = 0; layer < 3 && done < 50; ++layer) {
            write_layer(*s.p, h.open.blocks, h.sequence, layer, done, 50);
            s.p->set_progress(0, done, 50, layer + 1);
        }
        ASSERT_TRUE(s.reports.pull(done).ok);
        EXPECT_EQ(wrong_bytes(*s.d, h.pull.target_blocks, h.sequence, 0, 50), 0u);
        s.p->close_progress({0, h.open.offer});
    }
}

TEST(TransferShm, NothingToPullIsDoneAtOnce) {
    std::mt19937 rng(1);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    Handoff h = make_handoff(rng, *s.p, *s.d, 1, 0, 16, 4);
    s.p->open_progress(h.open);
    s.thread->start_pull(h.pull);
    const auto r = s.reports.pull(1);
    EXPECT_TRUE(r.ok);
    EXPECT_EQ(r.bytes, 0u);
}

TEST(TransferShm, ReusedBlocksNeverPassForTheOffers) {
    // P's lease ends while D copies: P closes, raises the generation and writes another sequence into the blocks. Whatever
    // the moment, a pull that says ok has the right bytes.
    std::mt19937 rng(99);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64, 4, 16, 64), layout_of(PoolOrder::kKvFirst, 64, 4, 16, 64));
    int ok = 0, refused = 0;
    for (uint64_t id = 1; id <= 120; ++id) {
        Handoff h = make_handoff(rng, *s.p, *s.d, id, 0, 60 * 16, 0, static_cast<Generation>(id));
        s.p->open_progress(h.open);
        for (uint32_t layer = 0; layer < 4; ++layer) write_layer(*s.p, h.open.blocks, h.sequence, layer, 0, h.open.tokens);
        s.p->set_progress(0, 0, h.open.tokens, 4);
        // Always some that end before, and some that end after the pull.
        if (id % 8 == 0) s.p->close_progress({0, h.open.offer});
        s.thread->start_pull(h.pull);
        if (id % 8 == 1) s.reports.pull(id);
        const TimeMs begin = steady_now();
        const int64_t until_us = steady_now_us() + static_cast<int64_t>(rng() % 2'000);
        while (steady_now_us() < until_us) std::this_thread::yield();
        if (rng() % 4 != 0) s.p->close_progress({0, h.open.offer});
        for (const BlockId b : h.open.blocks) s.p->set_generation(b, static_cast<Generation>(id) + 1);
        for (uint32_t layer = 0; layer < 4; ++layer) write_layer(*s.p, h.open.blocks, h.sequence + 1, layer, 0, h.open.tokens);
        const auto r = s.reports.pull(id);
        EXPECT_LT(steady_now() - begin, 20'000);
        if (r.ok) {
            ++ok;
            ASSERT_EQ(wrong_bytes(*s.d, h.pull.target_blocks, h.sequence, 0, h.open.tokens), 0u);
        } else {
            ++refused;
            ASSERT_EQ(r.reason, "generation");
        }
        s.p->close_progress({0, h.open.offer});
    }
    EXPECT_GT(ok, 0);
    EXPECT_GT(refused, 0);
}

TEST(TransferShm, RaisedGenerationFailsThePull) {
    // A block was reused although the offer is open (a bug elsewhere), before or after the pull began.
    std::mt19937 rng(31);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64));
    for (uint64_t id = 1; id <= 20; ++id) {
        Handoff h = make_handoff(rng, *s.p, *s.d, id, 0, 60, 2);
        s.p->open_progress(h.open);
        const BlockId reused = h.open.blocks[2 + rng() % (h.open.blocks.size() - 2)];
        if (id % 2 == 0) s.thread->start_pull(h.pull);
        s.p->set_progress(0, 0, 30, 3);
        s.p->set_generation(reused, 2);
        s.p->set_progress(0, 30, 60, 3);
        if (id % 2 == 1) s.thread->start_pull(h.pull);
        EXPECT_EQ(s.reports.pull(id).reason, "generation");
        s.p->close_progress({0, h.open.offer});
    }
    // One that is not pulled does not matter.
    Handoff h = make_handoff(rng, *s.p, *s.d, 100, 0, 60, 2);
    s.p->open_progress(h.open);
    s.p->set_generation(h.open.blocks[1], 2);
    s.p->set_progress(0, 0, 60, 3);
    s.thread->start_pull(h.pull);
    EXPECT_TRUE(s.reports.pull(100).ok);
}

TEST(TransferShm, CloseDuringThePullEndsIt) {
    std::mt19937 rng(3);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    for (uint64_t id = 1; id <= 50; ++id) {
        Handoff h = make_handoff(rng, *s.p, *s.d, id, 2, 100, 0);
        s.p->open_progress(h.open);
        s.thread->start_pull(h.pull);
        s.p->set_progress(2, 0, 20, 3);
        s.p->close_progress({2, h.open.offer});
        EXPECT_EQ(s.reports.pull(id).reason, "generation");
    }
}

TEST(TransferShm, CancelEndsItOnceAndStopsWriting) {
    std::mt19937 rng(4);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64, 8, 16, 64), layout_of(PoolOrder::kBlockFirst, 64, 8, 16, 64));
    for (uint64_t id = 1; id <= 200; ++id) {
        Handoff h = make_handoff(rng, *s.p, *s.d, id, 1, 60 * 16, 0);
        s.p->open_progress(h.open);
        s.thread->start_pull(h.pull);
        s.p->set_progress(1, 0, rng() % 2 == 0 ? 960 : 320, 8);
        const int64_t until_us = steady_now_us() + static_cast<int64_t>(rng() % 800);
        while (steady_now_us() < until_us) std::this_thread::yield();
        s.thread->cancel_pull(id);
        const auto r = s.reports.pull(id);
        if (!r.ok) {
            EXPECT_EQ(r.reason, "cancelled");
        }
        // From the report on the blocks are ours alone: under TSan a late write would be seen as a race with this one.
        std::ranges::fill(s.d->pool(), static_cast<std::byte>(id));
        s.thread->cancel_pull(id);  // harmless
        s.p->close_progress({1, h.open.offer});
        for (const std::byte b : s.d->pool().first(4096)) ASSERT_EQ(b, static_cast<std::byte>(id));
    }
}

TEST(TransferShm, DeadlinePasses) {
    std::mt19937 rng(5);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    Handoff h = make_handoff(rng, *s.p, *s.d, 1, 0, 100, 0);
    h.pull.deadline = steady_now() + 50;
    s.p->open_progress(h.open);
    s.thread->start_pull(h.pull);
    EXPECT_EQ(s.reports.pull(1).reason, "timeout");
    EXPECT_GE(steady_now(), h.pull.deadline);
}

TEST(TransferShm, LostPeerEndsItsPullsOnly) {
    std::mt19937 rng(6);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    auto other = make_pool(layout_of(PoolOrder::kKvFirst, 50), 4);
    const wire::ReplicaTarget second{{1}, {8}};  // the same replica, restarted
    ASSERT_TRUE(s.thread->add_source(second, other->layout(), 4, copy_of(other->fd()), nullptr));
    Handoff lost = make_handoff(rng, *s.p, *s.d, 1, 0, 100, 0);
    s.p->open_progress(lost.open);
    s.thread->start_pull(lost.pull);
    Handoff kept = make_handoff(rng, *other, *s.d, 2, 0, 100, 0);
    kept.pull.peer = second;
    other->open_progress(kept.open);
    s.thread->start_pull(kept.pull);
    s.thread->remove_source(kPrefill);
    EXPECT_EQ(s.reports.pull(1).reason, "peer_lost");
    prefill(*other, kept, rng);
    EXPECT_TRUE(s.reports.pull(2).ok);
    EXPECT_EQ(wrong_bytes(*s.d, kept.pull.target_blocks, kept.sequence, 0, 100), 0u);
    lost.pull.pull = 3;
    s.thread->start_pull(lost.pull);
    EXPECT_EQ(s.reports.pull(3).reason, "peer_lost");
    Handoff last = make_handoff(rng, *other, *s.d, 4, 1, 100, 0);
    last.pull.peer = second;
    other->open_progress(last.open);
    s.thread->start_pull(last.pull);
    s.thread.reset();  // ends what is left
    EXPECT_EQ(s.reports.pull(4).reason, "cancelled");
}

TEST(TransferShm, HostileOffersAreRefused) {
    std::mt19937 rng(8);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    uint64_t id = 0;
    const auto refused = [&](auto change) {
        Handoff h = make_handoff(rng, *s.p, *s.d, ++id, 0, 100, 0);
        s.p->open_progress(h.open);
        change(h.pull);
        s.thread->start_pull(h.pull);
        const auto r = s.reports.pull(id);
        EXPECT_FALSE(r.ok);
        EXPECT_EQ(r.reason, "invalid");
    };
    refused([](pd::StartPull& p) { p.source_blocks[3] = 64; });
    refused([](pd::StartPull& p) { p.source_blocks[3] = UINT32_MAX; });
    refused([](pd::StartPull& p) { p.target_blocks[3] = 64; });
    refused([](pd::StartPull& p) { p.target_blocks.pop_back(); });
    refused([](pd::StartPull& p) { p.source_blocks.pop_back(); });
    refused([](pd::StartPull& p) { p.source_generations.pop_back(); });
    refused([](pd::StartPull& p) { p.tokens = 0; });
    refused([](pd::StartPull& p) { p.tokens = UINT32_MAX; });
    refused([](pd::StartPull& p) { p.first_block = 1000; });
    refused([](pd::StartPull& p) { p.progress_slot = 8; });
    // Progress that makes no sense never reads outside, and never ends in more than what was offered.
    Handoff h = make_handoff(rng, *s.p, *s.d, ++id, 0, 100, 0);
    s.p->open_progress(h.open);
    s.thread->start_pull(h.pull);
    s.p->set_progress(0, 0xfffff0, 0xffffff, 0xffff);
    EXPECT_TRUE(s.reports.pull(id).ok);
}

TEST(TransferShm, OtherPagesAreRefusedAtLinkTime) {
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    const auto add = [&](const kv::PoolLayout& l) {
        const auto r = s.thread->add_source({{5}, {1}}, l, 8, copy_of(s.p->fd()), nullptr);
        return r ? ErrorCode::kOk : r.error().code;
    };
    EXPECT_EQ(add(layout_of(PoolOrder::kUndescribed, 64)), ErrorCode::kUnsupported);
    EXPECT_EQ(add(layout_of(PoolOrder::kBlockFirst, 64, 4)), ErrorCode::kUnsupported);
    EXPECT_EQ(add(layout_of(PoolOrder::kBlockFirst, 65)), ErrorCode::kCorrupt);  // not what the file says
    EXPECT_FALSE(s.thread->add_source({{5}, {1}}, s.p->layout(), 8, std::nullopt, nullptr));
}

TEST(TransferShm, VerifyCatchesAPlantedByte) {
    std::mt19937 rng(9);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64));
    for (uint64_t id = 1; id <= 2; ++id) {
        s.thread->plant({.corrupt_one_byte = id == 2});
        Handoff h = make_handoff(rng, *s.p, *s.d, id, 0, 90, 2);
        s.p->open_progress(h.open);
        s.thread->start_pull(h.pull);
        prefill(*s.p, h, rng);
        ASSERT_TRUE(s.reports.pull(id).ok);
        pd::VerifyPull v{id, {}, {}};
        for (size_t i = 2; i < h.open.blocks.size(); ++i) {
            v.blocks.push_back(h.pull.target_blocks[i]);
            v.checksums.push_back(block_checksum(s.p->pool(), s.p->layout(), h.open.blocks[i]));
        }
        s.thread->verify_pull(v);
        EXPECT_EQ(s.reports.verified(id), id == 1);
        s.p->close_progress({0, h.open.offer});
    }
    s.thread->verify_pull({10, {64}, {0}});
    EXPECT_FALSE(s.reports.verified(10));
    s.thread->verify_pull({11, {0, 1}, {0}});
    EXPECT_FALSE(s.reports.verified(11));
}

TEST(TransferShm, PlantedFaults) {
    std::mt19937 rng(10);
    Shm s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64));
    s.thread->plant({.fail_pulls = true});
    Handoff h = make_handoff(rng, *s.p, *s.d, 1, 0, 90, 0);
    s.p->open_progress(h.open);
    s.thread->start_pull(h.pull);
    EXPECT_FALSE(s.reports.pull(1).ok);
    s.thread->plant({.delay_ms = 60});
    prefill(*s.p, h, rng);
    h.pull.pull = 2;
    const TimeMs begin = steady_now();
    s.thread->start_pull(h.pull);
    EXPECT_TRUE(s.reports.pull(2).ok);
    EXPECT_GE(steady_now() - begin, 60);
}

TEST(TransferShm, AcrossProcesses) {
    // The writer is another process; the descriptor is all they share. It dies after its last offer.
    std::mt19937 rng(11);
    const auto pl = layout_of(PoolOrder::kKvFirst, 64, 4, 16, 64);
    auto p = make_pool(pl), d = make_pool(layout_of(PoolOrder::kBlockFirst, 90, 4, 16, 64));
    std::vector<Handoff> all;
    for (uint64_t id = 1; id <= 8; ++id)
        all.push_back(make_handoff(rng, *p, *d, id, static_cast<uint32_t>(id - 1), 100 + static_cast<uint32_t>(id) * 3, 0));
    const auto from = some_blocks(rng, 64, 64), to = some_blocks(rng, 90, 90);
    for (size_t i = 0; i < all.size(); ++i) {
        std::copy_n(from.begin() + static_cast<long>(i * 8), all[i].open.blocks.size(), all[i].open.blocks.begin());
        all[i].pull.source_blocks = all[i].open.blocks;
        std::copy_n(to.begin() + static_cast<long>(i * 9), all[i].open.blocks.size(), all[i].pull.target_blocks.begin());
        p->open_progress(all[i].open);
    }
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        for (const Handoff& h : all) {
            if (h.pull.pull == 8) {  // dies in the middle of this one
                write_layer(*p, h.open.blocks, h.sequence, 0, 0, h.open.tokens);
                p->set_progress(h.open.slot, 0, h.open.tokens, 1);
                ::_exit(0);
            }
            prefill(*p, h, rng);
        }
        ::_exit(1);
    }
    Reports reports;
    auto thread = TransferThread::start(*d, reports.callbacks());
    ASSERT_TRUE(thread->add_source(kPrefill, pl, 8, copy_of(p->fd()), nullptr));
    for (const Handoff& h : all) thread->start_pull(h.pull);
    for (uint64_t id = 1; id <= 7; ++id) {
        ASSERT_TRUE(reports.pull(id).ok) << id;
        const Handoff& h = all[id - 1];
        EXPECT_EQ(wrong_bytes(*d, h.pull.target_blocks, h.sequence, 0, h.open.tokens), 0u);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_FALSE(reports.has_pull(8));
    p.reset();  // the mapping of a dead process's pool stays usable
    thread->remove_source(kPrefill);
    EXPECT_EQ(reports.pull(8).reason, "peer_lost");
}

TEST(Store, CopiesOutAndBack) {
    std::mt19937 rng(12);
    const auto pl = layout_of(PoolOrder::kKvFirst, 40), dl = layout_of(PoolOrder::kBlockFirst, 50);
    auto p = make_pool(pl), d = make_pool(dl);
    Reports pr, dr;
    auto pt = TransferThread::start(*p, pr.callbacks()), dt = TransferThread::start(*d, dr.callbacks());
    pt->store_copy({1, true, {0}, {0}});
    EXPECT_FALSE(pr.copied(1));  // no store yet
    const uint64_t slot_bytes = pl.block_bytes() + 64;
    auto store = make_memfd("store", 20 * slot_bytes);
    ASSERT_TRUE(store);
    EXPECT_FALSE(pt->set_store(copy_of(store->get()), 21, slot_bytes));
    EXPECT_FALSE(pt->set_store(copy_of(store->get()), 20, pl.block_bytes() - 1));
    EXPECT_FALSE(pt->set_store(copy_of(store->get()), UINT32_MAX, UINT64_MAX));
    ASSERT_TRUE(pt->set_store(copy_of(store->get()), 20, slot_bytes));
    ASSERT_TRUE(dt->set_store(copy_of(store->get()), 20, slot_bytes));
    const auto from = some_blocks(rng, 40, 12), slots = some_blocks(rng, 20, 12), to = some_blocks(rng, 50, 12);
    for (uint32_t l = 0; l < 3; ++l) write_layer(*p, from, 3, l, 0, 48);
    pt->store_copy({2, true, from, slots});
    ASSERT_TRUE(pr.copied(2));
    dt->store_copy({3, false, to, slots});
    ASSERT_TRUE(dr.copied(3));
    EXPECT_EQ(wrong_bytes(*d, to, 3, 0, 48), 0u);
    pt->store_copy({4, true, {40}, {0}});
    EXPECT_FALSE(pr.copied(4));
    pt->store_copy({5, true, {0}, {20}});
    EXPECT_FALSE(pr.copied(5));
    pt->store_copy({6, true, {0, 1}, {0}});
    EXPECT_FALSE(pr.copied(6));
    pt->store_copy({7, true, {}, {}});
    EXPECT_TRUE(pr.copied(7));
}

}  // namespace
}  // namespace baton::xavier::test
