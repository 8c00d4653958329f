#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace baton::xavier {

/// A 32-bit word that somebody changes, then wakes those who wait for it to differ from what they saw.
struct WaitWord {
    const uint32_t* word = nullptr;
    uint32_t seen = 0;
};

/// Reads a doorbell. What was written before the matching ring() is visible afterwards.
[[nodiscard]] uint32_t read_doorbell(const uint32_t* word);
/// Changes the word and wakes all waiters of every process that maps it.
void ring(uint32_t* word);

/// Waits on several doorbells at once with futex_waitv; where the kernel lacks it, on the first one in slices of a
/// millisecond. The words may lie in memory mapped read-only.
class DoorbellWaiter {
  public:
    static constexpr size_t kWordsMax = 128;
    /// Returns when one of the words differs from what was seen, or after `timeout_us`. May return early.
    void wait(std::span<const WaitWord> words, int64_t timeout_us);

  private:
    bool many_supported_ = true;
};

}  // namespace baton::xavier
