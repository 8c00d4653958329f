#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "fake_device.hpp"
#include "xavier_harness.hpp"

namespace baton::xavier::test {
namespace {

using kv::PoolOrder;

UniqueFd copy_of(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

/// One replica with its pool on a device.
struct Replica {
    explicit Replica(const kv::PoolLayout& layout, uint32_t slots = 8, uint32_t delay_us_max = 0)
        : device(layout, "GPU-a", delay_us_max), words(std::move(*SharedPool::create_words(layout, slots))) {}
    FakeDevice device;
    std::unique_ptr<SharedPool> words;
};

/// A decode replica that maps one prefill replica's pool and words.
struct Pair {
    Pair(const kv::PoolLayout& pl, const kv::PoolLayout& dl, uint32_t delay_us_max = 300)
        : p(pl), d(dl, 8, delay_us_max), thread(TransferThread::start(*d.words, d.device, reports.callbacks())) {
        const auto added = link(kPrefill, p);
        EXPECT_TRUE(added.has_value()) << added.error().message;
    }
    Expected<void> link(wire::ReplicaTarget as, Replica& from) {
        return thread->add_device_source(as, from.words->layout(), 8, copy_of(from.words->fd()), *from.device.export_handle());
    }
    Handoff handoff(std::mt19937& rng, uint64_t id, uint32_t tokens, uint32_t first_block = 0, Generation generation = 1) {
        return make_handoff(rng, *p.words, *d.words, id, static_cast<uint32_t>(id % 8), tokens, first_block, generation);
    }
    [[nodiscard]] size_t wrong(const Handoff& h, uint32_t first = 0) {
        return wrong_bytes(d.device.memory(), d.device.layout(), h.pull.target_blocks, h.sequence, first, h.open.tokens);
    }
    Replica p, d;
    Reports reports;
    std::unique_ptr<TransferThread> thread;
};

/// What a device's kernel does after some layers: stores the word, rings nothing.
void store_progress(Replica& p, uint32_t slot, uint32_t begin, uint32_t end, uint32_t layers) {
    std::atomic_ref<uint64_t>(*p.words->progress_word(slot))
        .store(progress_base(begin, end) + (uint64_t{layers} << 48), std::memory_order_release);
}

void write_all(Replica& p, const Handoff& h, uint64_t sequence, uint32_t begin, uint32_t end) {
    for (uint32_t layer = 0; layer < p.device.layout().layers; ++layer)
        write_layer(p.device.memory(), p.device.layout(), h.open.blocks, sequence, layer, begin, end);
}

/// Computes the sequence in random chunks, publishing after random layers.
void prefill(Replica& p, const Handoff& h, std::mt19937& rng) {
    const uint32_t layers = p.device.layout().layers;
    for (uint32_t begin = 0; begin < h.open.tokens;) {
        const uint32_t end = std::min(h.open.tokens, begin + 1 + static_cast<uint32_t>(rng() % 23));
        for (uint32_t layer = 0; layer < layers; ++layer) {
            write_layer(p.device.memory(), p.device.layout(), h.open.blocks, h.sequence, layer, begin, end);
            if (rng() % 2 == 0 || layer + 1 == layers) store_progress(p, h.open.slot, begin, end, layer + 1);
        }
        begin = end;
    }
}

class DeviceOrders : public testing::TestWithParam<std::pair<PoolOrder, PoolOrder>> {};
INSTANTIATE_TEST_SUITE_P(Orders, DeviceOrders,
                         testing::Values(std::pair{PoolOrder::kBlockFirst, PoolOrder::kBlockFirst},
                                         std::pair{PoolOrder::kBlockFirst, PoolOrder::kKvFirst},
                                         std::pair{PoolOrder::kKvFirst, PoolOrder::kBlockFirst},
                                         std::pair{PoolOrder::kKvFirst, PoolOrder::kKvFirst}));

TEST_P(DeviceOrders, RandomInterleavingsArriveWholeByWordsAlone) {
    std::mt19937 rng(42);
    Pair s(layout_of(GetParam().first, 64), layout_of(GetParam().second, 80));
    for (uint64_t id = 1; id <= 60; ++id) {
        const uint32_t tokens = 1 + static_cast<uint32_t>(rng() % 200);
        const uint32_t complete = tokens / 4;
        const uint32_t have = rng() % 3 == 0 && complete > 0 ? static_cast<uint32_t>(rng() % (complete + 1)) : 0;
        Handoff h = s.handoff(rng, id, tokens, have);
        s.p.words->open_progress(h.open);
        const bool early = rng() % 2 == 0;
        if (early) s.thread->start_pull(h.pull);
        prefill(s.p, h, rng);
        if (!early) s.thread->start_pull(h.pull);
        const auto r = s.reports.pull(id);
        ASSERT_TRUE(r.ok) << r.reason;
        EXPECT_EQ(r.mover, "cuda_ipc");
        EXPECT_EQ(r.bytes, (h.open.blocks.size() - have) * s.p.device.layout().block_bytes());
        EXPECT_GE(r.total_us, r.exposed_us);
        if (r.bytes > 0) {
            EXPECT_GE(r.exposed_us, 0);
        }
        ASSERT_EQ(s.wrong(h, have * 4), 0u);
        s.p.words->close_progress({h.open.slot, h.open.offer});
    }
}

TEST(TransferDevice, LargeChunksAreTakenWhileTheyAreComputed) {
    // 2 MiB a layer: a kernel a layer at the most often, and what is ready is not left to the end.
    std::mt19937 rng(43);
    Pair s(layout_of(PoolOrder::kBlockFirst, 40, 4, 64, 128), layout_of(PoolOrder::kKvFirst, 40, 4, 64, 128), 0);
    Handoff h = s.handoff(rng, 1, 32 * 64);
    s.p.words->open_progress(h.open);
    s.thread->start_pull(h.pull);
    for (uint32_t layer = 0; layer < 4; ++layer) {
        write_layer(s.p.device.memory(), s.p.device.layout(), h.open.blocks, h.sequence, layer, 0, h.open.tokens);
        store_progress(s.p, h.open.slot, 0, h.open.tokens, layer + 1);
        s.d.device.wait_queued(layer + 1);  // or hangs: nobody rang
    }
    ASSERT_TRUE(s.reports.pull(1).ok);
    EXPECT_EQ(s.wrong(h), 0u);
    EXPECT_EQ(s.d.device.queued(), 4u);
}

TEST(TransferDevice, APullEndsNoEarlierThanItsCopies) {
    std::mt19937 rng(1);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64));
    Handoff h = s.handoff(rng, 1, 100);
    s.p.words->open_progress(h.open);
    write_all(s.p, h, h.sequence, 0, 100);
    s.d.device.pause(true);
    s.thread->start_pull(h.pull);
    store_progress(s.p, h.open.slot, 0, 100, 3);
    s.d.device.wait_queued(1);
    // The thread serves others meanwhile.
    s.thread->cancel_pull(77);
    ASSERT_TRUE(s.thread->checksums({}));
    EXPECT_FALSE(s.reports.has_pull(1));
    s.d.device.pause(false);
    ASSERT_TRUE(s.reports.pull(1).ok);
    EXPECT_EQ(s.wrong(h), 0u);
}

TEST(TransferDevice, CancelInFlightWaitsForTheCopiesAndIsTheEnd) {
    std::mt19937 rng(4);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64, 8, 16, 64), layout_of(PoolOrder::kBlockFirst, 64, 8, 16, 64));
    for (uint64_t id = 1; id <= 40; ++id) {
        Handoff h = s.handoff(rng, id, 60 * 16);
        s.p.words->open_progress(h.open);
        s.d.device.pause(true);
        const uint64_t before = s.d.device.queued();
        s.thread->start_pull(h.pull);
        store_progress(s.p, h.open.slot, 0, id % 2 == 0 ? 960 : 320, 8);
        s.d.device.wait_queued(before + 1);
        s.thread->cancel_pull(id);
        ASSERT_TRUE(s.thread->checksums({}));  // the cancel was looked at
        EXPECT_FALSE(s.reports.has_pull(id));
        s.thread->cancel_pull(id);  // harmless
        store_progress(s.p, h.open.slot, 0, 960, 8);
        s.d.device.pause(false);
        const auto r = s.reports.pull(id);
        EXPECT_EQ(r.reason, "cancelled");
        // From the report on the blocks are ours alone, and nothing was queued after the cancel.
        std::ranges::fill(s.d.device.memory(), static_cast<std::byte>(id));
        EXPECT_EQ(s.d.device.queued(), before + 1);
        s.p.words->close_progress({h.open.slot, h.open.offer});
        for (const std::byte b : s.d.device.memory().first(4096)) ASSERT_EQ(b, static_cast<std::byte>(id));
    }
}

