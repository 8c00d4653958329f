#include "xavier/pool_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "xavier/doorbell.hpp"
#include "xavier_harness.hpp"

namespace baton::xavier::test {
namespace {

using kv::PoolOrder;

UniqueFd copy_of(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

TEST(SharedPool, IsAlignedZeroedAndReadOnlyForPeers) {
    const auto layout = layout_of(PoolOrder::kBlockFirst, 100);
    auto pool = make_pool(layout);
    EXPECT_EQ(pool->pool().size(), layout.pool_bytes());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool->pool().data()) % 64, 0u);
    for (const std::byte b : pool->pool()) ASSERT_EQ(b, std::byte{0});
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd(), 0), MAP_FAILED);
    pool->pool()[5] = std::byte{9};
    auto view = PoolView::map(copy_of(pool->fd()), layout, 8);
    ASSERT_TRUE(view) << view.error().message;
    EXPECT_EQ(view->pool()[5], std::byte{9});
    EXPECT_EQ(PoolView::map(copy_of(pool->fd()), layout, 0)->progress_slots(), 8u);  // the header's word
}

TEST(SharedPool, WordsAloneForAPoolOnADevice) {
    const auto layout = layout_of(PoolOrder::kKvFirst, 3000);
    auto pool = SharedPool::create_words(layout, 100);
    ASSERT_TRUE(pool) << pool.error().message;
    EXPECT_TRUE((*pool)->pool().empty());
    EXPECT_EQ((*pool)->layout(), layout);
    const std::span<std::byte> words = (*pool)->words();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(words.data()) % 4096, 0u);
    EXPECT_EQ(words.size() % 4096, 0u);
    EXPECT_LT(words.size(), layout.blocks * sizeof(Generation));
    auto view = PoolView::map(copy_of((*pool)->fd()), layout, 100);
    ASSERT_TRUE(view) << view.error().message;
    EXPECT_TRUE(view->words_only());
    EXPECT_TRUE(view->pool().empty());
    // What a device stores is what set_progress() stores, and it lies within words().
    for (const uint32_t slot : {0u, 7u, 99u}) {
        (*pool)->open_progress({slot, OfferId{slot + 1}, 60, {slot, 2999}, {4, 5}});
        uint64_t* word = (*pool)->progress_word(slot);
        ASSERT_GE(reinterpret_cast<std::byte*>(word), words.data());
        ASSERT_LE(reinterpret_cast<std::byte*>(word + 1), words.data() + words.size());
        std::atomic_ref<uint64_t>(*word).store(progress_base(16, 48) + (uint64_t{2} << 48), std::memory_order_release);
        EXPECT_EQ(view->progress(slot, OfferId{slot + 1}), (Progress{16, 48, 2}));
        const std::vector<uint32_t> blocks{slot, 2999};
        const std::vector<Generation> generations{4, 5};
        EXPECT_TRUE(view->still_valid(slot, OfferId{slot + 1}, blocks, generations));
        (*pool)->set_generation(2999, 6);
        EXPECT_FALSE(view->still_valid(slot, OfferId{slot + 1}, blocks, generations));
        (*pool)->close_progress({slot, OfferId{slot + 1}});
        EXPECT_FALSE(view->progress(slot, OfferId{slot + 1}));
    }
    EXPECT_FALSE(SharedPool::create_words(layout, 0));
    EXPECT_FALSE(make_pool(layout)->words().empty());
}

TEST(SharedPool, RefusesImpossibleLayouts) {
    auto l = layout_of(PoolOrder::kUndescribed, 10);
    EXPECT_EQ(SharedPool::create(l, 8).error().code, ErrorCode::kUnsupported);
    l = layout_of(PoolOrder::kKvFirst, 0);
    EXPECT_FALSE(SharedPool::create(l, 8));
    l = layout_of(PoolOrder::kKvFirst, 10);
    EXPECT_FALSE(SharedPool::create(l, 0));
    EXPECT_FALSE(SharedPool::create(l, kProgressSlotsMax + 1));
}

