#include "xavier/pool_gatherer.hpp"

#include <vector>

#include "baton/base/fd.hpp"
#include "baton/base/huge_pages.hpp"
#include "xavier_harness.hpp"

namespace baton::xavier::test {
namespace {

constexpr size_t kAhead = PoolGatherer::kAheadBytes;

/// A layout whose pool has about that many bytes.
kv::PoolLayout layout_of_bytes(kv::PoolOrder order, size_t bytes) {
    kv::PoolLayout layout = layout_of(order, 1);
    layout.blocks = static_cast<uint32_t>(bytes / layout.block_bytes());
    return layout;
}

struct Memory {
    explicit Memory(size_t bytes) : fd(std::move(*make_memfd("baton-test", bytes))), map(std::move(*Mapping::map_fd(fd.get(), bytes, true))) {}
    [[nodiscard]] std::span<std::byte> bytes() { return map.mutable_bytes(); }
    UniqueFd fd;
    Mapping map;
};

TEST(PoolGatherer, LeavesPoolsAloneThatItCannotServe) {
    const auto small = layout_of_bytes(kv::PoolOrder::kBlockFirst, kHugePageBytes - 1);
    Memory few(small.pool_bytes());
    const auto other = layout_of_bytes(kv::PoolOrder::kKvFirst, 2 * kHugePageBytes);
    Memory pages(other.pool_bytes());
    const auto first = layout_of_bytes(kv::PoolOrder::kBlockFirst, 2 * kHugePageBytes);
    Memory shifted(first.pool_bytes() + 4096);
    PoolGatherer a(few.bytes(), small), b(pages.bytes(), other), c(shifted.bytes().subspan(4096), first), none({}, first);
    for (PoolGatherer* gatherer : {&a, &b, &c, &none}) {
        gatherer->will_use(std::vector<BlockId>{0, 1});
        gatherer->settle();
        EXPECT_EQ(gatherer->gathered_bytes(), 0u);
    }
}

TEST(PoolGatherer, StaysAheadOfWhatIsUsed) {
    const auto layout = layout_of_bytes(kv::PoolOrder::kBlockFirst, 3 * kAhead);
    Memory memory(layout.pool_bytes());
    memory.bytes()[kAhead] = std::byte{7};
    PoolGatherer gatherer(memory.bytes(), layout);
    gatherer.settle();
    if (gatherer.gathered_bytes() == 0) GTEST_SKIP() << "this kernel gathers no huge pages of a memory file";
    ASSERT_EQ(gatherer.gathered_bytes(), kAhead);
    const auto block_at = [&](size_t byte) { return static_cast<BlockId>(byte / layout.block_bytes()); };
    gatherer.will_use({});
    gatherer.will_use(std::vector<BlockId>{0});  // less than a huge page more
    gatherer.settle();
    EXPECT_EQ(gatherer.gathered_bytes(), kAhead);
    gatherer.will_use(std::vector<BlockId>{3, block_at(kAhead), 5});
    gatherer.settle();
    EXPECT_GE(gatherer.gathered_bytes(), 2 * kAhead);
    EXPECT_LE(gatherer.gathered_bytes(), 2 * kAhead + kHugePageBytes);
    gatherer.will_use(std::vector<BlockId>{layout.blocks - 1});
    gatherer.settle();
    EXPECT_EQ(gatherer.gathered_bytes(), layout.pool_bytes() / kHugePageBytes * kHugePageBytes);
    EXPECT_EQ(memory.bytes()[kAhead], std::byte{7});
    EXPECT_EQ(memory.bytes().back(), std::byte{0});
}

TEST(PoolGatherer, EndsWhenAskedTo) {
    const auto layout = layout_of_bytes(kv::PoolOrder::kBlockFirst, 2 * kAhead);
    Memory memory(layout.pool_bytes());
    for (int i = 0; i < 3; ++i) {
        PoolGatherer gatherer(memory.bytes(), layout);
        gatherer.will_use(std::vector<BlockId>{layout.blocks - 1});
    }
}

}  // namespace
}  // namespace baton::xavier::test