TEST(TransferDevice, GenerationRaisedInFlightVoidsThePull) {
    // P closes the offer and computes another sequence into the blocks while the copy is queued, and the copy reads that.
    std::mt19937 rng(5);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64));
    for (const int what : {0, 1, 2}) {
        const uint64_t id = static_cast<uint64_t>(what) + 1;
        Handoff h = s.handoff(rng, id, 100, 0, static_cast<Generation>(id * 10));
        s.p.words->open_progress(h.open);
        write_all(s.p, h, h.sequence, 0, 100);
        s.d.device.pause(true);
        const uint64_t before = s.d.device.queued();
        s.thread->start_pull(h.pull);
        store_progress(s.p, h.open.slot, 0, 100, 3);
        s.d.device.wait_queued(before + 1);
        if (what != 1) s.p.words->close_progress({h.open.slot, h.open.offer});
        if (what != 0) s.p.words->set_generation(h.open.blocks[3], static_cast<Generation>(id * 10 + 1));
        write_all(s.p, h, h.sequence + 1, 0, 100);
        s.d.device.pause(false);
        EXPECT_EQ(s.reports.pull(id).reason, "generation");
        s.p.words->close_progress({h.open.slot, h.open.offer});
    }
}

TEST(TransferDevice, ReusedBlocksNeverPassForTheOffers) {
    std::mt19937 rng(99);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64, 4, 16, 64), layout_of(PoolOrder::kKvFirst, 64, 4, 16, 64), 1500);
    int ok = 0, refused = 0;
    for (uint64_t id = 1; id <= 80; ++id) {
        Handoff h = make_handoff(rng, *s.p.words, *s.d.words, id, 0, 60 * 16, 0, static_cast<Generation>(id));
        s.p.words->open_progress(h.open);
        write_all(s.p, h, h.sequence, 0, h.open.tokens);
        store_progress(s.p, 0, 0, h.open.tokens, 4);
        if (id % 8 == 0) s.p.words->close_progress({0, h.open.offer});
        s.thread->start_pull(h.pull);
        if (id % 8 == 1) s.reports.pull(id);
        const int64_t until_us = steady_now_us() + static_cast<int64_t>(rng() % 3'000);
        while (steady_now_us() < until_us) std::this_thread::yield();
        if (rng() % 4 != 0) s.p.words->close_progress({0, h.open.offer});
        for (const BlockId b : h.open.blocks) s.p.words->set_generation(b, static_cast<Generation>(id) + 1);
        write_all(s.p, h, h.sequence + 1, 0, h.open.tokens);
        const auto r = s.reports.pull(id);
        if (r.ok) {
            ++ok;
            ASSERT_EQ(s.wrong(h), 0u);
        } else {
            ++refused;
            ASSERT_EQ(r.reason, "generation");
        }
        s.p.words->close_progress({0, h.open.offer});
    }
    EXPECT_GT(ok, 0);
    EXPECT_GT(refused, 0);
}

