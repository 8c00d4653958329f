#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// What a worker tells about its host, read from /proc and /sys.
namespace baton::worker {

/// Processors this process may use.
[[nodiscard]] uint32_t cpu_count();

struct Memory {
    uint64_t total = 0;  ///< of the host, or the control group's limit where that is lower
    uint64_t used = 0;
};
[[nodiscard]] Memory read_memory();

/// Share of processor time in use since the call before, 0…1.
class CpuMeter {
  public:
    [[nodiscard]] double sample();

  private:
    uint64_t busy_ = 0, total_ = 0;
};

}  // namespace baton::worker
