#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "fake_device.hpp"
#include "xavier_harness.hpp"

namespace baton::xavier::test {
namespace {

using kv::PoolOrder;

/// One direction of a link within the process: hands each message on at once, unless a test takes it.
class DirectLink final : public net::Connection {
  public:
    std::function<void(wire::Message, std::vector<std::byte>)> deliver;
    std::function<bool(const wire::Message&)> takes;  ///< true: the message is lost
    std::atomic<uint64_t> ready{0};  ///< delivered words that a side has paired
    void start(Handlers) override {}
    /// Under the mutex, so that nothing is delivered after close(). Who delivers only queues a command.
    void send(const wire::Message& message, std::vector<std::byte> payload, std::vector<int>) override {
        const std::lock_guard lock(mutex);
        ++sent[std::string(wire::name_of(message))];
        if (closed_ || (takes && takes(message))) return;
        deliver(message, std::move(payload));
        const auto* pair = std::get_if<wire::ChannelPair>(&message);
        if (pair != nullptr && pair->step == wire::PairStep::kReady) ++ready;
    }
    void close() override {
        const std::lock_guard lock(mutex);
        closed_ = true;
    }
    const wire::Hello& peer() const override { return hello_; }
    std::string remote() const override { return "unix"; }
    std::string local_ip() const override { return ""; }
    size_t queued_bytes() const override { return 0; }
    uint64_t count(const std::string& name) {
        const std::lock_guard lock(mutex);
        return sent[name];
    }
    std::mutex mutex;
    std::map<std::string, uint64_t> sent;

  private:
    bool closed_ = false;
    wire::Hello hello_;
};

/// P and D with pools on devices that cannot map each other, linked; with a fabric by channel, else by tcp alone.
struct Linked {
    Linked(const kv::PoolLayout& pl, const kv::PoolLayout& dl, bool channel, uint32_t delay_us_max = 100, uint32_t lanes = 1)
        : p(pl, "GPU-a", delay_us_max), d(dl, "GPU-z", delay_us_max) {
        if (lanes > 1) fabric.buffers = 2 * lanes;
        fabric.lanes = lanes;
        p_words = std::move(*SharedPool::create_words(pl, 8));
        d_words = std::move(*SharedPool::create_words(dl, 8));
        if (channel) p.fabric = d.fabric = &fabric;
        p_thread = TransferThread::start(*p_words, p, p_reports.callbacks());
        d_thread = TransferThread::start(*d_words, d, reports.callbacks());
        to_d->deliver = [this](wire::Message m, std::vector<std::byte> bytes) {
            if (const auto* h = std::get_if<wire::ExtentHeader>(&m)) d_thread->on_extent(kPrefill, *h, std::move(bytes));
            else d_thread->on_channel_message(kPrefill, std::move(m));
        };
        to_p->deliver = [this](wire::Message m, std::vector<std::byte>) {
            if (auto* r = std::get_if<wire::PullRequest>(&m)) p_thread->on_pull_request(kDecode, std::move(*r), to_d);
            else p_thread->on_channel_message(kDecode, std::move(m));
        };
        const auto added = d_thread->add_source(kPrefill, pl, 8, std::nullopt, to_p);
        EXPECT_TRUE(added.has_value());
        if (!channel) return;
        d_thread->add_channel(kPrefill, to_p, false);
        p_thread->add_channel(kDecode, to_d, true);
    }
    ~Linked() {
        to_d->close();
        to_p->close();
        d_thread.reset();
        p_thread.reset();
    }
    /// Both sides have told each other that attempt `n` is paired.
    void wait_paired(uint64_t n = 1) {
        while (to_d->ready < n || to_p->ready < n) std::this_thread::yield();
        ASSERT_TRUE(p_thread->checksums({}));  // P has looked at D's
    }
    Handoff handoff(std::mt19937& rng, uint64_t id, uint32_t tokens, uint32_t first = 0, Generation generation = 1) {
        return make_handoff(rng, *p_words, *d_words, id, static_cast<uint32_t>(id % 8), tokens, first, generation);
    }
    void write(const Handoff& h, uint32_t layer, uint32_t begin, uint32_t end, uint64_t other = 0) {
        write_layer(p.memory(), p.layout(), h.open.blocks, h.sequence + other, layer, begin, end);
    }
    void progress(const Handoff& h, uint32_t begin, uint32_t end, uint32_t layers) {
        std::atomic_ref<uint64_t>(*p_words->progress_word(h.open.slot))
            .store(progress_base(begin, end) + (uint64_t{layers} << 48), std::memory_order_release);
    }
    /// Computes all at once.
    void prefill(const Handoff& h, uint32_t chunk = UINT32_MAX) {
        for (uint32_t begin = 0; begin < h.open.tokens;) {
            const uint32_t end = begin + std::min(chunk, h.open.tokens - begin);
            for (uint32_t layer = 0; layer < p.layout().layers; ++layer) {
                write(h, layer, begin, end);
                progress(h, begin, end, layer + 1);
            }
            begin = end;
        }
    }
    [[nodiscard]] size_t wrong(const Handoff& h, uint32_t first = 0) {
        return wrong_bytes(d.memory(), d.layout(), h.pull.target_blocks, h.sequence, first, h.open.tokens);
    }
    /// Offers, pulls and computes.
    void run(const Handoff& h) {
        p_words->open_progress(h.open);
        d_thread->start_pull(h.pull);
        prefill(h);
    }
    void close(const Handoff& h) { p_words->close_progress({h.open.slot, h.open.offer}); }
    void set(bool FakeFabric::*what, bool value) {
        const std::lock_guard lock(fabric.mutex);
        fabric.*what = value;
    }

