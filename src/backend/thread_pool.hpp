#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace baton::backend {

/// `threads` - 1 workers and the caller run numbered chunks of work. Threads claim chunks one by
/// one, so that one which the system has taken off its core delays nothing but the chunk it holds.
/// Waiting is a short spin and then a futex, so that two processes on the same cores do not starve
/// each other. One thread calls run.
class ThreadPool {
  public:
    static constexpr uint32_t kChunksMax = 1u << 19;
    explicit ThreadPool(uint32_t threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    [[nodiscard]] uint32_t threads() const { return threads_; }

    /// Calls fn(chunk, thread) for each chunk < `chunks`, thread < threads(), and returns when all
    /// are done. Everything written before run is visible to fn, and everything fn wrote is visible
    /// afterwards. `meanwhile` runs on the caller once the workers may start. `chunks` <
    /// kChunksMax.
    template <class Fn, class Meanwhile>
    void run(uint32_t chunks, const Fn& fn, Meanwhile&& meanwhile) {
        const Job job{[](const void* f, uint32_t chunk, uint32_t thread) {
                          (*static_cast<const Fn*>(f))(chunk, thread);
                      },
                      &fn};
        if (threads_ == 1 || chunks <= 1) {
            meanwhile();
            for (uint32_t c = 0; c < chunks; ++c) fn(c, 0);
            return;
        }
        publish(job, chunks);
        meanwhile();
        work(0);
        finish(chunks);
    }
    template <class Fn>
    void run(uint32_t chunks, const Fn& fn) {
        run(chunks, fn, [] {});
    }

  private:
    struct Job {
        void (*call)(const void* fn, uint32_t chunk, uint32_t thread) = nullptr;
        const void* fn = nullptr;
    };
    // The ticket word: job number (24 bits), chunks of the job (20), next chunk (20). One fetch_add
    // claims a chunk, and a claim that comes too late, even many jobs later, is known to be void
    // without a look at the job.
    static constexpr uint64_t kField = (uint64_t{1} << 20) - 1;

    void publish(const Job& job, uint32_t chunks);
    void work(uint32_t thread);
    void finish(uint32_t chunks);
    void worker(uint32_t thread);
    [[nodiscard]] bool await_job(uint32_t seen);

    uint32_t threads_;
    uint32_t number_ = 0;
    Job job_;
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<uint32_t> done_{0};
    alignas(64) std::atomic<uint32_t> signal_{
        0};  ///< number of the last job: what idle workers sleep on
    std::atomic<uint32_t> sleepers_{0};
    std::atomic<uint32_t> caller_sleeps_{0};
    std::atomic<bool> stop_{false};
    std::vector<std::thread> workers_;
};

}  // namespace baton::backend
