#include "baton/engine/engine.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "baton/base/fetch.hpp"
#include "baton/base/log.hpp"
#include "baton/base/relax.hpp"
#include "engine/executor.hpp"

namespace baton::engine {
namespace {

constexpr int64_t kTickMs = 50;
constexpr int64_t kNapUsMin = 50;  ///< between looks at the device from when its step may be done
constexpr int64_t kNapUsMax = 1'000;
constexpr int64_t kAheadUs = 300;  ///< before a step's end the next one is submitted in any case
constexpr int64_t kNearUs = 30;    ///< before a step's end the memory that it looks at is asked for once more
// Where decode steps are long and wide enough for it to pay:
constexpr int64_t kWideStepUs = 1'000;
constexpr size_t kWideSequences = 32;
constexpr int64_t kTellUs = 250;  ///< before the end who sends the tokens is told of them: as long as a sleeping thread may take to wake up
constexpr int64_t kTellAfterUs = 100;  ///< and it waits for them so long after the end
constexpr int64_t kPrimeUs = 50;  ///< before the end the driver is primed, which takes up to 20
constexpr unsigned long kTimerSlackNs = 1'000;  ///< the kernel's default would double the nap

bool same(const wire::ReplicaStats& a, const wire::ReplicaStats& b) {
    return a.prefill_tokens == b.prefill_tokens && a.generated_tokens == b.generated_tokens &&
           a.blocks_free == b.blocks_free && a.blocks_used == b.blocks_used && a.blocks_cached == b.blocks_cached &&
           a.blocks_offered == b.blocks_offered && a.running == b.running && a.waiting == b.waiting &&
           a.leases == b.leases && a.handoff_bytes == b.handoff_bytes;
}

/// What the engine thread works on for a step.
enum class Part : uint8_t { kInbox, kPlan, kSubmit, kCollect, kDone, kPublish, kOther };
constexpr size_t kParts = 7;

/// Adds up the time between begin() and end(), by part: what the engine thread works beside waiting and, on the CPU, computing.
class HostClock {
  public:
    using Nanos = std::array<uint64_t, kParts>;
    void begin() { mark_ = now(); }
    void end() { lap(Part::kOther); }
    /// The time since the last mark went into this part.
    void lap(Part part) {
        const uint64_t at = now();
        spent_[static_cast<size_t>(part)] += at - mark_;
        mark_ = at;
    }
    [[nodiscard]] uint64_t total_us() const { return std::accumulate(spent_.begin(), spent_.end(), uint64_t{0}) / 1'000; }
    /// By part, since the last call.
    [[nodiscard]] Nanos take() {
        Nanos out;
        for (size_t i = 0; i < kParts; ++i) out[i] = spent_[i] - taken_[i];
        taken_ = spent_;
        return out;
    }

  private:
    static uint64_t now() {
        return static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
    }
    uint64_t mark_ = 0;
    Nanos spent_{}, taken_{};
};

/// Step 5–10 of docs/LIFE_OF_A_REQUEST.md on one replica.
class EngineImpl final : public Engine {
  public:
    EngineImpl(Options options, std::unique_ptr<Executor> executor, xavier::SharedPool& pool, Callbacks callbacks)
        : options_(std::move(options)),
          executor_(std::move(executor)),
          pool_(pool),
          callbacks_(std::move(callbacks)),
          core_(options_.core),
          checksums_(options_.verify_handoff && options_.core.role == Role::kPrefill && callbacks_.checksums) {
        thread_ = std::thread([this] { loop(); });
    }
    ~EngineImpl() override { EngineImpl::stop(); }

    void stop() override {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            called_ = true;
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
            called_ = true;
        }
        wake_.notify_one();
    }

  private:
    struct Step {
        pd::StepPlan plan;
        int64_t begin_us = 0;
        [[nodiscard]] bool decodes() const { return plan.tokens.size() == plan.items.size(); }
    };

    void loop() {
        ::prctl(PR_SET_NAME, "baton-engine");
        if (executor_->on_device()) ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
        host_.begin();
        while (drain()) {
            tick();
            if (changed_) fill();
            if (!steps_.empty()) {
                host_.lap(Part::kOther);
                const bool ready = executor_->ready();
                host_.lap(Part::kCollect);
                if (ready) finish_step();
                else wait_for_device();
                continue;
            }
            const TimeMs now = steady_now();
            report(now);
            host_.end();
            if (expected_.exchange(false)) executor_->warm();
            wait_for_work();
            host_.begin();
        }
        // A device must not write into memory that is gone.
        for (; !steps_.empty(); steps_.pop_front())
            if (!executor_->collect(steps_.front().plan, sampled_)) break;
    }

