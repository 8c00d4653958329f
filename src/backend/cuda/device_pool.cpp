#include "backend/cuda/device_pool.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "baton/base/digest.hpp"

namespace baton::backend::cuda {
namespace {

constexpr uint64_t kPullLane = 0;
constexpr uint64_t kHostLane = 1;
constexpr size_t kStagingBytes = 16u << 20;
/// Work that may be queued on a lane; a caller that queues more does not look at done().
constexpr size_t kQueuedMax = 4096;
/// Runs of bytes from this size on are copied by the copy engine straight from the pool, shorter ones are gathered first.
constexpr size_t kDirectRunBytes = 512u << 10;

constexpr uint64_t kHandleMagic = 0x31555047'4e4f5442;  // "BTONGPU1"

/// What export_handle() hands out.
struct Handle {
    uint64_t magic = kHandleMagic;
    std::array<char, 32> process{};  ///< random name of the exporting process
    std::array<uint8_t, 16> gpu{};
    uint64_t pool_bytes = 0;
    uint64_t pointer = 0;  ///< for the process itself, which cannot open its own handle
    cudaIpcMemHandle_t ipc{};
};

/// Drawn once a process; a number of the system's could be the same in another container.
const std::array<char, 32>& process_name() {
    static const std::array<char, 32> name = [] {
        const std::string hex = random_hex(16);
        std::array<char, 32> n{};
        std::copy_n(hex.begin(), n.size(), n.begin());
        return n;
    }();
    return name;
}

/// The driver's refusal as an error; forgets it, so that no later call reports it again.
Expected<void> check(cudaError_t e, const char* what) {
    if (e == cudaSuccess) return {};
    (void)cudaGetLastError();
    return fail(ErrorCode::kIo, std::string(what) + ": " + cudaGetErrorString(e));
}

std::string uuid_text(const void* sixteen_bytes) {
    std::array<uint8_t, 16> b{};
    std::memcpy(b.data(), sixteen_bytes, b.size());
    const std::string hex = to_hex(b);
    return "GPU-" + hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" + hex.substr(12, 4) + "-" + hex.substr(16, 4) + "-" + hex.substr(20);
}

/// Ordinal of a GPU in this process, or -1.
int ordinal_of(const std::string& gpu) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return -1;
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) == cudaSuccess && uuid_text(&p.uuid) == gpu) return i;
    }
    return -1;
}

}  // namespace

PageMap page_map(std::byte* base, const kv::PoolLayout& l) {
    const auto page = static_cast<int64_t>(l.page_bytes());
    if (l.order == kv::PoolOrder::kKvFirst)
        return {base, page, page * l.blocks, page * l.blocks * l.layers};
    return {base, page * 2 * l.layers, page * 2, page};
}

PageMap packed_map(std::byte* base, uint32_t layers, size_t page_bytes) {
    const auto page = static_cast<int64_t>(page_bytes);
    return {base, page * 2 * layers, page * 2, page};
}

CudaDevicePool::CudaDevicePool(int device, std::byte* base, kv::PoolLayout layout)
    : device_(device), base_(base), layout_(std::move(layout)) {}

Expected<std::unique_ptr<CudaDevicePool>> CudaDevicePool::make(int device, void* base, const kv::PoolLayout& layout) {
    if (layout.page_bytes() % 16 != 0 || layout.page_bytes() > UINT32_MAX)
        return fail(ErrorCode::kUnsupported, "KV pages of " + std::to_string(layout.page_bytes()) + " bytes cannot be moved: no multiple of 16");
    std::unique_ptr<CudaDevicePool> pool(new CudaDevicePool(device, static_cast<std::byte*>(base), layout));
    BATON_TRY(pool->set_up());
    return pool;
}

