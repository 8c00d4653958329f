#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "baton/base/fetch.hpp"
#include "baton/base/log.hpp"
#include "engine/executor.hpp"

namespace baton::engine {
namespace {

/// Queues plans on a device, which samples by itself and stores the progress that peers watch.
class DeviceExecutor final : public Executor {
  public:
    DeviceExecutor(std::unique_ptr<backend::DeviceBackend> backend, xavier::SharedPool& pool, grammar::Constraints* constraints)
        : backend_(std::move(backend)), pool_(pool), constraints_(constraints) {}

    const backend::ModelShape& shape() const override { return backend_->shape(); }
    uint32_t depth() const override { return backend::DeviceBackend::kDepth; }
    bool on_device() const override { return true; }
    bool ready() const override { return backend_->ready(); }

    Expected<void> submit(const pd::StepPlan& plan) override {
        slices_.clear();
        bool masked = false;
        for (const pd::StepItem& item : plan.items) {
            backend::Slice& slice = slices_.emplace_back(slice_of(item));
            slice.masked = item.sample && item.constrained;
            masked = masked || slice.masked;
            if (!item.progress_slot) continue;
            slice.progress = pool_.progress_word(*item.progress_slot);
            slice.progress_base = xavier::progress_base(item.position, item.position + item.tokens);
        }
        BATON_TRY(backend_->submit({plan.tokens, slices_}));
        Masked& mine = masked_.emplace_back();
        return masked ? await_masks(plan, mine) : Expected<void>();
    }

    /// What `sampled` holds is used again, the memory of its lists too.
    Expected<void> collect(const pd::StepPlan& plan, std::vector<pd::Sampled>& sampled) override {
        BATON_TRY(backend_->collect(tokens_));
        const Masked done = std::move(masked_.front());
        masked_.pop_front();
        if (!masked_.empty()) BATON_TRY(give_masks(plan, masked_.front()));  // first: the device waits for them
        sampled.resize(tokens_.size());
        size_t next = 0;
        for (uint32_t i = 0; i < plan.items.size(); ++i) {
            if (!plan.items[i].sample) continue;
            if (next == tokens_.size()) return fail(ErrorCode::kInternal, "the device gave too few tokens");
            pd::Sampled& s = sampled[next];
            wire::Token& token = tokens_[next++];
            s.item = i;
            s.failed = {};
            s.token.id = token.id;
            s.token.logprob = token.logprob;
            if (!token.top.empty() || !s.token.top.empty()) s.token.top.swap(token.top);
            if (!s.block_checksums.empty()) s.block_checksums.clear();
        }
        if (next != tokens_.size()) return fail(ErrorCode::kInternal, "the device gave too many tokens");
        for (const uint32_t row : done.failed) sampled[row].failed = kNotFollowed;
        return {};
    }

    void fetch() const override {
        baton::fetch(slices_);
        baton::fetch(tokens_);
    }

    void prime() override { backend_->prime(); }

  private:
    /// A row whose mask is not known before the step ahead has been collected.
    struct Waiting {
        uint32_t row = 0;
        uint64_t handle = 0;
        const wire::Sequence* sequence = nullptr;
    };
    /// Of a step under way.
    struct Masked {
        std::vector<Waiting> waiting;
        std::vector<uint32_t> failed;  ///< rows whose constraint could not be followed
    };

    /// Gives the masks of sequences whose ids are all known, and notes the others.
    Expected<void> await_masks(const pd::StepPlan& plan, Masked& mine) {
        uint32_t row = 0;
        for (size_t i = 0; i < plan.items.size(); ++i) {
            const pd::StepItem& item = plan.items[i];
            if (!item.sample) continue;
            if (slices_[i].masked && item.pending == 0) BATON_TRY(give(row, *item.sequence, {}, mine));
            else if (slices_[i].masked) mine.waiting.push_back({row, item.handle, item.sequence});
            ++row;
        }
        return {};
    }

    /// The tokens of `plan` are here: gives the masks of the step after it.
    Expected<void> give_masks(const pd::StepPlan& plan, Masked& later) {
        for (const Waiting& w : later.waiting) {
            size_t row = 0;
            std::optional<TokenId> token;
            for (const pd::StepItem& item : plan.items) {
                if (!item.sample) continue;
                if (item.handle == w.handle && row < tokens_.size()) token = tokens_[row].id;
                ++row;
            }
            BATON_TRY(give(w.row, *w.sequence, token, later));
        }
        later.waiting.clear();
        return {};
    }

    Expected<void> give(uint32_t row, const wire::Sequence& sequence, std::optional<TokenId> next, Masked& step) {
        Expected<std::span<const uint32_t>> mask = fail(ErrorCode::kUnsupported, "this engine has no constraints");
        if (constraints_ != nullptr) mask = constraints_->mask(sequence, next);
        if (mask) return backend_->allow(row, *mask);
        // A sequence that ended with its last token has no next one, and nobody asks for it.
        const auto& stops = sequence.sampling.stop_ids;
        if (!next || std::ranges::find(stops, *next) == stops.end())
            log::warn("engine.constraint_failed", {{"req", sequence.request_id}, {"reason", mask.error().message}});
        step.failed.push_back(row);
        all_.assign((backend_->shape().vocab + 31) / 32, UINT32_MAX);
        return backend_->allow(row, all_);
    }

    std::unique_ptr<backend::DeviceBackend> backend_;
    xavier::SharedPool& pool_;
    grammar::Constraints* constraints_;
    std::vector<backend::Slice> slices_;
    std::vector<wire::Token> tokens_;
    std::deque<Masked> masked_;   ///< a step under way each
    std::vector<uint32_t> all_;
};

}  // namespace

std::unique_ptr<Executor> make_device_executor(std::unique_ptr<backend::DeviceBackend> backend, xavier::SharedPool& pool,
                                               grammar::Constraints* constraints) {
    return std::make_unique<DeviceExecutor>(std::move(backend), pool, constraints);
}

}  // namespace baton::engine