TEST(PoolView, RefusesHostileFiles) {
    const auto layout = layout_of(PoolOrder::kBlockFirst, 100);
    auto pool = make_pool(layout);
    auto other = layout;
    other.blocks = 99;
    EXPECT_FALSE(PoolView::map(copy_of(pool->fd()), other, 8));
    other = layout;
    other.order = PoolOrder::kKvFirst;
    EXPECT_FALSE(PoolView::map(copy_of(pool->fd()), other, 8));
    EXPECT_FALSE(PoolView::map(copy_of(pool->fd()), layout, 9));
    EXPECT_FALSE(PoolView::map(copy_of(pool->fd()), layout, UINT32_MAX));
    EXPECT_FALSE(PoolView::map(UniqueFd(), layout, 8));
    // Too small, not sealed, not a memory file at all.
    auto small = make_memfd("small", 4096);
    ASSERT_TRUE(small);
    EXPECT_FALSE(PoolView::map(std::move(*small), layout, 8));
    EXPECT_FALSE(PoolView::map(UniqueFd(::memfd_create("open", MFD_CLOEXEC)), layout, 8));
    EXPECT_FALSE(PoolView::map(UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), layout, 8));
    // Every damaged byte of the header is noticed, and a true header in front of too small a file.
    const FilePlan plan = plan_file(layout, 8);
    auto view = PoolView::map(copy_of(pool->fd()), layout, 8);
    ASSERT_TRUE(view);
    FileHeader good;
    std::memcpy(&good, view->pool().data() - plan.pool, sizeof good);
    for (size_t i = 0; i <= sizeof good; ++i) {
        const size_t bytes = i < sizeof good ? plan.bytes : plan.bytes - 4096;
        auto fd = make_memfd("forged", bytes);
        ASSERT_TRUE(fd);
        auto map = Mapping::map_fd(fd->get(), 4096, true);
        ASSERT_TRUE(map);
        std::memcpy(map->mutable_bytes().data(), &good, sizeof good);
        if (i < sizeof good) map->mutable_bytes()[i] ^= std::byte{0x40};
        EXPECT_FALSE(PoolView::map(std::move(*fd), layout, 8)) << i;
    }
}

TEST(PoolView, SeesOnlyItsOffersProgress) {
    const auto layout = layout_of(PoolOrder::kBlockFirst, 100);
    auto pool = make_pool(layout);
    auto view = PoolView::map(copy_of(pool->fd()), layout, 8);
    ASSERT_TRUE(view);
    EXPECT_FALSE(view->progress(3, OfferId{1}));
    pool->open_progress({3, OfferId{1}, 10, {5, 6, 7}, {4, 4, 4}});
    EXPECT_EQ(view->progress(3, OfferId{1}), (Progress{0, 0, 3}));
    pool->set_progress(3, 0, 4, 2);
    EXPECT_EQ(view->progress(3, OfferId{1}), (Progress{0, 4, 2}));
    EXPECT_FALSE(view->progress(3, OfferId{2}));
    EXPECT_FALSE(view->progress(2, OfferId{1}));
    const std::vector<uint32_t> blocks{5, 6, 7};
    const std::vector<Generation> generations{4, 4, 4};
    EXPECT_TRUE(view->still_valid(3, OfferId{1}, blocks, generations));
    pool->set_generation(6, 5);
    EXPECT_FALSE(view->still_valid(3, OfferId{1}, blocks, generations));
    pool->set_generation(6, 4);
    pool->close_progress({3, OfferId{2}});  // another's: ignored
    EXPECT_TRUE(view->still_valid(3, OfferId{1}, blocks, generations));
    pool->close_progress({3, OfferId{1}});
    EXPECT_FALSE(view->still_valid(3, OfferId{1}, blocks, generations));
    EXPECT_FALSE(view->progress(3, OfferId{1}));
    pool->open_progress({3, OfferId{2}, 10, {5}, {5}, 7});
    EXPECT_EQ(view->progress(3, OfferId{2}), (Progress{7, 7, 3}));  // positions that were there before
    EXPECT_FALSE(view->progress(3, OfferId{1}));
    EXPECT_FALSE(view->still_valid(3, OfferId{1}, blocks, generations));
}

