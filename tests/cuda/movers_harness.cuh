#pragma once

#include <cuda_runtime.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "backend/cuda/device_pool.hpp"
#include "xavier/xavier_harness.hpp"

/// Pools on GPUs with pages of known content, and other processes that have such pools: this program, started again with
/// --child.
namespace baton::xavier::test {
namespace {

using backend::PageCopy;
using backend::cuda::CudaDevicePool;
using backend::cuda::page_map;
using backend::cuda::PageMap;
using kv::PoolOrder;

#define CUDA_OK(x)                                                              \
    do {                                                                        \
        const cudaError_t cuda_ok_ = (x);                                       \
        if (cuda_ok_ != cudaSuccess) {                                          \
            std::fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(cuda_ok_)); \
            std::abort();                                                       \
        }                                                                       \
    } while (false)

int gpus() {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}
#define NEEDS_GPU() \
    if (gpus() == 0) GTEST_SKIP() << "no GPU here"

// ---- what pages hold ---------------------------------------------------------------------------------------------------

__host__ __device__ inline uint64_t word_of(uint64_t seed, uint32_t layer, uint32_t kv, uint32_t index, uint32_t word) {
    uint64_t h = seed * 0x9e3779b97f4a7c15ull + ((uint64_t{layer} << 33) | (uint64_t{kv} << 32) | index) * 0xc2b2ae3d27d4eb4full + word;
    h ^= h >> 31;
    h *= 0xbf58476d1ce4e5b9ull;
    return h ^ (h >> 29);
}

/// Fills, or compares, the pages of layers [first, first + layers) of blocks[i], i in [begin, end): one CTA a page.
__global__ void pages_kernel(PageMap map, const uint32_t* blocks, uint32_t begin, uint32_t first, uint32_t layers, uint32_t words,
                             uint64_t seed, unsigned long long* wrong) {
    const uint32_t page = blockIdx.x;
    const uint32_t index = begin + page / (layers * 2), layer = first + page / 2 % layers, kv = page % 2;
    auto* at = reinterpret_cast<uint64_t*>(map.base + blocks[index] * map.block_stride + layer * map.layer_stride + kv * map.kv_stride);
    for (uint32_t w = threadIdx.x; w < words; w += blockDim.x) {
        const uint64_t expected = word_of(seed, layer, kv, index, w);
        if (wrong == nullptr) at[w] = expected;
        else if (at[w] != expected) atomicAdd(wrong, 1ull);
    }
}

__global__ void store_word_kernel(uint64_t* word, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/// Counts bytes that are not `poison` in blocks whose mark is 0.
__global__ void poison_kernel(PageMap map, const uint8_t* marks, uint32_t layers, uint32_t words, uint64_t poison, unsigned long long* wrong) {
    const uint32_t page = blockIdx.x;
    const uint32_t block = page / (layers * 2), layer = page / 2 % layers, kv = page % 2;
    if (marks[block] != 0) return;
    const auto* at = reinterpret_cast<const uint64_t*>(map.base + block * map.block_stride + layer * map.layer_stride + kv * map.kv_stride);
    for (uint32_t w = threadIdx.x; w < words; w += blockDim.x)
        if (at[w] != poison) atomicAdd(wrong, 1ull);
}

/// Memory of a device that an object owns.
template <class T>
struct Device {
    explicit Device(size_t n) { CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&p), std::max<size_t>(n, 1) * sizeof(T))); }
    /// There when it returns, for every stream: a copy of pageable memory may return before its bytes are on the device, and streams that
    /// do not block do not wait for it.
    explicit Device(const std::vector<T>& v) : Device(v.size()) {
        CUDA_OK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
        CUDA_OK(cudaStreamSynchronize(cudaStreamLegacy));
    }
    ~Device() { cudaFree(p); }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    T* p = nullptr;
};

kv::PoolLayout gpu_layout(PoolOrder order, uint32_t blocks, uint32_t layers, uint32_t block_tokens, uint32_t heads, uint32_t dim) {
    kv::PoolLayout l;
    l.order = order;
    l.dtype = 1;
    l.layers = layers;
    l.kv_heads = heads;
    l.head_dim = dim;
    l.block_tokens = block_tokens;
    l.blocks = blocks;
    l.page_format = "gpu-test-1";
    return l;
}