TEST(TransferDevice, LostPeerInFlightKeepsItsMappingUntilTheCopiesEnd) {
    std::mt19937 rng(6);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    Replica other(layout_of(PoolOrder::kKvFirst, 50));
    const wire::ReplicaTarget second{{1}, {8}};
    ASSERT_TRUE(s.link(second, other));
    Handoff lost = s.handoff(rng, 1, 100);
    s.p.words->open_progress(lost.open);
    s.d.device.pause(true);
    s.thread->start_pull(lost.pull);
    store_progress(s.p, lost.open.slot, 0, 40, 3);
    s.d.device.wait_queued(1);
    s.thread->remove_source(kPrefill);
    ASSERT_TRUE(s.thread->checksums({}));
    EXPECT_EQ(s.d.device.mapped(), 2u);
    EXPECT_FALSE(s.reports.has_pull(1));
    lost.pull.pull = 2;
    s.thread->start_pull(lost.pull);
    EXPECT_EQ(s.reports.pull(2).reason, "peer_lost");
    // It links again, as the same process or as another, while the old copies are under way.
    ASSERT_TRUE(s.link(kPrefill, s.p));
    EXPECT_EQ(s.d.device.mapped(), 3u);
    s.d.device.pause(false);
    EXPECT_EQ(s.reports.pull(1).reason, "peer_lost");
    Handoff kept = make_handoff(rng, *other.words, *s.d.words, 3, 0, 100, 0);
    kept.pull.peer = second;
    other.words->open_progress(kept.open);
    s.thread->start_pull(kept.pull);
    prefill(other, kept, rng);
    EXPECT_TRUE(s.reports.pull(3).ok);
    EXPECT_EQ(s.wrong(kept), 0u);
    EXPECT_EQ(s.d.device.mapped(), 2u);
    s.thread.reset();
    EXPECT_EQ(s.d.device.mapped(), 0u);
}