Expected<void> CudaDevicePool::set_up() {
    BATON_TRY(check(cudaSetDevice(device_), "GPU of the KV pool"));
    cudaDeviceProp properties;
    BATON_TRY(check(cudaGetDeviceProperties(&properties, device_), "GPU of the KV pool"));
    gpu_ = uuid_text(&properties.uuid);
    int count = 0;
    BATON_TRY(check(cudaGetDeviceCount(&count), "GPUs"));
    for (int i = 0; i < count; ++i) {
        int can = i == device_ ? 1 : 0;
        if (i != device_ && cudaDeviceCanAccessPeer(&can, device_, i) != cudaSuccess) (void)cudaGetLastError();
        cudaDeviceProp p;
        if (can != 0 && cudaGetDeviceProperties(&p, i) == cudaSuccess) mappable_.push_back(uuid_text(&p.uuid));
    }
    int lowest = 0, highest = 0;
    BATON_TRY(check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "stream priorities"));
    for (Lane& lane : lanes_)
        BATON_TRY(check(cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, lowest), "stream for KV copies"));
    BATON_TRY(check(load_copy_pages(), "kernel for KV copies"));
    // Room for one layer of one block at least.
    staging_bytes_ = std::max(kStagingBytes, 2 * layout_.page_bytes());
    BATON_TRY(check(cudaMalloc(reinterpret_cast<void**>(&staging_), staging_bytes_), "staging memory for KV copies"));
    identity_.resize(kPageCopyBlocks);
    std::iota(identity_.begin(), identity_.end(), 0u);
    return {};
}

CudaDevicePool::~CudaDevicePool() {
    (void)cudaSetDevice(device_);
    for (Lane& lane : lanes_) {
        if (lane.stream == nullptr) continue;
        (void)cudaStreamSynchronize(lane.stream);
        for (const cudaEvent_t e : lane.events) (void)cudaEventDestroy(e);
        (void)cudaStreamDestroy(lane.stream);
    }
    for (const cudaEvent_t e : spare_events_) (void)cudaEventDestroy(e);
    for (const auto& [id, peer] : peers_)
        if (peer.ipc) (void)cudaIpcCloseMemHandle(peer.base);
    if (staging_ != nullptr) (void)cudaFree(staging_);
    (void)cudaGetLastError();
}

PageMap CudaDevicePool::pages(uint32_t first_layer) const {
    PageMap m = page_map(base_, layout_);
    m.base += first_layer * m.layer_stride;
    return m;
}

PageCopyShape CudaDevicePool::shape(uint32_t layers, bool slow) const {
    const uint32_t ctas = options_.ctas != 0 ? options_.ctas : slow ? kSlowCopyCtas : kCopyCtas;
    return {layers, static_cast<uint32_t>(layout_.page_bytes()), ctas, loads_};
}

// ---- peers ---------------------------------------------------------------------------------------------------------

Expected<std::vector<std::byte>> CudaDevicePool::export_handle() const {
    Handle h;
    h.process = process_name();
    h.pool_bytes = layout_.pool_bytes();
    h.pointer = reinterpret_cast<uint64_t>(base_);
    BATON_TRY(check(cudaSetDevice(device_), "GPU of the KV pool"));
    cudaDeviceProp p;
    BATON_TRY(check(cudaGetDeviceProperties(&p, device_), "GPU of the KV pool"));
    std::memcpy(h.gpu.data(), &p.uuid, h.gpu.size());
    BATON_TRY(check(cudaIpcGetMemHandle(&h.ipc, base_), "handle of the KV pool"));
    std::vector<std::byte> bytes(sizeof h);
    std::memcpy(bytes.data(), &h, sizeof h);
    return bytes;
}

Expected<void> CudaDevicePool::reach(const std::string& gpu) const {
    if (gpu == gpu_) return {};
    if (std::find(mappable_.begin(), mappable_.end(), gpu) != mappable_.end()) return {};
    if (ordinal_of(gpu) < 0) return fail(ErrorCode::kUnsupported, "the peer's " + gpu + " is not visible to this process");
    return fail(ErrorCode::kUnsupported, gpu_ + " cannot map the memory of " + gpu);
}

