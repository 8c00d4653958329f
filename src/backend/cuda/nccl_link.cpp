/// A channel between two pools over a two-rank NCCL communicator. Facts that shape it: a communicator never notices that its
/// peer died, so whoever uses the link must; an abort takes half a second, after which the stream says success although
/// nothing came, so success counts only before it; in non-blocking mode an idle stream says nothing until NCCL itself does, and
/// NCCL starts a thread for each call, which takes a tenth of a millisecond: so sends and receives are made into graphs once.
#include "backend/cuda/nccl_link.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "backend/cuda/device_pool.hpp"

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#define BATON_HAS_NCCL 1
#else
#define BATON_HAS_NCCL 0
#endif

namespace baton::backend::cuda {

Background::~Background() {
    for (Job& job : jobs_) job.thread.join();
}

void Background::run(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    std::erase_if(jobs_, [](Job& j) {
        if (!j.ended->load()) return false;
        j.thread.join();
        return true;
    });
    auto ended = std::make_shared<std::atomic<bool>>(false);
    jobs_.push_back({std::thread([job = std::move(job), ended] {
                         job();
                         ended->store(true);
                     }),
                     ended});
}

#if BATON_HAS_NCCL

struct NcclApi {
    decltype(&ncclGetUniqueId) get_unique_id = nullptr;
    decltype(&ncclCommInitRankConfig) comm_init = nullptr;
    decltype(&ncclCommGetAsyncError) async_error = nullptr;
    decltype(&ncclCommAbort) comm_abort = nullptr;
    decltype(&ncclSend) send = nullptr;
    decltype(&ncclRecv) receive = nullptr;
    decltype(&ncclGetErrorString) error_string = nullptr;
};

/// What a link and its threads share; it outlives the link while a thread works on it.
struct NcclRuntime::Channel {
    std::shared_ptr<NcclApi> api;
    int device = 0;
    bool sender = false;
    std::vector<ncclUniqueId> ids;  ///< of each lane
    struct Lane {
        ncclComm_t comm = nullptr;
        cudaStream_t stream = nullptr;
    };
    // Written while pairing, then by the user of the link until it fails, then by the aborting thread.
    std::vector<Lane> lanes;
    uint32_t buffers = kLinkBuffers;
    size_t buffer_bytes = kLinkBufferBytes;
    uint32_t ctas = kLinkCtas;
    cudaEvent_t events[DeviceLink::kBuffersMax] = {};
    std::byte* staging = nullptr;
    std::vector<cudaGraphExec_t> moves;  ///< of each buffer, of each size of move_bytes(); empty: NCCL is called each time

    std::atomic<DeviceLink::State> state{DeviceLink::State::kPairing};
    std::mutex mutex;  ///< guards `reason`
    std::string reason;

