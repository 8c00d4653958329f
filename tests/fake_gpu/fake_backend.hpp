#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "baton/backend/backend.hpp"
#include "baton/backend/cuda.hpp"
#include "baton/sched/sampler.hpp"
#include "fake_gpu/fake_pool.hpp"

namespace baton::fake_gpu {

/// A DeviceBackend whose device is a thread with the CPU backend: it runs the steps in order, samples by itself, knows the
/// pending tokens alone, stores progress words, and ends the process where the host breaks the contract.
class FakeBackend final : public backend::DeviceBackend {
  public:
    static Expected<std::unique_ptr<FakeBackend>> make(const backend::Plan& plan, const backend::CudaOptions& options,
                                                       uint64_t memory_bytes);
    ~FakeBackend() override;

    const backend::ModelShape& shape() const override { return cpu_->shape(); }
    const kv::PoolLayout& kv_layout() const override { return pool_->layout(); }
    std::string describe() const override { return "fake cuda " + std::to_string(device_); }
    uint64_t memory_bytes() const override { return memory_bytes_; }
    Expected<void> share_words(std::span<std::byte> memory) override;
    backend::DevicePool& pool() override { return *pool_; }
    Expected<void> submit(const backend::Batch& batch) override;
    Expected<void> allow(uint32_t row, std::span<const uint32_t> mask) override;
    Expected<void> collect(std::vector<wire::Token>& tokens) override;
    bool ready() const override;

  private:
    /// A slice with copies of what it pointed to.
    struct Part {
        backend::Slice slice;
        std::vector<BlockId> blocks;
        wire::Sequence sequence;  ///< of the first slice with logits and no pending token
    };
    struct Step {
        std::vector<TokenId> tokens;
        std::vector<Part> parts;
        bool done = false;
        std::string error;
        std::vector<wire::Token> sampled;
        std::vector<std::vector<uint32_t>> masks;  ///< of each row with logits; empty until it is given
    };
    /// What the device keeps of a sequence between its steps.
    struct State {
        wire::Sequence sequence;
        bool sampled = false;
    };

    void device_loop();
    void run(Step& step);
    void run_hollow(Step& step);

    uint32_t device_ = 0;
    uint64_t memory_bytes_ = 0;
    int64_t step_us_ = 0;
    bool hollow_ = false;   ///< computes nothing
    int64_t fail_at_ = -1;  ///< step that fails, as a broken device would
    std::unique_ptr<FakePool> pool_;
    std::unique_ptr<backend::Backend> cpu_;
    std::span<std::byte> words_;
    std::vector<float> logits_;
    sched::SamplerScratch scratch_;
    std::vector<State> states_;  ///< device thread

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::unique_ptr<Step>> steps_;  ///< not collected, oldest first
    int64_t submitted_ = 0;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace baton::fake_gpu