Expected<uint32_t> CudaDevicePool::map(std::span<const std::byte> bytes, const kv::PoolLayout& layout) {
    Handle h;
    if (bytes.size() != sizeof h) return fail(ErrorCode::kCorrupt, "handle of a KV pool: wrong size");
    std::memcpy(&h, bytes.data(), sizeof h);
    if (h.magic != kHandleMagic) return fail(ErrorCode::kCorrupt, "handle of a KV pool: unknown version");
    if (h.pool_bytes != layout.pool_bytes()) return fail(ErrorCode::kCorrupt, "handle of a KV pool: its size contradicts the layout");
    if (layout.page_bytes() != layout_.page_bytes() || layout.layers != layout_.layers)
        return fail(ErrorCode::kCorrupt, "handle of a KV pool: other pages");
    const std::string gpu = uuid_text(h.gpu.data());
    BATON_TRY(reach(gpu));
    BATON_TRY(check(cudaSetDevice(device_), "GPU of the KV pool"));
    Peer peer{nullptr, false, gpu != gpu_, layout};
    if (h.process == process_name()) {
        if (gpu != gpu_) {
            const cudaError_t e = cudaDeviceEnablePeerAccess(ordinal_of(gpu), 0);
            if (e == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
            else BATON_TRY(check(e, "access to the peer's GPU"));
        }
        peer.base = reinterpret_cast<std::byte*>(h.pointer);
    } else {
        void* at = nullptr;
        BATON_TRY(check(cudaIpcOpenMemHandle(&at, h.ipc, cudaIpcMemLazyEnablePeerAccess), "the peer's KV pool"));
        peer.base = static_cast<std::byte*>(at);
        peer.ipc = true;
    }
    const std::lock_guard lock(mutex_);
    peers_[next_peer_] = peer;
    return next_peer_++;
}

void CudaDevicePool::unmap(uint32_t id) {
    Peer peer;
    {
        const std::lock_guard lock(mutex_);
        const auto it = peers_.find(id);
        if (it == peers_.end()) return;
        peer = it->second;
        peers_.erase(it);
    }
    if (!peer.ipc) return;
    // The driver may wait for the device's running work.
    background_.run([device = device_, base = peer.base] {
        (void)cudaSetDevice(device);
        (void)cudaIpcCloseMemHandle(base);
        (void)cudaGetLastError();
    });
}

Expected<uint64_t> CudaDevicePool::pull(uint32_t id, const PageCopy& copy) {
    PageMap from;
    bool another = false, runs = false;
    {
        const std::lock_guard lock(mutex_);
        const auto it = peers_.find(id);
        if (it == peers_.end()) return fail(ErrorCode::kInternal, "pull from a KV pool that is not mapped");
        from = page_map(it->second.base, it->second.layout);
        another = it->second.another;
        runs = it->second.layout.order == kv::PoolOrder::kBlockFirst && layout_.order == kv::PoolOrder::kBlockFirst;
    }
    from.base += copy.first_layer * from.layer_stride;
    BATON_TRY(check(cudaSetDevice(device_), "GPU of the KV pool"));
    const size_t run_bytes = copy.layers * 2 * layout_.page_bytes();
    const size_t engine_bytes = options_.engine_run_bytes != 0 ? options_.engine_run_bytes : kEngineRunBytes;
    // One run alone is quicker that way however short it is.
    if (another && runs && (run_bytes >= engine_bytes || (copy.from.size() == 1 && engine_bytes != SIZE_MAX)))
        return ticket(kPullLane, pull_runs(from, copy));
    const cudaError_t e = copy_pages(lanes_[kPullLane].stream, from, copy.from, pages(copy.first_layer), copy.to,
                                     shape(copy.layers, another));
    return ticket(kPullLane, check(e, "KV pull"));
}

Expected<void> CudaDevicePool::pull_runs(const PageMap& from, const PageCopy& copy) {
    const PageMap to = pages(copy.first_layer);
    const bool whole = copy.layers == layout_.layers;  // then blocks that lie in a row are one run
    for (size_t i = 0; i < copy.from.size();) {
        size_t n = 1;
        while (whole && i + n < copy.from.size() && copy.from[i + n] == copy.from[i] + n && copy.to[i + n] == copy.to[i] + n) ++n;
        BATON_TRY(check(cudaMemcpyAsync(to.base + copy.to[i] * to.block_stride, from.base + copy.from[i] * from.block_stride,
                                        n * copy.layers * 2 * layout_.page_bytes(), cudaMemcpyDeviceToDevice, lanes_[kPullLane].stream),
                        "KV pull"));
        i += n;
    }
    return {};
}

Expected<uint64_t> CudaDevicePool::copy(const PageMap& from, std::span<const uint32_t> from_blocks, const PageMap& to,
                                        std::span<const uint32_t> to_blocks, uint32_t layers) {
    const size_t n = std::max(from_blocks.size(), to_blocks.size());
    for (size_t i = identity_.size(); i < n; ++i) identity_.push_back(static_cast<uint32_t>(i));
    const auto rows = std::span<const uint32_t>(identity_).first(n);
    BATON_TRY(check(cudaSetDevice(device_), "GPU of the KV pool"));
    PageCopyShape shape = this->shape(layers, false);
    shape.ctas = link_ctas_ != 0 ? link_ctas_ : kLinkCopyCtas;
    const cudaError_t e = copy_pages(lanes_[kPullLane].stream, from, from_blocks.empty() ? rows : from_blocks, to,
                                     to_blocks.empty() ? rows : to_blocks, shape);
    return ticket(kPullLane, check(e, "KV copy"));
}

// ---- host memory -----------------------------------------------------------------------------------------------------

Expected<uint64_t> CudaDevicePool::to_host(const PageCopy& copy, std::span<std::byte> host) {
    return ticket(kHostLane, move_host(copy, copy.from, host.data(), host.size(), true));
}

Expected<uint64_t> CudaDevicePool::from_host(const PageCopy& copy, std::span<const std::byte> host) {
    return ticket(kHostLane, move_host(copy, copy.to, const_cast<std::byte*>(host.data()), host.size(), false));
}

/// Long runs go straight; others through staging memory, whose uses the stream keeps in order.
Expected<void> CudaDevicePool::move_host(const PageCopy& copy, std::span<const uint32_t> blocks, std::byte* host, size_t bytes, bool out) {
    const size_t stride = copy.layers * 2 * layout_.page_bytes();
    if (bytes != stride * blocks.size()) return fail(ErrorCode::kInternal, "host copy of KV: sizes differ");
    if (copy.layers == 0 || blocks.empty()) return {};
    BATON_TRY(check(cudaSetDevice(device_), "GPU of the KV pool"));
    const cudaStream_t stream = lanes_[kHostLane].stream;
    if (layout_.order == kv::PoolOrder::kBlockFirst && stride >= kDirectRunBytes) {
        for (size_t i = 0; i < blocks.size(); ++i) {
            std::byte* at = base_ + layout_.page_offset(copy.first_layer, false, blocks[i]);
            std::byte* there = host + i * stride;
            BATON_TRY(check(out ? cudaMemcpyAsync(there, at, stride, cudaMemcpyDeviceToHost, stream)
                                : cudaMemcpyAsync(at, there, stride, cudaMemcpyHostToDevice, stream),
                            "host copy of KV"));
        }
        return {};
    }
    // A block that does not fit the staging memory is cut by layers; host bytes of a layer are one run.
    const size_t layer_bytes = 2 * layout_.page_bytes();
    const auto layers_max = static_cast<uint32_t>(std::min<size_t>(copy.layers, staging_bytes_ / layer_bytes));
    const size_t blocks_max = layers_max < copy.layers ? 1 : std::min<size_t>(staging_bytes_ / stride, identity_.size());
    for (size_t i = 0; i < blocks.size(); i += blocks_max) {
        const size_t n = std::min(blocks.size() - i, blocks_max);
        for (uint32_t layer = 0; layer < copy.layers; layer += layers_max) {
            const uint32_t layers = std::min(copy.layers - layer, layers_max);
            const PageMap pool = pages(copy.first_layer + layer);
            const PageMap packed = packed_map(staging_, layers, layout_.page_bytes());
            const auto list = blocks.subspan(i, n);
            const auto rows = std::span(identity_).first(n);
            std::byte* there = host + i * stride + layer * layer_bytes;
            const size_t run = n * layers * layer_bytes;
            if (out) {
                BATON_TRY(check(copy_pages(stream, pool, list, packed, rows, shape(layers, true)), "gather of KV"));
                BATON_TRY(check(cudaMemcpyAsync(there, staging_, run, cudaMemcpyDeviceToHost, stream), "host copy of KV"));
            } else {
                BATON_TRY(check(cudaMemcpyAsync(staging_, there, run, cudaMemcpyHostToDevice, stream), "host copy of KV"));
                BATON_TRY(check(copy_pages(stream, packed, rows, pool, list, shape(layers, true)), "scatter of KV"));
            }
        }
    }
    return {};
}

bool CudaDevicePool::pin(std::span<std::byte> memory) {
    (void)cudaSetDevice(device_);
    const cudaError_t e = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e == cudaSuccess;
}

void CudaDevicePool::unpin(std::span<std::byte> memory) {
    (void)cudaSetDevice(device_);
    if (cudaHostUnregister(memory.data()) != cudaSuccess) (void)cudaGetLastError();
}

// ---- tickets ---------------------------------------------------------------------------------------------------------

Expected<uint64_t> CudaDevicePool::ticket(uint64_t number, Expected<void> queued) {
    Lane& lane = lanes_[number];
    cudaEvent_t event = nullptr;
    if (queued) {
        reap(lane);
        if (lane.events.size() >= kQueuedMax) queued = check(cudaStreamSynchronize(lane.stream), "KV copies");
    }
    if (queued && !spare_events_.empty()) {
        event = spare_events_.back();
        spare_events_.pop_back();
    } else if (queued) {
        queued = check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event for KV copies");
    }
    if (queued) queued = check(cudaEventRecord(event, lane.stream), "event for KV copies");
    if (!queued) {
        // Part of it may run: nothing of it may be left when the caller hears that it failed.
        (void)cudaStreamSynchronize(lane.stream);
        (void)cudaGetLastError();
        if (event != nullptr) spare_events_.push_back(event);
        return fail(std::move(queued).error());
    }
    lane.events.push_back(event);
    return ++lane.queued * kLanes + number;
}

Expected<void> CudaDevicePool::follow(cudaStream_t stream, uint64_t ticket) {
    const Lane& lane = lanes_[ticket % kLanes];
    const uint64_t n = ticket / kLanes;
    if (n <= lane.completed) return {};
    if (n > lane.queued) return fail(ErrorCode::kInternal, "unknown ticket");
    return check(cudaStreamWaitEvent(stream, lane.events[n - lane.completed - 1], 0), "order of KV copies");
}

void CudaDevicePool::reap(Lane& lane) {
    while (!lane.events.empty() && cudaEventQuery(lane.events.front()) == cudaSuccess) {
        spare_events_.push_back(lane.events.front());
        lane.events.pop_front();
        ++lane.completed;
    }
}

Expected<bool> CudaDevicePool::done(uint64_t ticket) {
    Lane& lane = lanes_[ticket % kLanes];
    const uint64_t n = ticket / kLanes;
    if (n <= lane.completed) return true;
    if (n > lane.queued) return fail(ErrorCode::kInternal, "unknown ticket");
    reap(lane);
    if (n <= lane.completed) return true;
    if (const cudaError_t e = cudaEventQuery(lane.events.front()); e != cudaSuccess && e != cudaErrorNotReady)
        BATON_TRY(check(e, "the GPU is lost"));
    return n <= lane.completed;
}

}  // namespace baton::backend::cuda