    [[nodiscard]] const Lane& lane_of(uint32_t buffer) const { return lanes[buffer % lanes.size()]; }
    /// The first reason stays; true for the call that made the link fail.
    DeviceLink::State fail_with(std::string_view why) {
        const std::lock_guard lock(mutex);
        const auto before = state.exchange(DeviceLink::State::kFailed);
        if (before != DeviceLink::State::kFailed) reason = why;
        return before;
    }
    [[nodiscard]] bool failed() const { return state.load() == DeviceLink::State::kFailed; }
};

namespace {

using Channel = NcclRuntime::Channel;
using State = DeviceLink::State;

constexpr auto kPairLook = std::chrono::microseconds(100);
constexpr size_t kMib = 1u << 20;

/// Sizes of what is sent, the same on both sides: a whole number of MiB, at most an eighth more than asked for.
size_t move_bytes(size_t bytes) {
    const size_t mib = std::max<size_t>((bytes + kMib - 1) / kMib, 1);
    const size_t step = std::max<size_t>(std::bit_floor(mib) / 8, 1);
    return (mib + step - 1) / step * step * kMib;
}
/// How many of these sizes there are up to `bytes`, which is one of them.
size_t sizes_up_to(size_t bytes) {
    size_t n = 0;
    for (size_t size = kMib; size <= bytes; size = move_bytes(size + 1)) ++n;
    return n;
}

struct Deadline {
    std::chrono::steady_clock::time_point at;
    [[nodiscard]] bool passed() const { return std::chrono::steady_clock::now() >= at; }
};

std::string nccl_text(const Channel& c, ncclResult_t r) { return std::string("nccl: ") + c.api->error_string(r); }

/// Waits for the communicator; "" when it is at ease, else why not.
std::string settle(Channel& c, ncclComm_t comm, ncclResult_t r, const Deadline& deadline) {
    while (r == ncclInProgress || r == ncclSuccess) {
        ncclResult_t state = ncclInProgress;
        if (const ncclResult_t q = c.api->async_error(comm, &state); q != ncclSuccess) return nccl_text(c, q);
        if (state == ncclSuccess) return "";
        r = state;
        if (state != ncclInProgress) break;
        if (c.failed()) return "given up";
        if (deadline.passed()) return "timeout: the peer did not pair";
        std::this_thread::sleep_for(kPairLook);
    }
    return nccl_text(c, r);
}

std::string cuda_text(cudaError_t e) {
    (void)cudaGetLastError();
    return std::string("cuda: ") + cudaGetErrorString(e);
}

ncclResult_t move(Channel& c, uint32_t buffer, size_t bytes) {
    std::byte* at = c.staging + buffer * c.buffer_bytes;
    const auto& [comm, stream] = c.lane_of(buffer);
    return c.sender ? c.api->send(at, bytes, ncclChar, 1, comm, stream) : c.api->receive(at, bytes, ncclChar, 0, comm, stream);
}

/// Whether a part of it runs on the host, as between hosts.
bool needs_host(cudaGraph_t graph) {
    size_t n = 0;
    if (cudaGraphGetNodes(graph, nullptr, &n) != cudaSuccess) return true;
    std::vector<cudaGraphNode_t> nodes(n);
    if (cudaGraphGetNodes(graph, nodes.data(), &n) != cudaSuccess) return true;
    return std::any_of(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
        cudaGraphNodeType type{};
        return cudaGraphNodeGetType(node, &type) != cudaSuccess || type == cudaGraphNodeTypeHost;
    });
}

/// Makes a graph of every send, or receive, that can be asked for; "" or why not. None where they need the host.
std::string capture_moves(Channel& c, const Deadline& deadline) {
    for (uint32_t buffer = 0; buffer < c.buffers; ++buffer)
        for (size_t bytes = kMib; bytes <= c.buffer_bytes; bytes = move_bytes(bytes + 1)) {
            const auto& [comm, stream] = c.lane_of(buffer);
            if (const cudaError_t e = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed); e != cudaSuccess) return cuda_text(e);
            std::string why = settle(c, comm, move(c, buffer, bytes), deadline);
            cudaGraph_t graph = nullptr;
            const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
            if (why.empty() && ended != cudaSuccess) why = cuda_text(ended);
            const bool host = why.empty() && needs_host(graph);
            if (why.empty() && !host) {
                cudaGraphExec_t made = nullptr;
                const cudaError_t e = cudaGraphInstantiate(&made, graph, 0);
                if (e == cudaSuccess) c.moves.push_back(made);
                else why = cuda_text(e);
            }
            if (graph != nullptr) (void)cudaGraphDestroy(graph);
            if (!why.empty() || host) return why;
            (void)cudaGraphUpload(c.moves.back(), stream);
        }
    return "";
}

/// Every lane's communicator, then a byte across each, which is what connects the two; "" or why not.
std::string connect(Channel& c, const Deadline& deadline) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = static_cast<int>(std::max<size_t>(c.ctas / c.lanes.size(), 1));
    for (size_t i = 0; i < c.lanes.size(); ++i) {
        const ncclResult_t made = c.api->comm_init(&c.lanes[i].comm, 2, c.ids[i], c.sender ? 0 : 1, &config);
        if (c.lanes[i].comm == nullptr) return nccl_text(c, made);
    }
    for (const auto& lane : c.lanes)
        if (std::string why = settle(c, lane.comm, ncclInProgress, deadline); !why.empty()) return why;
    for (uint32_t i = 0; i < c.lanes.size(); ++i) {  // buffer i is of lane i
        if (std::string why = settle(c, c.lanes[i].comm, move(c, i, 1), deadline); !why.empty()) return why;
        if (const cudaError_t e = cudaEventRecord(c.events[i], c.lanes[i].stream); e != cudaSuccess) return cuda_text(e);
    }
    for (uint32_t i = 0; i < c.lanes.size(); ++i)
        for (cudaError_t e = cudaErrorNotReady; e != cudaSuccess;) {
            e = cudaEventQuery(c.events[i]);
            if (e != cudaSuccess && e != cudaErrorNotReady) return cuda_text(e);
            if (e == cudaErrorNotReady && c.failed()) return "given up";
            if (e == cudaErrorNotReady && deadline.passed()) return "timeout: the peer did not pair";
            if (e == cudaErrorNotReady) std::this_thread::sleep_for(kPairLook);
        }
    return "";
}

