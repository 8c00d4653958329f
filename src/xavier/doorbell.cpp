#include "xavier/doorbell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <ctime>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449  // the same on every architecture
#endif

namespace baton::xavier {
namespace {

constexpr int64_t kSliceUs = 1'000;

/// struct futex_waitv of Linux 5.16, spelt out for older headers.
struct KernelWaitWord {
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
};
constexpr uint32_t kFutex32 = 2;

timespec to_timespec(int64_t us) { return {us / 1'000'000, (us % 1'000'000) * 1'000}; }

void wait_one(const WaitWord& w, int64_t timeout_us) {
    const timespec timeout = to_timespec(timeout_us);
    ::syscall(SYS_futex, w.word, FUTEX_WAIT, w.seen, &timeout, nullptr, 0);
}

}  // namespace

uint32_t read_doorbell(const uint32_t* word) {
    return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(word)).load(std::memory_order_acquire);
}

void ring(uint32_t* word) {
    std::atomic_ref<uint32_t>(*word).fetch_add(1, std::memory_order_release);
    ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void DoorbellWaiter::wait(std::span<const WaitWord> words, int64_t timeout_us) {
    if (timeout_us <= 0) return;
    if (words.size() == 1) return wait_one(words[0], timeout_us);
    if (!many_supported_ || words.size() > kWordsMax) return wait_one(words[0], std::min(timeout_us, kSliceUs));
    std::array<KernelWaitWord, kWordsMax> list;
    for (size_t i = 0; i < words.size(); ++i)
        list[i] = {words[i].seen, reinterpret_cast<uint64_t>(words[i].word), kFutex32, 0};
    timespec end{};
    ::clock_gettime(CLOCK_MONOTONIC, &end);
    const timespec add = to_timespec(timeout_us);
    end.tv_sec += add.tv_sec;
    end.tv_nsec += add.tv_nsec;
    if (end.tv_nsec >= 1'000'000'000) {
        end.tv_nsec -= 1'000'000'000;
        ++end.tv_sec;
    }
    const long r = ::syscall(SYS_futex_waitv, list.data(), static_cast<unsigned>(words.size()), 0u, &end, CLOCK_MONOTONIC);
    if (r < 0 && (errno == ENOSYS || errno == EPERM || errno == EINVAL)) many_supported_ = false;
}

}  // namespace baton::xavier
