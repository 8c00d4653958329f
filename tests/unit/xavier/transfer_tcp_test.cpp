#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <future>
#include <thread>

#include "baton/base/digest.hpp"
#include "xavier_harness.hpp"

namespace baton::xavier::test {
namespace {

using kv::PoolOrder;

/// Two replicas, linked over loopback TCP as prefill and decode; an I/O thread of its own for each.
class Tcp {
  public:
    Tcp(const kv::PoolLayout& pl, const kv::PoolLayout& dl, uint32_t slots = 8)
        : p(make_pool(pl, slots)), d(make_pool(dl, slots)) {
        p_thread = TransferThread::start(*p, p_reports.callbacks());
        d_thread = TransferThread::start(*d, reports.callbacks());
        std::promise<std::shared_ptr<net::Connection>> to_p, to_d;
        auto made = net::Listener::listen(p_io, {"", "127.0.0.1:0"}, {"replica", "p", "k"},
                                          [&](std::shared_ptr<net::Connection> c) { to_d.set_value(std::move(c)); });
        EXPECT_TRUE(made.has_value());
        net::connect(d_io, (*made)->endpoint(), {"peer", "d", "k"}, 10'000, [&](auto c) {
            EXPECT_TRUE(c.has_value());
            to_p.set_value(c ? *c : nullptr);
        });
        p_runner = std::thread([this] { p_io.run(); });
        d_runner = std::thread([this] { d_io.run(); });
        p_link = to_d.get_future().get();
        d_link = to_p.get_future().get();
        p_link->start({[this](net::Connection::Received r) {
                           if (auto* m = std::get_if<wire::PullRequest>(&r.message))
                               p_thread->on_pull_request(kDecode, std::move(*m), p_link);
                       },
                       [this](const Error&) { p_closed.set_value(); }});
        d_link->start({[this](net::Connection::Received r) {
                           if (auto* h = std::get_if<wire::ExtentHeader>(&r.message)) {
                               tamper(*h, r.payload);
                               d_thread->on_extent(kPrefill, *h, std::move(r.payload));
                           }
                       },
                       [this](const Error&) { d_closed.set_value(); }});
        const auto added = d_thread->add_source(kPrefill, pl, slots, std::nullopt, d_link);
        EXPECT_TRUE(added.has_value());
    }
    ~Tcp() {
        d_link->close();
        p_link->close();
        d_closed.get_future().wait();
        p_closed.get_future().wait();
        p_thread.reset();
        d_thread.reset();
        p_guard.reset();
        d_guard.reset();
        p_runner.join();
        d_runner.join();
    }

    boost::asio::io_context p_io, d_io;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> p_guard{p_io.get_executor()};
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> d_guard{d_io.get_executor()};
    std::unique_ptr<SharedPool> p, d;
    Reports p_reports, reports;
    std::unique_ptr<TransferThread> p_thread, d_thread;
    std::shared_ptr<net::Connection> p_link, d_link;
    std::promise<void> p_closed, d_closed;
    std::thread p_runner, d_runner;

    using Intercept = std::function<void(wire::ExtentHeader&, std::vector<std::byte>&)>;
    /// What a bad network or peer does to extents that arrive from now on.
    void intercept(Intercept f) {
        const std::lock_guard lock(intercept_mutex_);
        intercept_ = std::move(f);
    }