/// Memory, communicators and graphs; "" or why not.
std::string pair(Channel& c) {
    if (const cudaError_t e = cudaSetDevice(c.device); e != cudaSuccess) return cuda_text(e);
    if (const cudaError_t e = cudaMalloc(reinterpret_cast<void**>(&c.staging), c.buffers * c.buffer_bytes); e != cudaSuccess) return cuda_text(e);
    int lowest = 0, highest = 0;
    (void)cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    for (auto& lane : c.lanes)
        if (const cudaError_t e = cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, lowest); e != cudaSuccess) return cuda_text(e);
    for (cudaEvent_t& event : c.events)
        if (const cudaError_t e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming); e != cudaSuccess) return cuda_text(e);
    const Deadline deadline{std::chrono::steady_clock::now() + std::chrono::milliseconds(kPairTimeoutMs)};
    if (std::string why = connect(c, deadline); !why.empty()) return why;
    return capture_moves(c, deadline);
}

/// Ends what may be stuck, then frees what it used.
void abort_job(Channel& c) {
    (void)cudaSetDevice(c.device);
    // A communicator ends when its graphs are gone, and a graph that is stuck when its communicator aborts.
    std::vector<std::thread> jobs;
    jobs.emplace_back([&c] {
        (void)cudaSetDevice(c.device);
        for (const cudaGraphExec_t g : c.moves) (void)cudaGraphExecDestroy(g);
        (void)cudaGetLastError();
    });
    for (auto& lane : c.lanes)
        if (lane.comm != nullptr)
            jobs.emplace_back([&c, comm = std::exchange(lane.comm, nullptr)] {
                (void)cudaSetDevice(c.device);
                (void)c.api->comm_abort(comm);
            });
    for (std::thread& job : jobs) job.join();
    for (const auto& lane : c.lanes) {
        if (lane.stream == nullptr) continue;
        (void)cudaStreamSynchronize(lane.stream);
        (void)cudaStreamDestroy(lane.stream);
    }
    for (const cudaEvent_t e : c.events)
        if (e != nullptr) (void)cudaEventDestroy(e);
    if (c.staging != nullptr) (void)cudaFree(c.staging);
    (void)cudaGetLastError();
}

void pair_job(Channel& c) {
    std::string why = pair(c);
    State expected = State::kPairing;
    if (why.empty() && c.state.compare_exchange_strong(expected, State::kReady)) return;
    c.fail_with(why);
    abort_job(c);
}

std::atomic<uint32_t> links_open{0};

}  // namespace

uint32_t nccl_links_open() { return links_open.load(std::memory_order_relaxed); }

/// The link's user end. Where there are no graphs NCCL's calls go out one at a time: the next only when the communicator is at ease.
class NcclLink final : public DeviceLink {
  public:
    NcclLink(Background& background, CudaDevicePool& pool, std::shared_ptr<Channel> channel)
        : background_(background), pool_(pool), c_(std::move(channel)) {
        ++links_open;
    }
    ~NcclLink() override {
        NcclLink::give_up("closed");
        --links_open;
    }

    [[nodiscard]] State state() override { return c_->state.load(); }
    [[nodiscard]] std::string reason() override {
        const std::lock_guard lock(c_->mutex);
        return c_->reason;
    }
    [[nodiscard]] uint32_t buffers() const override { return c_->buffers; }
    [[nodiscard]] size_t buffer_bytes() const override { return c_->buffer_bytes; }
    [[nodiscard]] uint32_t lanes() const override { return static_cast<uint32_t>(c_->lanes.size()); }

