#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/common.hpp"

namespace baton::backend::cuda {

/// q/k norm, rotation and KV append of rows in one pass. `positions` and `slots` are device arrays [rows].
struct RopeAppend {
    Elem elem = Elem::kBF16;
    const void* qkv = nullptr;       ///< [rows, (heads + 2 · kv_heads) · head_dim], q heads first, then k, then v
    void* q = nullptr;               ///< out [rows, heads, head_dim]
    KvView kv;                       ///< k and v go here
    uint32_t rows = 0;
    uint32_t heads = 0;
    const float* q_norm = nullptr;   ///< [head_dim], null: none
    const float* k_norm = nullptr;
    float eps = 0;
    const float2* rope = nullptr;    ///< [positions, head_dim / 2] cos and sin, the scale of Rope applied
    const int32_t* positions = nullptr;
    const int32_t* slots = nullptr;  ///< block · block_tokens + place in the block; < 0: padding, nothing is written
};
/// Errors: cudaErrorInvalidValue for shapes it has no kernel for. As all functions here: only launches, never waits.
cudaError_t rope_append(const Launch& launch, const RopeAppend& args);

/// What both attention kernels read: sequences over their blocks, causal, `out` = softmax(q · Kᵀ · scale) · V.
/// `kv_len` counts the rows of this step; row i of a sequence with n rows sees positions < kv_len - n + i + 1.
struct AttentionArgs {
    Elem elem = Elem::kBF16;
    KvView kv;
    uint32_t heads = 0;
    float scale = 1.0f;
    uint32_t sequences = 0;
    const int32_t* kv_len = nullptr;  ///< device [sequences]; 0: a padding sequence, its row is written as zero
    const int32_t* blocks = nullptr;  ///< device [sequences, blocks_stride]
    uint32_t blocks_stride = 0;
    void* out = nullptr;              ///< [rows, heads, head_dim]
};
struct PrefillAttention {
    AttentionArgs base;
    const void* q = nullptr;             ///< [rows, heads, head_dim], rotated
    const int32_t* row_begin = nullptr;  ///< device [sequences + 1]: first row of each sequence
    uint32_t rows = 0;                   ///< of all sequences
    uint32_t rows_max = 0;               ///< upper bound of one sequence's rows
    bool last_only = false;              ///< of each sequence's rows the last alone is computed, and counted in `rows` and `rows_max`
};
/// Paged prefill. A row's result depends on its own sequence alone: the order of accumulation over positions is fixed, so
/// it is the same bits for any chunking and batch, also for a single row.
cudaError_t prefill_attention(const Launch& launch, const PrefillAttention& args);

/// One row a sequence. With `fused` the kernel reads raw qkv rows, does RopeAppend's work itself and `q` is not read.
struct DecodeAttention {
    AttentionArgs base;
    const void* q = nullptr;           ///< [sequences, heads, head_dim]
    const RopeAppend* fused = nullptr; ///< rows = sequences; positions[i] = kv_len[i] - 1, slots[i] its place
    /// With `fused`: kv_len, blocks, slots, and K and V of all positions but the last were complete before the step's first kernel
    /// was launched without a programmatic edge (a copy or a graph's start lies between), and no kernel of the step writes
    /// them. The kernel then reads them before its dependency wait.
    bool early = false;
    /// decode_plan ran with the same arguments (the layer's pages and `q` may be others) since lengths and tables changed, and was
    /// complete before the first kernel that this one may overlap was launched.
    bool planned = false;
    void* workspace = nullptr;         ///< the most of decode_workspace_bytes(), zeroed once; calls of any batch share it
    uint32_t splits = 1;               ///< thread blocks, from decode_splits: fixed when a graph is captured
};
/// Thread blocks for a batch: a few for each context where there are few contexts, one for each where they are about as many as
/// multiprocessors, else one a multiprocessor. They share the contexts evenly, whatever the lengths, where those are uneven. `kv_len` (about the longest context) is a hint; contexts may be longer or shorter.
[[nodiscard]] uint32_t decode_splits(uint32_t sequences, uint32_t kv_heads, uint32_t kv_len, uint32_t multiprocessors);
[[nodiscard]] size_t decode_workspace_bytes(uint32_t sequences, uint32_t heads, uint32_t head_dim, uint32_t splits);
/// Split-KV paged decode; contexts come from device memory, so one captured graph serves any lengths.
cudaError_t decode_attention(const Launch& launch, const DecodeAttention& args);
/// Works out once for all layers of a step what each thread block takes of the contexts, where blocks share them evenly; nothing to do
/// elsewhere. Decode attention then begins to read KV sooner. Into the workspace; results are the same bits.
cudaError_t decode_plan(const Launch& launch, const DecodeAttention& args);
/// Whether decode_attention takes `fused` for these shapes.
[[nodiscard]] bool decode_fuses(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t sequences);

}  // namespace baton::backend::cuda
