/// KV movers between GPUs of one host: the copy kernel against what the pages must be, hand-offs between two processes through
/// the real transfer thread, the death of either side in the middle of a transfer, and a table of rates.
#include <set>

#include "movers_harness.cuh"

namespace baton::xavier::test {
namespace {

// ---- copies within one process -----------------------------------------------------------------------------------------

struct Shape {
    uint32_t layers, block_tokens, heads, dim, blocks;
};

TEST(CudaPool, PullsEveryPageAndNothingElse) {
    NEEDS_GPU();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()));
    RecordProperty("seed", std::to_string(seed_of_run()));
    const int other = gpus() > 1 ? 1 : 0;
    // Pages of 4 KiB, 6 KiB, 32 KiB, 128 KiB, of 16 bytes, and one that is no multiple of a warp's tile.
    for (const Shape& s : {Shape{24, 16, 2, 64, 700}, Shape{30, 16, 3, 64, 700}, Shape{28, 16, 8, 128, 120}, Shape{28, 64, 8, 128, 40},
                           Shape{2, 1, 1, 8, 1200}, Shape{3, 3, 5, 24, 500}})
        for (const auto from_order : {PoolOrder::kBlockFirst, PoolOrder::kKvFirst})
            for (const auto to_order : {PoolOrder::kBlockFirst, PoolOrder::kKvFirst}) {
                Pool p(0, gpu_layout(from_order, s.blocks, s.layers, s.block_tokens, s.heads, s.dim));
                Pool d(other, gpu_layout(to_order, s.blocks + 7, s.layers, s.block_tokens, s.heads, s.dim));
                const auto peer = d.device->map(*p.device->export_handle(), p.layout);
                ASSERT_TRUE(peer) << peer.error().message;
                for (int round = 0; round < 4; ++round) {
                    const uint32_t n = round == 0 ? 1 : round == 1 ? s.blocks : 1 + rng() % s.blocks;
                    const uint32_t first = round < 2 ? 0 : rng() % s.layers;
                    const uint32_t layers = round < 2 ? s.layers : 1 + rng() % (s.layers - first);
                    d.device->set_loads(round % 2 == 0 ? 8 : 4);
                    d.device->set_copy_options({round == 3 ? 1 + static_cast<uint32_t>(rng() % 200) : backend::cuda::kCopyCtas, rng() % 2 == 0 ? 1 : SIZE_MAX});
                    const auto from = some_blocks(rng, s.blocks, n), to = some_blocks(rng, s.blocks + 7, n);
                    const uint64_t seed = rng();
                    p.fill_all(from, seed);
                    d.poison();
                    const auto ticket = d.device->pull(*peer, {first, layers, from, to});
                    ASSERT_TRUE(ticket) << ticket.error().message;
                    wait_for(*d.device, *ticket);
                    ASSERT_EQ(d.wrong(to, seed, 0, first, layers), 0u) << "seed " << seed_of_run() << " round " << round;
                    ASSERT_EQ(d.touched(to), 0u) << "seed " << seed_of_run() << " round " << round;
                    if (layers < s.layers) {
                        ASSERT_GT(d.wrong(to, seed), 0u);
                    }
                }
                d.device->unmap(*peer);
            }
}

