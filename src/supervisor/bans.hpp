#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "baton/base/clock.hpp"

namespace baton::supervisor {

/// Who has failed too often of late, by any name (an address, a key at an address). The caller keeps threads apart.
class Bans {
  public:
    struct Rule {
        size_t failures_max = 10;    ///< within the window; the last of them begins the ban. 0: nobody is banned
        int64_t window_ms = 300'000;
        int64_t ban_ms = 600'000;
    };
    explicit Bans(Rule rule) : rule_(rule) {}

    /// Counts a failure; true when it begins a ban.
    bool failed(const std::string& who, TimeMs now);
    /// Takes back what was counted, a ban too.
    void forgive(const std::string& who) { records_.erase(who); }
    /// How long `who` is banned yet; 0: not at all.
    [[nodiscard]] int64_t left_ms(const std::string& who, TimeMs now) const;
    /// How many are banned.
    [[nodiscard]] size_t count(TimeMs now) const;

  private:
    struct Record {
        std::deque<TimeMs> failures;
        TimeMs until{};
    };
    void drop_old(TimeMs now);

    const Rule rule_;
    std::map<std::string, Record> records_;
};

/// Milliseconds as the whole seconds of a Retry-After header: never less than there are left.
[[nodiscard]] constexpr int64_t retry_after_s(int64_t left_ms) { return (left_ms + 999) / 1000; }

}  // namespace baton::supervisor
