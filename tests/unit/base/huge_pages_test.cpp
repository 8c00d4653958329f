#include "baton/base/huge_pages.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "baton/base/fd.hpp"

namespace baton {
namespace {

constexpr size_t kPage = 4096;

/// A value for each byte that depends on where it is.
std::byte byte_at(size_t i) { return static_cast<std::byte>((i * 0x9e3779b97f4a7c15u) >> 56); }

TEST(Mapping, LargeOnesBeginAtAHugePage) {
    for (const size_t bytes : {kHugePageBytes, kHugePageBytes + 1, 3 * kHugePageBytes - kPage + 7}) {
        for (const bool writable : {false, true}) {
            const auto fd = make_memfd("baton-test", bytes);
            ASSERT_TRUE(fd) << fd.error().message;
            auto map = Mapping::map_fd(fd->get(), bytes, writable);
            ASSERT_TRUE(map) << map.error().message;
            EXPECT_EQ(map->bytes().size(), bytes);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(map->bytes().data()) % kHugePageBytes, 0u);
            EXPECT_EQ(map->bytes().front(), std::byte{0});
            EXPECT_EQ(map->bytes().back(), std::byte{0});
        }
    }
}

TEST(Mapping, MappingsOfOneFileAreTheSameMemory) {
    const size_t bytes = kHugePageBytes + 3 * kPage;
    const auto fd = make_memfd("baton-test", bytes);
    ASSERT_TRUE(fd);
    auto one = Mapping::map_fd(fd->get(), bytes, true), other = Mapping::map_fd(fd->get(), bytes, false);
    ASSERT_TRUE(one && other);
    for (size_t i = 0; i < bytes; i += 1001) one->mutable_bytes()[i] = byte_at(i);
    for (size_t i = 0; i < bytes; i += 1001) ASSERT_EQ(other->bytes()[i], byte_at(i));
}

TEST(HugePages, OnlyWholeOnesAreGathered) {
    const size_t bytes = 3 * kHugePageBytes + kPage;
    const auto fd = make_memfd("baton-test", bytes);
    ASSERT_TRUE(fd);
    auto map = Mapping::map_fd(fd->get(), bytes, true);
    ASSERT_TRUE(map);
    const auto memory = map->mutable_bytes();
    EXPECT_EQ(gather_huge_pages({}), 0u);
    EXPECT_EQ(gather_huge_pages(memory.first(kHugePageBytes - 1)), 0u);
    EXPECT_EQ(gather_huge_pages(memory.subspan(kPage, 2 * kHugePageBytes - 2 * kPage)), 0u);
    const size_t gathered = gather_huge_pages(memory);
    EXPECT_EQ(gathered % kHugePageBytes, 0u);
    EXPECT_LE(gathered, 3 * kHugePageBytes);
    if (gathered == 0) GTEST_SKIP() << "this kernel gathers no huge pages of a memory file";
    EXPECT_LE(gather_huge_pages(memory.subspan(kPage)), 2 * kHugePageBytes);
}

TEST(HugePages, WhatIsThereStaysWhileOthersWrite) {
    const size_t bytes = 4 * kHugePageBytes;
    const auto fd = make_memfd("baton-test", bytes);
    ASSERT_TRUE(fd);
    auto map = Mapping::map_fd(fd->get(), bytes, true);
    const auto peer = Mapping::map_fd(fd->get(), bytes, false);
    ASSERT_TRUE(map && peer);
    const auto memory = map->mutable_bytes();
    // Every second page of the first half; holes between them. The last huge page is written meanwhile.
    for (size_t page = 0; page < bytes / 2; page += 2 * kPage)
        for (size_t i = page; i < page + kPage; ++i) memory[i] = byte_at(i);
    std::atomic<bool> begun{false};
    std::thread writer([&] {
        begun = true;
        for (size_t i = 3 * kHugePageBytes; i < bytes; ++i) memory[i] = byte_at(i);
    });
    while (!begun) std::this_thread::yield();
    (void)gather_huge_pages(memory);
    writer.join();
    for (size_t i = 0; i < bytes; ++i) {
        const bool written = i >= 3 * kHugePageBytes || (i < bytes / 2 && i / kPage % 2 == 0);
        ASSERT_EQ(memory[i], written ? byte_at(i) : std::byte{0}) << i;
        ASSERT_EQ(peer->bytes()[i], memory[i]) << i;
    }
}

}  // namespace
}  // namespace baton