TEST(CudaPool, HostCopiesBothWays) {
    NEEDS_GPU();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()) + 1);
    for (const Shape& s : {Shape{30, 16, 3, 64, 600}, Shape{28, 64, 8, 128, 12}, Shape{80, 64, 16, 256, 2}})
        for (const auto order : {PoolOrder::kBlockFirst, PoolOrder::kKvFirst})
            for (const bool pinned : {true, false}) {
                Pool p(0, gpu_layout(order, s.blocks, s.layers, s.block_tokens, s.heads, s.dim));
                Pool d(0, gpu_layout(order, s.blocks, s.layers, s.block_tokens, s.heads, s.dim));
                for (int round = 0; round < 3; ++round) {
                    const uint32_t n = round == 0 ? s.blocks : 1 + rng() % s.blocks;
                    const uint32_t first = round < 2 ? 0 : rng() % s.layers;
                    const uint32_t layers = round < 2 ? s.layers : 1 + rng() % (s.layers - first);
                    const auto from = some_blocks(rng, s.blocks, n), to = some_blocks(rng, s.blocks, n);
                    const size_t bytes = n * layers * 2 * p.layout.page_bytes();
                    auto fd = make_memfd("host", (bytes + 4095) / 4096 * 4096);
                    auto map = Mapping::map_fd(fd->get(), (bytes + 4095) / 4096 * 4096, true);
                    if (pinned) {
                        ASSERT_TRUE(p.device->pin(map->mutable_bytes()));
                    }
                    const uint64_t seed = rng();
                    p.fill_all(from, seed);
                    d.poison();
                    const auto out = p.device->to_host({first, layers, from, {}}, map->mutable_bytes().first(bytes));
                    ASSERT_TRUE(out) << out.error().message;
                    wait_for(*p.device, *out);
                    // Packed order is (block, layer, k|v).
                    const auto* host = reinterpret_cast<const uint64_t*>(map->bytes().data());
                    for (uint32_t i = 0; i < n; ++i)
                        for (uint32_t l = 0; l < layers; ++l)
                            for (uint32_t v = 0; v < 2; ++v)
                                for (const uint32_t w : {0u, p.page_words() - 1})
                                    ASSERT_EQ(host[((uint64_t{i} * layers + l) * 2 + v) * p.page_words() + w], word_of(seed, first + l, v, i, w));
                    const auto in = d.device->from_host({first, layers, {}, to}, map->bytes().first(bytes));
                    ASSERT_TRUE(in) << in.error().message;
                    wait_for(*d.device, *in);
                    ASSERT_EQ(d.wrong(to, seed, 0, first, layers), 0u);
                    ASSERT_EQ(d.touched(to), 0u);
                    if (pinned) p.device->unpin(map->mutable_bytes());
                }
            }
}