    FakeFabric fabric;
    FakeDevice p, d;
    std::unique_ptr<SharedPool> p_words, d_words;
    Reports p_reports, reports;
    std::shared_ptr<DirectLink> to_d = std::make_shared<DirectLink>(), to_p = std::make_shared<DirectLink>();
    std::unique_ptr<TransferThread> p_thread, d_thread;
};

/// The last: lanes of the channel, 0: by tcp.
class Orders : public testing::TestWithParam<std::tuple<PoolOrder, PoolOrder, uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(TcpAndChannel, Orders,
                         testing::Combine(testing::Values(PoolOrder::kBlockFirst, PoolOrder::kKvFirst),
                                          testing::Values(PoolOrder::kBlockFirst, PoolOrder::kKvFirst), testing::Values(0u, 1u, 2u, 3u)));

TEST_P(Orders, RandomInterleavingsArriveWhole) {
    std::mt19937 rng(21);
    const auto [from, to, lanes] = GetParam();
    const bool channel = lanes > 0;
    Linked s(layout_of(from, 64, 6, 16, 64), layout_of(to, 80, 6, 16, 64), channel, 100, std::max(lanes, 1u));
    if (channel) s.wait_paired();
    for (uint64_t id = 1; id <= 25; ++id) {
        const uint32_t tokens = 1 + static_cast<uint32_t>(rng() % 700);
        const uint32_t have = rng() % 3 == 0 ? static_cast<uint32_t>(rng() % (tokens / 16 + 1)) : 0;
        Handoff h = s.handoff(rng, id, tokens, have);
        s.p_words->open_progress(h.open);
        const bool early = rng() % 2 == 0;
        if (early) s.d_thread->start_pull(h.pull);
        s.prefill(h, 1 + static_cast<uint32_t>(rng() % 90));
        if (!early) s.d_thread->start_pull(h.pull);
        const auto r = s.reports.pull(id);
        ASSERT_TRUE(r.ok) << r.reason;
        if (r.bytes > 0) {
            EXPECT_EQ(r.mover, channel ? "nccl" : "tcp");
        }
        EXPECT_EQ(r.bytes, (h.open.blocks.size() - have) * s.p.layout().block_bytes());
        ASSERT_EQ(s.wrong(h, have * 16), 0u);
        s.close(h);
    }
    EXPECT_EQ(s.to_d->count("extent_header") > 0, !channel);
    // D's word goes ahead: one for its buffers at first, and at most one for each that is free again.
    const uint64_t extents = s.to_d->count("channel_extent");
    if (lanes <= 1) {  // several may leave out a number
        EXPECT_LE(s.to_p->count("channel_go"), extents + 1);
    }
    EXPECT_EQ(s.to_d->count("channel_sent"), extents);
}

TEST(TransferDeviceTcp, ManyAtOnceShareTheBuffers) {
    std::mt19937 rng(22);
    Linked s(layout_of(PoolOrder::kKvFirst, 64, 8, 16, 256), layout_of(PoolOrder::kBlockFirst, 64, 8, 16, 256), false, 300);
    std::vector<Handoff> all;
    const auto from = some_blocks(rng, 64, 64), to = some_blocks(rng, 64, 64);
    for (uint32_t i = 0; i < 6; ++i) {
        Handoff h = s.handoff(rng, i + 1, 10 * 16 - i);
        std::copy_n(from.begin() + i * 10, 10, h.open.blocks.begin());
        h.pull.source_blocks = h.open.blocks;
        std::copy_n(to.begin() + i * 10, 10, h.pull.target_blocks.begin());
        s.p_words->open_progress(h.open);
        s.d_thread->start_pull(h.pull);
        all.push_back(std::move(h));
    }
    for (const Handoff& h : all) s.prefill(h, 64);
    for (const Handoff& h : all) {
        ASSERT_TRUE(s.reports.pull(h.pull.pull).ok);
        EXPECT_EQ(s.wrong(h), 0u);
    }
}

TEST(TransferDeviceTcp, CancelWithCopiesInFlight) {
    std::mt19937 rng(23);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), false);
    for (uint64_t id = 1; id <= 10; ++id) {
        Handoff h = s.handoff(rng, id, 500);
        s.p_words->open_progress(h.open);
        s.d.pause(true);
        const uint64_t before = s.d.queued();
        s.d_thread->start_pull(h.pull);
        s.prefill(h);
        s.d.wait_queued(before + 1);
        s.d_thread->cancel_pull(id);
        ASSERT_TRUE(s.d_thread->checksums({}));
        EXPECT_FALSE(s.reports.has_pull(id));
        s.d.pause(false);
        EXPECT_EQ(s.reports.pull(id).reason, "cancelled");
        std::ranges::fill(s.d.memory(), static_cast<std::byte>(id));
        s.close(h);
        ASSERT_TRUE(s.p_thread->checksums({}));
        for (const std::byte b : s.d.memory().first(65536)) ASSERT_EQ(b, static_cast<std::byte>(id));
    }
}

