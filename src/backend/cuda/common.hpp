#pragma once

#include <cuda_runtime.h>

#include <cstdint>

/// What the parts of the CUDA backend share. Only files of this folder include CUDA headers.
namespace baton::backend::cuda {

/// Type of weights, activations and KV. Accumulators are f32.
enum class Elem : uint8_t { kBF16 = 0, kF16 = 1 };

/// Where and how a kernel is launched. With `pdl` the launch carries the attribute of programmatic stream serialisation
/// (sm_90): the kernel may start before the one ahead of it has ended, so it must execute griddepcontrol.wait before it
/// touches anything an earlier kernel of the stream wrote or still reads. Every kernel of this folder does so and calls
/// griddepcontrol.launch_dependents as early as it can; weights, and nothing else, may be read before the wait.
struct Launch {
    cudaStream_t stream = nullptr;
    bool pdl = false;
};

/// One layer's pages of the KV pool. Inside a page: [kv_head][token][head_dim].
struct KvView {
    void* k = nullptr;          ///< K page of block 0
    void* v = nullptr;          ///< V page of block 0
    int64_t block_stride = 0;   ///< elements from a block's page to the same page of the next block
    uint32_t block_tokens = 0;  ///< 16, 32 or 64
    uint32_t kv_heads = 0;
    uint32_t head_dim = 0;      ///< 64 or 128
};

}  // namespace baton::backend::cuda
