#pragma once

#include <vector>

namespace baton::cli::split {

/// When something ran, in microseconds.
struct Span {
    double begin_us = 0, end_us = 0;
    [[nodiscard]] double length() const { return end_us - begin_us; }
};

/// How many times longer the steps of a replica that computes all the time take while another one computes too. Needs no step to begin
/// or end with the other's: what got done is counted, and what would have got done alone.
class Slowed {
  public:
    /// A round: the other computed within `window`. `steps` ran one after the other, some of them before it, and the last to its end.
    /// Those before tell what a step takes alone, also where most of them are too slow: after a pause the system has a replica's threads
    /// on one core for a while.
    void add(const Span& window, const std::vector<Span>& steps);
    /// The rounds' median; 1 where none tells anything, 100 at most.
    [[nodiscard]] double factor() const;

  private:
    std::vector<double> factors_;
};

}  // namespace baton::cli::split