/// P's blocks are reused while its device gathers them.
void reuse_while_gathering(bool channel) {
    std::mt19937 rng(24);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64), channel);
    if (channel) s.wait_paired();
    for (const bool closes : {true, false}) {
        const uint64_t id = closes ? 1 : 2;
        Handoff h = s.handoff(rng, id, 100, 0, 5);
        s.p_words->open_progress(h.open);
        s.prefill(h);
        s.p.pause(true);
        const uint64_t before = s.p.queued();
        s.d_thread->start_pull(h.pull);
        s.p.wait_queued(before + 1);
        if (closes) s.close(h);
        for (const BlockId b : h.open.blocks) s.p_words->set_generation(b, 6);
        for (uint32_t layer = 0; layer < 3; ++layer) s.write(h, layer, 0, 100, 1);
        s.p.pause(false);
        EXPECT_EQ(s.reports.pull(id).reason, "generation");
        s.close(h);
    }
}
TEST(TransferDeviceTcp, BlocksReusedWhileGatheredAreNotSent) { reuse_while_gathering(false); }
TEST(TransferChannel, BlocksReusedWhileGatheredAreNotSent) { reuse_while_gathering(true); }

TEST(TransferChannel, UntilPairedAndWithoutNcclItIsTcp) {
    std::mt19937 rng(25);
    for (const bool opens : {true, false}) {
        Linked s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64), false);
        s.p.fabric = s.d.fabric = &s.fabric;
        s.fabric.no_pair = true;
        s.fabric.no_open = !opens;
        s.d_thread->add_channel(kPrefill, s.to_p, false);
        s.p_thread->add_channel(kDecode, s.to_d, true);
        Handoff h = s.handoff(rng, 1, 100);
        s.run(h);
        EXPECT_EQ(s.reports.pull(1).mover, "tcp");
        EXPECT_EQ(s.wrong(h), 0u);
        s.close(h);
        if (!opens) continue;
        s.set(&FakeFabric::no_pair, false);
        s.wait_paired();
        h = s.handoff(rng, 2, 100);
        s.run(h);
        EXPECT_EQ(s.reports.pull(2).mover, "nccl");
        EXPECT_EQ(s.wrong(h), 0u);
    }
}

/// Until P has launched `n` sends, and D has looked at what P said of them.
void wait_launched(Linked& s, uint64_t n) {
    while (s.to_d->count("channel_extent") < n) std::this_thread::yield();
    ASSERT_TRUE(s.d_thread->checksums({}));
}

