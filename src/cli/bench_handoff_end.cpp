#include "cli/bench_handoff_end.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <future>
#include <numeric>
#include <random>

#include "baton/backend/cuda.hpp"
#include "baton/base/clock.hpp"
#include "cli/bench_shapes.hpp"

namespace baton::cli {
namespace {

constexpr auto kWait = std::chrono::seconds(60);
constexpr int64_t kConnectMs = 5'000;
/// K and V of Qwen3-0.6B, for pools without a model.
constexpr uint32_t kLayers = 28, kKvHeads = 8, kHeadDim = 128;
constexpr uint8_t kBf16 = 1;

net::Identity identity(const std::string& secret) { return {"peer", "bench", secret}; }

/// Blocks that the largest hand-offs of a run need at once.
uint32_t blocks_needed(const BenchHandoffOptions& o, uint64_t block_bytes) {
    uint64_t blocks = 1;
    for (const uint32_t mib : o.sizes_mib) blocks = std::max(blocks, (uint64_t{mib} << 20) / block_bytes + 1);
    for (const uint32_t tokens : o.prompts) blocks = std::max<uint64_t>(blocks, tokens / o.block_tokens + 1);
    blocks = std::max(blocks, uint64_t{o.concurrent} * ((o.concurrent_tokens + o.block_tokens - 1) / o.block_tokens));
    return static_cast<uint32_t>(blocks);
}

uint32_t slots_needed(const BenchHandoffOptions& o) { return std::max(o.concurrent, 1u); }

}  // namespace

Expected<std::optional<BenchGpus>> bench_gpus(const std::string& devices) {
    if (devices.empty()) return std::optional<BenchGpus>{};
    BenchGpus g;
    const size_t comma = devices.find(',');
    const auto number = [&](std::string_view text, uint32_t& to) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
        return error == std::errc{} && end == text.data() + text.size();
    };
    const std::string_view all = devices;
    if (comma == std::string::npos || !number(all.substr(0, comma), g.prefill) || !number(all.substr(comma + 1), g.decode))
        return fail(ErrorCode::kInvalidArgument, "devices must be two GPU numbers, e.g. 0,1", "devices");
    return std::optional(g);
}

std::vector<BlockId> bench_blocks(uint64_t set, bool prefill, uint32_t pool_blocks, uint32_t i, uint32_t count) {
    std::vector<BlockId> all(pool_blocks);
    std::iota(all.begin(), all.end(), 0u);
    std::mt19937_64 random(set * 2 + (prefill ? 1 : 0));
    std::shuffle(all.begin(), all.end(), random);
    const auto begin = all.begin() + static_cast<ptrdiff_t>(uint64_t{i} * count);
    return {begin, begin + count};
}

Expected<std::unique_ptr<HandoffEnd>> HandoffEnd::make(const BenchHandoffOptions& o, bool prefill) {
    BATON_TRY_ASSIGN(const auto gpus, bench_gpus(o.devices));
    std::unique_ptr<HandoffEnd> end(new HandoffEnd(prefill));
    if (gpus) {
        if (gpus->prefill == gpus->decode) {
            // NCCL pairs two processes on one GPU only where it takes them for two hosts.
            ::setenv("NCCL_HOSTID", prefill ? "baton-bench-p" : "baton-bench-d", 0);
            ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
        }
        BATON_TRY(end->load(o, prefill ? gpus->prefill : gpus->decode));
    } else {
        BATON_TRY(end->make_host(o));
    }
    end->io_thread_ = std::thread([e = end.get()] { e->io_.run(); });
    return end;
}

HandoffEnd::~HandoffEnd() {
    unlink();
    work_.reset();
    io_.stop();
    if (io_thread_.joinable()) io_thread_.join();
}