TEST(TransferDevice, TheThreadEndsAfterCopiesInFlight) {
    std::mt19937 rng(7);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    Handoff h = s.handoff(rng, 1, 100);
    s.p.words->open_progress(h.open);
    s.d.device.pause(true);
    s.thread->start_pull(h.pull);
    store_progress(s.p, h.open.slot, 0, 100, 3);
    s.d.device.wait_queued(1);
    std::thread ends([&] { s.thread.reset(); });
    s.d.device.pause(false);
    ends.join();
    EXPECT_TRUE(s.reports.has_pull(1));
}

TEST(TransferDevice, ALostDeviceFailsWhatItWasDoing) {
    std::mt19937 rng(8);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    s.d.device.refuse_pulls(true);
    Handoff h = s.handoff(rng, 1, 100);
    s.p.words->open_progress(h.open);
    store_progress(s.p, h.open.slot, 0, 100, 3);
    s.thread->start_pull(h.pull);
    EXPECT_EQ(s.reports.pull(1).reason, "internal");
    s.d.device.refuse_pulls(false);
    s.d.device.pause(true);
    h.pull.pull = 2;
    s.thread->start_pull(h.pull);
    s.d.device.wait_queued(1);
    s.d.device.lose();
    EXPECT_EQ(s.reports.pull(2).reason, "internal");
    EXPECT_FALSE(s.thread->checksums(std::vector<BlockId>{1}));
    h.pull.pull = 3;
    s.thread->start_pull(h.pull);
    EXPECT_EQ(s.reports.pull(3).reason, "internal");
}

TEST(TransferDevice, DeadlineWithCopiesInFlight) {
    std::mt19937 rng(9);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    Handoff h = s.handoff(rng, 1, 100);
    h.pull.deadline = steady_now() + 50;
    s.p.words->open_progress(h.open);
    s.d.device.pause(true);
    s.thread->start_pull(h.pull);
    store_progress(s.p, h.open.slot, 0, 40, 3);
    s.d.device.wait_queued(1);
    while (steady_now() < h.pull.deadline) std::this_thread::yield();
    ASSERT_TRUE(s.thread->checksums({}));
    ASSERT_TRUE(s.thread->checksums({}));
    EXPECT_FALSE(s.reports.has_pull(1));
    s.d.device.pause(false);
    EXPECT_EQ(s.reports.pull(1).reason, "timeout");
}