TEST(TransferChannel, WhatIsGatheredForTheLinkWhenTheChannelComesGoesByTheLink) {
    std::mt19937 rng(36);
    const auto layout = layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64);
    for (const uint32_t lanes : {1u, 2u}) {
        Linked s(layout, layout, false, 100, lanes);
        s.p.fabric = s.d.fabric = &s.fabric;
        s.fabric.no_pair = true;
        s.d_thread->add_channel(kPrefill, s.to_p, false);
        s.p_thread->add_channel(kDecode, s.to_d, true);
        Handoff h = s.handoff(rng, 1, 900);
        s.p.pause(true);
        s.p_words->open_progress(h.open);
        s.d_thread->start_pull(h.pull);
        for (uint32_t layer = 0; layer < 6; ++layer) s.write(h, layer, 0, 400);
        s.progress(h, 0, 400, 6);
        s.p.wait_queued(1);  // gathered for the link
        s.set(&FakeFabric::no_pair, false);
        s.wait_paired();
        const uint64_t before = s.p.queued();
        for (uint32_t layer = 0; layer < 6; ++layer) s.write(h, layer, 400, 900);
        s.progress(h, 400, 900, 6);
        s.p.wait_queued(before + 1);  // gathered for the channel
        s.p.pause(false);
        const auto r = s.reports.pull(1);
        ASSERT_TRUE(r.ok) << r.reason;
        EXPECT_EQ(s.wrong(h), 0u);
        EXPECT_GT(s.to_d->count("extent_header"), 0u);
        EXPECT_GT(s.to_d->count("channel_extent"), 0u);
        s.close(h);
    }
}

TEST(TransferChannel, NothingIsLaunchedWithoutTheReceiversWord) {
    std::mt19937 rng(31);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), true);
    {
        const std::lock_guard lock(s.to_p->mutex);
        s.to_p->takes = [](const wire::Message& m) { return std::holds_alternative<wire::ChannelGo>(m); };
    }
    s.wait_paired();
    Handoff h = s.handoff(rng, 1, 500);
    s.run(h);
    s.p.wait_queued(s.fabric.buffers);  // P gathers what it has buffers for
    ASSERT_TRUE(s.p_thread->checksums({}));
    EXPECT_EQ(s.to_d->count("channel_extent"), 0u);
    // P waits so long for the word, then gives the channel up.
    EXPECT_EQ(s.reports.pull(1).reason, "generation");
    const std::lock_guard lock(s.fabric.mutex);
    EXPECT_EQ(s.fabric.moved, 0u);
}

TEST(TransferChannel, SeveralExtentsAreUnderWayAtOnce) {
    std::mt19937 rng(32);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), layout_of(PoolOrder::kKvFirst, 64, 6, 16, 64), true);
    s.wait_paired();
    s.set(&FakeFabric::stuck, true);
    Handoff h = s.handoff(rng, 1, 900);
    s.run(h);
    wait_launched(s, s.fabric.buffers);  // no byte has moved
    EXPECT_EQ(s.to_d->count("channel_extent"), s.fabric.buffers);
    s.set(&FakeFabric::stuck, false);
    const auto r = s.reports.pull(1);
    ASSERT_TRUE(r.ok) << r.reason;
    EXPECT_EQ(s.wrong(h), 0u);
    EXPECT_GT(s.to_d->count("channel_extent"), 2 * s.fabric.buffers);
}

TEST(TransferChannel, OneLaneMovesWhileTheOtherIsStuck) {
    std::mt19937 rng(34);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), true, 100, 2);
    s.wait_paired();
    {
        const std::lock_guard lock(s.fabric.mutex);
        s.fabric.stuck_lane = 0;
    }
    Handoff h = s.handoff(rng, 1, 900);
    s.run(h);
    // 1, 3 and 5 move, and 2 and 4 are launched; there is no buffer for 6, and what comes behind it waits.
    wait_launched(s, 5);
    const auto moved = [&] {
        const std::lock_guard lock(s.fabric.mutex);
        return s.fabric.moved;
    };
    while (moved() < 3) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(moved(), 3u);
    EXPECT_EQ(s.to_d->count("channel_extent"), 5u);
    {
        const std::lock_guard lock(s.fabric.mutex);
        s.fabric.stuck_lane.reset();
    }
    const auto r = s.reports.pull(1);
    ASSERT_TRUE(r.ok) << r.reason;
    EXPECT_EQ(s.wrong(h), 0u);
    EXPECT_EQ(s.to_d->ready, 1u);
}

