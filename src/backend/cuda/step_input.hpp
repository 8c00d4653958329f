#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/cuda/forward.hpp"
#include "backend/cuda/memory.hpp"
#include "baton/backend/backend.hpp"

namespace baton::backend::cuda {

/// The batch sizes that graphs are captured for: a step of fewer sequences is padded to the next. The last is `slices_max`.
[[nodiscard]] std::vector<uint32_t> batch_buckets(uint32_t slices_max);

/// When steps of one row a sequence take the kernels for 16 rows (StepShape::joined), padded to so many: measured at load. There a block reads a
/// context for a key head, or an even part of it, so that one that is long beside the others takes longer than where all blocks share them.
struct JoinedRule {
    static constexpr uint32_t kSizes = 5;    ///< up to 1, 2, 4, 8 and 16 sequences
    // What a layer takes:
    float longest_ns = 0;                    ///< for a token that one block reads,
    float all_ns = 0;                        ///< for a token that all of them share,
    std::array<float, kSizes> parts_ns = {}; ///< to put a context's parts together, by size,
    std::array<float, kSizes> own_ns = {};   ///< more with the kernels for so many rows, but for reading contexts
    /// Of 1 to 16 sequences, among the sizes.
    [[nodiscard]] static uint32_t size_of(uint32_t sequences);
    /// Most blocks that may share a context for a key head.
    [[nodiscard]] static uint32_t splits_of(uint32_t sequences) { return kQkvAttentionRows >> size_of(sequences); }
    /// The quickest QkvAttention::splits for the longest of some contexts and all of them; 0: other kernels are quicker.
    [[nodiscard]] uint32_t splits(uint32_t sequences, uint32_t longest, uint64_t all) const;
};

struct StepLimits {
    uint32_t tokens_max = 0;  ///< of a batch
    uint32_t slices_max = 0;
    uint32_t block_tokens = 0;
    uint32_t positions_max = 0;
    uint32_t blocks = 0;      ///< of the pool
    uint32_t vocab = 0;
    bool deterministic = false;
    [[nodiscard]] uint32_t rows_max() const { return tokens_max > slices_max ? tokens_max : slices_max; }
};

/// How a batch is run: its slices in the order of rows, and the shape of the step, which is padded to one of few.
struct Arrangement {
    std::vector<uint32_t> order;  ///< slices, those for decode attention first
    StepShape shape;              ///< splits not filled in
    uint32_t decode = 0;          ///< slices that decode attention takes
    uint32_t kv_max = 0;          ///< longest context of the decode rows,
    uint64_t kv_all = 0;          ///< and all of them
};

/// The input of steps: arrays and changes of the block tables in page-locked memory, two in turn, and where they go on the
/// device. Block tables stay on the device; only what changed since the step before is sent.
class StepInput {
  public:
    [[nodiscard]] static Expected<StepInput> make(const StepLimits& limits);

    /// Checks a batch before anything is touched. kInvalidArgument with the slice and what is wrong with it.
    [[nodiscard]] Expected<void> check(const Batch& batch);
    /// Which steps have StepShape::joined; none at first.
    void set_joined(const JoinedRule& rule) { joined_ = rule; }
    /// Whether any may, from now on: nothing else may keep the GPU's blocks waiting.
    void allow_joined(bool allowed) { joined_allowed_ = allowed; }
    /// Decides how the batch is run; the reference is good until the next call.
    const Arrangement& arrange(const Batch& batch);
    /// Writes the input of step `step`, whose memory step - 2 must have left. `words` are those of the slices that have some,
    /// in order.
    void fill(uint32_t step, const Batch& batch, const Arrangement& arrangement, std::span<const ProgressWord> words);
    /// Whether a batch is the one filled in last with each sequence one token further, which nobody knows yet but the device, and may
    /// run: the others are looked at by `check`.
    [[nodiscard]] bool follows(const Batch& batch);
    /// Writes the input of step `step`, whose batch follows the one of the step before: what changes in the block tables.
    const Arrangement& follow(uint32_t step, const Batch& batch);
    /// As `fill` for steps of padding alone, of even and odd number: rows that are computed and written nowhere. With `context`
    /// the first `sequences` decode rows read as many positions of blocks spread over the pool, as sequences would.
    void fill_padding(const StepShape& shape, uint32_t context, uint32_t sequences);

