#include "sched/softmax.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace baton::sched {
namespace {

constexpr size_t kLanes = 16;
constexpr float kExpMin = -87.0f;
constexpr float kWeightMin = 2e-38f;  // a little above exp of kExpMin: what is clamped there is 0

/// exp of x in [kExpMin, 0], error below 2 ulp: Cephes' expf (Moshier): x = n·ln 2 + r, polynomial
/// in r, scaled by 2^n.
inline float exp_nonpositive(float x) {
    const float n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;  // to nearest
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

double sum_of(std::span<const float> values) {
    double lanes[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= values.size(); i += kLanes)
        for (size_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(values[i + j]);
    for (size_t j = 0; i + j < values.size(); ++j) lanes[j] += static_cast<double>(values[i + j]);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
}

}  // namespace

float max_of(std::span<const float> logits) {
    float lanes[kLanes];
    std::fill(std::begin(lanes), std::end(lanes), -std::numeric_limits<float>::infinity());
    size_t i = 0;
    for (; i + kLanes <= logits.size(); i += kLanes)
        for (size_t j = 0; j < kLanes; ++j)
            lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
    for (; i < logits.size(); ++i) lanes[0] = std::max(lanes[0], logits[i]);
    return *std::max_element(std::begin(lanes), std::end(lanes));
}

double softmax_weights(std::span<const float> logits, float max, float temperature, float bar,
                       std::vector<float>& weights, std::vector<double>& block_sums) {
    const size_t n = logits.size();
    weights.resize(n);
    block_sums.clear();
    const float scale = 1.0f / temperature;
    const float* in = logits.data();
    float* out = weights.data();
    // One simple loop after the other: together the compiler sees control flow and vectorises none.
    for (size_t i = 0; i < n; ++i) {
        const float x = (in[i] - max) * scale;
        out[i] = x > kExpMin ? x : kExpMin;
    }
    for (size_t i = 0; i < n; ++i) out[i] = exp_nonpositive(out[i]);
    const float lowest = std::max(bar, kWeightMin);
    for (size_t i = 0; i < n; ++i) out[i] = out[i] < lowest ? 0.0f : out[i];
    double total = 0;
    for (size_t at = 0; at < n; at += kSumBlock) {
        block_sums.push_back(
            sum_of(std::span<const float>(weights).subspan(at, std::min(kSumBlock, n - at))));
        total += block_sums.back();
    }
    return total;
}

size_t find_mass(std::span<const float> weights, std::span<const double> block_sums, double mass) {
    size_t block = 0;
    for (; block + 1 < block_sums.size() && mass >= block_sums[block]; ++block)
        mass -= block_sums[block];
    const size_t end = std::min(weights.size(), (block + 1) * kSumBlock);
    for (size_t i = block * kSumBlock; i < end; ++i) {
        if (mass < static_cast<double>(weights[i])) return i;
        mass -= static_cast<double>(weights[i]);
    }
    // Rounding left a crumb: the last one that can be drawn at all.
    for (size_t i = end; i > 0; --i)
        if (weights[i - 1] > 0) return i - 1;
    return 0;
}

}  // namespace baton::sched