class Lanes : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Channel, Lanes, testing::Values(1u, 2u, 4u));

/// Pulls that end in the middle leave buffers in any order.
TEST_P(Lanes, ManyAtOnceAndCancelled) {
    std::mt19937 rng(35 + GetParam());
    Linked s(layout_of(PoolOrder::kBlockFirst, 512, 6, 16, 64), layout_of(PoolOrder::kKvFirst, 512, 6, 16, 64), true, 100, GetParam());
    s.wait_paired();
    constexpr uint32_t kAtOnce = 6, kBlocksEach = 80;
    for (uint64_t round = 0; round < 12; ++round) {
        std::vector<Handoff> all;
        const auto id = [&](uint64_t i) { return round * 8 + i + 1; };
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            Handoff h = s.handoff(rng, id(i), 1 + static_cast<uint32_t>(rng() % 900));
            for (auto* list : {&h.open.blocks, &h.pull.target_blocks}) {  // of its own, in any order
                std::vector<BlockId> own(kBlocksEach);
                std::iota(own.begin(), own.end(), i * kBlocksEach);
                std::shuffle(own.begin(), own.end(), rng);
                std::copy_n(own.begin(), list->size(), list->begin());
            }
            h.pull.source_blocks = h.open.blocks;
            s.run(h);
            all.push_back(std::move(h));
            if (rng() % 3 == 0) s.close(all[rng() % all.size()]);  // the sender ends it
            if (rng() % 3 == 0) s.d_thread->cancel_pull(id(rng() % all.size()));
        }
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            const auto r = s.reports.pull(id(i));
            if (r.ok) {
                EXPECT_EQ(s.wrong(all[i]), 0u);
            } else {
                EXPECT_TRUE(r.reason == "cancelled" || r.reason == "generation") << r.reason;
            }
            s.close(all[i]);
        }
    }
    EXPECT_EQ(s.to_d->ready, 1u);  // nobody paired again
}

TEST(TransferChannel, CancelWhileReceivingWritesNothing) {
    std::mt19937 rng(26);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), true);
    s.wait_paired();
    for (uint64_t id = 1; id <= 6; ++id) {
        s.set(&FakeFabric::stuck, true);
        const uint64_t launched = s.to_d->count("channel_extent");
        Handoff h = s.handoff(rng, id, 500);
        s.run(h);
        wait_launched(s, launched + 1);
        s.d_thread->cancel_pull(id);
        EXPECT_EQ(s.reports.pull(id).reason, "cancelled");  // though the receive is stuck: it writes no page
        std::ranges::fill(s.d.memory(), static_cast<std::byte>(id));
        s.close(h);
        s.set(&FakeFabric::stuck, false);
        // The channel is as good as before.
        Handoff next = s.handoff(rng, 100 + id, 300);
        s.run(next);
        const auto r = s.reports.pull(100 + id);
        ASSERT_TRUE(r.ok) << r.reason;
        EXPECT_EQ(r.mover, "nccl");
        EXPECT_EQ(s.wrong(next), 0u);
        for (uint32_t b = 0; b < 64; ++b) {
            if (std::ranges::find(next.pull.target_blocks, b) != next.pull.target_blocks.end()) continue;
            ASSERT_EQ(s.d.memory()[s.d.layout().page_offset(0, false, b)], static_cast<std::byte>(id));
        }
        s.close(next);
    }
    EXPECT_EQ(s.to_d->ready, 1u);  // nobody paired again
}

TEST(TransferChannel, AStuckTransferTimesOutAndTheyPairAgain) {
    std::mt19937 rng(27);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), true);
    s.wait_paired();
    s.set(&FakeFabric::stuck, true);
    Handoff h = s.handoff(rng, 1, 500);
    s.run(h);
    EXPECT_EQ(s.reports.pull(1).reason, "channel");
    s.close(h);
    s.set(&FakeFabric::stuck, false);
    s.wait_paired(2);
    h = s.handoff(rng, 2, 500);
    s.run(h);
    const auto r = s.reports.pull(2);
    ASSERT_TRUE(r.ok) << r.reason;
    EXPECT_EQ(r.mover, "nccl");
    EXPECT_EQ(s.wrong(h), 0u);
}