    /// What a step's first kernel needs to know of the input.
    void describe(StepBegin& begin) const;
    /// Block tables on the device, a row of table_stride values each: slices_max for decode attention, as many for the others.
    [[nodiscard]] const int32_t* decode_table() const { return table_.as<int32_t>(); }
    [[nodiscard]] const int32_t* prefill_table() const { return decode_table() + size_t{limits_.slices_max} * stride_; }
    [[nodiscard]] uint32_t table_stride() const { return stride_; }
    /// Device bytes that make will take.
    [[nodiscard]] static size_t bytes(const StepLimits& limits);

  private:
    [[nodiscard]] Expected<void> check_slice(const Slice& slice, size_t index, uint64_t rows_before) const;
    [[nodiscard]] Expected<void> check_writers(const Batch& batch);
    void pad_shape(const Batch& batch);
    [[nodiscard]] uint32_t joined_splits(uint32_t sequences, uint32_t longest, uint64_t all) const { return joined_allowed_ ? joined_.splits(sequences, longest, all) : 0; }
    void fill_slice(const Slice& slice, const TokenId* tokens, const ArrayOffsets& at, uint32_t row, int32_t* out) const;
    void patch_table(uint32_t row, const Slice& slice);
    [[nodiscard]] uint32_t blocks_known(const Slice& slice) const;
    void add_patch(size_t entry, int32_t block);
    void pad(const StepShape& shape, uint32_t rows, uint32_t decode, uint32_t prefill, int32_t* out) const;
    [[nodiscard]] int32_t* arrays(uint32_t step) const;
    [[nodiscard]] int2* patches(uint32_t step) const;
    void finish(uint32_t step, uint32_t follows);

    StepLimits limits_;
    uint32_t stride_ = 0;       ///< blocks of the longest sequence
    uint32_t array_values_ = 0; ///< most that one step's arrays take
    PinnedBuffer host_[2];      ///< StepHeader, arrays, patches
    DeviceBuffer device_;       ///< arrays
    DeviceBuffer table_;
    std::vector<int32_t> mirror_;  ///< what the device's table will hold when all enqueued work has run
    int2* patch_ = nullptr;        ///< where the next patch goes
    std::vector<uint32_t> decode_buckets_;   ///< of steps without prompts
    std::vector<uint32_t> row_buckets_;      ///< of the others, as all that follow
    std::vector<uint32_t> mixed_buckets_;    ///< decode rows
    std::vector<uint32_t> prompt_buckets_;   ///< sequences with prompts
    std::vector<uint32_t> logits_buckets_;
    std::vector<uint32_t> first_row_;  ///< of each slice in Batch::tokens
    JoinedRule joined_;
    bool joined_allowed_ = true;
    Arrangement arrangement_;
    /// Who has a row of the table. A state row's users are counted, so that two sequences that had it are told apart.
    struct Owner {
        uint32_t state = UINT32_MAX;
        uint32_t user = 0;
        uint32_t blocks = 0;
    };
    /// A row of the step filled in last, if the next one may follow that.
    struct Row {
        uint32_t state = 0;
        uint32_t position = 0;
    };
    std::vector<Row> rows_;            ///< of one row a sequence, all sampled; else empty
    std::vector<Owner> owners_;        ///< of each row of the table
    std::vector<Owner> users_;         ///< of each state row: its user, and how many of its blocks were checked
    std::vector<uint64_t> written_;    ///< for each block: the step that last wrote it
    std::vector<uint64_t> states_;     ///< for each state row: the step that last used it
    uint64_t checked_ = 0;
};

}  // namespace baton::backend::cuda
