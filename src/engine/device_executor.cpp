#include <utility>

#include "engine/executor.hpp"

namespace baton::engine {
namespace {

/// Queues plans on a device, which samples by itself and stores the progress that peers watch.
class DeviceExecutor final : public Executor {
  public:
    DeviceExecutor(std::unique_ptr<backend::DeviceBackend> backend, xavier::SharedPool& pool)
        : backend_(std::move(backend)), pool_(pool) {}

    const backend::ModelShape& shape() const override { return backend_->shape(); }
    uint32_t depth() const override { return backend::DeviceBackend::kDepth; }
    bool on_device() const override { return true; }
    bool ready() const override { return backend_->ready(); }

    Expected<void> submit(const pd::StepPlan& plan) override {
        slices_.clear();
        for (const pd::StepItem& item : plan.items) {
            backend::Slice& slice = slices_.emplace_back(slice_of(item));
            if (!item.progress_slot) continue;
            slice.progress = pool_.progress_word(*item.progress_slot);
            slice.progress_base = xavier::progress_base(item.position, item.position + item.tokens);
        }
        return backend_->submit({plan.tokens, slices_});
    }

    /// What `sampled` holds is used again, the memory of its lists too.
    Expected<void> collect(const pd::StepPlan& plan, std::vector<pd::Sampled>& sampled) override {
        BATON_TRY(backend_->collect(tokens_));
        sampled.resize(tokens_.size());
        size_t next = 0;
        for (uint32_t i = 0; i < plan.items.size(); ++i) {
            if (!plan.items[i].sample) continue;
            if (next == tokens_.size()) return fail(ErrorCode::kInternal, "the device gave too few tokens");
            pd::Sampled& s = sampled[next];
            wire::Token& token = tokens_[next++];
            s.item = i;
            s.token.id = token.id;
            s.token.logprob = token.logprob;
            if (!token.top.empty() || !s.token.top.empty()) s.token.top.swap(token.top);
            if (!s.block_checksums.empty()) s.block_checksums.clear();
        }
        if (next != tokens_.size()) return fail(ErrorCode::kInternal, "the device gave too many tokens");
        return {};
    }

  private:
    std::unique_ptr<backend::DeviceBackend> backend_;
    xavier::SharedPool& pool_;
    std::vector<backend::Slice> slices_;
    std::vector<wire::Token> tokens_;
};

}  // namespace

std::unique_ptr<Executor> make_device_executor(std::unique_ptr<backend::DeviceBackend> backend, xavier::SharedPool& pool) {
    return std::make_unique<DeviceExecutor>(std::move(backend), pool);
}

}  // namespace baton::engine
