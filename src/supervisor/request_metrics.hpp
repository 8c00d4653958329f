#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace baton::supervisor {

/// Observations by upper bound, as Prometheus counts them.
class Histogram {
  public:
    explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size(), 0) {}
    /// What was counted elsewhere: each observation once, in the first bucket that holds it; those beyond the last bound at the end.
    Histogram(std::span<const double> bounds, std::span<const uint64_t> counts, double sum) : Histogram(bounds) {
        for (size_t i = 0; i < counts.size(); ++i) {
            count_ += counts[i];
            if (i < counts_.size()) counts_[i] = count_;
        }
        sum_ = sum;
    }
    void observe(double value) {
        for (size_t i = 0; i < bounds_.size(); ++i)
            if (value <= bounds_[i]) ++counts_[i];
        sum_ += value;
        ++count_;
    }
    [[nodiscard]] std::span<const double> bounds() const { return bounds_; }
    [[nodiscard]] uint64_t up_to(size_t i) const { return counts_[i]; }  ///< at most bounds()[i]
    [[nodiscard]] double sum() const { return sum_; }
    [[nodiscard]] uint64_t count() const { return count_; }

  private:
    std::span<const double> bounds_;
    std::vector<uint64_t> counts_;
    double sum_ = 0;
    uint64_t count_ = 0;
};

inline constexpr std::array<double, 9> kTtftBounds{.05, .1, .25, .5, 1, 2.5, 5, 10, 30};
inline constexpr std::array<double, 11> kKeyDurationBounds{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60};
inline constexpr std::array<double, 13> kDurationBounds{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120};

/// From half a millisecond to a minute.
inline constexpr std::array<double, 20> kLatencyBounds{.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .2, .5, 1, 2, 5, 15, 60};

/// Where the time of the requests of a deployment went, in seconds; of a request with several choices the first speaks. The
/// stages follow each other and are parts of the request's time.
struct StageSeconds {
    Histogram prepare{kLatencyBounds};  ///< from the first byte until the sequence is submitted: reading, template, tokenizing
    Histogram queue{kLatencyBounds};    ///< until the first step that computes its prompt
    Histogram prefill{kLatencyBounds};  ///< until the first token
    Histogram handoff{kLatencyBounds};  ///< from the end of the prefill until the decode replica has all KV
    Histogram decode{kLatencyBounds};   ///< from the first token to the last, without the hand-off
    // Of the time between two tokens: the gap after the first one, into which the hand-off falls; the mean of those after it; and
    // what the first is longer by, where there was a hand-off.
    Histogram first_gap{kLatencyBounds}, later_gap{kLatencyBounds}, handoff_added{kLatencyBounds};
};

/// How a request asked to be answered; kUnknown: it was refused before that was of any use.
enum class Streamed : uint8_t { kNo = 0, kYes = 1, kUnknown = 2 };

/// What /metrics says of the requests that one replica finished.
struct ReplicaRequests {
    uint64_t input_tokens = 0, output_tokens = 0, errors = 0;
    std::array<uint64_t, 3> total{};  ///< by Streamed
    Histogram ttft_plain{kTtftBounds}, ttft_stream{kTtftBounds};
    Histogram duration{kDurationBounds};
};

/// By the number of the replica that ended the request; -1: none had it.
using RequestMetrics = std::map<int64_t, ReplicaRequests>;

}  // namespace baton::supervisor