    Expected<uint64_t> gather(uint32_t buffer, const PageCopy& copy) override {
        BATON_TRY(usable());
        return pool_.copy(pool_.pages(copy.first_layer), copy.from, packed(buffer, copy.layers), {}, copy.layers);
    }
    Expected<uint64_t> scatter(uint32_t buffer, const PageCopy& copy) override {
        BATON_TRY(usable());
        return pool_.copy(packed(buffer, copy.layers), {}, pool_.pages(copy.first_layer), copy.to, copy.layers);
    }
    Expected<void> send(uint32_t buffer, size_t bytes, uint64_t after) override { return queue(buffer, bytes, after); }
    Expected<void> receive(uint32_t buffer, size_t bytes) override { return queue(buffer, bytes, 0); }

    [[nodiscard]] Expected<bool> done(uint32_t buffer) override {
        BATON_TRY(advance());
        if (phases_[buffer] != Phase::kRecorded) return false;
        (void)cudaSetDevice(c_->device);
        const cudaError_t e = cudaEventQuery(c_->events[buffer]);
        if (e == cudaErrorNotReady) return false;
        if (e != cudaSuccess) return given_up(cuda_text(e));
        // Whoever aborts marks the link first: an event that was done while the mark was not there is true.
        BATON_TRY(usable());
        return true;
    }

    void give_up(std::string_view reason) override {
        // A link that still pairs is ended by the thread that pairs it.
        if (c_->fail_with(reason) == State::kReady) background_.run([c = c_] { abort_job(*c); });
    }

  private:
    enum class Phase : uint8_t { kNone, kQueued, kRecorded };
    struct Move {
        uint32_t buffer;
        size_t bytes;
        uint64_t after;
    };

    [[nodiscard]] tl::unexpected<Error> broken() { return fail(ErrorCode::kPeerLost, "link of the KV pools: " + reason()); }
    Expected<void> usable() {
        if (c_->state.load() != State::kReady) return broken();
        return {};
    }
    [[nodiscard]] PageMap packed(uint32_t buffer, uint32_t layers) const {
        return packed_map(c_->staging + buffer * c_->buffer_bytes, layers, pool_.layout().page_bytes());
    }
    Expected<void> queue(uint32_t buffer, size_t bytes, uint64_t after) {
        BATON_TRY(usable());
        const size_t size = move_bytes(bytes);
        if (buffer >= c_->buffers || size > c_->buffer_bytes) return fail(ErrorCode::kInternal, "link of the KV pools: bad size");
        phases_[buffer] = Phase::kQueued;
        if (!c_->moves.empty()) return launch({buffer, size, after});
        waiting_.push_back({buffer, size, after});
        return advance();
    }
    Expected<void> launch(const Move& m) {
        (void)cudaSetDevice(c_->device);
        const cudaStream_t stream = c_->lane_of(m.buffer).stream;
        auto ordered = m.after == 0 ? Expected<void>{} : pool_.follow(stream, m.after);
        if (!ordered) return given_up(ordered.error().message);
        const size_t sizes = c_->moves.size() / c_->buffers;
        const cudaGraphExec_t graph = c_->moves[m.buffer * sizes + sizes_up_to(m.bytes) - 1];
        if (const cudaError_t e = cudaGraphLaunch(graph, stream); e != cudaSuccess) return given_up(cuda_text(e));
        return record(m.buffer);
    }
    Expected<void> record(uint32_t buffer) {
        if (const cudaError_t e = cudaEventRecord(c_->events[buffer], c_->lane_of(buffer).stream); e != cudaSuccess) return given_up(cuda_text(e));
        phases_[buffer] = Phase::kRecorded;
        return {};
    }
    tl::unexpected<Error> given_up(std::string_view why) {
        give_up(why);
        return broken();
    }
    Expected<void> advance() {
        BATON_TRY(usable());
        if (waiting_.empty()) return {};
        (void)cudaSetDevice(c_->device);
        while (!waiting_.empty()) {
            if (launched_) {
                ncclResult_t state = ncclInProgress;
                const ncclResult_t q = c_->api->async_error(c_->lane_of(waiting_.front().buffer).comm, &state);
                if (q == ncclSuccess && state == ncclInProgress) return {};
                if (q != ncclSuccess || state != ncclSuccess) return lost(q != ncclSuccess ? q : state);
                BATON_TRY(record(waiting_.front().buffer));
                waiting_.pop_front();
                launched_ = false;
                continue;
            }
            const Move& m = waiting_.front();
            if (m.after != 0)
                if (const auto ordered = pool_.follow(c_->lane_of(m.buffer).stream, m.after); !ordered) return given_up(ordered.error().message);
            const ncclResult_t r = move(*c_, m.buffer, m.bytes);
            if (r != ncclSuccess && r != ncclInProgress) return lost(r);
            launched_ = true;
        }
        return {};
    }
    tl::unexpected<Error> lost(ncclResult_t r) { return given_up(nccl_text(*c_, r)); }