TEST(TransferDevice, VerifyAndChecksums) {
    std::mt19937 rng(10);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64));
    Reports p_reports;
    auto p_thread = TransferThread::start(*s.p.words, s.p.device, p_reports.callbacks());
    for (uint64_t id = 1; id <= 2; ++id) {
        TransferThread::Faults faults;
        faults.corrupt_one_byte = id == 2;
        s.thread->plant(faults);
        Handoff h = s.handoff(rng, id, 90, 2);
        s.p.words->open_progress(h.open);
        s.thread->start_pull(h.pull);
        prefill(s.p, h, rng);
        ASSERT_TRUE(s.reports.pull(id).ok);
        auto sums = p_thread->checksums(h.open.blocks);
        ASSERT_TRUE(sums);
        EXPECT_EQ((*sums)[4], block_checksum(s.p.device.memory(), s.p.device.layout(), h.open.blocks[4]));
        pd::VerifyPull v{id, {}, {}};
        for (size_t i = 2; i < h.open.blocks.size(); ++i) {
            v.blocks.push_back(h.pull.target_blocks[i]);
            v.checksums.push_back((*sums)[i]);
        }
        s.thread->verify_pull(v);
        EXPECT_EQ(s.reports.verified(id), id == 1);
        s.p.words->close_progress({h.open.slot, h.open.offer});
    }
    s.thread->verify_pull({10, {64}, {0}});
    EXPECT_FALSE(s.reports.verified(10));
    EXPECT_FALSE(s.thread->checksums(std::vector<BlockId>{64}));
}

