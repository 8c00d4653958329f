// What happens once: choice of kernels, memory, lowering. And the check of each batch before
// anything is touched.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <exception>

#include "backend/cpu_backend.hpp"
#include "backend/weight_image.hpp"

namespace baton::backend {

namespace {

constexpr uint32_t kThreadsMax = 256;
constexpr uint32_t kBlockTokensMax = 4096;
constexpr uint32_t kBatchTokensMax = 65536;
constexpr uint64_t kPoolBytesMax = uint64_t{1} << 46;

tl::unexpected<Error> invalid(std::string message, std::string param = {}) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(param));
}

#if defined(__x86_64__)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
bool has_avx512bf16() {
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

uint32_t usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
    return std::max(1u, static_cast<uint32_t>(CPU_COUNT(&set)));
}

Expected<void> check_options(const CpuOptions& o) {
    if (o.threads > kThreadsMax)
        return invalid("threads is beyond " + std::to_string(kThreadsMax), "threads");
    if (o.block_tokens == 0 || o.block_tokens > kBlockTokensMax)
        return invalid("block_tokens must be within 1.." + std::to_string(kBlockTokensMax),
                       "block_tokens");
    if (o.blocks == 0) return invalid("the KV pool has no blocks", "blocks");
    if (o.max_batch_tokens == 0 || o.max_batch_tokens > kBatchTokensMax)
        return invalid("max_batch_tokens must be within 1.." + std::to_string(kBatchTokensMax),
                       "max_batch_tokens");
    if (o.max_batch_slices == 0 || o.max_batch_slices > kBatchTokensMax)
        return invalid("max_batch_slices must be within 1.." + std::to_string(kBatchTokensMax),
                       "max_batch_slices");
    return {};
}

uint32_t thread_count(const CpuOptions& o) {
    return o.threads != 0 ? o.threads : std::min(usable_cores(), kThreadsMax);
}

}  // namespace

bool allow_amx() {
#if defined(__x86_64__)
    constexpr unsigned kBits = bit_AMX_BF16 | bit_AMX_TILE | bit_AMX_INT8;
    constexpr long kRequestPermission = 0x1023,
                   kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBits) != kBits) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

Expected<const Kernels*> choose_kernels(const std::string& isa) {
    struct Level {
        const Kernels& kernels;
        bool available;
    };
#if defined(__x86_64__)
    const Level levels[] = {{kernels_amx(), has_avx512bf16() && allow_amx()},
                            {kernels_avx512bf16(), has_avx512bf16()},
                            {kernels_avx512(), has_avx512()},
                            {kernels_avx2(), has_avx2()},
                            {kernels_portable(), true}};
#else
    const Level levels[] = {{kernels_portable(), true}};
#endif
    for (const Level& level : levels) {
        if (isa.empty() ? level.available : isa == level.kernels.name) {
            if (level.available) return &level.kernels;
            return invalid("this CPU does not have " + isa, "isa");
        }
    }
    return invalid("unknown instruction set " + isa.substr(0, 32), "isa");
}

Expected<kv::PoolLayout> cpu_kv_layout(const ModelShape& shape, const CpuOptions& options) {
    BATON_TRY(check_shape(shape));
    BATON_TRY(check_options(options));
    BATON_TRY_ASSIGN(const Kernels* kernels, choose_kernels(options.isa));
    kv::PoolLayout l;
    l.order = options.kv_first ? kv::PoolOrder::kKvFirst : kv::PoolOrder::kBlockFirst;
    l.dtype = static_cast<uint8_t>(options.kv_f32 ? tensor::DType::kF32 : tensor::DType::kBF16);
    l.layers = shape.layers;
    l.kv_heads = shape.kv_heads;
    l.head_dim = shape.head_dim;
    l.block_tokens = options.block_tokens;
    l.blocks = options.blocks;
    l.page_format = std::string("cpu-") + kernels->numerics + "-1";
    uint64_t bytes = 2 * l.element_bytes();
    for (const uint64_t n : {l.layers, l.kv_heads, l.head_dim, l.block_tokens, l.blocks}) {
        if (__builtin_mul_overflow(bytes, n, &bytes) || bytes > kPoolBytesMax)
            return invalid("the KV pool is too large", "blocks");
    }
    return l;
}

Expected<std::unique_ptr<Backend>> make_cpu_backend(const Plan& plan, const CpuOptions& options,
                                                    std::span<std::byte> pool) {
    try {
        BATON_TRY_ASSIGN(auto backend, CpuBackend::make(plan, options, pool));
        return std::unique_ptr<Backend>(std::move(backend));
    } catch (const std::exception& e) {  // no more threads or memory
        return fail(ErrorCode::kOverloaded,
                    std::string("cannot start the cpu backend: ") + e.what());
    }
}