TEST(TransferChannel, TheSendersWordIsNeeded) {
    // The bytes came, the own stream says so and they lie in the pages, but P never says that it sent them.
    std::mt19937 rng(28);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64), true);
    s.wait_paired();
    {
        const std::lock_guard lock(s.to_d->mutex);
        s.to_d->takes = [](const wire::Message& m) { return std::holds_alternative<wire::ChannelSent>(m); };
    }
    Handoff h = s.handoff(rng, 1, 100);
    s.run(h);
    EXPECT_EQ(s.reports.pull(1).reason, "channel");
    {
        const std::lock_guard lock(s.fabric.mutex);
        EXPECT_GT(s.fabric.moved, 0u);
    }
    // The pull is over: from now on nothing is written.
    std::ranges::fill(s.d.memory(), std::byte{0x5a});
    s.d_thread->remove_source(kPrefill);
    ASSERT_TRUE(s.d_thread->checksums({}));
    for (const std::byte b : s.d.memory()) ASSERT_EQ(b, std::byte{0x5a});
}

TEST(TransferChannel, SendsOfWhatIsComputedFollowTheirGathers) {
    // P announces them while its device still gathers; what D gets is what was gathered.
    std::mt19937 rng(34);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), layout_of(PoolOrder::kKvFirst, 64, 6, 16, 64), true);
    s.wait_paired();
    for (const bool computed : {true, false}) {
        const uint64_t id = computed ? 1 : 2, before = s.to_d->count("channel_extent"), sent = s.to_d->count("channel_sent");
        Handoff h = s.handoff(rng, id, 500);
        s.p_words->open_progress(h.open);
        for (uint32_t layer = 0; layer < 6; ++layer) s.write(h, layer, 0, 500);
        s.p.pause(true);
        const uint64_t queued = s.p.queued();
        // With a layer to come what is ready is not the last of it.
        s.progress(h, 0, 500, computed ? 6 : 5);
        s.d_thread->start_pull(h.pull);
        if (computed) {
            wait_launched(s, before + s.fabric.buffers);
        } else {
            ASSERT_TRUE(s.d_thread->checksums({}));
            ASSERT_TRUE(s.p_thread->checksums({}));
            EXPECT_EQ(s.p.queued(), queued);  // too little to send before the end
        }
        EXPECT_EQ(s.to_d->count("channel_extent") - before, computed ? s.fabric.buffers : 0u);
        EXPECT_EQ(s.to_d->count("channel_sent"), sent);
        s.progress(h, 0, 500, 6);
        s.p.pause(false);
        const auto r = s.reports.pull(id);
        ASSERT_TRUE(r.ok) << r.reason;
        EXPECT_EQ(s.wrong(h), 0u);
        s.close(h);
    }
}

TEST(TransferChannel, PeersLostInFlight) {
    std::mt19937 rng(29);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), layout_of(PoolOrder::kBlockFirst, 64, 6, 16, 64), true);
    s.wait_paired();
    s.set(&FakeFabric::stuck, true);
    Handoff h = s.handoff(rng, 1, 500);
    s.run(h);
    wait_launched(s, 1);
    s.d_thread->remove_source(kPrefill);
    EXPECT_EQ(s.reports.pull(1).reason, "peer_lost");
    s.p_thread->drop_requester(kDecode);
    s.close(h);
    // The link comes up again.
    s.set(&FakeFabric::stuck, false);
    ASSERT_TRUE(s.d_thread->add_source(kPrefill, s.p.layout(), 8, std::nullopt, s.to_p));
    s.d_thread->add_channel(kPrefill, s.to_p, false);
    s.p_thread->add_channel(kDecode, s.to_d, true);
    s.wait_paired(2);
    h = s.handoff(rng, 2, 500);
    s.run(h);
    ASSERT_TRUE(s.reports.pull(2).ok);
    EXPECT_EQ(s.wrong(h), 0u);
}

