/// The mover `nccl` between two processes: through the real transfer threads, over a socket. Where there is one GPU the two
/// pretend to be two hosts (NCCL_HOSTID), which NCCL needs to pair them; rates mean nothing then.
#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "backend/cuda/nccl_link.hpp"
#include "movers_harness.cuh"

namespace baton::xavier::test {
namespace {

/// One end of a socket pair as a link: frames as on the wire, a thread that reads.
class SocketLink final : public net::Connection {
  public:
    using OnMessage = std::function<void(wire::Message, std::vector<std::byte>)>;
    explicit SocketLink(int fd) : fd_(fd) {}
    ~SocketLink() override { SocketLink::close(); }
    void listen(OnMessage on_message) {
        reader_ = std::thread([this, on_message = std::move(on_message)] { read(on_message); });
    }
    void start(Handlers) override {}
    void send(const wire::Message& message, std::vector<std::byte> payload, std::vector<int>) override {
        const std::lock_guard lock(mutex_);
        const auto frame = wire::encode(message);
        write(frame);
        write(payload);
    }
    void close() override {
        ::shutdown(fd_.get(), SHUT_RDWR);
        if (reader_.joinable()) reader_.join();
    }
    const wire::Hello& peer() const override { return hello_; }
    std::string remote() const override { return "unix"; }
    std::string local_ip() const override { return ""; }
    void watch(int64_t until_us) override {
        if (std::getenv("BATON_TEST_NO_WATCH") != nullptr) return;
        watch_until_us_ = until_us;
        if (!watching_.exchange(true)) (void)::eventfd_write(wake_.get(), 1);
    }
    size_t queued_bytes() const override { return 0; }