Expected<WeightImage> cpu_weight_image(const Plan& plan, const CpuOptions& options) {
    BATON_TRY_ASSIGN(const Kernels* kernels, choose_kernels(options.isa));
    BATON_TRY_ASSIGN(const Program program, lower(plan));
    return WeightImage{program.image_bytes, image_key(program, options.model, kernels->name)};
}

Expected<void> fill_cpu_weights(const Plan& plan, const CpuOptions& options, int fd) {
    BATON_TRY(check_options(options));
    BATON_TRY_ASSIGN(const Kernels* kernels, choose_kernels(options.isa));
    BATON_TRY_ASSIGN(const Program program, lower(plan));
    try {
        ThreadPool pool(thread_count(options));
        return fill_image(program, image_key(program, options.model, kernels->name), fd, pool);
    } catch (const std::exception& e) {  // no more threads or memory
        return fail(ErrorCode::kOverloaded, std::string("cannot pack the weights: ") + e.what());
    }
}

CpuBackend::CpuBackend(const CpuOptions& options, const Kernels& kernels, const KvPages& pages,
                       uint32_t threads)
    : options_(options), kernels_(kernels), pages_(pages), pool_(threads) {}

Expected<std::unique_ptr<CpuBackend>> CpuBackend::make(const Plan& plan, const CpuOptions& options,
                                                       std::span<std::byte> pool) {
    BATON_TRY_ASSIGN(const kv::PoolLayout layout, cpu_kv_layout(plan.shape, options));
    if (pool.size() != layout.pool_bytes() || reinterpret_cast<uintptr_t>(pool.data()) % 64 != 0)
        return invalid("the KV pool is not " + std::to_string(layout.pool_bytes()) +
                       " bytes at a multiple of 64");
    BATON_TRY_ASSIGN(const Kernels* kernels, choose_kernels(options.isa));
    const uint32_t threads = thread_count(options);
    std::unique_ptr<CpuBackend> b(
        new CpuBackend(options, *kernels, KvPages(layout, pool.data()), threads));
    BATON_TRY_ASSIGN(b->program_, lower(plan));
    BATON_TRY(b->load_weights());
    BATON_TRY_ASSIGN(auto attention, AttentionRunner::make(plan.shape, b->pages_, *kernels, threads,
                                                           options.max_batch_slices));
    b->attention_ = std::make_unique<AttentionRunner>(std::move(attention));
    b->rope_ = plan.rope;
    b->embedding_ = plan.embedding;
    b->storage_ = plan.storage;
    BATON_TRY(b->allot());
    return b;
}

/// Binds the program to the image of options_.weights_fd, or to one of its own.
Expected<void> CpuBackend::load_weights() {
    if (options_.weights_fd >= 0) {
        const Digest key = image_key(program_, options_.model, kernels_.name);
        BATON_TRY_ASSIGN(weights_, map_image(program_, key, options_.weights_fd));
    } else {
        BATON_TRY_ASSIGN(weights_, Buffer::make(program_.image_bytes, "weights"));
        BATON_TRY(pack_weights(program_, weights_.data(), pool_));
    }
    bind_weights(program_, weights_.data());
    program_.parts = {};  // they point into the plan
    return {};
}

