#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/common.hpp"
#include "backend/cuda/sampler.hpp"

/// What the host half of the sampler (sampler.cpp) and its kernels (sampler.cu) agree on. Layouts
/// are the same for both.
namespace baton::backend::cuda::sampling {

constexpr uint32_t kChunk =
    1024;  ///< logits that one warp looks at: the unit of all partial results
constexpr uint32_t kBins = 2048;  ///< of the histogram over a row's likely part
constexpr uint32_t kList = 2048;  ///< candidates that are put in order one by one
constexpr uint32_t kShort =
    512;  ///< so few candidates are put in order at once, without a look at the bins
constexpr uint32_t kEarly = 64;       ///< top-k up to this is served by the first kernel, mostly
constexpr uint32_t kBlocksMax = 128;  ///< CTAs a row
constexpr uint32_t kVocabMax = 1u << 20;  ///< bounds the sums of weights in units of 2^-42 by 2^62
constexpr uint32_t kEditsMax = 1024 + 256;  ///< biased and masked ids of a row
constexpr uint16_t kInPrompt =
    0x8000;  ///< flag in a count; the rest counts emissions and saturates

/// How a row's token is found.
enum class Mode : uint32_t {
    kGreedy = 0,   ///< the largest, the lowest id of equals
    kDraw = 1,     ///< a draw from all, in the order of ids
    kBar = 2,      ///< as kDraw, of those whose weight reaches min_p
    kOrdered = 3,  ///< top-k, top-p: a draw from the most likely down
};

/// One row's settings as uploaded.
struct alignas(16) Row {
    Mode mode;
    int32_t top;  ///< -1: no logprobs; else how many of the largest
    uint32_t edits;
    uint32_t penalties;  ///< 1: counts[state] holds what the penalties need
    float scale;         ///< 1 / temperature
    uint32_t top_k;      ///< 0: off; else below the vocabulary's size
    float top_p;         ///< 1: off
    float min_p;
    uint64_t seed;
    uint64_t position;
    float repetition;
    float presence;
    float frequency;
    uint32_t state;
    uint32_t edit_first;  ///< index of the row's first edit
    uint32_t unused[3];
};
static_assert(sizeof(Row) == 80);

/// An id whose logit is changed before everything else. Minus infinity masks it. No id comes twice
/// in a row.
struct Edit {
    int32_t id;
    float bias;
};

/// What begins the upload; rows follow at kRowsAt, then, at Args::edits_at, edits.
struct alignas(16) Header {
    uint32_t rows;
    uint32_t step;   ///< number of the step, which its results bear
    uint32_t edits;  ///< of all rows
    uint32_t unused;
};
constexpr uint32_t kRowsAt = 64;

/// The result of a row in page-locked memory. `id` and `step` are written last and as one, so that the host knows by the
/// step's number that all is there.
struct alignas(16) Head {
    int32_t id;
    uint32_t step;
    float logprob;
    uint32_t unused;
};
/// Its largest raw logits' ids and logprobs, where wanted.
struct Top {
    uint32_t count;
    int32_t id[kTopMax];
    float logprob[kTopMax];
};

/// What is left to do for a row after a kernel.
enum class Todo : uint32_t { kNothing, kSums, kHistogram, kSorting, kDescent };

/// What a row's kernels tell each other.
struct RowState {
    Todo todo;
    float max;       ///< of the adjusted logits
    float reach;     ///< candidates have (max - logit) · scale at most this
    float bins_per;  ///< bins per unit of that distance
    float scale;     ///< of Row
    float min_p;
    uint32_t penalties;
    double u;        ///< what the row draws with, in [0, 1)
    uint64_t all;    ///< weight of all, in units of 2^-42
    double raw_log;  ///< log of Σ exp(raw logit)
    float raw_max;
    uint32_t kept_bins;   ///< bins beyond this one hold nothing that is needed
    uint32_t listed;      ///< candidates in the list; back to 0 when used
    uint32_t bin_total;   ///< candidates in the histogram
    uint64_t mass_total;  ///< and their weight
    uint32_t raw_known;  ///< raw_max and raw_log are those of the logits before a mask; back to 0 when used
    uint64_t mass_max;  ///< what min-p keeps weighs at most this: all up to the last bin in which a
                        ///< weight may reach it
    uint32_t tickets[3];          ///< of CTAs that are done, per kernel; back to 0 when used
    uint32_t found[kBlocksMax];   ///< candidates that each block of the second kernel found
    uint32_t wanted[kBins / 32];  ///< bit mask of the bins whose candidates are listed
};

/// Everything a kernel touches. Device pointers; rows_max rows each unless said otherwise.
struct Args {
    const std::byte* upload;
    float* logits;     ///< [rows, vocab]
    uint16_t* counts;  ///< [states, count_stride]
    int32_t* last;     ///< [states]
    uint32_t edits_at;  ///< bytes from the begin of the upload
    uint32_t rows_max;
    Head* heads;       ///< page-locked, [2, rows_max]: of steps of even and of odd number
    Top* tops;         ///< the same
    uint32_t* ended;   ///< page-locked, [2]: a step without rows leaves its number here
    uint32_t* step;    ///< on the device, or null: number of the step under way, counted up at its end
    RowState* states;
    uint64_t* keys;        ///< [chunks] largest adjusted logit of each chunk and its id
    uint64_t* masses;      ///< [chunks] weight of each chunk
    float* sums;           ///< [chunks] Σ exp relative to the chunk's own largest
    uint64_t* raw_keys;    ///< [chunks] as keys, of the raw logits
    float* raw_sums;       ///< [chunks]
    uint32_t* bin_counts;  ///< [kBins]; then exclusive sums
    uint64_t* bin_masses;  ///< [kBins]; then exclusive sums
    uint64_t* list;        ///< [kList]
    float* raw_saved;      ///< [edits] what the edits replaced
    uint32_t vocab;
    uint32_t chunks;
    uint32_t count_stride;
    uint32_t list_max;  ///< at most kList; lower in tests
    bool ends;          ///< the first kernel is the step's last one
    const uint64_t* mask_words;  ///< page-locked, [2, rows_max]: mask_word of the row's step once it is known what it may sample
    const uint32_t* masks;       ///< page-locked, [2, rows_max, mask_size]
    uint32_t mask_size;          ///< words a row
};

/// What a row's mask word is once all that its step needs is there.
__host__ __device__ constexpr uint64_t mask_word(uint32_t step, bool masked) {
    return (uint64_t{step} + 1) * 2 + (masked ? 1 : 0);
}
/// Loads the sampler's kernels: while one of them waits for a mask, none may have to be loaded, which would wait for it.
cudaError_t load_kernels();
/// Enqueues the kernel that waits for masks and applies them to `rows` rows.
cudaError_t launch_masks(const Launch& launch, const Args& args, uint32_t rows);

/// Enqueues the kernels that sample `rows` rows; without any, one that says that the step has ended. Not `whole`: the first
/// kernel alone, which serves Mode::kGreedy and kDraw.
cudaError_t launch_sample(const Launch& launch, const Args& args, uint32_t rows, bool whole);
/// Enqueues the addition of *last to a row of counts.
cudaError_t launch_count(cudaStream_t stream, uint16_t* counts, const int32_t* last,
                         uint32_t vocab);

}  // namespace baton::backend::cuda::sampling
