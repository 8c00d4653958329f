#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/attention.hpp"
#include "backend/buffer.hpp"
#include "backend/kernels.hpp"
#include "backend/kv_pages.hpp"
#include "backend/program.hpp"
#include "backend/thread_pool.hpp"
#include "baton/backend/backend.hpp"

namespace baton::backend {

/// The kernels `isa` names ("" is the best this CPU has); kInvalidArgument if unknown or not
/// available here.
[[nodiscard]] Expected<const Kernels*> choose_kernels(const std::string& isa);

/// Backend on this host's cores. See backend.hpp for the contract and docs/ENGINE.md for how each
/// stage keeps it.
class CpuBackend final : public Backend {
  public:
    static constexpr size_t kPieceFloats = 16384;
    [[nodiscard]] static Expected<std::unique_ptr<CpuBackend>> make(const Plan& plan,
                                                                    const CpuOptions& options,
                                                                    std::span<std::byte> pool);
    [[nodiscard]] const ModelShape& shape() const override { return program_.shape; }
    [[nodiscard]] const kv::PoolLayout& kv_layout() const override { return pages_.layout(); }
    [[nodiscard]] std::string describe() const override;
    Expected<void> forward(const Batch& batch, std::span<float> logits,
                           const std::function<void(uint32_t layer)>& layer_done) override;
    void warm() override;

  private:
    struct Row {
        uint32_t position;
        BlockId block;
    };
    /// Buffers of one step, allotted once for max_batch_tokens rows.
    struct Activations {
        std::array<float*, static_cast<size_t>(Slot::kCount)> slot;
        int8_t* q[2];  ///< [0] of any stage, [1] of the stage after gate and up
        float* meta[2];
        uint16_t* bf16;
        float* pieces;  ///< two pieces of gate and up a thread
        float* cos;
        float* sin;
    };
    /// Calls layer_done as soon as a stage has let go of the engine thread.
    struct Progress;

    CpuBackend(const CpuOptions& options, const Kernels& kernels, const KvPages& pages,
               uint32_t threads);
    [[nodiscard]] Expected<void> load_weights();
    [[nodiscard]] Expected<void> allot();
    [[nodiscard]] Expected<void> check(const Batch& batch, std::span<float> logits);
    [[nodiscard]] Expected<void> check_slice(const Slice& slice, size_t index,
                                             uint64_t rows_before) const;
    [[nodiscard]] Expected<void> check_writers(const Batch& batch);
    void start(const Batch& batch);
    void embed(TokenId token, uint32_t row);
    void run_layer(uint32_t layer, Progress& progress);
    void keep_wanted();
    void run_rows(uint32_t layer, const std::vector<RowOp>& ops, Progress& progress);
    void row_op(const RowOp& op, uint32_t layer, uint32_t row);
    void norm(const NormOp& op, uint32_t row_in, uint32_t row_out);
    void run_products(uint32_t layer, const ProductStage& stage, Progress& progress);
    void products_chunk(const ProductStage& stage, size_t first, size_t last, size_t m0, size_t m1);
    void gate_up_chunk(const ProductStage& stage, size_t first, size_t last, size_t m0, size_t m1,
                       uint32_t thread);
    void head(std::span<float> logits);
    void prepare_row(ActKind kind, const float* in, size_t width, uint32_t row);
    void quantize(const float* in, size_t n, size_t width, uint32_t row, size_t col, int side);
    [[nodiscard]] ActView act_view(const float* in, size_t width, int side = 0) const;
    /// Calls fn(row) for rows [0, rows): on the caller when there are few, else spread over the
    /// threads.
    template <class Fn>
    void each_row(uint32_t rows, Progress& progress, const Fn& fn);
    [[nodiscard]] float* slot(Slot s, uint32_t row) const {
        return act_.slot[static_cast<size_t>(s)] + row * slot_width(program_.shape, s);
    }

    CpuOptions options_;
    const Kernels& kernels_;
    KvPages pages_;
    ThreadPool pool_;
    Buffer weights_;  ///< the image that program_ reads
    Program program_;
    Rope rope_;
    tensor::TensorView embedding_;
    std::shared_ptr<const void> storage_;  ///< the embedding rows stay in the mapped file
    std::unique_ptr<AttentionRunner> attention_;
    Buffer memory_;
    Activations act_{};
    std::vector<Row> rows_;
    uint32_t active_ = 0;            ///< rows that stages compute, the first ones
    std::vector<uint32_t> wanted_;   ///< rows whose logits are wanted, ascending
    std::vector<uint64_t> written_;  ///< for each block: step · 2^32 + slice that last wrote it
    uint64_t step_ = 0;
};

}  // namespace baton::backend
