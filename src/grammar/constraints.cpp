#include "baton/grammar/constraints.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace baton::grammar {
namespace {

constexpr size_t kKeptMax = 64;               ///< constraints kept for sequences to come
constexpr size_t kKeptBytesMax = 192u << 20;  ///< and what they take
constexpr auto kWait = std::chrono::seconds(10);

/// A constraint in use. The thread that compiles fills it; from then on it belongs to the one that asks for masks.
struct Entry {
    wire::Constraint constraint;
    bool ready = false;  ///< guarded by the mutex of its owner
    std::optional<Runner> runner;
    std::optional<Error> error;
    uint64_t used = 0;   ///< by the owner's clock
};

struct Live {
    uint32_t attempt = 0;
    std::shared_ptr<Entry> entry;
    Matcher matcher;
    uint64_t used = 0;
};

class ConstraintsImpl final : public Constraints {
  public:
    ConstraintsImpl(LoadVocabulary load, size_t sequences_max) : sequences_max_(sequences_max) {
        thread_ = std::jthread([this, load = std::move(load)](const std::stop_token& stop) mutable { compile_all(std::exchange(load, {})(), stop); });
    }
    ~ConstraintsImpl() override {
        thread_.request_stop();
        wake_.notify_all();
    }

    void prepare(const wire::Constraint& constraint) override {
        if (constraint.kind == wire::ConstraintKind::kNone) return;
        const std::lock_guard lock(mutex_);
        (void)entry_of(constraint);
    }

    Expected<std::span<const uint32_t>> mask(const wire::Sequence& sequence, std::optional<TokenId> next) override;
    Figures figures() const override { return figures_; }

  private:
    using Key = std::tuple<wire::ConstraintKind, std::string, std::string, std::string>;

    /// Under the mutex.
    std::shared_ptr<Entry> entry_of(const wire::Constraint& c) {
        auto& entry = entries_[Key{c.kind, c.text, c.after, c.opening}];
        if (!entry) {
            entry = std::make_shared<Entry>();
            entry->constraint = c;
            todo_.push_back(entry);
            wake_.notify_all();
        }
        entry->used = ++clock_;
        return entry;
    }

    void compile_all(const std::shared_ptr<const Vocabulary>& vocabulary, const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        while (!stop.stop_requested()) {
            if (todo_.empty()) {
                wake_.wait(lock, stop, [&] { return !todo_.empty(); });
                continue;
            }
            const std::shared_ptr<Entry> entry = std::move(todo_.front());
            todo_.pop_front();
            lock.unlock();
            auto program = compile(entry->constraint);
            std::optional<Runner> runner;
            if (program) {
                runner.emplace(std::move(*program), vocabulary);
                runner->warm();
            }
            lock.lock();
            if (program) entry->runner = std::move(runner);
            else entry->error = std::move(program).error();
            entry->ready = true;
            done_.notify_all();
        }
    }

    /// Waits for an entry's compilation, and lets go of those that nobody used for longest.
    Expected<std::shared_ptr<Entry>> compiled(const wire::Constraint& constraint) {
        std::unique_lock lock(mutex_);
        std::shared_ptr<Entry> entry = entry_of(constraint);
        if (!done_.wait_for(lock, kWait, [&] { return entry->ready; })) return fail(ErrorCode::kTimeout, "the constraint was not compiled in time");
        if (entry->error) return fail(*entry->error);
        ++figures_.compiled;
        for (size_t bytes = kept_bytes(); entries_.size() > kKeptMax || bytes > kKeptBytesMax; bytes = kept_bytes()) {
            const auto oldest = std::ranges::min_element(entries_, {}, [](const auto& e) { return e.second->ready ? e.second->used : UINT64_MAX; });
            if (oldest == entries_.end() || !oldest->second->ready || oldest->second == entry) break;
            entries_.erase(oldest);
        }
        return entry;
    }
    [[nodiscard]] size_t kept_bytes() const {
        size_t bytes = 0;
        for (const auto& [key, e] : entries_) bytes += e->ready && e->runner ? e->runner->bytes() : 0;
        return bytes;
    }

    Expected<Live*> live(const wire::Sequence& sequence);

    const size_t sequences_max_;
    std::unordered_map<SequenceId, Live> live_;
    uint64_t turn_ = 0;
    std::vector<uint32_t> row_;
    Figures figures_;

    std::mutex mutex_;
    std::condition_variable_any wake_, done_;
    std::map<Key, std::shared_ptr<Entry>> entries_;  ///< guarded
    std::deque<std::shared_ptr<Entry>> todo_;        ///< guarded
    uint64_t clock_ = 0;                             ///< guarded
    std::jthread thread_;
};

/// Where the sequence stands, from its start where it is new here, another attempt, or shorter than what was followed.
Expected<Live*> ConstraintsImpl::live(const wire::Sequence& sequence) {
    auto it = live_.find(sequence.ref.id);
    const bool usable = it != live_.end() && it->second.attempt == sequence.ref.attempt &&
                        it->second.matcher.taken() <= sequence.emitted.size() && it->second.entry->constraint == sequence.sampling.constraint;
    if (!usable) {
        if (it != live_.end()) live_.erase(it);
        BATON_TRY_ASSIGN(auto entry, compiled(sequence.sampling.constraint));
        if (live_.size() >= 2 * sequences_max_ + 16)
            live_.erase(std::ranges::min_element(live_, {}, [](const auto& l) { return l.second.used; }));
        Matcher matcher(*entry->runner);
        it = live_.emplace(sequence.ref.id, Live{sequence.ref.attempt, std::move(entry), std::move(matcher), 0}).first;
    }
    it->second.used = ++turn_;
    return &it->second;
}

Expected<std::span<const uint32_t>> ConstraintsImpl::mask(const wire::Sequence& sequence, std::optional<TokenId> next) {
    BATON_TRY_ASSIGN(Live* const at, live(sequence));
    Matcher& matcher = at->matcher;
    while (matcher.taken() < sequence.emitted.size()) BATON_TRY(matcher.accept(sequence.emitted[matcher.taken()]));
    if (next) BATON_TRY(matcher.accept(*next));
    const Runner::Figures before = at->entry->runner->figures();
    BATON_TRY_ASSIGN(const std::span<const uint32_t> allowed, matcher.mask());
    const Runner::Figures after = at->entry->runner->figures();
    figures_.masks_found += after.masks_found - before.masks_found;
    figures_.masks_reused += after.masks_reused - before.masks_reused;
    row_.assign(allowed.begin(), allowed.end());
    const bool ends = matcher.may_end();
    bool any = !matcher.must_end();
    for (const TokenId id : sequence.sampling.stop_ids) {
        if (id < 0 || static_cast<size_t>(id) / 32 >= row_.size()) continue;
        const uint32_t bit = 1u << (static_cast<uint32_t>(id) % 32);
        if (ends) row_[static_cast<size_t>(id) / 32] |= bit;
        any = any || ends;
    }
    if (!any) return fail(ErrorCode::kInvalidArgument, "the constraint is met and no token ends the answer");
    return std::span<const uint32_t>(row_);
}

}  // namespace

std::unique_ptr<Constraints> Constraints::start(LoadVocabulary load, size_t sequences_max) {
    return std::make_unique<ConstraintsImpl>(std::move(load), sequences_max);
}

}  // namespace baton::grammar