    /// Runs what was posted; false when the engine is to end.
    bool drain() {
        if (!called_) return true;
        {
            const std::lock_guard lock(mutex_);
            if (stopping_) return false;
            tasks_.swap(inbox_);
            called_ = false;
        }
        const TimeMs now = steady_now();
        for (Task& task : tasks_) task(core_, now);
        tasks_.clear();
        host_.lap(Part::kInbox);
        publish();
        changed_ = true;
        return true;
    }

    void tick() {
        const TimeMs now = steady_now();
        if (now - last_tick_ < kTickMs) return;
        last_tick_ = now;
        core_.on_tick(now);
        changed_ = true;
    }

    /// Keeps the device busy: plans and submits while it takes more. Where a hand-off is about to bring a sequence, the step ahead
    /// is submitted just in time for the device: the sequence would otherwise wait for the step that runs and for that one.
    void fill() {
        if (submit_at() > steady_now_us()) return;
        changed_ = false;
        while (steps_.size() < executor_->depth()) {
            host_.lap(Part::kOther);
            pd::StepPlan plan = core_.plan_step(steady_now(), std::exchange(spare_, {}));
            host_.lap(Part::kPlan);
            publish();
            if (plan.empty()) {
                spare_ = std::move(plan);
                return;
            }
            if (broken_) {
                core_.on_step_failed(steady_now(), plan, "step_failed");
                publish();
                continue;
            }
            steps_.push_back({std::move(plan), steady_now_us()});
            if (auto begun = computed([&] { return executor_->submit(steps_.back().plan); }); !begun) return give_up(begun.error());
            host_.lap(Part::kSubmit);
        }
    }

    /// Takes the oldest step's result; its tokens leave before anything else is done.
    void finish_step() {
        Step step = std::move(steps_.front());
        if (auto done = computed([&] { return executor_->collect(step.plan, sampled_); }); !done) {
            steps_.front() = std::move(step);
            return give_up(done.error());
        }
        host_.lap(Part::kCollect);
        steps_.pop_front();
        const int64_t done_us = steady_now_us();
        const int64_t device_us = done_us - std::max(done_us_, step.begin_us);
        if (step.decodes()) decode_us_ = device_us;
        else row_us_ = static_cast<double>(device_us) / static_cast<double>(step.plan.tokens.size());
        done_us_ = done_us;
        if (checksums_) add_checksums(step.plan);
        const TimeMs now = steady_now();
        core_.on_step_done(now, step.plan, sampled_);
        host_.lap(Part::kDone);
        publish();
        expected_ = false;  // the step read the weights
        changed_ = true;
        if (options_.log_steps) {
            host_.end();
            log_step(step, done_us, device_us);
            host_.begin();
        }
        spare_ = std::move(step.plan);
        asked_ = Asked::kNothing;
        report(now);
    }

    /// The host's time is that since the last such line.
    void log_step(const Step& step, int64_t done_us, int64_t device_us) {
        const HostClock::Nanos host = host_.take();
        const auto us = [&](Part part) { return static_cast<double>(host[static_cast<size_t>(part)]) / 1e3; };
        log::debug("engine.step", {{"sequences", step.plan.items.size()},
                                   {"rows", step.plan.tokens.size()},
                                   {"us", done_us - step.begin_us},
                                   {"device_us", device_us},
                                   {"host_us", static_cast<double>(std::accumulate(host.begin(), host.end(), uint64_t{0})) / 1e3},
                                   {"inbox_us", us(Part::kInbox)},
                                   {"plan_us", us(Part::kPlan)},
                                   {"submit_us", us(Part::kSubmit)},
                                   {"collect_us", us(Part::kCollect)},
                                   {"done_us", us(Part::kDone)},
                                   {"publish_us", us(Part::kPublish)},
                                   {"other_us", us(Part::kOther)}});
    }