TEST(TransferChannel, MessagesThatMakeNoSense) {
    std::mt19937 rng(30);
    Linked s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64), true);
    s.wait_paired();
    // Older attempts, and an unknown peer, are ignored.
    s.p_thread->on_channel_message(kDecode, wire::ChannelGo{0, 1});
    s.d_thread->on_channel_message(kPrefill, wire::ChannelSent{0, 1});
    s.d_thread->on_channel_message(kPrefill, wire::ChannelPair{1, wire::PairStep::kOpen, {1, 2, 3}, ""});
    s.d_thread->on_channel_message(kDecode, wire::ChannelPair{9, wire::PairStep::kOpen, {1, 2, 3}, ""});
    s.p_thread->on_channel_message(kDecode, wire::ChannelPair{9, wire::PairStep::kOpen, {1, 2, 3}, ""});
    ASSERT_TRUE(s.p_thread->checksums({}));
    ASSERT_TRUE(s.d_thread->checksums({}));
    EXPECT_EQ(s.to_d->count("channel_pair") + s.to_p->count("channel_pair"), 3u);
    // Others end the pairing, and a new one is made.
    uint64_t n = 1;
    for (const auto& [to_p, message] : {std::pair<bool, wire::Message>{true, wire::ChannelGo{1, 77}},
                                        std::pair<bool, wire::Message>{false, wire::ChannelExtent{2, 5, 1, 0, 1, 0, 1, 64}},
                                        std::pair<bool, wire::Message>{false, wire::ChannelSent{3, 1}}}) {
        (to_p ? s.p_thread : s.d_thread)->on_channel_message(to_p ? kDecode : kPrefill, message);
        s.wait_paired(++n);
    }
    Handoff h = s.handoff(rng, 2, 100);
    s.run(h);
    ASSERT_TRUE(s.reports.pull(2).ok);
    EXPECT_EQ(s.wrong(h), 0u);
    // An extent of an unknown pull is received and harms nobody; one that D gave no word for ends the pairing.
    const uint64_t sent = s.to_d->count("channel_extent");
    s.d_thread->on_channel_message(kPrefill, wire::ChannelExtent{4, sent + 1, 999, 0, 1, 0, 1, 64});
    ASSERT_TRUE(s.d_thread->checksums({}));
    EXPECT_EQ(s.to_d->count("channel_pair") + s.to_p->count("channel_pair"), 3 * 4u + 3u);
    for (uint64_t i = 2; i <= 20; ++i) s.d_thread->on_channel_message(kPrefill, wire::ChannelExtent{4, sent + i, 999, 0, 1, 0, 1, 64});
    s.wait_paired(5);
}

/// Fault hooks on P, by either way: small extents with pauses between them, or one and no more.
void paced_and_stalled(bool channel) {
    std::mt19937 rng(33);
    const auto layout = layout_of(PoolOrder::kBlockFirst, 64, 8, 16, 256);
    Linked s(layout, layout, channel);
    if (channel) s.wait_paired();
    const std::string extents = channel ? "channel_extent" : "extent_header";
    TransferThread::Faults faults;
    faults.pace_us = 2'000;
    s.p_thread->plant(faults);
    Handoff h = s.handoff(rng, 1, 40 * 16);
    const int64_t begin_us = steady_now_us();
    s.run(h);
    const auto r = s.reports.pull(1);
    ASSERT_TRUE(r.ok) << r.reason;
    EXPECT_EQ(s.wrong(h), 0u);
    const uint64_t n = s.to_d->count(extents);
    EXPECT_GE(n, r.bytes >> 20);
    EXPECT_GE(steady_now_us() - begin_us, static_cast<int64_t>(n - 1) * faults.pace_us);
    s.close(h);

    faults = {};
    faults.stall = true;
    s.p_thread->plant(faults);
    h = s.handoff(rng, 2, 40 * 16);
    s.run(h);
    while (s.to_d->count(extents) == n) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    s.d_thread->cancel_pull(2);
    EXPECT_EQ(s.reports.pull(2).reason, "cancelled");
    s.close(h);
    ASSERT_TRUE(s.p_thread->checksums({}));
    const uint64_t sent = s.to_d->count(extents) - n;
    // Those that were being gathered, and by tcp the header that says the offer has ended.
    EXPECT_LE(sent, channel ? s.fabric.buffers : 3u);
}
TEST(TransferDeviceTcp, FaultHooksPaceAndStallTheSender) { paced_and_stalled(false); }
TEST(TransferChannel, FaultHooksPaceAndStallTheSender) { paced_and_stalled(true); }

TEST(TransferDevice, ChecksumsAnswerWhereMemoryRunsOut) {
    Linked s(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64), false);
    const std::vector<BlockId> blocks{1, 2};
    s.d.run_out_of_memory(true);
    const auto none = s.d_thread->checksums(blocks);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, ErrorCode::kInternal);
    s.d.run_out_of_memory(false);
    EXPECT_TRUE(s.d_thread->checksums(blocks));
}

}  // namespace
}  // namespace baton::xavier::test
