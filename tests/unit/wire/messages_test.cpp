#include "baton/wire/messages.hpp"

#include <gtest/gtest.h>

#include <random>

#include "baton/base/limits.hpp"

namespace baton::wire {
namespace {

Sequence sample_sequence() {
    Sequence s;
    s.ref = {SequenceId{7}, 2};
    s.request_id = "req-1";
    s.prompt = {1, 2, 3};
    s.emitted = {9};
    s.sampling.seed = 42;
    s.sampling.stop_ids = {2};
    s.sampling.logit_bias = {{5, -1.5f}};
    s.time_left_ms = 1000;
    return s;
}

std::vector<Message> samples() {
    return {Heartbeat{3},
            Hello{1, "replica", "m/1", "c", "p"},
            Prefill{sample_sequence(), {ReplicaId{2}, Epoch{5}}},
            Peers{{{{ReplicaId{1}, Epoch{1}}, 1, "h", "/run/x", "127.0.0.1:1"}}},
            TokenBatch{{{{SequenceId{7}, 2}, 1, {{11, -0.5f, {{11, -0.5f}, {12, -1.0f}}}}, Finish::kStop, 16}}},
            Offer{OfferId{1}, sample_sequence(), {Digest{1}}, {3, 4}, {1, 1}, 20, 2},
            Commit{OfferId{1}, {9}, {123}},
            StoreSlots{4, {0, UINT32_MAX}}};
}

Expected<Message> decode(std::span<const std::byte> bytes) {
    auto h = decode_header(bytes.first(kFrameHeaderBytes));
    if (!h) return fail(h.error());
    return decode_body(h->type, bytes.subspan(kFrameHeaderBytes));
}

TEST(Messages, RoundTripReencodesToTheSameBytes) {
    for (const Message& m : samples()) {
        const auto bytes = encode(m);
        auto back = decode(bytes);
        ASSERT_TRUE(back) << name_of(m);
        EXPECT_EQ(back->index(), m.index());
        EXPECT_EQ(encode(*back), bytes) << name_of(m);
    }
}

TEST(Messages, GoldenBytesOfAbort) {
    const auto bytes = encode(Abort{{SequenceId{0x0102030405060708}, 9}});
    const std::vector<uint8_t> want{'B', 'T', 'N', '1', 6, 0, 0, 0, 12, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0};
    ASSERT_EQ(bytes.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(static_cast<uint8_t>(bytes[i]), want[i]) << i;
}

TEST(Messages, EveryTruncationIsAnErrorOrDefaultsWholeTrailingFields) {
    for (const Message& m : samples()) {
        const auto bytes = encode(m);
        for (size_t n = kFrameHeaderBytes; n < bytes.size(); ++n) {
            auto back = decode(std::span(bytes).first(n));
            if (back) {
                EXPECT_LE(encode(*back).size(), bytes.size()) << name_of(m) << " at " << n;
            }
        }
    }
}

TEST(Messages, RandomBytesNeverCrashAndNeverAllotMoreThanTheyHold) {
    std::mt19937_64 rng(1);
    for (int round = 0; round < 20'000; ++round) {
        std::vector<std::byte> body(rng() % 200);
        for (auto& b : body) b = static_cast<std::byte>(rng());
        auto m = decode_body(static_cast<uint16_t>(rng() % std::variant_size_v<Message>), body);
        if (m) {
            EXPECT_LE(encode(*m).size(), 4096u);
        }
    }
}

TEST(Messages, FlippedBytesOfRealMessagesNeverCrash) {
    std::mt19937_64 rng(2);
    for (const Message& m : samples())
        for (int round = 0; round < 2'000; ++round) {
            auto bytes = encode(m);
            bytes[kFrameHeaderBytes + rng() % (bytes.size() - kFrameHeaderBytes)] = static_cast<std::byte>(rng());
            (void)decode(bytes);
        }
}

TEST(Messages, HeaderRefusesWrongMagicTypeAndLength) {
    auto bytes = encode(Heartbeat{});
    auto bad = bytes;
    bad[0] = std::byte{'X'};
    EXPECT_FALSE(decode_header(std::span(bad).first(kFrameHeaderBytes)));
    bad = bytes;
    bad[5] = std::byte{0xff};
    EXPECT_FALSE(decode_header(std::span(bad).first(kFrameHeaderBytes)));
    bad = bytes;
    bad[11] = std::byte{0xff};
    EXPECT_FALSE(decode_header(std::span(bad).first(kFrameHeaderBytes)));
}

}  // namespace
}  // namespace baton::wire
