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
            TokenBatch{{{{SequenceId{7}, 2}, 1, {{11, -0.5f, {{11, -0.5f}, {12, -1.0f}}}}, Finish::kStop, 16}}, {{{SequenceId{7}, 2}, 5, 6}}},
            Offer{OfferId{1}, sample_sequence(), {Digest{1}}, {3, 4}, {1, 1}, 20, 2},
            Commit{OfferId{1}, {9}, {123}},
            StoreSlots{4, {0, UINT32_MAX}},
            WeightsOpen{{ReplicaId{1}, Epoch{2}}, "m", Digest{7}, 1u << 20},
            WeightsGrant{WeightsState::kReady, 1u << 20},
            WeightsFilled{false},
            ChannelPair{3, PairStep::kFailed, {1, 2}, "timeout"},
            ChannelExtent{3, 9, 7, 1, 2, 3, 4, 1u << 24},
            ChannelGo{3, 9},
            ChannelSent{3, 9},
            WorkerStats{0.5, 1, 2, 3, 4, 5, 6, {{0, 1u << 30, 0.25}}},
            PullModel{5, "huggingface", "o/n", "main", "ggufv2", "q4_0", "n-q4_0.gguf"},
            CancelPull{5},
            PullProgress{5, 3, 9, {{"config.json", 3, 3, true}, {"m.gguf", 0, 6, false}}},
            PullDone{5, 2, "", "", "gone", "model_name"},
            ListCached{7},
            CachedList{7, {{"huggingface", "o/n", "c", "/c/s", {"config.json"}, 3}}}};
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

std::vector<uint8_t> bytes_of(const Message& m) {
    std::vector<uint8_t> out;
    for (const std::byte b : encode(m)) out.push_back(static_cast<uint8_t>(b));
    return out;
}

TEST(Messages, GoldenBytesOfTheWeightsMessages) {
    std::vector<uint8_t> open{'B', 'T', 'N', '1', 39, 0, 0, 0, 62, 0, 0, 0,
                              1,   0,   0,   0,   0,  0, 0, 0,  // replica
                              2,   0,   0,   0,   0,  0, 0, 0,  // epoch
                              2,   0,   0,   0,   'm', '1'};
    open.push_back(7);
    open.insert(open.end(), 31, 0);
    for (const int b : {0, 0, 0x10, 0, 0, 0, 0, 0}) open.push_back(static_cast<uint8_t>(b));
    EXPECT_EQ(bytes_of(WeightsOpen{{ReplicaId{1}, Epoch{2}}, "m1", Digest{7}, 1u << 20}), open);
    EXPECT_EQ(bytes_of(WeightsGrant{WeightsState::kFill, 0x0102030405060708}),
              (std::vector<uint8_t>{'B', 'T', 'N', '1', 40, 0, 0, 0, 9, 0, 0, 0, 1, 8, 7, 6, 5, 4, 3, 2, 1}));
    EXPECT_EQ(bytes_of(WeightsFilled{true}), (std::vector<uint8_t>{'B', 'T', 'N', '1', 41, 0, 0, 0, 1, 0, 0, 0, 1}));
}

TEST(Messages, GoldenBytesOfTheChannelMessages) {
    EXPECT_EQ(bytes_of(ChannelPair{3, PairStep::kFailed, {1, 2}, "x"}),
              (std::vector<uint8_t>{'B', 'T', 'N', '1', 42, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 2, 0, 0, 0, 1, 2, 1, 0, 0, 0, 'x'}));
    EXPECT_EQ(bytes_of(ChannelGo{3, 9}),
              (std::vector<uint8_t>{'B', 'T', 'N', '1', 44, 0, 0, 0, 16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(bytes_of(ChannelSent{3, 9}),
              (std::vector<uint8_t>{'B', 'T', 'N', '1', 45, 0, 0, 0, 16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(Messages, GoldenBytesOfAFirstTokensStart) {
    EXPECT_EQ(bytes_of(TokenBatch{{}, {{{SequenceId{7}, 2}, 5, 0x0102}}}),
              (std::vector<uint8_t>{'B', 'T', 'N', '1', 11, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0,
                                    5, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0}));
}

TEST(Messages, GoldenBytesOfAPull) {
    EXPECT_EQ(bytes_of(CancelPull{5}), (std::vector<uint8_t>{'B', 'T', 'N', '1', 47, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(bytes_of(PullProgress{1, 2, 3, {{"f", 2, 3, true}}}),
              (std::vector<uint8_t>{'B', 'T', 'N', '1', 48, 0, 0, 0, 50, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
                                    1, 0, 0, 0, 1, 0, 0, 0, 'f', 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1}));
    EXPECT_EQ(bytes_of(PullDone{1, 2, "p", "", "e", ""}),
              (std::vector<uint8_t>{'B', 'T', 'N', '1', 49, 0, 0, 0, 27, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 'p', 0, 0, 0, 0, 1, 0, 0, 0, 'e', 0, 0, 0, 0}));
}

TEST(Messages, GoldenBytesOfAGpusUse) {
    const auto bytes = bytes_of(WorkerStats{0, 0, 0, 0, 0, 0, 0, {{1, 2, 0}}});
    const std::vector<uint8_t> tail{1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    ASSERT_EQ(bytes.size(), kFrameHeaderBytes + 40 + tail.size());
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), bytes.end() - static_cast<std::ptrdiff_t>(tail.size())));
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