Expected<void> CpuBackend::allot() {
    const ModelShape& s = program_.shape;
    const size_t rows =
        (size_t{std::max(options_.max_batch_tokens, options_.max_batch_slices)} + kPanelRows - 1) /
        kPanelRows * kPanelRows;
    size_t width_max = 0, bytes = 0;
    const auto take = [&bytes](size_t n) {
        const size_t at = bytes;
        bytes += (n + 63) / 64 * 64;
        return at;
    };
    std::array<size_t, static_cast<size_t>(Slot::kCount)> slots{};
    for (size_t i = 0; i < slots.size(); ++i) {
        const size_t width = slot_width(s, static_cast<Slot>(i));
        width_max = std::max(width_max, width);
        slots[i] = take(rows * width * sizeof(float));
    }
    const size_t q[2] = {take(rows * width_max), take(rows * s.ffn)};
    const size_t meta[2] = {take((rows * width_max / 8 + 16) * sizeof(float)),
                            take((rows * s.ffn / 8 + 16) * sizeof(float))};
    const size_t pieces = take(2 * kPieceFloats * pool_.threads() * sizeof(float));
    const size_t bf16 = take(rows * width_max * sizeof(uint16_t));
    const size_t half = rows * s.head_dim / 2 * sizeof(float), cos = take(half), sin = take(half);
    BATON_TRY_ASSIGN(memory_, Buffer::make(bytes, "activations"));
    std::byte* base = memory_.data();
    for (size_t i = 0; i < slots.size(); ++i)
        act_.slot[i] = reinterpret_cast<float*>(base + slots[i]);
    for (size_t i = 0; i < 2; ++i) {
        act_.q[i] = reinterpret_cast<int8_t*>(base + q[i]);
        act_.meta[i] = reinterpret_cast<float*>(base + meta[i]);
    }
    act_.pieces = reinterpret_cast<float*>(base + pieces);
    act_.bf16 = reinterpret_cast<uint16_t*>(base + bf16);
    act_.cos = reinterpret_cast<float*>(base + cos);
    act_.sin = reinterpret_cast<float*>(base + sin);
    rows_.reserve(options_.max_batch_tokens);
    wanted_.reserve(options_.max_batch_slices);
    written_.assign(options_.blocks, 0);
    return {};
}

std::string CpuBackend::describe() const {
    return std::string("cpu ") + kernels_.name + ", " + std::to_string(pool_.threads()) +
           (pool_.threads() == 1 ? " thread" : " threads");
}

Expected<void> CpuBackend::check(const Batch& batch, std::span<float> logits) {
    if (batch.slices.empty() || batch.slices.size() > options_.max_batch_slices)
        return invalid("a batch must have 1.." + std::to_string(options_.max_batch_slices) +
                       " slices");
    if (batch.tokens.size() > options_.max_batch_tokens)
        return invalid("a batch must have at most " + std::to_string(options_.max_batch_tokens) +
                       " tokens");
    uint64_t rows = 0;
    size_t with_logits = 0;
    for (size_t i = 0; i < batch.slices.size(); ++i) {
        BATON_TRY(check_slice(batch.slices[i], i, rows));
        rows += batch.slices[i].tokens;
        with_logits += batch.slices[i].logits ? 1 : 0;
    }
    if (rows != batch.tokens.size())
        return invalid("the slices do not cover the tokens of the batch");
    for (const TokenId t : batch.tokens) {
        if (t < 0 || static_cast<uint32_t>(t) >= program_.shape.vocab)
            return invalid("token id " + std::to_string(t) + " is outside the vocabulary");
    }
    if (logits.size() != with_logits * program_.shape.vocab)
        return invalid("the logits have the wrong size");
    return check_writers(batch);
}

Expected<void> CpuBackend::check_slice(const Slice& s, size_t index, uint64_t rows_before) const {
    const std::string where = "slice " + std::to_string(index);
    const uint64_t end = uint64_t{s.position} + s.tokens;
    if (s.tokens == 0 || rows_before + s.tokens > options_.max_batch_tokens)
        return invalid(where + " has no tokens or too many");
    if (end > program_.shape.context)
        return invalid(where + " goes beyond the context of the model");
    const uint64_t blocks = (end + options_.block_tokens - 1) / options_.block_tokens;
    if (s.blocks.size() < blocks) return invalid(where + " has too few blocks");
    for (uint64_t i = 0; i < blocks; ++i) {
        if (s.blocks[i] >= options_.blocks)
            return invalid(where + " names a block outside the pool");
    }
    return {};
}

/// A block that one slice writes in this step may be neither written nor read by another, nor be
/// named twice.
Expected<void> CpuBackend::check_writers(const Batch& batch) {
    ++step_;
    const auto mark = [&](size_t slice) { return step_ << 32 | slice; };
    const uint32_t bt = options_.block_tokens;
    for (size_t i = 0; i < batch.slices.size(); ++i) {
        const Slice& s = batch.slices[i];
        for (uint32_t b = s.position / bt; b <= (s.position + s.tokens - 1) / bt; ++b) {
            if (written_[s.blocks[b]] >> 32 == step_) return invalid("two slices write one block");
            written_[s.blocks[b]] = mark(i);
        }
    }
    for (size_t i = 0; i < batch.slices.size(); ++i) {
        const Slice& s = batch.slices[i];
        for (uint32_t b = 0; b < s.position / bt; ++b) {
            if (written_[s.blocks[b]] >> 32 == step_)
                return invalid("a slice reads a block that one writes");
        }
    }
    return {};
}

}  // namespace baton::backend
