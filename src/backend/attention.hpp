#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/buffer.hpp"
#include "backend/kernels.hpp"
#include "backend/kv_pages.hpp"
#include "backend/thread_pool.hpp"
#include "baton/backend/backend.hpp"

namespace baton::backend {

/// Attention of a batch over paged KV. A sequence's tokens are cut at fixed positions into segments
/// of 16 units, these into tiles of 4. A query row goes through a segment tile by tile with a
/// running softmax, and the segments' results are merged in order. So its result depends on its own
/// position alone; a task may take one segment or all.
class AttentionRunner {
  public:
    [[nodiscard]] static Expected<AttentionRunner> make(const ModelShape& shape,
                                                        const KvPages& pages,
                                                        const Kernels& kernels, uint32_t threads,
                                                        uint32_t slices_max);
    /// Cuts `batch` into tasks; they serve every layer. The batch has been checked.
    void prepare(const Batch& batch);
    /// From here on run computes only the last row of each slice that wants logits, where it lies.
    void keep_wanted();
    /// out[t] = attention of q[t] over the pages of `layer`; both [tokens, heads, head_dim].
    /// `meanwhile` runs on the caller once the workers have started.
    template <class Meanwhile>
    void run(ThreadPool& pool, uint32_t layer, const float* q, float* out, Meanwhile&& meanwhile) {
        const size_t per_chunk = tasks_.size() / kChunksMax + 1;
        pool.run(
            static_cast<uint32_t>((tasks_.size() + per_chunk - 1) / per_chunk),
            [&](uint32_t chunk, uint32_t thread) {
                const size_t end = std::min(tasks_.size(), (chunk + 1) * per_chunk);
                for (size_t i = chunk * per_chunk; i < end; ++i)
                    execute(tasks_[i], thread, layer, q, out);
            },
            meanwhile);
    }

  private:
    /// Queries [q0, q1) of one slice for one kv head over segments [s0, s1).
    struct Task {
        uint32_t slice;
        uint32_t kv_head;
        uint32_t q0, q1;
        uint32_t s0, s1;
        uint32_t partial;   ///< index of the result among the partials, kWhole: the task covers all
                            ///< segments
        uint32_t siblings;  ///< tasks that share this row's segments; the one that ends last merges
        uint32_t counter;
    };
    struct Scratch {
        float* q;
        uint16_t* q16;
        float* p;
        uint32_t* visible;
        float* m[2];  ///< [0] of all segments so far, [1] of the segment at hand
        float* l[2];
        float* acc[2];
    };
    static constexpr uint32_t kWhole = UINT32_MAX;
    static constexpr size_t kChunksMax = size_t{1} << 18;

    AttentionRunner(const ModelShape& shape, const KvPages& pages, const Kernels& kernels)
        : shape_(shape), pages_(pages), kernels_(&kernels) {}
    void cut(uint32_t slice, uint32_t first);
    void execute(const Task& task, uint32_t thread, uint32_t layer, const float* q, float* out);
    void segment(const Task& task, const Scratch& s, uint32_t layer, uint32_t seg, int into,
                 AttnRows rows) const;
    void merge_partials(const Task& task, float* out) const;
    [[nodiscard]] AttnTile tile(const Slice& slice, uint32_t layer, uint32_t head, uint32_t unit0,
                                uint32_t last_position) const;
    [[nodiscard]] Scratch scratch(uint32_t thread) const;
    [[nodiscard]] float* partial(uint32_t index) const {
        return partials_.as<float>() + index * partial_floats_;
    }

    ModelShape shape_;
    KvPages pages_;
    const Kernels* kernels_;
    uint32_t group_ = 0;    ///< query heads a kv head
    uint32_t queries_ = 0;  ///< query tokens a task takes at most
    size_t acc_ld_ = 0;
    size_t partial_floats_ = 0;
    uint32_t partials_max_ = 0;
    size_t scratch_rows_ = 0;
    size_t scratch_floats_ = 0;
    Buffer scratch_;
    Buffer partials_;
    std::vector<Task> tasks_;
    uint32_t partials_used_ = 0;  ///< by tasks_
    std::vector<uint32_t> first_row_;
    std::span<const Slice> slices_;
    std::unique_ptr<std::atomic<uint32_t>[]> finished_;
};

}  // namespace baton::backend