/// A pool on a GPU with its words.
struct Pool {
    Pool(int gpu, const kv::PoolLayout& layout) : gpu(gpu), layout(layout) {
        CUDA_OK(cudaSetDevice(gpu));
        CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&base), layout.pool_bytes()));
        CUDA_OK(cudaMemset(base, 0xab, layout.pool_bytes()));
        CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA_OK(cudaDeviceSynchronize());
        auto made = CudaDevicePool::make(gpu, base, layout);
        EXPECT_TRUE(made.has_value()) << made.error().message;
        device = std::move(*made);
        words = std::move(*SharedPool::create_words(layout, 8));
        CUDA_OK(cudaHostRegister(words->words().data(), words->words().size(), cudaHostRegisterMapped | cudaHostRegisterPortable));
        for (uint32_t i = 0; i < 8; ++i) {
            void* there = nullptr;
            CUDA_OK(cudaHostGetDevicePointer(&there, words->progress_word(i), 0));
            slots.push_back(static_cast<uint64_t*>(there));
        }
    }
    ~Pool() {
        CUDA_OK(cudaSetDevice(gpu));
        cudaStreamSynchronize(stream);
        cudaHostUnregister(words->words().data());
        device.reset();
        cudaStreamDestroy(stream);
        cudaFree(base);
    }
    [[nodiscard]] uint32_t page_words() const { return static_cast<uint32_t>(layout.page_bytes() / 8); }
    void fill(const uint32_t* blocks, uint32_t begin, uint32_t end, uint32_t first, uint32_t layers, uint64_t seed) {
        if (begin < end)
            pages_kernel<<<(end - begin) * layers * 2, 128, 0, stream>>>(page_map(base, layout), blocks, begin, first, layers, page_words(), seed, nullptr);
        CUDA_OK(cudaGetLastError());
    }
    void fill_all(const std::vector<uint32_t>& blocks, uint64_t seed) {
        CUDA_OK(cudaSetDevice(gpu));
        const Device<uint32_t> list(blocks);
        fill(list.p, 0, static_cast<uint32_t>(blocks.size()), 0, layout.layers, seed);
        CUDA_OK(cudaStreamSynchronize(stream));
    }
    /// Words of blocks[begin …] in those layers that are not what they must be.
    uint64_t wrong(const std::vector<uint32_t>& blocks, uint64_t seed, uint32_t begin = 0, uint32_t first = 0, uint32_t layers = 0) {
        CUDA_OK(cudaSetDevice(gpu));
        if (layers == 0) layers = layout.layers;
        const Device<uint32_t> list(blocks);
        const Device<unsigned long long> count(std::vector<unsigned long long>{0});
        pages_kernel<<<(static_cast<uint32_t>(blocks.size()) - begin) * layers * 2, 128, 0, stream>>>(
            page_map(base, layout), list.p, begin, first, layers, page_words(), seed, count.p);
        return fetch(count.p);
    }
    /// Words outside those blocks that are not as they were made.
    uint64_t touched(const std::vector<uint32_t>& blocks) {
        CUDA_OK(cudaSetDevice(gpu));
        std::vector<uint8_t> marks(layout.blocks);
        for (const uint32_t b : blocks) marks[b] = 1;
        const Device<uint8_t> list(marks);
        const Device<unsigned long long> count(std::vector<unsigned long long>{0});
        poison_kernel<<<layout.blocks * layout.layers * 2, 128, 0, stream>>>(page_map(base, layout), list.p, layout.layers, page_words(),
                                                                             0xababababababababull, count.p);
        return fetch(count.p);
    }
    void poison() {
        CUDA_OK(cudaSetDevice(gpu));
        CUDA_OK(cudaMemset(base, 0xab, layout.pool_bytes()));
        CUDA_OK(cudaDeviceSynchronize());
    }
    uint64_t fetch(unsigned long long* p) {
        unsigned long long n = 0;
        CUDA_OK(cudaGetLastError());
        CUDA_OK(cudaMemcpyAsync(&n, p, sizeof n, cudaMemcpyDeviceToHost, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        return n;
    }
    const int gpu;
    const kv::PoolLayout layout;
    std::byte* base = nullptr;
    cudaStream_t stream = nullptr;
    std::unique_ptr<CudaDevicePool> device;
    std::unique_ptr<SharedPool> words;
    std::vector<uint64_t*> slots;
};

void wait_for(CudaDevicePool& device, uint64_t ticket) {
    for (;;) {
        const auto done = device.done(ticket);
        ASSERT_TRUE(done.has_value()) << done.error().message;
        if (*done) return;
    }
}

uint64_t seed_of_run() {
    static const uint64_t seed = std::random_device{}();
    return seed;
}

// ---- the other process -------------------------------------------------------------------------------------------------

/// What the parent asks of a child, and where it finds what the child shares.
struct Ask {
    enum Kind : uint32_t { kHandoff, kClose, kFill, kPullForever, kEnd } kind = kEnd;
    uint64_t id = 0;
    uint32_t slot = 0, tokens = 0, chunk = 0, generation = 1;
    uint64_t seed = 0;
    uint32_t pause_us = 0;
};
struct Shared {
    pid_t pid = 0;
    int words_fd = -1;
    uint64_t handle_bytes = 0;
};

void put(int fd, const void* p, size_t n) { ASSERT_EQ(::write(fd, p, n), static_cast<ssize_t>(n)); }
bool get(int fd, void* p, size_t n) {
    for (size_t have = 0; have < n;) {
        const ssize_t r = ::read(fd, static_cast<char*>(p) + have, n - have);
        if (r <= 0) return false;
        have += static_cast<size_t>(r);
    }
    return true;
}

std::vector<uint32_t> blocks_of(uint64_t id, uint32_t of, uint32_t n) {
    std::mt19937 rng(static_cast<uint32_t>(id * 7919));
    return some_blocks(rng, of, n);
}

kv::PoolLayout child_layout(bool kv_first) {  // 32 KiB pages as Qwen3-0.6B with 16 tokens, 1.75 MiB a block; 1,064 MiB
    return gpu_layout(kv_first ? PoolOrder::kKvFirst : PoolOrder::kBlockFirst, 608, 28, 16, 8, 128);
}
constexpr uint32_t kGibTokens = 9600;  ///< 600 blocks, 1.1 GB: a transfer to be killed in
/// Kills inside a transfer, at least.
int kills() {
    const char* n = std::getenv("BATON_TEST_KILLS");
    return n == nullptr ? 10 : std::atoi(n);
}

/// A process that holds a pool on a GPU and is told what to compute into it.
class Child {
  public:
    /// `env`: NAME=value for the child alone, or null. `pass`: a descriptor that it inherits, named in BATON_TEST_FD.
    Child(int gpu, bool kv_first, const char* role = "p", const char* env = nullptr, int pass = -1) {
        int sv[2];
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
        ::fflush(nullptr);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::close(sv[0]);
            if (env != nullptr) ::putenv(const_cast<char*>(env));
            if (pass >= 0) ::setenv("BATON_TEST_FD", std::to_string(pass).c_str(), 1);
            const std::string fd = std::to_string(sv[1]), g = std::to_string(gpu);
            ::execl("/proc/self/exe", "movers", "--child", role, fd.c_str(), g.c_str(), kv_first ? "1" : "0", nullptr);
            ::_exit(9);
        }
        ::close(sv[1]);
        fd_ = UniqueFd(sv[0]);
        EXPECT_TRUE(get(fd_.get(), &shared_, sizeof shared_)) << "the child did not start";
        handle_.resize(shared_.handle_bytes);
        EXPECT_TRUE(get(fd_.get(), handle_.data(), handle_.size()));
    }
    ~Child() { end(SIGKILL); }
    void end(int signal) {
        if (pid_ <= 0) return;
        ::kill(pid_, signal);
        int status = 0;
        ::waitpid(pid_, &status, 0);
        pid_ = -1;
    }
    [[nodiscard]] UniqueFd words() const {
        const std::string path = "/proc/" + std::to_string(shared_.pid) + "/fd/" + std::to_string(shared_.words_fd);
        return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    }
    [[nodiscard]] std::span<const std::byte> handle() const { return handle_; }
    void ask(const Ask& a) { put(fd_.get(), &a, sizeof a); }
    /// Waits until what was asked is done.
    void wait() {
        char c = 0;
        ASSERT_TRUE(get(fd_.get(), &c, 1));
    }
    [[nodiscard]] int fd() const { return fd_.get(); }

  private:
    pid_t pid_ = -1;
    UniqueFd fd_;
    Shared shared_;
    std::vector<std::byte> handle_;
};