  private:
    void tamper(wire::ExtentHeader& h, std::vector<std::byte>& bytes) {
        const std::lock_guard lock(intercept_mutex_);
        if (intercept_) intercept_(h, bytes);
    }
    std::mutex intercept_mutex_;
    Intercept intercept_;
};

void prefill(SharedPool& p, const Handoff& h, std::mt19937& rng) {
    uint32_t begin = 0;
    while (begin < h.open.tokens) {
        const uint32_t end = std::min(h.open.tokens, begin + 1 + static_cast<uint32_t>(rng() % 60));
        for (uint32_t layer = 0; layer < p.layout().layers; ++layer) {
            write_layer(p, h.open.blocks, h.sequence, layer, begin, end);
            p.set_progress(h.open.slot, begin, end, layer + 1);
        }
        begin = end;
    }
}

class TcpOrders : public testing::TestWithParam<std::pair<PoolOrder, PoolOrder>> {};
INSTANTIATE_TEST_SUITE_P(Orders, TcpOrders,
                         testing::Values(std::pair{PoolOrder::kBlockFirst, PoolOrder::kBlockFirst},
                                         std::pair{PoolOrder::kBlockFirst, PoolOrder::kKvFirst},
                                         std::pair{PoolOrder::kKvFirst, PoolOrder::kBlockFirst},
                                         std::pair{PoolOrder::kKvFirst, PoolOrder::kKvFirst}));

TEST_P(TcpOrders, RandomInterleavingsArriveWhole) {
    std::mt19937 rng(21);
    Tcp t(layout_of(GetParam().first, 64, 6, 16, 64), layout_of(GetParam().second, 80, 6, 16, 64));
    for (uint64_t id = 1; id <= 25; ++id) {
        const uint32_t tokens = 1 + static_cast<uint32_t>(rng() % 700);
        const uint32_t have = rng() % 3 == 0 ? static_cast<uint32_t>(rng() % (tokens / 16 + 1)) : 0;
        Handoff h = make_handoff(rng, *t.p, *t.d, id, static_cast<uint32_t>(id % 8), tokens, have);
        t.p->open_progress(h.open);
        const bool early = rng() % 2 == 0;
        if (early) t.d_thread->start_pull(h.pull);
        prefill(*t.p, h, rng);
        if (!early) t.d_thread->start_pull(h.pull);
        const auto r = t.reports.pull(id);
        ASSERT_TRUE(r.ok) << r.reason;
        EXPECT_EQ(r.mover, "tcp");
        EXPECT_EQ(r.bytes, (h.open.blocks.size() - have) * t.p->layout().block_bytes());
        ASSERT_EQ(wrong_bytes(*t.d, h.pull.target_blocks, h.sequence, have * 16, tokens), 0u);
        t.p->close_progress({h.open.slot, h.open.offer});
    }
}

TEST(TransferTcp, LargePullsAreCutIntoExtents) {
    std::mt19937 rng(22);
    // 512 blocks of 256 KiB: 128 MiB through extents of 4 MiB, several at once.
    const auto layout = layout_of(PoolOrder::kBlockFirst, 520, 16, 16, 128);
    std::atomic<uint64_t> largest{0}, extents{0};
    Tcp t(layout, layout_of(PoolOrder::kKvFirst, 530, 16, 16, 128));
    t.intercept([&](wire::ExtentHeader& h, std::vector<std::byte>&) {
        largest = std::max(largest.load(), h.bytes);
        ++extents;
    });
    Handoff h = make_handoff(rng, *t.p, *t.d, 1, 0, 512 * 16 - 3, 0);
    t.p->open_progress(h.open);
    for (auto& word : t.p->pool()) word = std::byte{0x5a};
    t.p->set_progress(0, 0, h.open.tokens, 16);
    t.d_thread->start_pull(h.pull);
    const auto r = t.reports.pull(1);
    ASSERT_TRUE(r.ok) << r.reason;
    EXPECT_EQ(r.bytes, 512 * layout.block_bytes());
    EXPECT_LE(largest, 4u << 20);
    EXPECT_LE(extents, r.bytes / (4u << 20) + 1);
    for (const BlockId b : h.pull.target_blocks)
        for (uint32_t l = 0; l < 16; ++l)
            ASSERT_EQ(t.d->pool()[t.d->layout().page_offset(l, true, b)], std::byte{0x5a});
}

TEST(TransferTcp, DamagedExtentFailsTheChecksum) {
    std::mt19937 rng(23);
    Tcp t(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    // On the way, and by the planted fault at the sender.
    t.intercept([](wire::ExtentHeader& h, std::vector<std::byte>& bytes) {
        if (h.pull == 1) bytes.back() ^= std::byte{0x80};
    });
    for (uint64_t id = 1; id <= 3; ++id) {
        t.p_thread->plant({.corrupt_one_byte = id == 2});
        Handoff h = make_handoff(rng, *t.p, *t.d, id, 0, 90, 0);
        t.p->open_progress(h.open);
        prefill(*t.p, h, rng);
        t.d_thread->start_pull(h.pull);
        const auto r = t.reports.pull(id);
        EXPECT_EQ(r.ok, id == 3);
        EXPECT_EQ(r.reason, id == 3 ? "" : "checksum");
        t.p->close_progress({0, h.open.offer});
    }
}

TEST(TransferTcp, MalformedExtentsEndThePull) {
    std::mt19937 rng(24);
    Tcp t(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    using Change = std::function<void(wire::ExtentHeader&, std::vector<std::byte>&)>;
    const std::vector<Change> changes{
        [](auto& h, auto&) { h.first_layer = 1; },
        [](auto& h, auto&) { h.layers = UINT32_MAX; },
        [](auto& h, auto&) { h.first_index = 7; },
        [](auto& h, auto&) { h.indices = 1000; },
        [](auto& h, auto&) { h.layers = 0; },
        [](auto& h, auto& b) { b.pop_back(), h.bytes = b.size(), h.checksum = checksum64(b); },
        [](auto& h, auto& b) { b.clear(), h.bytes = 0; },
        [](auto& h, auto&) { h.bytes += 1; },
    };
    for (uint64_t id = 1; id <= changes.size(); ++id) {
        t.intercept([id, once = true, change = changes[id - 1]](wire::ExtentHeader& h, std::vector<std::byte>& b) mutable {
            if (h.pull == id && std::exchange(once, false)) change(h, b);
        });
        Handoff h = make_handoff(rng, *t.p, *t.d, id, 0, 90, 0);
        t.p->open_progress(h.open);
        prefill(*t.p, h, rng);
        t.d_thread->start_pull(h.pull);
        EXPECT_EQ(t.reports.pull(id).reason, "invalid") << id;
        t.p->close_progress({0, h.open.offer});
    }
    // An extent of another peer's pull, and of none: ignored.
    t.intercept(nullptr);
    Handoff h = make_handoff(rng, *t.p, *t.d, 100, 0, 90, 0);
    t.p->open_progress(h.open);
    t.d_thread->start_pull(h.pull);
    wire::ExtentHeader forged;
    forged.pull = 100;
    forged.failed = true;
    t.d_thread->on_extent({{9}, {9}}, forged, {});
    forged.pull = 555;
    t.d_thread->on_extent(kPrefill, forged, {});
    prefill(*t.p, h, rng);
    EXPECT_TRUE(t.reports.pull(100).ok);
}

TEST(TransferTcp, MalformedRequestsAreAnsweredWithFailure) {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<uint64_t, bool> failed;
    Tcp t(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    t.p->open_progress({0, OfferId{5}, 16, {1, 2, 3, 4}, {1, 1, 1, 1}});
    t.p->set_progress(0, 0, 16, 3);
    t.intercept([&](wire::ExtentHeader& h, std::vector<std::byte>&) {
        const std::lock_guard lock(mutex);
        failed[h.pull] = h.failed;
        changed.notify_all();
    });
    const std::vector<wire::PullRequest> requests{
        {OfferId{6}, 1, {0}}, {OfferId{5}, 2, {4}},    {OfferId{5}, 3, {UINT32_MAX}}, {OfferId{5}, 4, {1, 1}},
        {OfferId{5}, 5, {2, 1}}, {OfferId{5}, 6, {}}, {OfferId{5}, 7, {1, 3}},
    };
    for (const auto& r : requests) t.d_link->send(r);
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return failed.size() == requests.size(); }));
    for (const auto& [pull, f] : failed) EXPECT_EQ(f, pull != 7) << pull;
}

TEST(TransferTcp, OfferThatEndsFailsThePull) {
    // P closes and reuses the blocks at a random moment. Sanitizers: gathering and closing exclude each other.
    std::mt19937 rng(25);
    Tcp t(layout_of(PoolOrder::kBlockFirst, 64, 4, 16, 64), layout_of(PoolOrder::kKvFirst, 64, 4, 16, 64));
    int ok = 0, refused = 0;
    for (uint64_t id = 1; id <= 150; ++id) {
        Handoff h = make_handoff(rng, *t.p, *t.d, id, 0, 60 * 16, 0, static_cast<Generation>(id));
        t.p->open_progress(h.open);
        for (uint32_t layer = 0; layer < 4; ++layer) write_layer(*t.p, h.open.blocks, h.sequence, layer, 0, h.open.tokens);
        t.p->set_progress(0, 0, h.open.tokens, 4);
        // Always some that end before, and some that end after the pull.
        if (id % 8 == 0) t.p->close_progress({0, h.open.offer});
        t.d_thread->start_pull(h.pull);
        if (id % 8 == 1) t.reports.pull(id);
        const int64_t until_us = steady_now_us() + static_cast<int64_t>(rng() % 3'000);
        while (steady_now_us() < until_us) std::this_thread::yield();
        t.p->close_progress({0, h.open.offer});
        for (const BlockId b : h.open.blocks) t.p->set_generation(b, static_cast<Generation>(id) + 1);
        for (uint32_t layer = 0; layer < 4; ++layer) write_layer(*t.p, h.open.blocks, h.sequence + 1, layer, 0, h.open.tokens);
        const auto r = t.reports.pull(id);
        if (r.ok) {
            ++ok;
            ASSERT_EQ(wrong_bytes(*t.d, h.pull.target_blocks, h.sequence, 0, h.open.tokens), 0u);
        } else {
            ++refused;
            ASSERT_EQ(r.reason, "generation");
        }
    }
    EXPECT_GT(ok, 0);
    EXPECT_GT(refused, 0);
}

TEST(TransferTcp, RaisedGenerationFailsThePull) {
    std::mt19937 rng(26);
    Tcp t(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kKvFirst, 64));
    Handoff h = make_handoff(rng, *t.p, *t.d, 1, 0, 60, 0);
    t.p->open_progress(h.open);
    prefill(*t.p, h, rng);
    t.p->set_generation(h.open.blocks[7], 2);  // reused although the offer is open: a bug elsewhere must not pass
    t.d_thread->start_pull(h.pull);
    EXPECT_EQ(t.reports.pull(1).reason, "generation");
}

TEST(TransferTcp, CancelAtAnyMoment) {
    std::mt19937 rng(27);
    Tcp t(layout_of(PoolOrder::kBlockFirst, 64, 8, 16, 64), layout_of(PoolOrder::kBlockFirst, 64, 8, 16, 64));
    for (uint64_t id = 1; id <= 100; ++id) {
        Handoff h = make_handoff(rng, *t.p, *t.d, id, 1, 60 * 16, 0);
        t.p->open_progress(h.open);
        t.d_thread->start_pull(h.pull);
        t.p->set_progress(1, 0, rng() % 2 == 0 ? 960 : 320, 8);
        const int64_t until_us = steady_now_us() + static_cast<int64_t>(rng() % 2'000);
        while (steady_now_us() < until_us) std::this_thread::yield();
        t.d_thread->cancel_pull(id);
        const auto r = t.reports.pull(id);
        if (!r.ok) {
            EXPECT_EQ(r.reason, "cancelled");
        }
        std::ranges::fill(t.d->pool(), static_cast<std::byte>(id));  // TSan: nobody else writes any more
        t.p->close_progress({1, h.open.offer});
    }
}

TEST(TransferTcp, DeadlineAndLostPeers) {
    std::mt19937 rng(28);
    Tcp t(layout_of(PoolOrder::kBlockFirst, 64), layout_of(PoolOrder::kBlockFirst, 64));
    Handoff h = make_handoff(rng, *t.p, *t.d, 1, 0, 60, 0);
    h.pull.deadline = steady_now() + 40;
    t.p->open_progress(h.open);
    t.d_thread->start_pull(h.pull);
    EXPECT_EQ(t.reports.pull(1).reason, "timeout");
    h.pull.pull = 2;
    h.pull.deadline = steady_now() + 60'000;
    t.d_thread->start_pull(h.pull);
    t.p_thread->drop_requester(kDecode);  // what P does when the link is gone
    t.d_thread->remove_source(kPrefill);
    EXPECT_EQ(t.reports.pull(2).reason, "peer_lost");
}

}  // namespace
}  // namespace baton::xavier::test