TEST(TransferDevice, MismatchedSourcesAreRefused) {
    Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    auto host = make_pool(layout_of(PoolOrder::kBlockFirst, 64));
    EXPECT_EQ(s.thread->add_source({{5}, {1}}, host->layout(), 8, copy_of(host->fd()), nullptr).error().code, ErrorCode::kUnsupported);
    Reports reports;
    auto cpu = TransferThread::start(*host, reports.callbacks());
    EXPECT_EQ(cpu->add_source({{5}, {1}}, s.p.words->layout(), 8, copy_of(s.p.words->fd()), nullptr).error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(cpu->add_device_source({{5}, {1}}, s.p.words->layout(), 8, copy_of(s.p.words->fd()), *s.p.device.export_handle()).error().code,
              ErrorCode::kUnsupported);
    const std::vector<std::byte> bad(3);
    EXPECT_EQ(s.thread->add_device_source({{5}, {1}}, s.p.words->layout(), 8, copy_of(s.p.words->fd()), bad).error().code, ErrorCode::kCorrupt);
    Replica other(layout_of(PoolOrder::kBlockFirst, 64, 5));
    EXPECT_EQ(s.link({{5}, {1}}, other).error().code, ErrorCode::kUnsupported);
}

TEST(TransferDevice, SnapshotsGoOutAndBack) {
    std::mt19937 rng(12);
    for (const bool pins : {true, false}) {
        Replica p(layout_of(PoolOrder::kKvFirst, 40), 8, 100), d(layout_of(PoolOrder::kBlockFirst, 50), 8, 100);
        p.device.refuse_pins(!pins);
        Reports pr, dr;
        auto pt = TransferThread::start(*p.words, p.device, pr.callbacks()), dt = TransferThread::start(*d.words, d.device, dr.callbacks());
        const uint64_t slot_bytes = p.device.layout().block_bytes() + 64;
        auto store = make_memfd("store", 20 * slot_bytes);
        ASSERT_TRUE(store);
        ASSERT_TRUE(pt->set_store(copy_of(store->get()), 20, slot_bytes));
        ASSERT_TRUE(dt->set_store(copy_of(store->get()), 20, slot_bytes));
        const auto from = some_blocks(rng, 40, 12), slots = some_blocks(rng, 20, 12), to = some_blocks(rng, 50, 12);
        for (uint32_t l = 0; l < 3; ++l) write_layer(p.device.memory(), p.device.layout(), from, 3, l, 0, 48);
        pt->store_copy({2, true, from, slots});
        ASSERT_TRUE(pr.copied(2));
        dt->store_copy({3, false, to, slots});
        ASSERT_TRUE(dr.copied(3));
        EXPECT_EQ(wrong_bytes(d.device.memory(), d.device.layout(), to, 3, 0, 48), 0u);
        EXPECT_EQ(p.device.pinned(), pins ? 1u : 0u);
        pt->store_copy({4, true, {40}, {0}});
        EXPECT_FALSE(pr.copied(4));
        // A store that goes away, or the thread, while copies are under way: they end first.
        d.device.pause(true);
        const uint64_t before = d.device.queued();
        dt->store_copy({5, false, to, slots});
        d.device.wait_queued(before + 1);
        std::thread ends([&] { dt.reset(); });
        d.device.pause(false);
        ends.join();
        EXPECT_EQ(d.device.pinned(), 0u);
    }
}

TEST(TransferDevice, OnlySlabsThatAreReadArePinned) {
    const auto l = layout_of(PoolOrder::kBlockFirst, 12, 8, 64, 512);  // 2 MiB a block: two in the buffer for writing
    Replica p(l);
    Reports reports;
    auto thread = TransferThread::start(*p.words, p.device, reports.callbacks());
    auto store = make_memfd("store", 40 * l.block_bytes());
    ASSERT_TRUE(store);
    ASSERT_TRUE(thread->set_store(std::move(*store), 40, l.block_bytes()));
    const std::vector<BlockId> blocks{0, 1, 2, 3, 4}, back{7, 8, 9, 10, 11};
    const std::vector<uint32_t> slots{0, 3, 39, 2, 17};
    for (uint32_t layer = 0; layer < l.layers; ++layer) write_layer(p.device.memory(), l, blocks, 5, layer, 0, 5 * 64);
    thread->store_copy({1, true, blocks, slots});
    ASSERT_TRUE(reports.copied(1));
    EXPECT_EQ(p.device.pinned(), 1u);  // the buffer
    thread->store_copy({2, false, {7}, {0}});
    ASSERT_TRUE(reports.copied(2));
    EXPECT_EQ(p.device.pinned(), 2u);
    thread->store_copy({3, false, back, slots});
    ASSERT_TRUE(reports.copied(3));
    EXPECT_EQ(p.device.pinned(), 4u);  // slots 0 to 15, 16 to 31, 32 to 39
    EXPECT_EQ(wrong_bytes(p.device.memory(), l, back, 5, 0, 5 * 64), 0u);
    thread.reset();
    EXPECT_EQ(p.device.pinned(), 0u);
}

TEST(TransferDevice, AReadPassesWritesThatAreUnderWay) {
    const auto l = layout_of(PoolOrder::kBlockFirst, 40, 8, 64, 512);
    Replica p(l);
    Reports reports;
    auto thread = TransferThread::start(*p.words, p.device, reports.callbacks());
    auto store = make_memfd("store", 40 * l.block_bytes());
    ASSERT_TRUE(thread->set_store(std::move(*store), 40, l.block_bytes()));
    std::vector<BlockId> all(20);
    std::iota(all.begin(), all.end(), 0u);
    for (uint32_t layer = 0; layer < l.layers; ++layer) write_layer(p.device.memory(), l, all, 5, layer, 0, 20 * 64);
    thread->store_copy({1, true, {0}, {30}});
    ASSERT_TRUE(reports.copied(1));
    const uint64_t before = p.device.queued();
    thread->store_copy({2, true, all, std::vector<uint32_t>(all.begin(), all.end())});
    p.device.wait_queued(before + 1);  // the first slice is on its way
    thread->store_copy({3, false, {39}, {30}});
    ASSERT_TRUE(reports.copied(3));
    ASSERT_TRUE(reports.copied(2));
    const std::vector<BlockId> to{25, 26, 27};
    thread->store_copy({4, false, to, {0, 9, 19}});
    ASSERT_TRUE(reports.copied(4));
    EXPECT_EQ(wrong_bytes(p.device.memory(), l, {39}, 5, 0, 64), 0u);
    for (const auto& [at, from] : {std::pair{25u, 0u}, std::pair{26u, 9u}, std::pair{27u, 19u}})
        EXPECT_EQ(std::memcmp(p.device.memory().data() + at * l.block_bytes(), p.device.memory().data() + from * l.block_bytes(), l.block_bytes()), 0) << from;
}

TEST(Faults, PaceAndStall) {
    std::mt19937 rng(13);
    Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64), 0);
    TransferThread::Faults faults;
    faults.stall = true;
    s.thread->plant(faults);
    Handoff h = s.handoff(rng, 1, 100);
    s.p.words->open_progress(h.open);
    store_progress(s.p, h.open.slot, 0, 40, 3);
    s.thread->start_pull(h.pull);
    s.d.device.wait_queued(1);
    store_progress(s.p, h.open.slot, 0, 100, 3);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(s.thread->checksums({}));
    EXPECT_EQ(s.d.device.queued(), 1u);
    faults.stall = false;
    faults.pace_us = 20'000;
    s.thread->plant(faults);
    const int64_t begin_us = steady_now_us();
    ASSERT_TRUE(s.reports.pull(1).ok);
    Handoff paced = s.handoff(rng, 2, 100);
    s.p.words->open_progress(paced.open);
    s.thread->start_pull(paced.pull);
    const uint64_t before = s.d.device.queued();
    store_progress(s.p, paced.open.slot, 0, 40, 3);
    s.d.device.wait_queued(before + 1);
    store_progress(s.p, paced.open.slot, 40, 100, 3);
    ASSERT_TRUE(s.reports.pull(2).ok);
    EXPECT_GE(steady_now_us() - begin_us, 20'000);
}