Expected<void> HandoffEnd::load(const BenchHandoffOptions& o, uint32_t device) {
    BATON_TRY_ASSIGN(const backend::Plan plan, random_plan(o.shape));
    const uint64_t block_bytes = uint64_t{plan.shape.layers} * 4 * plan.shape.kv_heads * plan.shape.head_dim * o.block_tokens;
    handoff_blocks_ = blocks_needed(o, block_bytes);
    backend::CudaOptions options;
    options.device = device;
    options.block_tokens = o.block_tokens;
    options.blocks = handoff_blocks_;
    if (!prefill_) options.blocks += o.decode_batch * (o.decode_context / o.block_tokens + 1);
    options.max_batch_tokens = o.chunk_tokens;
    options.max_batch_slices = std::max({slots_needed(o), o.decode_batch, 1u});
    options.max_model_len = o.decode_context;
    for (const uint32_t tokens : o.prompts) options.max_model_len = std::max(options.max_model_len, tokens + 1);
    options.max_model_len = std::max(options.max_model_len, o.concurrent_tokens + 1);
    options.noise = true;
    BATON_TRY_ASSIGN(backend_, backend::make_cuda_backend(plan, options));
    BATON_TRY_ASSIGN(words_, xavier::SharedPool::create_words(backend_->kv_layout(), slots_needed(o)));
    set_copy_ctas(o, o.ctas);
    backend_->pool().set_link_options({o.nccl_buffers, size_t{o.nccl_buffer_mib} << 20, o.nccl_ctas, o.nccl_copy_ctas, o.nccl_lanes});
    return backend_->share_words(words_->words());
}

void HandoffEnd::set_copy_ctas(const BenchHandoffOptions& o, uint32_t ctas) {
    backend_->pool().set_copy_options({ctas, size_t{o.engine_run_kib} << 10});
}

Expected<void> HandoffEnd::make_host(const BenchHandoffOptions& o) {
    kv::PoolLayout layout;
    layout.order = kv::PoolOrder::kBlockFirst;
    layout.dtype = kBf16;
    layout.layers = kLayers;
    layout.kv_heads = kKvHeads;
    layout.head_dim = kHeadDim;
    layout.block_tokens = o.block_tokens;
    layout.blocks = 1;
    layout.page_format = "bench-1";
    layout.blocks = handoff_blocks_ = blocks_needed(o, layout.block_bytes());
    BATON_TRY_ASSIGN(words_, xavier::SharedPool::create(layout, slots_needed(o)));
    // Written once, so that no page is touched for the first time while the clock runs.
    uint64_t state = prefill_ ? 1 : 2;
    for (std::byte& b : words_->pool()) b = static_cast<std::byte>((state = state * 6364136223846793005u + 1442695040888963407u) >> 56);
    return {};
}

// ---- the link ----------------------------------------------------------------------------------------------------------

void HandoffEnd::start_thread() {
    xavier::TransferThread::Callbacks callbacks;
    callbacks.pull_done = [this](pd::PullResult r) {
        const int64_t now_us = steady_now_us();
        const std::lock_guard lock(mutex_);
        ended_.push_back({std::move(r), now_us});
        changed_.notify_all();
    };
    thread_ = backend_ != nullptr ? xavier::TransferThread::start(*words_, backend_->pool(), std::move(callbacks))
                                  : xavier::TransferThread::start(*words_, std::move(callbacks));
}

Expected<void> HandoffEnd::listen(const std::string& path, const std::string& secret, const std::string& mover) {
    unlink();
    mover_ = mover;
    start_thread();
    BATON_TRY_ASSIGN(listener_, net::Listener::listen(io_, {path, ""}, identity(secret), [this](std::shared_ptr<net::Connection> link) {
                         if (link_ == nullptr) attach(std::move(link));
                     }));
    return {};
}

Expected<void> HandoffEnd::connect(const std::string& path, const std::string& secret, const std::string& mover) {
    unlink();
    mover_ = mover;
    start_thread();
    net::connect(io_, {path, ""}, identity(secret), kConnectMs, [this](Expected<std::shared_ptr<net::Connection>> link) {
        if (!link) return linked(fail(std::move(link).error()));
        attach(std::move(*link));
        link_->send(own_hello());
    });
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kWait, [&] { return linked_.has_value(); })) return fail(ErrorCode::kTimeout, "the other process did not link");
    return *linked_;
}

void HandoffEnd::unlink() {
    if (!thread_) return;
    std::promise<void> closed;
    boost::asio::post(io_, [&] {
        listener_.reset();
        if (link_) link_->close();
        link_.reset();
        closed.set_value();
    });
    closed.get_future().wait();
    if (prefill_) thread_->drop_requester(kBenchDecode);
    else thread_->remove_source(kBenchPrefill);
    thread_.reset();
    const std::lock_guard lock(mutex_);
    linked_.reset();
    ended_.clear();
}

void HandoffEnd::attach(std::shared_ptr<net::Connection> link) {
    link_ = std::move(link);
    link_->start({[this](net::Connection::Received r) { on_message(std::move(r)); },
                  [this, which = link_.get()](const Error& e) {
                      if (link_.get() == which) linked(fail(ErrorCode::kPeerLost, e.message));  // not one that was unlinked
                  }});
}