    Background& background_;
    CudaDevicePool& pool_;
    std::shared_ptr<Channel> c_;
    Phase phases_[kBuffersMax] = {};
    std::deque<Move> waiting_;  ///< the front one may be launched, and not yet taken by NCCL
    bool launched_ = false;
};

Expected<void> NcclRuntime::load() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(tried_, true)) {
        // Collectives are never used; without this NCCL sets up multicast memory for them.
        ::setenv("NCCL_NVLS_ENABLE", "0", 0);
        void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        auto api = std::make_shared<NcclApi>();
        const auto find = [&](auto& function, const char* name) {
            function = library == nullptr ? nullptr : reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
            if (function == nullptr && missing_.empty()) {
                const char* why = ::dlerror();
                missing_ = library == nullptr ? std::string("NCCL could not be opened: ") + (why == nullptr ? "" : why)
                                              : std::string("NCCL lacks ") + name;
            }
        };
        find(api->get_unique_id, "ncclGetUniqueId");
        find(api->comm_init, "ncclCommInitRankConfig");
        find(api->async_error, "ncclCommGetAsyncError");
        find(api->comm_abort, "ncclCommAbort");
        find(api->send, "ncclSend");
        find(api->receive, "ncclRecv");
        find(api->error_string, "ncclGetErrorString");
        if (missing_.empty()) api_ = std::move(api);
    }
    if (!api_) return fail(ErrorCode::kUnavailable, missing_);
    return {};
}

Expected<std::vector<uint8_t>> NcclRuntime::make_id() {
    BATON_TRY(load());
    std::vector<uint8_t> all;
    for (uint32_t lane = 0; lane < (options_.lanes != 0 ? options_.lanes : kLinkLanes); ++lane) {
        ncclUniqueId id;
        if (const ncclResult_t r = api_->get_unique_id(&id); r != ncclSuccess)
            return fail(ErrorCode::kIo, std::string("nccl: ") + api_->error_string(r));
        const auto* bytes = reinterpret_cast<const uint8_t*>(&id);
        all.insert(all.end(), bytes, bytes + sizeof id);
    }
    return all;
}

Expected<std::unique_ptr<DeviceLink>> NcclRuntime::open(CudaDevicePool& pool, std::span<const uint8_t> id, bool sender) {
    BATON_TRY(load());
    auto channel = std::make_shared<Channel>();
    const size_t lanes = id.size() / sizeof(ncclUniqueId);
    if (lanes == 0 || lanes > kLinkLanesMax || id.size() % sizeof(ncclUniqueId) != 0) return fail(ErrorCode::kCorrupt, "id of a link: wrong size");
    channel->ids.resize(lanes);
    std::memcpy(channel->ids.data(), id.data(), id.size());
    channel->lanes.resize(lanes);
    channel->api = api_;
    channel->device = pool.device();
    channel->sender = sender;
    if (options_.buffers != 0) channel->buffers = std::min(options_.buffers, DeviceLink::kBuffersMax);
    if (options_.buffer_bytes != 0) channel->buffer_bytes = move_bytes(options_.buffer_bytes);
    if (options_.ctas != 0) channel->ctas = options_.ctas;
    channel->buffers = static_cast<uint32_t>(std::max<size_t>(channel->buffers / lanes, 1) * lanes);
    background_.run([channel] { pair_job(*channel); });
    return std::make_unique<NcclLink>(background_, pool, std::move(channel));
}

#else  // built without nccl.h

struct NcclApi {};

Expected<void> NcclRuntime::load() { return fail(ErrorCode::kUnavailable, "this build has no NCCL"); }
Expected<std::vector<uint8_t>> NcclRuntime::make_id() { return fail(ErrorCode::kUnavailable, "this build has no NCCL"); }
Expected<std::unique_ptr<DeviceLink>> NcclRuntime::open(CudaDevicePool&, std::span<const uint8_t>, bool) {
    return fail(ErrorCode::kUnavailable, "this build has no NCCL");
}

#endif

}  // namespace baton::backend::cuda