    /// Verify mode: the bytes of the blocks of what was prefilled, for its Commit.
    void add_checksums(const pd::StepPlan& plan) {
        for (pd::Sampled& s : sampled_) {
            auto sums = callbacks_.checksums(plan.items[s.item].blocks);
            if (sums) s.block_checksums = std::move(*sums);
            else log::warn("engine.no_checksums", {{"reason", sums.error().message}});
        }
    }

    /// Runs a part of a step; on the CPU that is compute and not the host's own work.
    template <class Part>
    Expected<void> computed(const Part& part) {
        if (executor_->on_device()) return part();
        host_.end();
        auto result = part();
        host_.begin();
        return result;
    }

    /// The steps under way fail. A device is of no more use then.
    void give_up(const Error& error) {
        log::error("engine.step_failed", {{"reason", error.message}});
        for (; !steps_.empty(); steps_.pop_front()) core_.on_step_failed(steady_now(), steps_.front().plan, "step_failed");
        publish();
        changed_ = true;
        if (!executor_->on_device() || std::exchange(broken_, true)) return;
        if (callbacks_.failed) callbacks_.failed(error);
    }

    void publish() {
        host_.lap(Part::kOther);
        core_.take_actions(actions_);
        for (pd::Action& action : actions_) {
            if (const auto* open = std::get_if<pd::OpenProgress>(&action)) {
                pool_.open_progress(*open);
            } else if (const auto* close = std::get_if<pd::CloseProgress>(&action)) {
                pool_.close_progress(*close);
            } else if (const auto* raise = std::get_if<pd::RaiseGenerations>(&action)) {
                for (size_t i = 0; i < raise->blocks.size(); ++i) pool_.set_generation(raise->blocks[i], raise->generations[i]);
            } else {
                callbacks_.act(action);
                recycle(action);
            }
        }
        host_.lap(Part::kPublish);
    }

    /// The batch of a step's tokens, where it was left as it was.
    void recycle(pd::Action& action) {
        auto* sent = std::get_if<pd::ToSupervisor>(&action);
        if (sent == nullptr) return;
        if (auto* batch = std::get_if<wire::TokenBatch>(&sent->message)) core_.recycle(std::move(*batch));
    }

    /// When the next step is to be submitted, or 0: at once. Without a thread that looks at the device it would be noticed too late.
    [[nodiscard]] int64_t submit_at() const {
        if (steps_.size() != 1 || options_.spin_us < kAheadUs || !core_.expects_sequence()) return 0;
        return end_us() - kAheadUs;
    }

    /// When the oldest step is likely to end.
    [[nodiscard]] int64_t end_us() const { return std::max(done_us_, steps_.front().begin_us) + expected_us(steps_.front()); }

    /// What the device will take for a step, if it is like the last one of its kind.
    [[nodiscard]] int64_t expected_us(const Step& step) const {
        if (step.decodes()) return decode_us_;
        return std::max(decode_us_, static_cast<int64_t>(row_us_ * static_cast<double>(step.plan.tokens.size())));
    }

    /// Until something was posted, the step is done, or a nap is over. When the step ends is guessed. Before and after that moment the thread looks without a pause where it may (`spin_us`): one that slept
    /// takes twice as long for what follows, since its core has forgotten it. Otherwise it naps, half of what is left and then the
    /// least; what is noticed a little late costs the device nothing: it has the next step.
    void wait_for_device() {
        host_.end();
        const int64_t end = end_us(), left_us = end - steady_now_us();
        if (left_us > -options_.spin_us && left_us <= options_.spin_us) {
            look(changed_ ? submit_at() : end + options_.spin_us);
        } else {
            const int64_t nap_us = left_us > 0 ? std::max(left_us / 2, left_us - options_.spin_us) : 0;
            std::unique_lock lock(mutex_);
            wake_.wait_for(lock, std::chrono::microseconds(std::clamp(nap_us, kNapUsMin, kNapUsMax)), [&] { return called_.load(); });
        }
        host_.begin();
    }

    /// Until the device is ready or something was posted, at most until `until_us`. Gives way to others now and then.
    void look(int64_t until_us) {
        constexpr int kLooks = 64;
        do {
            for (int i = 0; i < kLooks; ++i) {
                if (called_.load(std::memory_order_relaxed) || executor_->ready()) return;
                relax();
            }
            prepare();
            ::sched_yield();
        } while (steady_now_us() < until_us);
    }