TEST(Faults, KillsAtNamedSteps) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    for (const char* step : {"pull_started", "pull_first", "pull_half", "pull_copied"})
        EXPECT_EXIT(
            {
                std::mt19937 rng(14);
                Pair s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64), 0);
                TransferThread::Faults faults;
                faults.kill_at = step;
                s.thread->plant(faults);
                Handoff h = s.handoff(rng, 1, 100);
                s.p.words->open_progress(h.open);
                store_progress(s.p, h.open.slot, 0, 100, 3);
                s.thread->start_pull(h.pull);
                s.reports.pull(1);
            },
            testing::KilledBySignal(SIGKILL), "")
            << step;
}

TEST(Faults, AreParsed) {
    const auto f = parse_faults("corrupt,pull_delay_ms=20,pace_us=5,stall,kill_at=pull_first,drop=release,fail_pulls,nccl_one_gpu");
    ASSERT_TRUE(f);
    EXPECT_TRUE(f->corrupt_one_byte && f->stall && f->fail_pulls);
    EXPECT_EQ(f->delay_ms, 20);
    EXPECT_EQ(f->pace_us, 5);
    EXPECT_EQ(f->kill_at, "pull_first");
    EXPECT_EQ(f->drop, "release");
    EXPECT_TRUE(f->nccl_one_gpu);
    EXPECT_TRUE(parse_faults(""));
    for (const char* bad : {"x", "pace_us", "pace_us=", "pace_us=-1", "pace_us=1x", "kill_at=", "kill_at=nowhere", "corrupt=1", ",", "drop"})
        EXPECT_FALSE(parse_faults(bad)) << bad;
}

}  // namespace
}  // namespace baton::xavier::test
