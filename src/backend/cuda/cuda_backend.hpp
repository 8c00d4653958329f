#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/device_pool.hpp"
#include "backend/cuda/forward.hpp"
#include "backend/cuda/load_phases.hpp"
#include "backend/cuda/memory.hpp"
#include "backend/cuda/step_input.hpp"
#include "backend/cuda/weights.hpp"
#include "baton/backend/cuda.hpp"

namespace baton::backend::cuda {

/// Runs a model on one GPU. Steps of one row a sequence are captured once per shape as a CUDA graph, sampling included, and
/// replayed; others are launched kernel by kernel. Two uploads and two results alternate, so that one step can be queued
/// while another runs.
class CudaBackend final : public DeviceBackend {
  public:
    static Expected<std::unique_ptr<CudaBackend>> make(const Plan& plan, const CudaOptions& options);
    ~CudaBackend() override;
    CudaBackend(const CudaBackend&) = delete;
    CudaBackend& operator=(const CudaBackend&) = delete;

    [[nodiscard]] const ModelShape& shape() const override { return model_.shape; }
    [[nodiscard]] const kv::PoolLayout& kv_layout() const override { return layout_; }
    [[nodiscard]] std::string describe() const override;
    [[nodiscard]] uint64_t memory_bytes() const override { return memory_bytes_; }
    Expected<void> submit(const Batch& batch) override;
    Expected<void> collect(std::vector<wire::Token>& tokens) override;
    [[nodiscard]] bool ready() const override;
    Expected<void> share_words(std::span<std::byte> memory) override;
    [[nodiscard]] DevicePool& pool() override { return *movers_; }
    Expected<void> debug_logits(std::vector<float>& logits) override;
    [[nodiscard]] std::string tuning() const override;
    [[nodiscard]] std::vector<LoadPhase> load_phases() const override { return phases_.all(); }

  private:
    /// Host memory that progress words lie in.
    struct SharedWords {
        std::byte* host = nullptr;
        std::byte* device = nullptr;
        size_t bytes = 0;
        bool registered = false;
    };
    struct Flight {
        uint32_t buffer = 0;
        uint32_t logits = 0;
    };

    explicit CudaBackend(const CudaOptions& options) : options_(options) {}
    // Start-up, in this order.
    Expected<void> open_device();
    Expected<void> load();
    Expected<void> make_products();
    Expected<void> make_buffers(const Rope& rope);
    Expected<void> make_pool();
    Expected<void> warm_up();
    Expected<void> choose_overlap();
    void set_overlap(StepShape& shape) const;
    Expected<double> time_step(const StepShape& shape);

    [[nodiscard]] Expected<void> enter() const;
    [[nodiscard]] Expected<uint64_t> budget() const;
    [[nodiscard]] uint64_t taken() const;
    [[nodiscard]] StepLimits limits() const;
    [[nodiscard]] uint32_t splits(uint32_t decode, uint32_t kv_max) const;
    [[nodiscard]] Launch launch() const { return {stream_.get(), pdl_}; }
    Expected<void> enqueue(const Batch& batch, const Arrangement& step);
    Expected<void> run(const Arrangement& step);
    Expected<void> capture(const StepShape& shape);
    [[nodiscard]] uint64_t* device_word(uint64_t* word) const;
    tl::unexpected<Error> fault(Error error);

    CudaOptions options_;
    Lowered model_;
    std::string device_name_;
    uint32_t multiprocessors_ = 0;
    bool pdl_ = false;
    uint64_t free_at_start_ = 0;
    uint64_t held_at_start_ = 0;
    uint64_t memory_bytes_ = 0;
    uint32_t positions_max_ = 0;
    LoadPhases phases_;
    double tuning_seconds_ = 0;
    double overlap_seconds_ = 0;
    double graph_seconds_ = 0;

    Stream stream_;   ///< runs the steps
    Stream uploads_;  ///< brings their input, ahead of them
    Stream results_;  ///< takes their results, behind them
    Event uploaded_[kDepth];
    Event ran_[kDepth];
    Event done_[kDepth];
    Weights weights_;
    std::unique_ptr<Linear> linear_;
    std::unique_ptr<Linear> head_linear_;
    std::unique_ptr<Sampler> sampler_;
    StepInput input_;
    DeviceBuffer rope_, activations_, logits_, kept_, decode_workspace_, pool_;
    kv::PoolLayout layout_;
    std::unique_ptr<CudaDevicePool> movers_;
    PassSetup setup_;
    std::map<StepShape, GraphExec> graphs_;
    std::map<uint32_t, uint32_t> overlap_;  ///< how the kernels of decode steps overlap, by rows: parts, and kAhead
    std::vector<SharedWords> words_;
    std::vector<SampleRequest> requests_;
    std::vector<ProgressWord> progress_;
    std::deque<Flight> flights_;  ///< steps not collected, oldest first
    uint32_t next_buffer_ = 0;
    uint32_t last_logits_ = 0;
    std::optional<Error> fault_;
};

}  // namespace baton::backend::cuda
