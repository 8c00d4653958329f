#include "bans.hpp"

#include <algorithm>

namespace baton::supervisor {
namespace {

constexpr size_t kRecordsMax = 4096;

}  // namespace

bool Bans::failed(const std::string& who, TimeMs now) {
    if (rule_.failures_max == 0) return false;
    if (!records_.contains(who) && records_.size() >= kRecordsMax) drop_old(now);
    // All of them are recent: somebody has very many addresses, and one more that is not counted changes nothing.
    if (!records_.contains(who) && records_.size() >= kRecordsMax) return false;
    Record& r = records_[who];
    while (!r.failures.empty() && now - r.failures.front() > rule_.window_ms) r.failures.pop_front();
    r.failures.push_back(now);
    if (r.failures.size() < rule_.failures_max) return false;
    r.failures.clear();
    r.until = {now.ms + rule_.ban_ms};
    return true;
}

int64_t Bans::left_ms(const std::string& who, TimeMs now) const {
    const auto it = records_.find(who);
    return it == records_.end() ? 0 : std::max<int64_t>(0, it->second.until - now);
}

size_t Bans::count(TimeMs now) const {
    return static_cast<size_t>(std::count_if(records_.begin(), records_.end(), [&](const auto& r) { return r.second.until > now; }));
}

void Bans::drop_old(TimeMs now) {
    std::erase_if(records_, [&](const auto& entry) {
        const Record& r = entry.second;
        return r.until <= now && (r.failures.empty() || now - r.failures.back() > rule_.window_ms);
    });
}

}  // namespace baton::supervisor
