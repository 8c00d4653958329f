#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/common.hpp"
#include "backend/cuda/sampler.hpp"

/// Small kernels around a step. All only launch.
namespace baton::backend::cuda {

/// What begins a step's input in page-locked memory.
struct alignas(16) StepHeader {
    uint32_t patches;    ///< pairs at StepBegin::patches_at
    uint32_t follows;    ///< rows of a step that is the one before with each sequence a token further; 0: all input is here
    uint32_t unused[2];
};

/// A step's first kernel.
struct StepBegin {
    const std::byte* from[2] = {nullptr, nullptr};  ///< page-locked input of steps of even and of odd number: StepHeader, then the arrays
    static constexpr uint32_t kPatchesRead = 16;  ///< read before it is known how many there are: each 32 bytes take the link 0.1 µs
    uint32_t patches_at = 0;    ///< bytes from there: int2 {index, value}, what changed in `table`; room for kPatchesRead at least
    const uint32_t* step = nullptr;  ///< on the device: the step's number
    int32_t* arrays = nullptr;  ///< where the arrays go
    uint32_t values = 0;        ///< of them; a multiple of 4
    int32_t* table = nullptr;
    SampleUpload settings;      ///< copied as well, for `samples` rows
    uint32_t samples = 0;
    const void* embedding = nullptr;  ///< [vocab, hidden]
    uint32_t vocab = 0;
    uint32_t hidden = 0;        ///< a multiple of 8
    uint32_t rows = 0;
    uint32_t tokens_at = 0;     ///< places in the arrays: ids, and the state rows of those below 0, whose ids are `last`[state]
    uint32_t states_at = 0;
    const int32_t* last = nullptr;
    void* out = nullptr;        ///< [rows, hidden]: the rows of `embedding`
    // For steps that may follow the one before (StepHeader::follows): those of one row a sequence, all of them sampled.
    bool may_follow = false;
    uint32_t positions_at = 0;  ///< places in the arrays, of each row
    uint32_t slots_at = 0;
    uint32_t lengths_at = 0;    ///< of each row's context
    const int32_t* blocks = nullptr;  ///< the rows' part of `table`
    uint32_t stride = 0;        ///< blocks a row there
    uint32_t block_tokens = 0;  ///< a power of two
};
/// Brings a step's input to the device and looks up the embeddings, in one kernel without copies: nothing waits for a copy
/// engine, and all is read from page-locked memory at once. Where the step follows the one before, what that one left on the
/// device is taken a token further, and only changes of the table are read. What is launched next must not have the programmatic
/// attribute, so that no kernel reads the input early.
cudaError_t begin_step(cudaStream_t stream, const StepBegin& begin);

/// out [positions, half] = cos and sin of the f32 product position × inv_freq[i], both times `scale`. `inv_freq` [half] on the
/// device.
cudaError_t rope_table(cudaStream_t stream, const float* inv_freq, uint32_t half, float scale, uint32_t positions, float2* out);

/// Fills memory with values of about -1 … 1.
cudaError_t fill_noise(cudaStream_t stream, Elem elem, void* out, size_t elements, uint32_t seed);

/// A word that another process watches, as the device reaches it (null: none), and what is stored there when no layer is done.
struct ProgressWord {
    uint64_t* word;
    uint64_t base;
};
/// Stores base + (layers << 48) in each of `count` words, release order at system scope, after everything the stream did
/// before. `words` is device memory.
cudaError_t publish_progress(cudaStream_t stream, const ProgressWord* words, uint32_t count, uint32_t layers);

}  // namespace baton::backend::cuda