TEST(SharedPool, RingsForLumpsAndEndsOfChunks) {
    // 64 KiB a layer of 16 positions: a lump is 256 KiB, 4 layers.
    const auto layout = layout_of(PoolOrder::kBlockFirst, 8, 10, 16, 512);
    auto pool = make_pool(layout, 1);
    const auto* bell = static_cast<PoolFile&>(*pool).doorbell();
    pool->open_progress({0, OfferId{1}, 32, {0, 1}, {1, 1}});
    std::vector<uint32_t> rings;
    for (uint32_t layer = 1; layer <= 10; ++layer) {
        const uint32_t before = read_doorbell(bell);
        pool->set_progress(0, 0, 16, layer);
        if (read_doorbell(bell) != before) rings.push_back(layer);
    }
    EXPECT_EQ(rings, (std::vector<uint32_t>{4, 8, 10}));
}

TEST(PoolView, ProgressNeverBelongsToAnotherOffer) {
    // One thread passes a slot from offer to offer, the progress word naming the offer; another reads as fast as it can.
    const auto layout = layout_of(PoolOrder::kBlockFirst, 4);
    auto pool = make_pool(layout, 1);
    auto view = PoolView::map(copy_of(pool->fd()), layout, 1);
    ASSERT_TRUE(view);
    constexpr uint64_t kOffers = 50'000;
    std::atomic<uint64_t> current{0};
    std::thread writer([&] {
        for (uint64_t id = 1; id <= kOffers; ++id) {
            pool->open_progress({0, OfferId{id}, 8, {0}, {1}});
            current.store(id, std::memory_order_relaxed);
            pool->set_progress(0, static_cast<uint32_t>(id), static_cast<uint32_t>(id), 1);
            pool->close_progress({0, OfferId{id}});
        }
        current = kOffers + 1;
    });
    uint64_t seen = 0;
    // Asks for the open offer and for the next one, so that it may be opened between two looks.
    for (uint64_t id = 0; id <= kOffers; id = current.load(std::memory_order_relaxed))
        for (const uint64_t ask : {id, id + 1}) {
            const auto p = view->progress(0, OfferId{ask});
            if (!p || p->begin == 0) continue;
            ++seen;
            EXPECT_EQ(p->begin, ask);
        }
    writer.join();
    RecordProperty("seen", static_cast<int>(seen));
}

TEST(Doorbell, WakesWaitersOfSeveralWords) {
    const auto layout = layout_of(PoolOrder::kBlockFirst, 4);
    auto a = make_pool(layout, 1), b = make_pool(layout, 1);
    auto view = PoolView::map(copy_of(b->fd()), layout, 1);
    ASSERT_TRUE(view);
    const auto* own = static_cast<PoolFile&>(*a).doorbell();
    DoorbellWaiter waiter;
    for (int i = 0; i < 200; ++i) {
        // A read-only mapping of another pool, woken through the writable one.
        const std::vector<WaitWord> words{{own, read_doorbell(own)}, {view->doorbell(), read_doorbell(view->doorbell())}};
        std::thread ringer([&] { b->set_progress(0, 0, 0, 3); });
        const TimeMs begin = steady_now();
        while (read_doorbell(view->doorbell()) == words[1].seen) waiter.wait(words, 10'000'000);
        EXPECT_LT(steady_now() - begin, 5'000);
        ringer.join();
    }
    // A word that changed already does not wait; a time-out ends.
    waiter.wait(std::vector<WaitWord>{{own, read_doorbell(own)}, {view->doorbell(), read_doorbell(view->doorbell()) - 1}}, 10'000'000);
    waiter.wait(std::vector<WaitWord>{{own, read_doorbell(own)}}, 1'000);
}

}  // namespace
}  // namespace baton::xavier::test