    [[nodiscard]] bool wide(const Step& step) const {
        return step.decodes() && step.plan.items.size() >= kWideSequences && decode_us_ >= kWideStepUs;
    }

    /// What this thread does for a step's end while it waits anyway. It asks for the memory that the end looks at: at first, in case
    /// the step ends sooner than guessed, and shortly before the end, since its core may have forgotten it again (others use its
    /// caches too). Between the two it has another thread get ready to send the step's tokens, and primes the driver.
    void prepare() {
        const Step& step = steps_.front();
        const int64_t end = end_us(), left_us = end - steady_now_us();
        if (asked_ == Asked::kNothing) {
            asked_ = Asked::kMemory;
            fetch_for(step.plan);
        } else if (asked_ == Asked::kMemory && left_us <= kTellUs) {
            asked_ = Asked::kSender;
            if (callbacks_.tokens_near && wide(step)) callbacks_.tokens_near(end + kTellAfterUs);
        } else if (asked_ == Asked::kSender && left_us <= kPrimeUs) {
            asked_ = Asked::kDriver;
            if (wide(step)) executor_->prime();
        } else if (asked_ == Asked::kDriver && left_us <= kNearUs) {
            asked_ = Asked::kAll;
            fetch_for(step.plan);
        }
    }

    /// Asks for the memory that the end of a step will look at: while the thread slept, its core has forgotten it.
    void fetch_for(const pd::StepPlan& plan) const {
        core_.fetch_for(plan);
        executor_->fetch();
        fetch(sampled_);
        fetch(spare_.items);
        fetch(spare_.tokens);
    }

    void wait_for_work() {
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, std::chrono::milliseconds(kTickMs), [&] { return called_ || expected_; });
    }

    void report(TimeMs now) {
        if (now - last_report_ < options_.stats_every_ms) return;
        wire::ReplicaStats stats = core_.stats();
        stats.host_us = host_.total_us();
        if (same(stats, reported_) && now - last_report_ < 1'000) return;
        last_report_ = now;
        reported_ = stats;
        callbacks_.stats(stats);
    }

    const Options options_;
    std::unique_ptr<Executor> executor_;
    xavier::SharedPool& pool_;
    const Callbacks callbacks_;
    pd::ReplicaCore core_;
    const bool checksums_;     ///< of blocks go into a Commit, and are asked for
    std::deque<Step> steps_;   ///< submitted, oldest first
    pd::StepPlan spare_;       ///< a done plan, for its memory
    std::vector<pd::Sampled> sampled_;
    std::vector<pd::Action> actions_;
    int64_t done_us_ = 0;      ///< when the last step was done
    int64_t decode_us_ = 0;    ///< what the device took for the last step without prompts
    double row_us_ = 0;        ///< and for a row of the last one with some
    bool changed_ = true;      ///< a plan made now may hold what the last one did not
    bool broken_ = false;      ///< the device failed
    enum class Asked : uint8_t { kNothing, kMemory, kSender, kDriver, kAll } asked_ = Asked::kNothing;  ///< of what prepare() does, for the oldest step
    HostClock host_;
    wire::ReplicaStats reported_;
    TimeMs last_report_{};
    TimeMs last_tick_{};

    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<Task> inbox_;  ///< guarded by mutex_
    bool stopping_ = false;    ///< guarded by mutex_
    std::atomic<bool> called_{false};  ///< the inbox or `stopping_` wants to be looked at; set under mutex_
    std::atomic<bool> expected_{false};
    std::vector<Task> tasks_;
    std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> Engine::start(Options options, std::unique_ptr<backend::Backend> backend, xavier::SharedPool& pool,
                                      Callbacks callbacks) {
    options.core.steps_ahead = 0;
    auto executor = make_cpu_executor(std::move(backend), pool, options.core.max_running, options.constraints);
    return std::make_unique<EngineImpl>(std::move(options), std::move(executor), pool, std::move(callbacks));
}

std::unique_ptr<Engine> Engine::start(Options options, std::unique_ptr<backend::DeviceBackend> backend,
                                      xavier::SharedPool& words, Callbacks callbacks) {
    options.core.steps_ahead = 1;
    auto executor = make_device_executor(std::move(backend), words, options.constraints);
    return std::make_unique<EngineImpl>(std::move(options), std::move(executor), words, std::move(callbacks));
}

}  // namespace baton::engine
