#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/attention.hpp"
#include "backend/cuda/linear.hpp"
#include "backend/cuda/linear_shared.hpp"

namespace baton::backend::cuda {

constexpr uint32_t kQkvAttentionRows = 16;
constexpr uint32_t kQkvAttentionAhead = 256;  ///< tokens of its part of a context that a block has asked for before it knows its queries

/// The product of queries, keys and values of 16 rows and decode attention behind it as one kernel. The first 16 / `splits` rows are one of a
/// sequence each, whose context is dealt out over as many blocks a key head; of the others the result is zero.
struct QkvAttention {
    Matrix qkv;               ///< with a norm, without bias
    Rows x;                   ///< [16, hidden]
    RopeAppend rope;          ///< as DecodeAttention::fused; `qkv` and `q` are not used
    AttentionArgs attention;  ///< lengths, blocks and slots must have been complete as DecodeAttention::early says; `out` gets its rows for lanes (Rows)
    uint32_t splits = 1;      ///< 1, 2, 4, 8 or 16
    void* slots = nullptr;    ///< qkv_attention_slot_bytes of memory, all bits set at first; every launch leaves them so
};

/// See prepare_at_once.
cudaError_t qkv_attention_prepare(Elem elem, AtOnceLimits& limits);
[[nodiscard]] size_t qkv_attention_slot_bytes();
/// Whether the kernel is made for these shapes: those of Qwen3-0.6B.
[[nodiscard]] bool qkv_attention_takes(const QkvAttention& part, const AtOnceLimits& limits);
/// sm_90. Its blocks wait for each other, so that all must find room at once, whatever else runs on the device: it may not run beside
/// another of its kind. Sums are added in a fixed order.
cudaError_t qkv_attention(const Launch& launch, const QkvAttention& part);

}  // namespace baton::backend::cuda
