#include "baton/worker/host_facts.hpp"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace baton::worker {
namespace {

/// First number of a file, or `otherwise` (also for "max").
uint64_t read_number(const char* path, uint64_t otherwise) {
    std::ifstream in(path);
    uint64_t v = 0;
    return in >> v ? v : otherwise;
}

uint64_t meminfo_kib(std::string_view key) {
    std::ifstream in("/proc/meminfo");
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(key)) continue;
        std::istringstream rest(line.substr(key.size()));
        uint64_t v = 0;
        rest >> v;
        return v;
    }
    return 0;
}

}  // namespace

uint32_t cpu_count() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

Memory read_memory() {
    constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
    Memory m;
    m.total = meminfo_kib("MemTotal:") * 1024;
    m.used = m.total - std::min(m.total, meminfo_kib("MemAvailable:") * 1024);
    const uint64_t limit = std::min(read_number("/sys/fs/cgroup/memory.max", kNone),
                                    read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", kNone));
    if (limit < m.total) {
        m.total = limit;
        m.used = std::min(limit, read_number("/sys/fs/cgroup/memory.current", m.used));
    }
    return m;
}

double CpuMeter::sample() {
    std::ifstream in("/proc/stat");
    std::string name;
    in >> name;
    uint64_t total = 0, idle = 0, v = 0;
    for (int i = 0; i < 8 && in >> v; ++i) {
        total += v;
        if (i == 3 || i == 4) idle += v;  // idle and iowait
    }
    const uint64_t busy = total - idle;
    const double share = total > total_ && busy >= busy_
                             ? static_cast<double>(busy - busy_) / static_cast<double>(total - total_)
                             : 0.0;
    busy_ = busy;
    total_ = total;
    return share;
}

}  // namespace baton::worker