/// Computes as a prefill replica would: chunk by chunk, layer by layer, the word after each layer.
void compute(Pool& p, const Ask& a, const Device<uint32_t>& list) {
    const uint32_t bt = p.layout.block_tokens;
    for (uint32_t begin = 0; begin < a.tokens; begin += a.chunk) {
        const uint32_t end = std::min(begin + a.chunk, a.tokens);
        for (uint32_t layer = 0; layer < p.layout.layers; ++layer) {
            p.fill(list.p, begin / bt, (end + bt - 1) / bt, layer, 1, a.seed);
            store_word_kernel<<<1, 1, 0, p.stream>>>(p.slots[a.slot], progress_base(begin, end) + (uint64_t{layer + 1} << 48));
            if (a.pause_us > 0) {
                CUDA_OK(cudaStreamSynchronize(p.stream));
                ::usleep(a.pause_us);
            }
        }
    }
    CUDA_OK(cudaStreamSynchronize(p.stream));
}

/// Serves what the parent asks; `link_up` is called once the pool is there.
template <class LinkUp>
int child_prefill(int fd, int gpu, bool kv_first, LinkUp link_up) {
    Pool p(gpu, child_layout(kv_first));
    [[maybe_unused]] const auto linked = link_up(p);
    const auto handle = *p.device->export_handle();
    const Shared shared{::getpid(), p.words->fd(), handle.size()};
    put(fd, &shared, sizeof shared);
    put(fd, handle.data(), handle.size());
    for (Ask a; get(fd, &a, sizeof a) && a.kind != Ask::kEnd;) {
        const uint32_t n = (a.tokens + p.layout.block_tokens - 1) / p.layout.block_tokens;
        const auto blocks = blocks_of(a.id, p.layout.blocks, n);
        if (a.kind == Ask::kHandoff) {
            const Device<uint32_t> list(blocks);
            p.words->open_progress({a.slot, OfferId{a.id}, a.tokens, blocks, std::vector<Generation>(n, a.generation)});
            put(fd, "o", 1);
            compute(p, a, list);
        } else if (a.kind == Ask::kClose) {
            p.words->close_progress({a.slot, OfferId{a.id}});
        } else if (a.kind == Ask::kFill) {
            p.fill_all(blocks, a.seed);
        }
        put(fd, "d", 1);
    }
    return 0;
}

/// D's side of a hand-off that was asked of a child.
inline pd::StartPull pull_of(const Ask& a, const kv::PoolLayout& p, const kv::PoolLayout& d, uint32_t first_block = 0) {
    const uint32_t n = (a.tokens + p.block_tokens - 1) / p.block_tokens;
    pd::StartPull pull;
    pull.pull = a.id;
    pull.peer = kPrefill;
    pull.offer = OfferId{a.id};
    pull.progress_slot = a.slot;
    pull.tokens = a.tokens;
    pull.first_block = first_block;
    pull.source_blocks = blocks_of(a.id, p.blocks, n);
    pull.source_generations.assign(n, a.generation);
    pull.target_blocks = blocks_of(a.id + 1000, d.blocks, n);
    pull.deadline = steady_now() + 60'000;
    return pull;
}

}  // namespace
}  // namespace baton::xavier::test
