// 16-lane vectors in AVX-512 registers, with VNNI and, where the translation unit has it, bf16 dot
// products. Included inside a namespace of one translation unit.

#ifdef __AVX512BF16__
constexpr bool kHasBf16Dot = true;
#else
constexpr bool kHasBf16Dot = false;
#endif
constexpr bool kSignedI8 = false;
constexpr size_t kIntRows = 8;
constexpr size_t kFloatRows = 6;
constexpr size_t kFloatGroups = 4;

using VF = __m512;
using VI = __m512i;
using VB = __m512i;

inline __mmask16 mask_n(size_t n) {
    return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u);
}
inline VF vf_set1(float x) {
    return _mm512_set1_ps(x);
}
inline VF vf_zero() {
    return _mm512_setzero_ps();
}
inline VF vf_load(const float* p) {
    return _mm512_loadu_ps(p);
}
inline VF vf_load_n(const float* p, size_t n) {
    return _mm512_maskz_loadu_ps(mask_n(n), p);
}
inline void vf_store(float* p, VF x) {
    _mm512_storeu_ps(p, x);
}
inline void vf_store_n(float* p, VF x, size_t n) {
    _mm512_mask_storeu_ps(p, mask_n(n), x);
}
inline VF vf_add(VF x, VF y) {
    return _mm512_add_ps(x, y);
}
inline VF vf_sub(VF x, VF y) {
    return _mm512_sub_ps(x, y);
}
inline VF vf_mul(VF x, VF y) {
    return _mm512_mul_ps(x, y);
}
inline VF vf_div(VF x, VF y) {
    return _mm512_div_ps(x, y);
}
inline VF vf_fma(VF x, VF y, VF z) {
    return _mm512_fmadd_ps(x, y, z);
}
inline VF vf_max(VF x, VF y) {
    return _mm512_max_ps(x, y);
}
inline VF vf_min(VF x, VF y) {
    return _mm512_min_ps(x, y);
}
inline VF vf_abs(VF x) {
    return _mm512_abs_ps(x);
}
inline VF vf_first_n(VF x, VF other, size_t n) {
    return _mm512_mask_mov_ps(other, mask_n(n), x);
}
inline float sum4(__m128 v) {
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
}
inline float vf_sum(VF x) {
    const __m256 v = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return sum4(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
}
inline float vf_top(VF x) {
    const __m256 v = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 w = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    w = _mm_max_ps(w, _mm_movehl_ps(w, w));
    return _mm_cvtss_f32(_mm_max_ss(w, _mm_shuffle_ps(w, w, 1)));
}
inline VF vf_round(VF x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// a · 2^n for whole n in -126 … 127.
inline VF vf_scale2(VF x, VF n) {
    return _mm512_scalef_ps(x, n);
}
inline VF vf_from_f16(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline VF vf_from_bf16_n(const std::byte* p, size_t n) {
    const __m256i h = _mm256_maskz_loadu_epi16(mask_n(n), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
/// The even and odd elements of n pairs of bf16.
inline void vf_from_pairs_n(const std::byte* p, size_t n, VF& even, VF& odd) {
    const __m512i x = _mm512_maskz_loadu_epi32(mask_n(n), p);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    odd =
        _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline VI vi_zero() {
    return _mm512_setzero_si512();
}
inline VF vi_to_f32(VI x) {
    return _mm512_cvtepi32_ps(x);
}
inline VB vb_load(const std::byte* p) {
    return _mm512_loadu_si512(p);
}
inline VB vb_low4(VB x) {
    return _mm512_and_si512(x, _mm512_set1_epi8(15));
}
inline VB vb_high4(VB x) {
    return vb_low4(_mm512_srli_epi16(x, 4));
}
/// a | (((h >> shift) or (h << -shift)) & mask), byte by byte.
template <int shift>
inline VB vb_or_bits(VB x, VB h, uint8_t mask) {
    if constexpr (shift >= 0) {
        h = _mm512_srli_epi16(h, shift);
    } else {
        h = _mm512_slli_epi16(h, -shift);
    }
    return _mm512_ternarylogic_epi32(x, h, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8);
}
inline VI vi_dot(VI acc, VB w, const int8_t* a) {
    int32_t v;
    __builtin_memcpy(&v, a, 4);
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(v));
}
inline VI vi_dot_i8(VI acc, VB w, const int8_t* a) {
    return vi_dot(acc, w, a);
}
/// Rounds to nearest even and stores as int8; the values are within ±127 (NaN becomes -127).
inline int32_t vf_store_i8(int8_t* p, VF x) {
    x = vf_min(vf_max(x, vf_set1(-127.0f)), vf_set1(127.0f));
    const __m512i i = _mm512_cvtps_epi32(x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(i));
    return _mm512_reduce_add_epi32(i);
}
inline void vf_store_bf16_n(uint16_t* p, VF x, size_t n) {
    const __m512i u = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    _mm256_mask_storeu_epi16(p, mask_n(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
#ifdef __AVX512BF16__
inline VF vf_dot_bf16(VF acc, __m512i pairs, uint32_t pair) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(pairs),
                            reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair))));
}
#endif
