#include "backend/thread_pool.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

#include "baton/base/check.hpp"
#include "baton/base/relax.hpp"

namespace baton::backend {

namespace {

constexpr int64_t kSpinUs = 30;

void futex_wait(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr,
            nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
            nullptr, 0);
}

/// True as soon as ready() is, false when the spin time is over.
template <class Ready>
bool spin_until(const Ready& ready) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::microseconds(kSpinUs);
    do {
        for (int i = 0; i < 16; ++i) {
            if (ready()) return true;
            relax();
        }
    } while (Clock::now() < end);
    return false;
}

}  // namespace

ThreadPool::ThreadPool(uint32_t threads) : threads_(threads == 0 ? 1 : threads) {
    workers_.reserve(threads_ - 1);
    for (uint32_t t = 1; t < threads_; ++t) workers_.emplace_back([this, t] { worker(t); });
}

ThreadPool::~ThreadPool() {
    stop_.store(true);
    signal_.fetch_add(1);
    futex_wake_all(signal_);
    for (auto& w : workers_) w.join();
}

void ThreadPool::publish(const Job& job, uint32_t chunks) {
    BATON_CHECK(chunks < kChunksMax);
    job_ = job;
    number_ = (number_ + 1) & 0xffffffu;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(uint64_t{number_} << 40 | uint64_t{chunks} << 20, std::memory_order_release);
    signal_.fetch_add(1);
    if (sleepers_.load() != 0) futex_wake_all(signal_);
}

void ThreadPool::work(uint32_t thread) {
    while (true) {
        // A look before the claim keeps idle threads from counting the ticket up without end.
        const uint64_t seen = ticket_.load(std::memory_order_acquire);
        if ((seen & kField) >= (seen >> 20 & kField)) return;
        const uint64_t mine = ticket_.fetch_add(1, std::memory_order_acq_rel);
        const auto chunk = static_cast<uint32_t>(mine & kField);
        const auto chunks = static_cast<uint32_t>(mine >> 20 & kField);
        if (chunk >= chunks) return;
        // The job cannot change while one of its chunks is not done.
        const Job job = job_;
        job.call(job.fn, chunk, thread);
        if (done_.fetch_add(1) + 1 == chunks && thread != 0 && caller_sleeps_.load() != 0)
            futex_wake_all(done_);
    }
}

void ThreadPool::finish(uint32_t chunks) {
    const auto ready = [&] { return done_.load(std::memory_order_acquire) == chunks; };
    if (ready() || spin_until(ready)) return;
    caller_sleeps_.store(1);
    while (true) {
        const uint32_t done = done_.load();
        if (done == chunks) break;
        futex_wait(done_, done);
    }
    caller_sleeps_.store(0);
}

bool ThreadPool::await_job(uint32_t seen) {
    // `stop_` belongs to the condition: the signal that came with it may be the one already seen.
    const auto changed = [&] { return signal_.load() != seen || stop_.load(); };
    if (!spin_until(changed)) {
        sleepers_.fetch_add(1);
        while (!changed()) futex_wait(signal_, seen);
        sleepers_.fetch_sub(1);
    }
    return !stop_.load();
}

void ThreadPool::worker(uint32_t thread) {
    uint32_t seen = 0;
    while (await_job(seen)) {
        seen = signal_.load(std::memory_order_acquire);
        work(thread);
    }
}

}  // namespace baton::backend
