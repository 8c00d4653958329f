#include "backend/cuda/convert.hpp"

#include "baton/tensor/dtype.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baton::backend::cuda {

namespace {

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) size_t to_f16_wide(const float* in, size_t n, uint16_t* out) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
    }
    return i;
}
__attribute__((target("avx2"))) size_t to_bf16_wide(const float* in, size_t n, uint16_t* out) {
    for (size_t i = 0; i < n; ++i) out[i] = tensor::f32_to_bf16(in[i]);
    return n;
}
#endif

}  // namespace

void to_elem(Elem elem, const float* in, size_t n, uint16_t* out) {
    size_t i = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        i = elem == Elem::kF16 ? to_f16_wide(in, n, out) : to_bf16_wide(in, n, out);
#endif
    for (; i < n; ++i) out[i] = elem == Elem::kF16 ? tensor::f32_to_f16(in[i]) : tensor::f32_to_bf16(in[i]);
}

}  // namespace baton::backend::cuda
