// RoPE inverse frequencies as in Hugging Face's modeling_rope_utils (default, linear, llama3, yarn)
// and GGUF's rope_freqs.weight.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "spec.hpp"

namespace baton::model {
namespace {

/// theta^(-2i / head_dim), rounded to f32 at the same places as the reference.
float base_frequency(double theta, uint32_t i, uint32_t head_dim) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    return 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
}

/// Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1).
float llama3_frequency(const RopeSpec& spec, float frequency) {
    const double wavelength = 2.0 * std::numbers::pi / static_cast<double>(frequency);
    const auto original = static_cast<double>(spec.original_context);
    if (wavelength < original / spec.high_freq_factor) return frequency;
    if (wavelength > original / spec.low_freq_factor) {
        return static_cast<float>(static_cast<double>(frequency) / spec.factor);
    }
    const double smooth = (original / wavelength - spec.low_freq_factor) /
                          (spec.high_freq_factor - spec.low_freq_factor);
    return static_cast<float>((1.0 - smooth) * static_cast<double>(frequency) / spec.factor +
                              smooth * static_cast<double>(frequency));
}

/// Dimension (fractional pair index) whose wavelength makes `rotations` turns over the original
/// context.
double yarn_dimension(const RopeSpec& spec, uint32_t head_dim, double rotations) {
    return head_dim *
           std::log(static_cast<double>(spec.original_context) /
                    (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(spec.theta));
}

void apply_yarn(const RopeSpec& spec, uint32_t head_dim, backend::Rope& rope) {
    const double low = std::max(std::floor(yarn_dimension(spec, head_dim, spec.beta_fast)), 0.0);
    double high =
        std::min(std::ceil(yarn_dimension(spec, head_dim, spec.beta_slow)), head_dim - 1.0);
    if (low == high) high += 0.001;
    for (uint32_t i = 0; i < rope.inv_freq.size(); ++i) {
        const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
        const auto f = static_cast<double>(rope.inv_freq[i]);
        rope.inv_freq[i] = static_cast<float>(f / spec.factor * ramp + f * (1.0 - ramp));
    }
    rope.scale = static_cast<float>(
        spec.attention_factor > 0.0 ? spec.attention_factor : 0.1 * std::log(spec.factor) + 1.0);
}

}  // namespace

Expected<backend::Rope> make_rope(const RopeSpec& s, uint32_t head_dim,
                                  const std::vector<float>& divisors) {
    const auto bad = [](const char* what) {
        return fail(ErrorCode::kCorrupt, std::string("rope configuration: ") + what);
    };
    if (!(s.theta > 1.0 && s.theta < 1e15)) return bad("theta is not usable");
    if (!(s.factor >= 1.0 && s.factor < 1e6)) return bad("scaling factor is not usable");
    if (!divisors.empty() && divisors.size() != head_dim / 2)
        return bad("factors do not match the head dimension");
    if (s.scaling == RopeScaling::kLlama3 &&
        !(s.low_freq_factor > 0.0 && s.high_freq_factor > s.low_freq_factor &&
          s.high_freq_factor < 1e6)) {
        return bad("low and high frequency factors are not usable");
    }
    if (s.scaling == RopeScaling::kYarn && !(s.beta_slow > 0.0 && s.beta_fast >= s.beta_slow &&
                                             s.beta_fast < 1e6 && s.attention_factor < 1e3)) {
        return bad("yarn betas are not usable");
    }
    backend::Rope rope;
    rope.inv_freq.reserve(head_dim / 2);
    for (uint32_t i = 0; i < head_dim / 2; ++i) {
        float f = base_frequency(s.theta, i, head_dim);
        if (s.scaling == RopeScaling::kLinear)
            f = static_cast<float>(static_cast<double>(f) / s.factor);
        if (s.scaling == RopeScaling::kLlama3) f = llama3_frequency(s, f);
        if (!divisors.empty()) {
            if (!(divisors[i] > 1e-6f && divisors[i] < 1e6f))
                return bad("a frequency factor is not usable");
            f /= divisors[i];
        }
        rope.inv_freq.push_back(f);
    }
    if (s.scaling == RopeScaling::kYarn) apply_yarn(s, head_dim, rope);
    return rope;
}

}  // namespace baton::model
