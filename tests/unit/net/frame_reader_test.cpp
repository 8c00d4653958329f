#include "net/frame_reader.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "baton/base/limits.hpp"

namespace baton::net {
namespace {

using Bytes = std::vector<std::byte>;

void append(Bytes& out, const Bytes& more) { out.insert(out.end(), more.begin(), more.end()); }

/// A stream of random messages; the bytes of each, one after the other.
struct Stream {
    Bytes bytes;
    std::vector<Bytes> heads, payloads;
};

Stream random_stream(std::mt19937& rng, int messages) {
    Stream s;
    for (int i = 0; i < messages; ++i) {
        Bytes payload;
        wire::Message m = wire::Accept{{rng()}, 3};
        if (rng() % 3 == 0) {
            wire::Commit c;
            c.emitted.resize(rng() % (rng() % 4 == 0 ? 60'000 : 40), 7);
            m = c;
        } else if (rng() % 3 == 0) {
            payload.resize(rng() % (rng() % 4 == 0 ? 300'000 : 100));
            for (auto& b : payload) b = static_cast<std::byte>(rng());
            wire::ExtentHeader h;
            h.bytes = payload.size();
            m = h;
        }
        s.heads.push_back(wire::encode(m));
        s.payloads.push_back(payload);
        append(s.bytes, s.heads.back());
        append(s.bytes, payload);
    }
    return s;
}

TEST(FrameReader, AnySplitOfTheStreamGivesTheSameMessages) {
    std::mt19937 rng(1);
    for (int round = 0; round < 60; ++round) {
        const Stream s = random_stream(rng, 12);
        FrameReader reader(limits::kFrameBytesMax, limits::kFrameBytesMax);
        const size_t piece_max = round % 3 == 0 ? 3 : round % 3 == 1 ? 5'000 : 1'000'000;
        size_t at = 0, seen = 0;
        // Pieces of one byte would take for ever on long streams: only short ones there.
        const size_t end = piece_max == 3 ? std::min<size_t>(s.bytes.size(), 20'000) : s.bytes.size();
        while (at < end) {
            auto space = reader.read_space();
            ASSERT_FALSE(space.empty());
            const size_t n = std::min({space.size(), end - at, size_t{1} + rng() % piece_max});
            std::memcpy(space.data(), s.bytes.data() + at, n);
            at += n;
            reader.on_read(n, {});
            for (;;) {
                auto got = reader.next();
                ASSERT_TRUE(got.has_value()) << got.error().message;
                if (!*got) break;
                ASSERT_TRUE(wire::encode((*got)->message) == s.heads[seen]);
                ASSERT_TRUE((*got)->payload == s.payloads[seen]);
                ++seen;
            }
        }
        if (end == s.bytes.size()) {
            EXPECT_EQ(seen, s.heads.size());
        }
    }
}

TEST(FrameReader, DamagedStreamsNeverDoHarm) {
    // Every answer is a message, "more" or kCorrupt; memory stays bounded; nothing is read outside (sanitizers).
    std::mt19937 rng(2);
    for (int round = 0; round < 3'000; ++round) {
        Stream s = random_stream(rng, 3);
        if (s.bytes.size() > 30'000) continue;
        for (int i = 0; i < 1 + static_cast<int>(rng() % 4); ++i) s.bytes[rng() % s.bytes.size()] = static_cast<std::byte>(rng());
        FrameReader reader(1 << 20, 1 << 20);
        size_t at = 0;
        bool failed = false;
        while (at < s.bytes.size() && !failed) {
            auto space = reader.read_space();
            const size_t n = std::min({space.size(), s.bytes.size() - at, size_t{1} + rng() % 4'000});
            std::memcpy(space.data(), s.bytes.data() + at, n);
            at += n;
            reader.on_read(n, {});
            for (;;) {
                auto got = reader.next();
                failed = !got;
                if (failed) {
                    EXPECT_EQ(got.error().code, ErrorCode::kCorrupt);
                }
                if (failed || !*got) break;
            }
        }
    }
}

TEST(FrameReader, LimitsAreCheckedBeforeMemoryIsTaken) {
    const auto feed = [](FrameReader& reader, const Bytes& bytes) {
        auto space = reader.read_space();
        std::memcpy(space.data(), bytes.data(), bytes.size());
        reader.on_read(bytes.size(), {});
        return reader.next();
    };
    Bytes header = wire::encode(wire::Accept{});
    header.resize(wire::kFrameHeaderBytes);
    const uint32_t bytes = 4097;
    std::memcpy(header.data() + 8, &bytes, 4);
    FrameReader stranger(4096, 0);
    EXPECT_FALSE(feed(stranger, header).has_value());
    FrameReader known(4096, 0);
    known.set_limits(4097, 0);
    EXPECT_TRUE(feed(known, header).has_value());
    wire::ExtentHeader h;
    h.bytes = UINT64_MAX;
    FrameReader greedy(limits::kFrameBytesMax, limits::kFrameBytesMax);
    EXPECT_FALSE(feed(greedy, wire::encode(h)).has_value());
}

TEST(FrameReader, DescriptorsGoToTheLastFrameThatBeginsInTheirRead) {
    const auto fds = [] {
        std::vector<UniqueFd> v;
        v.emplace_back(::dup(0));
        return v;
    };
    const Bytes one = wire::encode(wire::Accept{{1}, 0});
    // [tail of frame 1][head of frame 2] with descriptors, then the rest of frame 2: they are frame 2's.
    FrameReader reader(4096, 0);
    const auto read = [&](const Bytes& bytes, std::vector<UniqueFd> passed) {
        auto space = reader.read_space();
        std::memcpy(space.data(), bytes.data(), bytes.size());
        reader.on_read(bytes.size(), std::move(passed));
    };
    read(Bytes(one.begin(), one.begin() + 9), {});
    EXPECT_FALSE(reader.next()->has_value());
    Bytes middle(one.begin() + 9, one.end());
    append(middle, Bytes(one.begin(), one.begin() + 3));
    read(middle, fds());
    auto first = reader.next();
    ASSERT_TRUE(first && *first);
    EXPECT_TRUE((*first)->fds.empty());
    EXPECT_FALSE(reader.next()->has_value());
    read(Bytes(one.begin() + 3, one.end()), {});
    auto second = reader.next();
    ASSERT_TRUE(second && *second);
    EXPECT_EQ((*second)->fds.size(), 1u);
    // In the middle of a frame they belong to nobody.
    read(Bytes(one.begin(), one.begin() + 5), {});
    EXPECT_FALSE(reader.next()->has_value());
    read(Bytes(one.begin() + 5, one.end()), fds());
    EXPECT_FALSE(reader.next().has_value());
}

}  // namespace
}  // namespace baton::net
