#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "baton/backend/device_pool.hpp"
#include "baton/backend/plan.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"
#include "baton/kv/layout.hpp"
#include "baton/wire/messages.hpp"

namespace baton::backend {

/// The part of a batch that belongs to one sequence: `tokens` consecutive rows whose first sits at `position`.
struct Slice {
    uint32_t tokens = 0;
    uint32_t position = 0;
    std::span<const BlockId> blocks;  ///< covers positions 0 … position + tokens - 1, block_tokens each
    bool logits = false;              ///< compute the logits of the slice's last row
    // The rest is read by DeviceBackend alone, which samples by itself.
    const wire::Sequence* sequence = nullptr;  ///< with `logits`: what to sample by; read during submit only
    uint32_t state = 0;     ///< row of the device's state of this sequence, < max_batch_slices; stays while it runs
    uint32_t pending = 0;   ///< tokens that unfinished steps sample for this sequence and `emitted` lacks: 0 or 1. With 1 the one row is that
                            ///< token, whose id in Batch::tokens is not read; settings and blocks are those of its step before, or more blocks.
    bool masked = false;    ///< with `logits`: the token is sampled once DeviceBackend::allow has said from which
    uint64_t* progress = nullptr;  ///< word in memory given to share_words; null: nobody watches
    uint64_t progress_base = 0;    ///< after some or all layers the device stores base + (layers done << 48) there, release
                                   ///< order at system scope, after the KV of those layers; the last store says all layers
};

/// One engine step: prefill chunks and decode rows side by side.
struct Batch {
    std::span<const TokenId> tokens;  ///< all slices' rows, in order; every id < vocab
    std::span<const Slice> slices;
};

/// Runs a model. One engine thread calls it; it owns its worker threads. Numerics contract (docs/ENGINE.md): a
/// sequence's logits and KV bytes are bitwise the same whatever else is in the batch, however its prompt was chunked
/// and however many threads run.
class Backend {
  public:
    virtual ~Backend() = default;
    [[nodiscard]] virtual const ModelShape& shape() const = 0;
    [[nodiscard]] virtual const kv::PoolLayout& kv_layout() const = 0;
    /// Name for logs, e.g. "cpu avx512-vnni-bf16, 2 threads".
    [[nodiscard]] virtual std::string describe() const = 0;
    /// Writes `logits` [slices with logits, vocab] f32 in the slices' order, and the new tokens' KV into the pool.
    /// `layer_done(layer)` is called on the engine thread after each layer's KV of this batch is in the pool.
    /// The batch has at most max_batch_tokens rows.
    virtual Expected<void> forward(const Batch& batch, std::span<float> logits,
                                   const std::function<void(uint32_t layer)>& layer_done) = 0;
    /// Reads the weights once, so that a step that follows soon finds them in the caches. For a replica that waits for a
    /// hand-off with nothing else to do: its first step would otherwise read all of them from memory.
    virtual void warm() {}
};

/// A part of what loading a backend took.
struct LoadPhase {
    std::string name;  ///< a word, e.g. "weights"
    double ms = 0;
};

/// A backend whose device runs steps on its own, one ahead of the host, and samples there. One engine thread calls it.
/// Numerics (docs/ENGINE.md): bitwise as Backend promises where made with `deterministic`; else kernels may differ by
/// batch size, and tokens only where two logits nearly tie.
class DeviceBackend {
  public:
    virtual ~DeviceBackend() = default;
    [[nodiscard]] virtual const ModelShape& shape() const = 0;
    [[nodiscard]] virtual const kv::PoolLayout& kv_layout() const = 0;
    /// Name for logs, e.g. "cuda 0 NVIDIA H200, bf16".
    [[nodiscard]] virtual std::string describe() const = 0;
    /// Bytes of device memory it holds: weights, pool and buffers.
    [[nodiscard]] virtual uint64_t memory_bytes() const = 0;
    /// Steps that may be submitted before the oldest is collected.
    static constexpr uint32_t kDepth = 2;
    /// Queues a step and returns without waiting for it; copies what it needs of `batch`. A slice with `logits` has a
    /// `sequence`. The first slice of a state row after another sequence used it must have `pending` 0.
    virtual Expected<void> submit(const Batch& batch) = 0;
    /// For a masked slice of the step submitted last, its `row`-th with logits: the tokens that may be sampled, a bit each, lowest
    /// first, (vocab + 31) / 32 words, copied. Each masked slice gets one, soon: the step's end waits for it, not its beginning.
    virtual Expected<void> allow(uint32_t row, std::span<const uint32_t> mask) {
        static_cast<void>(row), static_cast<void>(mask);
        return fail(ErrorCode::kUnsupported, "this backend has no masks");
    }
    /// Waits for the oldest step that was not collected; gives one token per slice with `logits`, in order. After an
    /// error (a device fault) the backend is of no more use.
    virtual Expected<void> collect(std::vector<wire::Token>& tokens) = 0;
    /// Makes host memory that other processes map too writable for the device; Slice::progress points into it.
    virtual Expected<void> share_words(std::span<std::byte> memory) = 0;
    /// The pool for the movers; lives as long as the backend.
    [[nodiscard]] virtual DevicePool& pool() = 0;
    /// True when collect would not wait.
    [[nodiscard]] virtual bool ready() const = 0;
    /// The next submit is some ten microseconds away: lets the driver find what that takes in the processor's caches. Takes up to 20
    /// µs, waits for nothing, and changes nothing that a step sees.
    virtual void prime() {}
    /// Where made for debugging: waits for all steps and gives the logits of the last one, [slices with logits, vocab].
    virtual Expected<void> debug_logits(std::vector<float>& logits) {
        logits.clear();
        return fail(ErrorCode::kUnsupported, "this backend keeps no logits");
    }
    /// What was chosen and measured at load, a line each, for the benchmark; may be empty.
    [[nodiscard]] virtual std::string tuning() const { return {}; }
    /// What loading took, in the order it was done; may be empty.
    [[nodiscard]] virtual std::vector<LoadPhase> load_phases() const { return {}; }
};

struct CpuOptions {
    uint32_t threads = 0;            ///< 0: one per core this process may use
    uint32_t block_tokens = 16;
    uint32_t blocks = 0;             ///< blocks of the pool, > 0
    uint32_t max_batch_tokens = 512;
    uint32_t max_batch_slices = 64;
    bool kv_f32 = false;             ///< f32 KV instead of bf16
    bool kv_first = false;           ///< PoolOrder::kKvFirst instead of kBlockFirst
    std::string isa;                 ///< "", "portable", "avx2", "avx512", "avx512bf16", "amx"; empty: the best this CPU has
    Digest model{};                  ///< identity of the model's files; only a shared weight image needs it
    int weights_fd = -1;             ///< memory file filled by fill_cpu_weights to read the weights from; -1: packs its own
};

/// The layout a CPU pool would have, so that the caller can allot memory first (a memfd that peers map).
[[nodiscard]] Expected<kv::PoolLayout> cpu_kv_layout(const ModelShape& shape, const CpuOptions& options);

/// The packed weights of a plan as one memory file: its size, and a digest of all its bytes depend on (model, instruction
/// set, packing, order). Images with equal keys have equal bytes.
struct WeightImage {
    uint64_t bytes = 0;
    Digest key{};
};
/// Computed from shapes alone; no weight is read. Errors as make_cpu_backend.
[[nodiscard]] Expected<WeightImage> cpu_weight_image(const Plan& plan, const CpuOptions& options);
/// Packs the weights into the memory file `fd` (cpu_weight_image().bytes, zeroed) and seals it against writing and resizing,
/// so that any number of backends can read it as CpuOptions::weights_fd. kCorrupt for another size; after an error the file
/// is of no use.
[[nodiscard]] Expected<void> fill_cpu_weights(const Plan& plan, const CpuOptions& options, int fd);

/// Lowers `plan` for the CPU: checks every shape, repacks the weights or maps those of `weights_fd` (kCorrupt where that is
/// not the sealed image of this plan; the descriptor stays the caller's), starts the threads. `pool` has
/// cpu_kv_layout().pool_bytes() bytes, 64-byte aligned, zeroed, and outlives the backend.
[[nodiscard]] Expected<std::unique_ptr<Backend>> make_cpu_backend(const Plan& plan, const CpuOptions& options,
                                                                  std::span<std::byte> pool);

}  // namespace baton::backend
