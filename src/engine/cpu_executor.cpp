#include <utility>

#include "baton/base/check.hpp"
#include "baton/base/log.hpp"
#include "baton/sched/sampler.hpp"
#include "engine/executor.hpp"

namespace baton::engine {
namespace {

/// forward and sample, one plan at a time.
class CpuExecutor final : public Executor {
  public:
    CpuExecutor(std::unique_ptr<backend::Backend> backend, xavier::SharedPool& pool, uint32_t slices_max, grammar::Constraints* constraints)
        : backend_(std::move(backend)),
          pool_(pool),
          constraints_(constraints),
          logits_(static_cast<size_t>(slices_max) * backend_->shape().vocab) {}

    const backend::ModelShape& shape() const override { return backend_->shape(); }
    uint32_t depth() const override { return 1; }
    bool on_device() const override { return false; }
    bool ready() const override { return true; }
    void warm() override { backend_->warm(); }

    Expected<void> submit(const pd::StepPlan& plan) override {
        slices_.clear();
        size_t rows = 0;
        for (const pd::StepItem& item : plan.items) {
            slices_.push_back(slice_of(item));
            pool_.will_use(item.blocks);
            rows += item.sample ? 1 : 0;
        }
        BATON_CHECK(rows * vocab() <= logits_.size());
        return backend_->forward({plan.tokens, slices_}, std::span(logits_).first(rows * vocab()),
                                 [&](uint32_t layer) { layer_done(plan, layer); });
    }

    Expected<void> collect(const pd::StepPlan& plan, std::vector<pd::Sampled>& sampled) override {
        sampled.clear();
        size_t row = 0;
        for (uint32_t i = 0; i < plan.items.size(); ++i) {
            const pd::StepItem& item = plan.items[i];
            if (!item.sample) continue;
            const auto logits = std::span<const float>(logits_).subspan(row++ * vocab(), vocab());
            std::span<const uint32_t> mask;
            if (item.sequence->sampling.constraint.kind != wire::ConstraintKind::kNone) {
                const auto allowed = mask_of(*item.sequence);
                if (!allowed) {
                    log::warn("engine.constraint_failed", {{"req", item.sequence->request_id}, {"reason", allowed.error().message}});
                    sampled.push_back({i, {}, {}, kNotFollowed});
                    continue;
                }
                mask = *allowed;
            }
            sampled.push_back({i, sched::sample(logits, *item.sequence, scratch_, mask), {}, {}});
        }
        return {};
    }

  private:
    [[nodiscard]] size_t vocab() const { return backend_->shape().vocab; }
    [[nodiscard]] Expected<std::span<const uint32_t>> mask_of(const wire::Sequence& sequence) {
        if (constraints_ == nullptr) return fail(ErrorCode::kUnsupported, "this engine has no constraints");
        return constraints_->mask(sequence);
    }

    void layer_done(const pd::StepPlan& plan, uint32_t layer) {
        for (const pd::StepItem& item : plan.items)
            if (item.progress_slot)
                pool_.set_progress(*item.progress_slot, item.position, item.position + item.tokens, layer + 1);
    }

    std::unique_ptr<backend::Backend> backend_;
    xavier::SharedPool& pool_;
    grammar::Constraints* constraints_;
    std::vector<float> logits_;
    std::vector<backend::Slice> slices_;
    sched::SamplerScratch scratch_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(std::unique_ptr<backend::Backend> backend, xavier::SharedPool& pool,
                                            uint32_t slices_max, grammar::Constraints* constraints) {
    return std::make_unique<CpuExecutor>(std::move(backend), pool, slices_max, constraints);
}

}  // namespace baton::engine