TEST(CudaPool, RefusesHandlesThatMakeNoSense) {
    NEEDS_GPU();
    Pool p(0, gpu_layout(PoolOrder::kBlockFirst, 8, 2, 16, 2, 64)), d(0, gpu_layout(PoolOrder::kBlockFirst, 8, 2, 16, 2, 64));
    const auto handle = *p.device->export_handle();
    auto bad = handle;
    bad.pop_back();
    EXPECT_EQ(d.device->map(bad, p.layout).error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(d.device->map({}, p.layout).error().code, ErrorCode::kCorrupt);
    bad = handle;
    bad[0] ^= std::byte{1};
    EXPECT_EQ(d.device->map(bad, p.layout).error().code, ErrorCode::kCorrupt);
    auto other = p.layout;
    other.blocks = 9;
    EXPECT_EQ(d.device->map(handle, other).error().code, ErrorCode::kCorrupt);
    bad = handle;
    bad[40] ^= std::byte{1};  // another GPU
    EXPECT_EQ(d.device->map(bad, p.layout).error().code, ErrorCode::kUnsupported);
    bad = handle;
    bad[8] ^= std::byte{1};  // another process, whose handle is then wrong or of this process
    EXPECT_FALSE(d.device->map(bad, p.layout));
    EXPECT_FALSE(d.device->pull(77, {0, 1, {}, {}}));
    EXPECT_EQ(CudaDevicePool::make(0, p.base, gpu_layout(PoolOrder::kBlockFirst, 8, 2, 1, 1, 4)).error().code, ErrorCode::kUnsupported);
    // The device is as good as before.
    const auto peer = d.device->map(handle, p.layout);
    ASSERT_TRUE(peer);
    p.fill_all({1, 2}, 5);
    const std::vector<uint32_t> from{1, 2}, to{6, 0};
    wait_for(*d.device, *d.device->pull(*peer, {0, 2, from, to}));
    EXPECT_EQ(d.wrong(to, 5), 0u);
}

/// A decode process that pulls the same pages of the parent's pool for ever.
int child_decode(int fd, int gpu, bool kv_first) {
    Pool d(gpu, child_layout(kv_first));
    const Shared shared{::getpid(), d.words->fd(), 0};
    put(fd, &shared, sizeof shared);
    uint64_t bytes = 0;
    if (!get(fd, &bytes, sizeof bytes)) return 1;
    std::vector<std::byte> handle(bytes);
    if (!get(fd, handle.data(), bytes)) return 1;
    const auto peer = d.device->map(handle, child_layout(false));
    if (!peer) return 2;
    const uint32_t n = kGibTokens / d.layout.block_tokens;
    const auto from = blocks_of(1, d.layout.blocks, n), to = blocks_of(2, d.layout.blocks, n);
    put(fd, "o", 1);
    for (;;) wait_for(*d.device, *d.device->pull(*peer, {0, d.layout.layers, from, to}));
}

/// D in this process and P in another.
struct TwoProcesses {
    explicit TwoProcesses(bool p_kv_first = false, bool d_kv_first = true)
        : child(0, p_kv_first), p_layout(child_layout(p_kv_first)), d(gpus() > 1 ? 1 : 0, child_layout(d_kv_first)),
          thread(TransferThread::start(*d.words, *d.device, reports.callbacks())) {
        const auto added = thread->add_device_source(kPrefill, p_layout, 8, child.words(), child.handle());
        EXPECT_TRUE(added) << added.error().message;
    }
    pd::StartPull pull_of(const Ask& a, uint32_t first_block = 0) { return test::pull_of(a, p_layout, d.layout, first_block); }
    Child child;
    kv::PoolLayout p_layout;
    Pool d;
    Reports reports;
    std::unique_ptr<TransferThread> thread;
};

TEST(CudaIpc, HandoffsFollowTheWordsOfAnotherProcess) {
    NEEDS_GPU();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()) + 2);
    for (const auto& [p_kv, d_kv] : {std::pair{false, true}, std::pair{true, false}, std::pair{false, false}}) {
        TwoProcesses s(p_kv, d_kv);
        for (uint64_t id = 1; id <= 24; ++id) {
            Ask a{Ask::kHandoff, id, static_cast<uint32_t>(id % 8), 1 + static_cast<uint32_t>(rng() % 4096), 16 * (1 + static_cast<uint32_t>(rng() % 64)), 1, rng(), 0};
            const auto pull = s.pull_of(a, rng() % 3 == 0 ? rng() % ((a.tokens + 15) / 16) : 0);
            s.d.poison();
            s.child.ask(a);
            s.child.wait();  // the offer is open
            s.thread->start_pull(pull);
            const auto r = s.reports.pull(id);
            ASSERT_TRUE(r.ok) << r.reason << ", seed " << seed_of_run() << " id " << id;
            EXPECT_EQ(r.mover, "cuda_ipc");
            ASSERT_EQ(s.d.wrong(pull.target_blocks, a.seed, pull.first_block), 0u) << "seed " << seed_of_run() << " id " << id;
            ASSERT_EQ(s.d.touched({pull.target_blocks.begin() + pull.first_block, pull.target_blocks.end()}), 0u);
            s.child.wait();
            a.kind = Ask::kClose;
            s.child.ask(a);
            s.child.wait();
        }
    }
}

