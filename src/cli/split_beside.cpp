#include "cli/split_beside.hpp"

#include <algorithm>

/// What replicas on the same cores cost each other, from the times of their steps.
namespace baton::cli::split {
namespace {

constexpr double kFactorMax = 100;

/// The value at a place of the sorted list.
double at(std::vector<double> values, size_t place) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(place);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace

void Slowed::add(const Span& window, const std::vector<Span>& steps) {
    std::vector<double> alone;
    double count = 0;
    Span touched;
    for (const Span& step : steps) {
        if (step.end_us <= window.begin_us) {
            alone.push_back(step.length());
        } else if (step.begin_us < window.end_us) {
            if (count == 0) touched.begin_us = step.begin_us;
            touched.end_us = step.end_us;
            ++count;
        }
    }
    if (alone.empty() || count == 0) return;
    const double together_us = std::min(touched.end_us, window.end_us) - std::max(touched.begin_us, window.begin_us);
    const double done_us = count * at(alone, alone.size() / 4) - (touched.length() - together_us);
    factors_.push_back(done_us * kFactorMax <= together_us ? kFactorMax : std::max(1.0, together_us / done_us));
}

double Slowed::factor() const { return factors_.empty() ? 1 : at(factors_, factors_.size() / 2); }

}  // namespace baton::cli::split