void HandoffEnd::linked(Expected<void> how) {
    const std::lock_guard lock(mutex_);
    if (!linked_ || !how) linked_ = std::move(how);
    changed_.notify_all();
}

wire::LinkHello HandoffEnd::own_hello() {
    wire::LinkHello hello;
    hello.self = prefill_ ? kBenchPrefill : kBenchDecode;
    hello.host_id = net::default_host_id();
    hello.layout = xavier::to_wire(layout());
    hello.wants_map = mover_ != "tcp";
    hello.device = backend_ != nullptr;
    if (!hello.device) return hello;
    backend::DevicePool& device = backend_->pool();
    const auto linkable = device.linkable();
    hello.nccl = linkable.has_value();
    if (!linkable) hello.nccl_reason = linkable.error().message;
    hello.gpu = device.gpu();
    hello.maps_gpus = device.mappable_gpus();
    return hello;
}

void HandoffEnd::on_message(net::Connection::Received r) {
    const wire::ReplicaTarget& peer = prefill_ ? kBenchDecode : kBenchPrefill;
    if (const auto* hello = std::get_if<wire::LinkHello>(&r.message)) {
        auto how = on_hello(*hello, std::move(r.fds));
        if (!how) link_->send(wire::Refused{static_cast<uint8_t>(how.error().code), how.error().message});
        return linked(std::move(how));
    }
    if (const auto* refused = std::get_if<wire::Refused>(&r.message)) return linked(fail(static_cast<ErrorCode>(refused->code), refused->reason));
    if (const auto* extent = std::get_if<wire::ExtentHeader>(&r.message)) return thread_->on_extent(peer, *extent, std::move(r.payload));
    if (auto* request = std::get_if<wire::PullRequest>(&r.message)) return thread_->on_pull_request(peer, std::move(*request), link_);
    thread_->on_channel_message(peer, std::move(r.message));
}

/// The order of a replica's: D asks, P answers with what it takes to reach its pool.
Expected<void> HandoffEnd::on_hello(const wire::LinkHello& hello, std::vector<UniqueFd> fds) {
    wire::LinkHello own = own_hello();
    BATON_TRY_ASSIGN(const std::string mover, xavier::choose_mover(prefill_ ? hello : own, prefill_ ? own : hello, mover_));
    if (prefill_) {
        std::vector<int> pass;
        if (mover == "shm" || mover == "cuda_ipc") pass.push_back(words_->fd());
        if (mover == "cuda_ipc") {
            BATON_TRY_ASSIGN(const auto handle, backend_->pool().export_handle());
            const auto* bytes = reinterpret_cast<const uint8_t*>(handle.data());
            own.device_handle.assign(bytes, bytes + handle.size());
        }
        link_->send(own, {}, pass);
        if (mover == "nccl") thread_->add_channel(kBenchDecode, link_, true);
        return {};
    }
    BATON_TRY_ASSIGN(const kv::PoolLayout layout, xavier::from_wire(hello.layout));
    if ((mover == "shm" || mover == "cuda_ipc") && fds.empty()) return fail(ErrorCode::kCorrupt, "the other process passed no memory");
    if (mover == "cuda_ipc")
        return thread_->add_device_source(kBenchPrefill, layout, 0, std::move(fds.front()), std::as_bytes(std::span(hello.device_handle)));
    std::optional<UniqueFd> map;
    if (mover == "shm") map = std::move(fds.front());
    BATON_TRY(thread_->add_source(kBenchPrefill, layout, 0, std::move(map), link_));
    if (mover == "nccl") thread_->add_channel(kBenchPrefill, link_, false);
    return {};
}

Expected<HandoffEnd::Ended> HandoffEnd::take(uint64_t pull) {
    std::unique_lock lock(mutex_);
    std::vector<Ended>::iterator at;
    const auto found = [&] {
        at = std::find_if(ended_.begin(), ended_.end(), [&](const Ended& e) { return e.result.pull == pull; });
        return at != ended_.end();
    };
    if (!changed_.wait_for(lock, kWait, found)) return fail(ErrorCode::kTimeout, "a pull did not end");
    Ended e = std::move(*at);
    ended_.erase(at);
    if (!e.result.ok) return fail(ErrorCode::kIo, "a pull over " + mover_ + " failed: " + e.result.reason);
    return e;
}

}  // namespace baton::cli