  private:
    void write(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (n <= 0) return;
            bytes = bytes.subspan(static_cast<size_t>(n));
        }
    }
    void read(const OnMessage& on_message) {
        for (;;) {
            std::vector<std::byte> header(wire::kFrameHeaderBytes);
            pollfd waits[2] = {{fd_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
            watching_ = false;
            const bool awake = steady_now_us() < watch_until_us_;
            if (awake) watching_ = true;
            if (::poll(waits, 2, awake ? 0 : -1) == 0) continue;
            if (eventfd_t woken = 0; waits[1].revents != 0) (void)::eventfd_read(wake_.get(), &woken);
            if (waits[0].revents == 0) continue;
            if (!get(fd_.get(), header.data(), header.size())) return;
            const auto h = wire::decode_header(header);
            ASSERT_TRUE(h.has_value());
            std::vector<std::byte> body(h->body_bytes);
            if (!get(fd_.get(), body.data(), body.size())) return;
            auto message = wire::decode_body(h->type, body);
            ASSERT_TRUE(message.has_value());
            std::vector<std::byte> payload;
            if (const auto* extent = std::get_if<wire::ExtentHeader>(&*message)) {
                payload.resize(extent->bytes);
                if (!get(fd_.get(), payload.data(), payload.size())) return;
            }
            on_message(std::move(*message), std::move(payload));
        }
    }
    UniqueFd fd_;
    std::mutex mutex_;
    std::atomic<int64_t> watch_until_us_{0};
    std::atomic<bool> watching_{false};
    UniqueFd wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::thread reader_;
    wire::Hello hello_;
};

/// What both ends' channels are made with: BATON_TEST_LINK is "buffers MiB CTAs copy-CTAs lanes".
void set_options(Pool& p) {
    const char* text = std::getenv("BATON_TEST_LINK");
    unsigned buffers = 0, mib = 0, ctas = 0, copy_ctas = 0, lanes = 0;
    if (text == nullptr || std::sscanf(text, "%u %u %u %u %u", &buffers, &mib, &ctas, &copy_ctas, &lanes) != 5) return;
    p.device->set_link_options({buffers, size_t{mib} << 20, ctas, copy_ctas, lanes});
}

/// P's end, in the child.
struct PrefillEnd {
    explicit PrefillEnd(Pool& p) {
        set_options(p);
        thread = TransferThread::start(*p.words, *p.device, reports.callbacks());
        link = std::make_shared<SocketLink>(std::atoi(std::getenv("BATON_TEST_FD")));
        link->listen([this](wire::Message m, std::vector<std::byte>) {
            if (auto* r = std::get_if<wire::PullRequest>(&m)) thread->on_pull_request(kDecode, std::move(*r), link);
            else thread->on_channel_message(kDecode, std::move(m));
        });
        thread->add_channel(kDecode, link, true);
    }
    Reports reports;
    std::unique_ptr<TransferThread> thread;
    std::shared_ptr<SocketLink> link;
};

int d_gpu() { return gpus() > 1 ? 1 : 0; }

/// D's end and its child. The pool and the thread stay when the child is replaced.
struct DecodeEnd {
    DecodeEnd() : d(d_gpu(), child_layout(true)) {
        set_options(d);
        thread = TransferThread::start(*d.words, *d.device, reports.callbacks());
    }
    ~DecodeEnd() { lose(); }
    void spawn() {
        int sv[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
        child = std::make_unique<Child>(0, false, "p", gpus() > 1 ? nullptr : "NCCL_HOSTID=baton-test-p", sv[1]);
        ::close(sv[1]);
        link = std::make_shared<SocketLink>(sv[0]);
        link->listen([this](wire::Message m, std::vector<std::byte> bytes) {
            if (const auto* h = std::get_if<wire::ExtentHeader>(&m)) thread->on_extent(kPrefill, *h, std::move(bytes));
            else thread->on_channel_message(kPrefill, std::move(m));
        });
        ASSERT_TRUE(thread->add_source(kPrefill, child_layout(false), 8, std::nullopt, link));
        thread->add_channel(kPrefill, link, false);
    }
    /// The child dies, or is dead.
    void lose() {
        if (child) child->end(SIGKILL);
        lost_us = steady_now_us();
        thread->remove_source(kPrefill);
        if (link) link->close();
        link.reset();
    }
    pd::PullResult run(Ask a) {
        const auto pull = pull_of(a, child_layout(false), d.layout);
        child->ask(a);
        child->wait();
        thread->start_pull(pull);
        const auto r = reports.pull(a.id);
        if (r.ok) {
            EXPECT_EQ(d.wrong(pull.target_blocks, a.seed), 0u) << r.mover << " id " << a.id << ", bytes " << r.bytes << ": " << where(pull.target_blocks, a.seed);
        }
        child->wait();
        a.kind = Ask::kClose;
        child->ask(a);
        child->wait();
        return r;
    }
    /// In which layers of which blocks words are wrong, and how many.
    std::string where(const std::vector<uint32_t>& blocks, uint64_t seed) {
        std::string out;
        for (uint32_t layer = 0; layer < d.layout.layers; ++layer) {
            uint64_t behind = 0;
            for (uint32_t i = static_cast<uint32_t>(blocks.size()); i-- > 0;) {
                const uint64_t n = d.wrong(blocks, seed, i, layer, 1);
                if (n > behind) out += " layer " + std::to_string(layer) + " block " + std::to_string(i) + " " + std::to_string(n - behind) + ",";
                behind = n;
            }
        }
        return out.substr(0, 600);
    }
    Ask next(uint32_t tokens, uint32_t chunk) {
        ++id;
        return {Ask::kHandoff, id, static_cast<uint32_t>(id % 8), tokens, chunk, 1, id * 31, 0};
    }
    /// Small hand-offs, by tcp, until one goes by channel; how long that took, -1 when it did not.
    int64_t pair_ms() {
        const TimeMs begin = steady_now();
        while (steady_now() - begin < 40'000) {
            const auto r = run(next(64, 64));
            EXPECT_TRUE(r.ok) << r.reason;
            if (r.mover == "nccl") return steady_now() - begin;
            ::usleep(20'000);
        }
        return -1;
    }
    Pool d;
    Reports reports;
    std::unique_ptr<TransferThread> thread;
    std::unique_ptr<Child> child;
    std::shared_ptr<SocketLink> link;
    uint64_t id = 0;
    int64_t lost_us = 0;  ///< when the link was found lost
};

#define NEEDS_NCCL()                                                           \
    NEEDS_GPU();                                                               \
    {                                                                          \
        Pool probe(0, gpu_layout(PoolOrder::kBlockFirst, 2, 2, 16, 2, 64));    \
        if (const auto can = probe.device->linkable(); !can) GTEST_SKIP() << can.error().message; \
    }

TEST(Nccl, HandoffsBetweenProcesses) {
    NEEDS_NCCL();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()));
    DecodeEnd s;
    s.spawn();
    const int64_t paired_ms = s.pair_ms();
    ASSERT_GE(paired_ms, 0) << "they did not pair";
    std::printf("nccl paired after %lld ms\n", static_cast<long long>(paired_ms));
    for (int i = 0; i < 12; ++i) {
        s.d.poison();
        const Ask a = s.next(1 + static_cast<uint32_t>(rng() % 4096), 16 * (1 + static_cast<uint32_t>(rng() % 64)));
        const auto r = s.run(a);
        ASSERT_TRUE(r.ok) << r.reason << " seed " << seed_of_run();
        EXPECT_EQ(r.mover, "nccl");
        ASSERT_EQ(s.d.touched(pull_of(a, child_layout(false), s.d.layout).target_blocks), 0u);
    }
}

TEST(Rates, Nccl) {
    constexpr int kRounds = 15;
    NEEDS_NCCL();
    if (gpus() < 2) GTEST_SKIP() << "one GPU: the bytes would go over a socket";
    std::vector<std::string> tried{"3 64 24 64 1", "4 32 32 64 2", "4 64 48 64 2"};
    if (const char* given = std::getenv("BATON_TEST_LINKS"); given != nullptr) {  // others, separated by commas
        tried.clear();
        std::istringstream list(given);
        for (std::string one; std::getline(list, one, ',');) tried.push_back(one);
    }
    for (const std::string& options : tried) {
        ::setenv("BATON_TEST_LINK", options.c_str(), 1);
        size_t before = 0, after = 0, total = 0;
        DecodeEnd s;
        CUDA_OK(cudaMemGetInfo(&before, &total));
        s.spawn();
        if (s.pair_ms() < 0) {
            std::printf("nccl buffers, MiB, CTAs, copy CTAs, lanes %s: did not pair\n", options.c_str());
            continue;
        }
        CUDA_OK(cudaMemGetInfo(&after, &total));
        std::printf("nccl buffers, MiB, CTAs, copy CTAs, lanes %s: %lld MiB;", options.c_str(), static_cast<long long>((before - after) >> 20));
        for (const uint32_t tokens : {16u, 64u, 128u, 512u, 1024u, 4096u}) {
            std::vector<int64_t> us;
            for (int i = 0; i < kRounds; ++i) {
                // All of it is computed before D asks: the time of the transfer alone.
                Ask a = s.next(tokens, 4096);
                const auto pull = pull_of(a, child_layout(false), s.d.layout);
                s.child->ask(a);
                s.child->wait();
                s.child->wait();
                s.thread->start_pull(pull);
                const auto r = s.reports.pull(a.id);
                EXPECT_TRUE(r.ok) << r.reason;
                us.push_back(r.total_us);
                a.kind = Ask::kClose;
                s.child->ask(a);
                s.child->wait();
            }
            std::sort(us.begin(), us.end());
            const double mib = tokens / 16 * 1.75;
            const auto rate = [&](int i) { return mib * 1048576 / static_cast<double>(us[i]) / 1e3; };
            std::printf("  %.1f MiB %lld us (%.0f, %.0f to %.0f GB/s)", mib, static_cast<long long>(us[kRounds / 2]), rate(kRounds / 2), rate(kRounds - 1), rate(0));
        }
        std::printf("\n");
    }
    ::unsetenv("BATON_TEST_LINK");
}

int64_t free_now(int gpu) {
    size_t free = 0, total = 0;
    CUDA_OK(cudaSetDevice(gpu));
    CUDA_OK(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
}

/// Waits until a GPU has as much free as before, but for a little; the bytes still missing.
int64_t missing(int gpu, int64_t before) {
    const TimeMs until = steady_now() + 3'000;
    while (before - free_now(gpu) > (8 << 20) && steady_now() < until) ::usleep(10'000);
    return before - free_now(gpu);
}

/// Free bytes when one pair is there and the one before has been taken down; what the library keeps for itself was taken then.
int64_t rested(int gpu) {
    ::usleep(1'000'000);
    return free_now(gpu);
}

/// How long to let a transfer of 1 GiB run, so that most kills fall into it.
useconds_t until_kill_us(std::mt19937& rng) { return static_cast<useconds_t>(rng() % (gpus() > 1 ? 3'300 : 350'000)); }

TEST(Nccl, SenderKilledInTheMiddle) {
    NEEDS_NCCL();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()) + 1);
    DecodeEnd s;
    int lost = 0, tries = 0;
    int64_t before = 0, end_us_max = 0, paired_ms_max = 0;
    s.spawn();
    for (; tries < 2 * kills() && lost < kills(); ++tries) {
        const int64_t paired_ms = s.pair_ms();
        ASSERT_GE(paired_ms, 0) << "they did not pair, try " << tries;
        paired_ms_max = std::max(paired_ms_max, paired_ms);
        if (tries == 1) before = rested(d_gpu());
        const Ask a = s.next(kGibTokens, kGibTokens);
        s.child->ask(a);
        s.child->wait();
        s.thread->start_pull(pull_of(a, child_layout(false), s.d.layout));
        ::usleep(until_kill_us(rng));
        s.lose();
        const auto r = s.reports.pull(a.id);
        end_us_max = std::max(end_us_max, steady_now_us() - s.lost_us);
        if (!r.ok) {
            ++lost;
            EXPECT_TRUE(r.reason == "peer_lost" || r.reason == "channel") << r.reason;
        }
        // From now on nothing is written, whatever the abort does, and the next pair comes up.
        s.d.poison();
        const TimeMs abort_over = steady_now() + 800;
        s.spawn();
        while (steady_now() < abort_over) ::usleep(10'000);
        ASSERT_EQ(s.d.touched({}), 0u);
    }
    ASSERT_GE(s.pair_ms(), 0);
    const int64_t gone = missing(d_gpu(), before);
    std::printf("nccl sender killed: %d tries, %d inside a transfer of 1 GiB; pulls ended at most %lld us after the loss was known; paired again in at most %lld ms; %lld KiB missing\n",
                tries, lost, static_cast<long long>(end_us_max), static_cast<long long>(paired_ms_max), static_cast<long long>(gone >> 10));
    EXPECT_GE(lost, kills());
    EXPECT_LT(gone, 8 << 20);
}

/// P's end, in this process, with a child that decodes.
struct ServingEnd {
    ServingEnd() : p(0, child_layout(false)) {
        set_options(p);
        thread = TransferThread::start(*p.words, *p.device, reports.callbacks());
    }
    ~ServingEnd() { lose(); }
    void spawn() {
        int sv[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
        child = std::make_unique<Child>(d_gpu(), true, "d", gpus() > 1 ? nullptr : "NCCL_HOSTID=baton-test-p", sv[1]);
        ::close(sv[1]);
        link = std::make_shared<SocketLink>(sv[0]);
        link->listen([this](wire::Message m, std::vector<std::byte>) {
            if (auto* r = std::get_if<wire::PullRequest>(&m)) thread->on_pull_request(kDecode, std::move(*r), link);
            else thread->on_channel_message(kDecode, std::move(m));
        });
        thread->add_channel(kDecode, link, true);
    }
    void lose() {
        if (child) child->end(SIGKILL);
        if (link) link->close();
        thread->drop_requester(kDecode);
        link.reset();
    }
    Ask next(uint32_t tokens) {
        ++id;
        return {Ask::kHandoff, id, static_cast<uint32_t>(id % 8), tokens, tokens, 1, id * 31, 0};
    }
    std::vector<uint32_t> blocks(const Ask& a) const { return blocks_of(a.id, p.layout.blocks, (a.tokens + 15) / 16); }
    /// Fills, offers and lets the child pull.
    void offer(const Ask& a) {
        p.fill_all(blocks(a), a.seed);
        p.words->open_progress({a.slot, OfferId{a.id}, a.tokens, blocks(a), std::vector<Generation>(blocks(a).size(), a.generation), a.tokens});
        child->ask(a);
    }
    void close(const Ask& a) { p.words->close_progress({a.slot, OfferId{a.id}}); }
    /// Small hand-offs until one goes by channel.
    void pair() {
        const TimeMs begin = steady_now();
        for (char how = 0; how != 'n'; ::usleep(20'000)) {
            ASSERT_LT(steady_now() - begin, 40'000) << "they did not pair";
            const Ask a = next(64);
            offer(a);
            ASSERT_TRUE(get(child->fd(), &how, 1));
            ASSERT_NE(how, 'x') << "wrong pages, or none";
            close(a);
        }
    }
    Pool p;
    Reports reports;
    std::unique_ptr<TransferThread> thread;
    std::unique_ptr<Child> child;
    std::shared_ptr<SocketLink> link;
    uint64_t id = 0;
};

TEST(Nccl, ReceiverKilledInTheMiddle) {
    NEEDS_NCCL();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()) + 2);
    ServingEnd s;
    int lost = 0, tries = 0;
    int64_t before = 0;
    s.spawn();
    for (; tries < 2 * kills() && lost < kills(); ++tries) {
        ASSERT_NO_FATAL_FAILURE(s.pair()) << "try " << tries;
        if (tries == 1) before = rested(0);
        const Ask a = s.next(kGibTokens);
        s.offer(a);
        ::usleep(until_kill_us(rng));
        pollfd answered{s.child->fd(), POLLIN, 0};
        const bool over = ::poll(&answered, 1, 0) > 0;
        s.lose();
        s.close(a);
        if (!over) ++lost;
        s.spawn();
        ASSERT_EQ(s.p.wrong(s.blocks(a), a.seed), 0u);
    }
    ASSERT_NO_FATAL_FAILURE(s.pair());
    const int64_t gone = missing(0, before);
    std::printf("nccl receiver killed: %d tries, %d inside a transfer of 1 GiB; %lld KiB missing\n", tries, lost, static_cast<long long>(gone >> 10));
    EXPECT_GE(lost, kills());
    EXPECT_LT(gone, 8 << 20);
}

TEST(Nccl, MemoryComesBack) {
    NEEDS_NCCL();
    int64_t before = 0;
    for (int i = 0; i < 3; ++i) {
        {
            DecodeEnd s;
            s.spawn();
            ASSERT_GE(s.pair_ms(), 0);
        }
        if (i == 0) before = free_now(d_gpu());  // what the library keeps for itself is taken once
    }
    EXPECT_EQ(backend::cuda::nccl_links_open(), 0u);
    const int64_t gone = missing(d_gpu(), before);
    std::printf("nccl: memory missing after two more pairs: %lld KiB\n", static_cast<long long>(gone >> 10));
    EXPECT_LT(gone, 8 << 20);
}

}  // namespace

/// D's end, in the child: pulls what it is told to, and says whether the pages are right and came by the channel.
int child_decode(int fd, int gpu) {
    Pool d(gpu, child_layout(true));
    set_options(d);
    Reports reports;
    auto thread = TransferThread::start(*d.words, *d.device, reports.callbacks());
    const auto link = std::make_shared<SocketLink>(std::atoi(std::getenv("BATON_TEST_FD")));
    link->listen([&](wire::Message m, std::vector<std::byte> bytes) {
        if (const auto* h = std::get_if<wire::ExtentHeader>(&m)) thread->on_extent(kPrefill, *h, std::move(bytes));
        else thread->on_channel_message(kPrefill, std::move(m));
    });
    if (!thread->add_source(kPrefill, child_layout(false), 8, std::nullopt, link)) return 1;
    thread->add_channel(kPrefill, link, false);
    const Shared shared{::getpid(), d.words->fd(), 0};
    put(fd, &shared, sizeof shared);
    for (Ask a; get(fd, &a, sizeof a);) {
        const auto pull = pull_of(a, child_layout(false), d.layout);
        thread->start_pull(pull);
        const auto r = reports.pull(a.id);
        const bool unseen = r.mover == "nccl" && backend::cuda::nccl_links_open() == 0;  // steps must know of it
        put(fd, !r.ok || unseen || d.wrong(pull.target_blocks, a.seed) > 0 ? "x" : r.mover == "nccl" ? "n" : "t", 1);
    }
    link->close();
    return 0;
}

int child_main(const char* role, int fd, int gpu, bool kv_first) {
    if (std::strcmp(role, "d") == 0) return child_decode(fd, gpu);
    return child_prefill(fd, gpu, kv_first, [](Pool& p) { return std::make_unique<PrefillEnd>(p); });
}

}  // namespace baton::xavier::test

int main(int argc, char** argv) {
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    if (argc == 6 && std::strcmp(argv[1], "--child") == 0)
        return baton::xavier::test::child_main(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]) == 1);
    ::signal(SIGPIPE, SIG_IGN);
    if (baton::xavier::test::gpus() == 1) ::setenv("NCCL_HOSTID", "baton-test-d", 0);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
