#pragma once

#include <array>
#include <chrono>
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

/// The host's time for steps so far, in nanoseconds, by what it was spent on.
struct HostTimes {
    uint64_t steps = 0;
    uint64_t followed = 0;  ///< steps of the one before with each sequence a token further
    uint64_t check = 0;     ///< of the batch
    uint64_t fill = 0;      ///< input in page-locked memory
    uint64_t settings = 0;  ///< of sampling
    uint64_t launch = 0;    ///< of a graph
    uint64_t eager = 0;     ///< launches of steps whose shape had no graph yet, and capturing it
    uint64_t eager_steps = 0;
    uint64_t take = 0;      ///< of results
};

/// Runs a model on one GPU. A step's shape is padded to one of few, captured once as a CUDA graph and replayed: its input is
/// read from page-locked memory by its first kernel, its results are written there by its last, and the launch is all that
/// the driver is asked for. Two inputs and two results alternate, so that one step can be queued while another runs.
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
    Expected<void> allow(uint32_t row, std::span<const uint32_t> mask) override;
    Expected<void> collect(std::vector<wire::Token>& tokens) override;
    [[nodiscard]] bool ready() const override;
    void prime() override;
    Expected<void> share_words(std::span<std::byte> memory) override;
    [[nodiscard]] DevicePool& pool() override { return *movers_; }
    Expected<void> debug_logits(std::vector<float>& logits) override;
    [[nodiscard]] std::string tuning() const override;
    [[nodiscard]] std::vector<LoadPhase> load_phases() const override { return phases_.all(); }
    [[nodiscard]] const HostTimes& host_times() const { return times_; }
    /// Seconds that the device takes for a decode step of `rows` sequences of `context` positions with the first `layers` layers, the
    /// least of some replays. For benchmarks: no step may be submitted afterwards, as the device's count of steps has gone on.
    Expected<double> time_decode(uint32_t rows, uint32_t context, uint32_t layers);
    /// For tests and benchmarks: whether steps of 16 rows have StepShape::joined, whatever is quicker. False where the model has no such kernel.
    bool force_joined(bool on);
    /// The same by a rule, from the next step on.
    bool force_joined(const JoinedRule& rule);

  private:
    /// Host memory that progress words lie in.
    struct SharedWords {
        std::byte* host = nullptr;
        std::byte* device = nullptr;
        size_t bytes = 0;
        bool registered = false;
    };
    struct Flight {
        uint32_t step = 0;
        uint32_t logits = 0;
    };
    struct Graph {
        GraphExec exec;
        uint64_t used = 0;  ///< the step that used it last
        bool kept = false;  ///< made at load: never given up
    };

    explicit CudaBackend(const CudaOptions& options) : options_(options) {}
    // Start-up, in this order.
    Expected<void> open_device();
    Expected<void> load();
    Expected<void> make_products();
    [[nodiscard]] Expected<bool> has_gpu_alone() const;
    Expected<void> make_mlp();
    Expected<void> make_joined();
    Expected<void> make_buffers(const Rope& rope);
    Expected<void> make_pool();
    Expected<void> warm_up();
    Expected<void> keep_warm(StepShape shape);
    [[nodiscard]] static StepShape joined_shape(uint32_t splits);
    Expected<void> make_primer();
    Expected<void> choose_overlap();
    /// Alternatives of a layer's products and of the head, by Linear::choose.
    using Ways = std::array<uint32_t, 5>;
    Expected<void> choose_products(const StepShape& shape, double& best, Ways& chosen);
    void use_products(uint32_t rows, const Ways& ways);
    Expected<double> time_either(StepShape& changed);
    Expected<void> choose_mlp(StepShape& shape, double& best, Ways* products);
    Expected<void> adopt(const StepShape& changed, double seconds, StepShape& shape, double& best, Ways* products);
    Expected<void> choose_joined();
    [[nodiscard]] bool takes_mlp(uint32_t rows, uint32_t mlp) const;
    [[nodiscard]] std::string overlap_file() const;
    void set_overlap(StepShape& shape) const;
    Expected<void> run_padding(const StepShape& shape, uint32_t context, uint32_t sequences = UINT32_MAX);
    Expected<void> describe_padding(const StepShape& shape, uint32_t context, uint32_t sequences);
    Expected<GraphExec> capture_timed(const StepShape& shape, uint32_t layers);
    Expected<double> time_step(const StepShape& shape, uint32_t layers);
    Expected<double> time_graph(const GraphExec& graph);
    [[nodiscard]] uint32_t layers_timed() const;

    [[nodiscard]] Expected<void> enter() const;
    [[nodiscard]] Expected<uint64_t> budget() const;
    [[nodiscard]] uint64_t taken() const;
    [[nodiscard]] StepLimits limits() const;
    [[nodiscard]] uint32_t splits(uint32_t decode, uint32_t kv_max) const;
    [[nodiscard]] Launch launch() const { return {stream_.get(), pdl_}; }
    Expected<void> enqueue(const Batch& batch, const Arrangement& step);
    void note_masked(const Batch& batch);
    Expected<bool> submit_followed(const Batch& batch);
    static constexpr uint32_t kRowsSampledOnce = 64;  ///< up to so many there are graphs without the sampler's later kernels, which cost 4 µs
    [[nodiscard]] StepShape shape_of(const Arrangement& step) const;
    Expected<void> run(const Arrangement& step);
    Expected<GraphExec> capture(const PassSetup& setup, const StepShape& shape);
    Expected<void> keep_graph(const StepShape& shape);
    Expected<void> capture_wanted();
    [[nodiscard]] bool failed() const;
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

    Stream stream_;  ///< runs the steps
    Stream primer_stream_;
    DeviceBuffer primer_word_;
    GraphExec primer_;  ///< of a kernel that finds nothing to do: launching it has the driver look at memory that launching a step needs
    Weights weights_;
    std::unique_ptr<Linear> linear_;
    std::unique_ptr<Linear> head_linear_;
    AtOnceLimits mlp_limits_;
    std::unique_ptr<Sampler> sampler_;
    StepInput input_;
    DeviceBuffer rope_, activations_, logits_, kept_, decode_workspace_, mlp_slots_, qkv_slots_, counter_, pool_;
    kv::PoolLayout layout_;
    std::unique_ptr<CudaDevicePool> movers_;
    PassSetup setup_;
    std::map<StepShape, Graph> graphs_;
    StepShape last_shape_;          ///< of the step launched last
    Graph* last_graph_ = nullptr;   ///< its graph, or null
    std::optional<StepShape> wanted_;  ///< ran by itself and has no graph yet
    std::map<uint32_t, uint32_t> overlap_;  ///< how the kernels of decode steps overlap, by rows: parts, kAhead and StepShape::mlp
    /// Steps with StepShape::joined.
    struct Joined {
        uint32_t parts = 0;  ///< as those of overlap_
        JoinedRule rule;
    };
    std::optional<Joined> joined_;
    std::vector<SharedWords> words_;
    std::vector<SampleRequest> requests_;
    std::vector<ProgressWord> progress_;
    std::deque<Flight> flights_;  ///< steps not collected, oldest first
    std::vector<bool> masked_;    ///< of the batch being submitted: of each row with logits; empty where none is
    uint32_t next_step_ = 0;   ///< as the device's counter will be when all enqueued work has run
    uint32_t last_logits_ = 0;
    mutable std::chrono::steady_clock::time_point asked_;  ///< the driver, whether the device failed
    HostTimes times_;
    std::optional<Error> fault_;
};

}  // namespace baton::backend::cuda