TEST(CudaIpc, ReusedBlocksNeverPassForTheOffers) {
    // P closes the offer and computes another sequence into the blocks while D's kernel, slowed down, reads them.
    NEEDS_GPU();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()) + 3);
    TwoProcesses s;
    s.d.device->set_copy_options({.ctas = 2});
    int ok = 0, refused = 0;
    for (uint64_t id = 1; id <= 24; ++id) {
        Ask a{Ask::kHandoff, id, 0, 4096, 4096, static_cast<uint32_t>(id), rng(), 0};
        const auto pull = s.pull_of(a);
        s.child.ask(a);
        s.child.wait();
        s.thread->start_pull(pull);
        if (id % 8 == 0) s.reports.pull(id);
        ::usleep(static_cast<useconds_t>(rng() % 30'000));
        s.child.wait();
        Ask next = a;
        next.kind = Ask::kClose;
        s.child.ask(next);
        s.child.wait();
        next.kind = Ask::kFill;
        next.seed = a.seed + 1;
        s.child.ask(next);
        s.child.wait();
        const auto r = s.reports.pull(id);
        r.ok ? ++ok : ++refused;
        if (r.ok) {
            ASSERT_EQ(s.d.wrong(pull.target_blocks, a.seed), 0u);
        } else {
            ASSERT_EQ(r.reason, "generation");
        }
    }
    std::printf("reused blocks: %d whole, %d void\n", ok, refused);
    EXPECT_GT(ok, 0);
}

TEST(CudaIpc, CancelIsTheEndOfWriting) {
    NEEDS_GPU();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()) + 4);
    TwoProcesses s;
    s.d.device->set_copy_options({.ctas = 2});
    int cancelled = 0;
    for (uint64_t id = 1; id <= 16; ++id) {
        Ask a{Ask::kHandoff, id, 0, 4096, 1024, 1, rng(), 0};
        s.child.ask(a);
        s.child.wait();
        s.thread->start_pull(s.pull_of(a));
        ::usleep(static_cast<useconds_t>(rng() % 20'000));
        s.thread->cancel_pull(id);
        cancelled += s.reports.pull(id).reason == "cancelled" ? 1 : 0;
        s.d.poison();
        ::usleep(20'000);
        ASSERT_EQ(s.d.touched({}), 0u);
        s.child.wait();
        a.kind = Ask::kClose;
        s.child.ask(a);
        s.child.wait();
    }
    EXPECT_GT(cancelled, 0);
}

size_t free_bytes(int gpu) {
    size_t free = 0, total = 0;
    CUDA_OK(cudaSetDevice(gpu));
    CUDA_OK(cudaMemGetInfo(&free, &total));
    return free;
}

/// Waits for memory of a dead process to come back; the bytes still missing.
int64_t missing_after_death(int gpu, size_t before) {
    const TimeMs until = steady_now() + 2'000;
    int64_t missing = 0;
    do {
        missing = static_cast<int64_t>(before) - static_cast<int64_t>(free_bytes(gpu));
        if (missing > (1 << 20)) ::usleep(5'000);
    } while (missing > (1 << 20) && steady_now() < until);
    return missing;
}

TEST(CudaIpc, ExporterKilledInTheMiddle) {
    NEEDS_GPU();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()) + 5);
    Pool d(gpus() > 1 ? 1 : 0, child_layout(true));
    Reports reports;
    auto thread = TransferThread::start(*d.words, *d.device, reports.callbacks());
    d.device->set_copy_options({.ctas = 1});
    int inside = 0, lost = 0;
    size_t before_p = 0, before_d = 0;
    int64_t end_us_max = 0;
    for (uint64_t id = 1; id <= 16; ++id) {
        if (id == 2) {  // the first child also made contexts
            before_p = free_bytes(0);
            before_d = free_bytes(d.gpu);
        }
        const auto child = std::make_unique<Child>(0, false);
        const wire::ReplicaTarget peer{{1}, {id}};
        const auto added = thread->add_device_source(peer, child_layout(false), 8, child->words(), child->handle());
        ASSERT_TRUE(added) << added.error().message;
        Ask a{Ask::kHandoff, id, 0, kGibTokens, kGibTokens, 1, rng(), id % 2 == 0 ? 1'000u : 0u};
        child->ask(a);
        child->wait();
        auto p = pull_of(a, child_layout(false), d.layout);
        p.peer = peer;
        thread->start_pull(p);
        ::usleep(static_cast<useconds_t>(1'000 + rng() % (id % 2 == 0 ? 24'000 : 6'000)));
        inside += reports.has_pull(id) ? 0 : 1;
        child->end(SIGKILL);  // takes its time; what was queued goes on meanwhile
        const int64_t begin_us = steady_now_us();
        thread->remove_source(peer);  // as the closed link would have it
        const auto r = reports.pull(id);
        end_us_max = std::max(end_us_max, steady_now_us() - begin_us);
        if (r.ok) {
            ASSERT_EQ(d.wrong(p.target_blocks, a.seed), 0u);
        } else {
            ++lost;
            ASSERT_EQ(r.reason, "peer_lost");
        }
        d.poison();
        ::usleep(10'000);
        ASSERT_EQ(d.touched({}), 0u);
    }
    ASSERT_TRUE(thread->checksums({}));  // the last source is let go
    EXPECT_LT(missing_after_death(0, before_p), 1 << 20);
    EXPECT_LT(missing_after_death(d.gpu, before_d), 1 << 20);
    std::printf("exporter killed 16 times: %d inside a pull of 1 GiB; %d pulls lost, the others whole; ended at most %lld us after the loss was known\n", inside, lost,
                static_cast<long long>(end_us_max));
    EXPECT_GE(inside, kills());
    EXPECT_GT(lost, 0);
}

TEST(CudaIpc, ImporterKilledInTheMiddle) {
    NEEDS_GPU();
    std::mt19937 rng(static_cast<uint32_t>(seed_of_run()) + 6);
    Pool p(0, child_layout(false));
    const auto blocks = blocks_of(1, p.layout.blocks, kGibTokens / p.layout.block_tokens);
    const int d_gpu = gpus() > 1 ? 1 : 0;
    size_t before = 0;
    for (int i = 0; i < 16; ++i) {
        p.fill_all(blocks, 100 + static_cast<uint64_t>(i));
        if (i == 1) before = free_bytes(d_gpu);
        Child child(d_gpu, true, "d");
        const auto handle = *p.device->export_handle();
        const uint64_t n = handle.size();
        put(child.fd(), &n, sizeof n);
        put(child.fd(), handle.data(), n);
        child.wait();
        ::usleep(static_cast<useconds_t>(2'000 + rng() % 20'000));
        child.end(SIGKILL);
        ASSERT_EQ(p.wrong(blocks, 100 + static_cast<uint64_t>(i)), 0u);
    }
    EXPECT_LT(missing_after_death(d_gpu, before), 1 << 20);
}

// ---- rates -------------------------------------------------------------------------------------------------------------

double median_us(int rounds, const std::function<void()>& body) {
    std::vector<double> v;
    for (int i = 0; i < rounds; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        body();
        v.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

TEST(Rates, PullKernel) {
    NEEDS_GPU();
    std::mt19937 rng(1);
    for (int other = 0; other < std::min(gpus(), 2); ++other) {
        std::printf("pull GPU 0 -> %d, us (GB/s) by CTAs x loads\n%22s", other, "");
        for (const uint32_t ctas : {16u, 32u, 64u, 132u})
            for (const uint32_t loads : {4u, 8u}) std::printf("%8ux%u     ", ctas, loads);
        std::printf("\n");
        for (const uint32_t block_tokens : {16u, 64u})
            for (const auto order : {PoolOrder::kBlockFirst, PoolOrder::kKvFirst}) {
                if ((block_tokens == 16) != (order == PoolOrder::kKvFirst)) continue;  // the fine pages, and the coarse ones
                Pool p(0, gpu_layout(PoolOrder::kBlockFirst, 300 * 16 / block_tokens, 28, block_tokens, 8, 128));
                Pool d(other, gpu_layout(order, 300 * 16 / block_tokens, 28, block_tokens, 8, 128));
                const auto peer = d.device->map(*p.device->export_handle(), p.layout);
                ASSERT_TRUE(peer);
                for (const uint32_t tokens : {64u, 512u, 1024u, 4096u}) {
                    const uint32_t n = tokens / block_tokens;
                    const auto from = some_blocks(rng, p.layout.blocks, n), to = some_blocks(rng, d.layout.blocks, n);
                    const double mib = static_cast<double>(n * p.layout.block_bytes()) / (1 << 20);
                    std::printf("%2u tok %s %6.1f MiB:", block_tokens, order == PoolOrder::kBlockFirst ? "block" : "kv   ", mib);
                    for (const uint32_t ctas : {16u, 32u, 64u, 132u})
                        for (const uint32_t loads : {4u, 8u}) {
                            d.device->set_copy_options({.ctas = ctas, .engine_run_bytes = SIZE_MAX});
                            d.device->set_loads(loads);
                            const double us = median_us(9, [&] { wait_for(*d.device, *d.device->pull(*peer, {0, 28, from, to})); });
                            std::printf(" %7.1f (%4.0f)", us, mib * 1048576 / us / 1e3);
                        }
                    std::printf("\n");
                }
                d.device->unmap(*peer);
            }
    }
}

TEST(Rates, CopyEngine) {
    NEEDS_GPU();
    if (gpus() < 2) GTEST_SKIP() << "one GPU: the engine copies between two";
    std::mt19937 rng(1);
    std::printf("pull GPU 0 -> 1 of some layers, us (GB/s): kernel, engine\n");
    for (const uint32_t block_tokens : {16u, 64u}) {
        const auto layout = gpu_layout(PoolOrder::kBlockFirst, 300 * 16 / block_tokens, 28, block_tokens, 8, 128);
        Pool p(0, layout), d(1, layout);
        const auto peer = d.device->map(*p.device->export_handle(), p.layout);
        ASSERT_TRUE(peer);
        for (const uint32_t layers : {1u, 2u, 4u, 8u, 28u})
            for (const uint32_t tokens : {64u, 1024u, 4096u}) {
                const uint32_t n = tokens / block_tokens;
                const auto from = some_blocks(rng, layout.blocks, n), to = some_blocks(rng, layout.blocks, n);
                const double bytes = static_cast<double>(n * layers * 2 * layout.page_bytes());
                std::printf("%2u tok, runs of %4.0f KiB, %5.1f MiB:", block_tokens, static_cast<double>(layers * 2 * layout.page_bytes()) / 1024, bytes / 1048576);
                for (const size_t engine : {SIZE_MAX, size_t{1}}) {
                    d.device->set_copy_options({.engine_run_bytes = engine});
                    double queued = 0;
                    const double us = median_us(9, [&] {
                        const int64_t begin = steady_now_us();
                        const auto ticket = d.device->pull(*peer, {3 % (29 - layers), layers, from, to});
                        queued = static_cast<double>(steady_now_us() - begin);
                        wait_for(*d.device, *ticket);
                    });
                    std::printf(" %7.1f (%4.0f) queued in %4.0f", us, bytes / us / 1e3, queued);
                }
                std::printf("\n");
            }
        d.device->unmap(*peer);
    }
}

TEST(Rates, SmallPulls) {
    // What one pull takes when the thread and the GPU were busy just before, when the GPU alone has rested, and when both have.
    NEEDS_GPU();
    if (gpus() < 2) GTEST_SKIP() << "one GPU: a pull from another one is meant";
    std::mt19937 rng(1);
    const auto layout = gpu_layout(PoolOrder::kBlockFirst, 300, 28, 16, 8, 128);
    Pool p(0, layout), d(1, layout);
    const auto peer = d.device->map(*p.device->export_handle(), p.layout);
    ASSERT_TRUE(peer);
    for (const uint32_t n : {1u, 4u})
        for (const auto& [ctas, loads, engine] : {std::tuple{0u, 8u, SIZE_MAX}, std::tuple{16u, 8u, SIZE_MAX}, std::tuple{32u, 8u, SIZE_MAX}, std::tuple{32u, 4u, SIZE_MAX},
                                                 std::tuple{64u, 4u, SIZE_MAX}, std::tuple{132u, 4u, SIZE_MAX}, std::tuple{0u, 8u, size_t{1}}}) {
            d.device->set_copy_options({.ctas = ctas, .engine_run_bytes = engine});
            d.device->set_loads(loads);
            std::printf("%5.2f MiB, %3u CTAs x %u, %s, us (queued in): ", n * 1.75, ctas, loads, engine == 1 ? "engine" : "kernel");
            for (const char* rest : {"none", "spinning", "sleeping"}) {
                std::vector<double> queued, all;
                for (int i = 0; i < 25; ++i) {
                    const auto from = some_blocks(rng, layout.blocks, n), to = some_blocks(rng, layout.blocks, n);
                    if (rest[1] == 'p')
                        for (const int64_t until = steady_now_us() + 500; steady_now_us() < until;) {}
                    if (rest[1] == 'l') ::usleep(500);
                    const auto begin = std::chrono::steady_clock::now();
                    const auto ticket = d.device->pull(*peer, {0, 28, from, to});
                    const auto mid = std::chrono::steady_clock::now();
                    wait_for(*d.device, *ticket);
                    queued.push_back(std::chrono::duration<double, std::micro>(mid - begin).count());
                    all.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
                }
                std::sort(queued.begin(), queued.end());
                std::sort(all.begin(), all.end());
                std::printf("  %s %.1f (%.1f)", rest, all[12], queued[12]);
            }
            std::printf("\n");
        }
    d.device->unmap(*peer);
}

TEST(Rates, SmallHandoffs) {
    // Through the transfer thread, all of it computed before.
    NEEDS_GPU();
    TwoProcesses s(false, false);
    for (uint64_t id = 1; id <= 60; ++id) {
        const uint32_t tokens = id <= 30 ? 16 : 64;
        Ask a{Ask::kHandoff, id, 0, tokens, 2048, 1, id, 0};
        s.child.ask(a);
        s.child.wait();
        s.child.wait();
        s.thread->start_pull(s.pull_of(a));
        const auto r = s.reports.pull(id);
        ASSERT_TRUE(r.ok) << r.reason;
        std::printf("%s%lld", id % 30 == 1 ? "us of hand-offs: " : " ", static_cast<long long>(r.total_us));
        if (id % 30 == 0) std::printf("\n");
        a.kind = Ask::kClose;
        s.child.ask(a);
        s.child.wait();
    }
}

TEST(Rates, HostCopies) {
    NEEDS_GPU();
    std::mt19937 rng(1);
    for (const uint32_t block_tokens : {16u, 64u})
        for (const auto order : {PoolOrder::kBlockFirst, PoolOrder::kKvFirst}) {
            Pool p(0, gpu_layout(order, 300 * 16 / block_tokens, 28, block_tokens, 8, 128));
            const uint32_t n = 1024 / block_tokens;
            const auto blocks = some_blocks(rng, p.layout.blocks, n);
            auto fd = make_memfd("host", n * p.layout.block_bytes());
            auto map = Mapping::map_fd(fd->get(), n * p.layout.block_bytes(), true);
            std::memset(map->mutable_bytes().data(), 1, map->bytes().size());
            double us[4];
            for (const bool pinned : {false, true}) {
                if (pinned) {
                    ASSERT_TRUE(p.device->pin(map->mutable_bytes()));
                }
                us[pinned ? 2 : 0] = median_us(5, [&] { wait_for(*p.device, *p.device->to_host({0, 28, blocks, {}}, map->mutable_bytes())); });
                us[pinned ? 3 : 1] = median_us(5, [&] { wait_for(*p.device, *p.device->from_host({0, 28, {}, blocks}, map->bytes())); });
            }
            p.device->unpin(map->mutable_bytes());
            const double bytes = static_cast<double>(map->bytes().size());
            std::printf("host copies, %2u tok %s, %.0f MiB, GB/s: out %.1f in %.1f unpinned; out %.1f in %.1f pinned\n", block_tokens,
                        order == PoolOrder::kBlockFirst ? "block" : "kv   ", bytes / (1 << 20), bytes / us[0] / 1e3, bytes / us[1] / 1e3,
                        bytes / us[2] / 1e3, bytes / us[3] / 1e3);
        }
}

TEST(Rates, Handoffs) {
    // Exposed time: from P's last layer, seen by D, to the end of the pull. P's layers take 300 us, as with chunks of 0.6B.
    NEEDS_GPU();
    TwoProcesses s(false, false);
    uint64_t id = 1;
    for (const uint32_t tokens : {64u, 512u, 1024u, 4096u})
        for (const uint32_t pause_us : {0u, 300u}) {
            std::vector<int64_t> exposed, total;
            for (int i = 0; i < 15; ++i, ++id) {
                Ask a{Ask::kHandoff, id, 0, tokens, 2048, 1, id, pause_us};
                s.child.ask(a);
                s.child.wait();
                s.thread->start_pull(s.pull_of(a));
                const auto r = s.reports.pull(id);
                ASSERT_TRUE(r.ok) << r.reason;
                exposed.push_back(r.exposed_us);
                total.push_back(r.total_us);
                s.child.wait();
                a.kind = Ask::kClose;
                s.child.ask(a);
                s.child.wait();
            }
            std::sort(exposed.begin(), exposed.end());
            std::sort(total.begin(), total.end());
            std::printf("hand-off of %4u tokens (%.1f MiB), layers every %3u us: exposed p50 %lld p90 %lld us, total p50 %lld us\n", tokens,
                        tokens / 16 * 1.75, pause_us, static_cast<long long>(exposed[7]), static_cast<long long>(exposed[13]),
                        static_cast<long long>(total[7]));
        }
}

}  // namespace

int child_main(const char* role, int fd, int gpu, bool kv_first) {
    return std::strcmp(role, "d") == 0 ? child_decode(fd, gpu, kv_first)
                                       : child_prefill(fd, gpu, kv_first, [](Pool&) { return 0; });
}

}  // namespace baton::xavier::test

int main(int argc, char** argv) {
    if (argc == 6 && std::strcmp(argv[1], "--child") == 0)
        return baton::xavier::test::child_main(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]) == 1);
    ::signal(SIGPIPE, SIG_IGN);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
