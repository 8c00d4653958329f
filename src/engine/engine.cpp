#include "baton/engine/engine.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "baton/base/check.hpp"
#include "baton/base/log.hpp"
#include "baton/sched/sampler.hpp"

namespace baton::engine {
namespace {

constexpr int64_t kTickMs = 50;

bool same(const wire::ReplicaStats& a, const wire::ReplicaStats& b) {
    return a.prefill_tokens == b.prefill_tokens && a.generated_tokens == b.generated_tokens &&
           a.blocks_free == b.blocks_free && a.blocks_used == b.blocks_used && a.blocks_cached == b.blocks_cached &&
           a.blocks_offered == b.blocks_offered && a.running == b.running && a.waiting == b.waiting &&
           a.leases == b.leases && a.handoff_bytes == b.handoff_bytes;
}

/// Step 5–10 of docs/LIFE_OF_A_REQUEST.md on one replica.
class EngineImpl final : public Engine {
  public:
    EngineImpl(Options options, std::unique_ptr<backend::Backend> backend, xavier::SharedPool& pool, Callbacks callbacks)
        : options_(std::move(options)),
          backend_(std::move(backend)),
          pool_(pool),
          callbacks_(std::move(callbacks)),
          core_(options_.core),
          logits_(static_cast<size_t>(options_.core.max_running) * backend_->shape().vocab) {
        thread_ = std::thread([this] { loop(); });
    }
    ~EngineImpl() override { EngineImpl::stop(); }

    void stop() override {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_one();
        if (thread_.joinable()) thread_.join();
    }

    void expect_work() override {
        {
            const std::lock_guard lock(mutex_);
            expected_ = true;
        }
        wake_.notify_one();
    }

    void post(Task task) override {
        {
            const std::lock_guard lock(mutex_);
            if (stopping_) return;
            inbox_.push_back(std::move(task));
        }
        wake_.notify_one();
    }

  private:
    void loop() {
        TimeMs last_tick{};
        for (;;) {
            if (!drain()) return;
            const TimeMs now = steady_now();
            if (now - last_tick >= kTickMs) {
                core_.on_tick(now);
                last_tick = now;
            }
            pd::StepPlan plan = core_.plan_step(now);
            publish();
            if (!plan.empty()) {
                execute(plan);
                publish();
                report(now);
                expected_ = false;  // the step read the weights
                continue;
            }
            report(now);
            if (expected_.exchange(false)) backend_->warm();
            std::unique_lock lock(mutex_);
            wake_.wait_for(lock, std::chrono::milliseconds(kTickMs), [&] { return stopping_ || !inbox_.empty() || expected_; });
        }
    }

    /// Runs what was posted; false when the engine is to end.
    bool drain() {
        tasks_.clear();
        {
            const std::lock_guard lock(mutex_);
            if (stopping_) return false;
            tasks_.swap(inbox_);
        }
        if (tasks_.empty()) return true;
        const TimeMs now = steady_now();
        for (Task& task : tasks_) task(core_, now);
        publish();
        return true;
    }

    void execute(const pd::StepPlan& plan) {
        slices_.clear();
        size_t rows_with_logits = 0;
        for (const pd::StepItem& item : plan.items) {
            slices_.push_back({item.tokens, item.position, item.blocks, item.sample});
            rows_with_logits += item.sample ? 1 : 0;
        }
        const size_t vocab = backend_->shape().vocab;
        BATON_CHECK(rows_with_logits * vocab <= logits_.size());
        const std::span<float> logits(logits_.data(), rows_with_logits * vocab);
        const int64_t begin = steady_now_us();
        const auto done = backend_->forward({plan.tokens, slices_}, logits, [&](uint32_t layer) { layer_done(plan, layer); });
        if (!done) {
            log::error("engine.step_failed", {{"reason", done.error().message}});
            core_.on_step_failed(steady_now(), plan, "step_failed");
            return;
        }
        log::debug("engine.step", {{"sequences", plan.items.size()}, {"rows", plan.tokens.size()}, {"us", steady_now_us() - begin}});
        sampled_.clear();
        size_t row = 0;
        for (uint32_t i = 0; i < plan.items.size(); ++i) {
            if (!plan.items[i].sample) continue;
            const pd::StepItem& item = plan.items[i];
            sampled_.push_back({i, sched::sample(logits.subspan(row * vocab, vocab), *item.sequence, scratch_), checksums(item)});
            ++row;
        }
        core_.on_step_done(steady_now(), plan, sampled_);
    }

    void layer_done(const pd::StepPlan& plan, uint32_t layer) {
        for (const pd::StepItem& item : plan.items)
            if (item.progress_slot)
                pool_.set_progress(*item.progress_slot, item.position, item.position + item.tokens, layer + 1);
    }

    void publish() {
        for (pd::Action& action : core_.take_actions()) {
            if (const auto* open = std::get_if<pd::OpenProgress>(&action)) {
                pool_.open_progress(*open);
            } else if (const auto* close = std::get_if<pd::CloseProgress>(&action)) {
                pool_.close_progress(*close);
            } else if (const auto* raise = std::get_if<pd::RaiseGenerations>(&action)) {
                for (size_t i = 0; i < raise->blocks.size(); ++i) pool_.set_generation(raise->blocks[i], raise->generations[i]);
            } else {
                callbacks_.act(std::move(action));
            }
        }
    }

    /// Verify mode: checksums of a prefilled sequence's blocks, for its Commit.
    [[nodiscard]] std::vector<uint64_t> checksums(const pd::StepItem& item) {
        std::vector<uint64_t> sums;
        if (!options_.verify_handoff || options_.core.role != Role::kPrefill) return sums;
        for (const BlockId b : item.blocks) sums.push_back(xavier::block_checksum(pool_.pool(), pool_.layout(), b));
        return sums;
    }

    void report(TimeMs now) {
        if (now - last_report_ < options_.stats_every_ms) return;
        const wire::ReplicaStats stats = core_.stats();
        if (same(stats, reported_) && now - last_report_ < 1'000) return;
        last_report_ = now;
        reported_ = stats;
        callbacks_.stats(stats);
    }

    Options options_;
    std::unique_ptr<backend::Backend> backend_;
    xavier::SharedPool& pool_;
    Callbacks callbacks_;
    pd::ReplicaCore core_;
    std::vector<float> logits_;
    std::vector<backend::Slice> slices_;
    std::vector<pd::Sampled> sampled_;
    sched::SamplerScratch scratch_;
    wire::ReplicaStats reported_;
    TimeMs last_report_{};

    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<Task> inbox_;   ///< guarded by mutex_
    bool stopping_ = false;     ///< guarded by mutex_
    std::atomic<bool> expected_{false};
    std::vector<Task> tasks_;
    std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> Engine::start(Options options, std::unique_ptr<backend::Backend> backend, xavier::SharedPool& pool,
                                      Callbacks callbacks) {
    return std::make_unique<EngineImpl>(std::move(options), std::move(backend), pool, std::move(callbacks));
}

}  // namespace baton::engine
