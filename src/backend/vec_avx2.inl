// 16-lane vectors as pairs of AVX2 registers. Included inside a namespace of one translation unit.

constexpr bool kHasBf16Dot = false;
constexpr bool kSignedI8 = true;  // vi_dot_i8 subtracts the offset of kI8 itself
constexpr size_t kIntRows = 2;
constexpr size_t kFloatRows = 2;
constexpr size_t kFloatGroups = 2;

struct VF {
    __m256 a, b;
};
struct VI {
    __m256i a, b;
};
struct VB {
    __m256i a, b;
};

inline VF vf_set1(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v};
}
inline VF vf_zero() {
    return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline VF vf_load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline __m256i lanes_below(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline VF vf_load_n(const float* p, size_t n) {
    const int k = static_cast<int>(n);
    if (k >= 16) return vf_load(p);
    return {_mm256_maskload_ps(p, lanes_below(k)),
            k > 8 ? _mm256_maskload_ps(p + 8, lanes_below(k - 8)) : _mm256_setzero_ps()};
}
inline void vf_store(float* p, VF x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline void vf_store_n(float* p, VF x, size_t n) {
    const int k = static_cast<int>(n);
    if (k >= 16) return vf_store(p, x);
    _mm256_maskstore_ps(p, lanes_below(k), x.a);
    if (k > 8) _mm256_maskstore_ps(p + 8, lanes_below(k - 8), x.b);
}
inline VF vf_add(VF x, VF y) {
    return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline VF vf_sub(VF x, VF y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
inline VF vf_mul(VF x, VF y) {
    return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
inline VF vf_div(VF x, VF y) {
    return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
inline VF vf_fma(VF x, VF y, VF z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline VF vf_max(VF x, VF y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
inline VF vf_min(VF x, VF y) {
    return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
inline VF vf_abs(VF x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline VF vf_first_n(VF x, VF other, size_t n) {
    const int k = static_cast<int>(n);
    return {_mm256_blendv_ps(other.a, x.a, _mm256_castsi256_ps(lanes_below(k))),
            _mm256_blendv_ps(other.b, x.b, _mm256_castsi256_ps(lanes_below(k - 8)))};
}
inline float sum4(__m128 v) {
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
}
inline float vf_sum(VF x) {
    const __m256 v = _mm256_add_ps(x.a, x.b);
    return sum4(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
}
inline float vf_top(VF x) {
    const __m256 v = _mm256_max_ps(x.a, x.b);
    __m128 w = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    w = _mm_max_ps(w, _mm_movehl_ps(w, w));
    return _mm_cvtss_f32(_mm_max_ss(w, _mm_shuffle_ps(w, w, 1)));
}
inline VF vf_round(VF x) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
inline __m256 scale2(__m256 x, __m256 n) {
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
}
/// a · 2^n for whole n in -126 … 127.
inline VF vf_scale2(VF x, VF n) {
    return {scale2(x.a, n.a), scale2(x.b, n.b)};
}
inline __m128i load16(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256i load32(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline VF vf_from_f16(const std::byte* p) {
    return {_mm256_cvtph_ps(load16(p)), _mm256_cvtph_ps(load16(p + 16))};
}
inline __m256 widen_bf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
inline VF vf_from_bf16_n(const std::byte* p, size_t n) {
    if (n >= 16) return {widen_bf16(load16(p)), widen_bf16(load16(p + 16))};
    alignas(32) std::byte tmp[32] = {};
    __builtin_memcpy(tmp, p, 2 * n);
    return {widen_bf16(load16(tmp)), widen_bf16(load16(tmp + 16))};
}
/// The even and odd elements of n pairs of bf16.
inline void vf_from_pairs_n(const std::byte* p, size_t n, VF& even, VF& odd) {
    __m256i x, y;
    if (n >= 16) {
        x = load32(p);
        y = load32(p + 32);
    } else {
        alignas(32) std::byte tmp[64] = {};
        __builtin_memcpy(tmp, p, 4 * n);
        x = load32(tmp);
        y = load32(tmp + 32);
    }
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(y, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(x, high)),
           _mm256_castsi256_ps(_mm256_and_si256(y, high))};
}

inline VI vi_zero() {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
inline VF vi_to_f32(VI x) {
    return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
inline VB vb_load(const std::byte* p) {
    return {load32(p), load32(p + 32)};
}
inline VB vb_low4(VB x) {
    const __m256i m = _mm256_set1_epi8(15);
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
inline VB vb_high4(VB x) {
    return vb_low4({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)});
}
/// a | (((h >> shift) or (h << -shift)) & mask), byte by byte.
template <int shift>
inline VB vb_or_bits(VB x, VB h, uint8_t mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    if constexpr (shift >= 0) {
        h = {_mm256_srli_epi16(h.a, shift), _mm256_srli_epi16(h.b, shift)};
    } else {
        h = {_mm256_slli_epi16(h.a, -shift), _mm256_slli_epi16(h.b, -shift)};
    }
    return {_mm256_or_si256(x.a, _mm256_and_si256(h.a, m)),
            _mm256_or_si256(x.b, _mm256_and_si256(h.b, m))};
}
inline __m256i broadcast4(const int8_t* a) {
    int32_t v;
    __builtin_memcpy(&v, a, 4);
    return _mm256_set1_epi32(v);
}
/// w ≤ 63, so that two products fit 16 bits.
inline VI vi_dot(VI acc, VB w, const int8_t* a) {
    const __m256i v = broadcast4(a), one = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(_mm256_maddubs_epi16(w.a, v), one)),
            _mm256_add_epi32(acc.b, _mm256_madd_epi16(_mm256_maddubs_epi16(w.b, v), one))};
}
inline VI vi_dot_i8(VI acc, VB w, const int8_t* a) {
    const __m256i v = broadcast4(a), one = _mm256_set1_epi16(1);
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
    const __m256i x = _mm256_xor_si256(w.a, flip), y = _mm256_xor_si256(w.b, flip);
    const __m256i px = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(v, x));
    const __m256i py = _mm256_maddubs_epi16(_mm256_abs_epi8(y), _mm256_sign_epi8(v, y));
    return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(px, one)),
            _mm256_add_epi32(acc.b, _mm256_madd_epi16(py, one))};
}
/// Rounds to nearest even and stores as int8; the values are within ±127 (NaN becomes -127).
inline int32_t vf_store_i8(int8_t* p, VF x) {
    x = vf_min(vf_max(x, vf_set1(-127.0f)), vf_set1(127.0f));
    const __m256i i0 = _mm256_cvtps_epi32(x.a), i1 = _mm256_cvtps_epi32(x.b);
    const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(i0, i1), 0xd8);
    const __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), b);
    const __m256i s = _mm256_add_epi32(i0, i1);
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    return _mm_cvtsi128_si32(t);
}
inline void vf_store_bf16_n(uint16_t* p, VF x, size_t n) {
    alignas(32) uint32_t tmp[16];
    _mm256_store_ps(reinterpret_cast<float*>(tmp), x.a);
    _mm256_store_ps(reinterpret_cast<float*>(tmp + 8), x.b);
    for (size_t i = 0; i < n; ++i) {
        const uint32_t u = tmp[i];
        const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
        p[i] =
            static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
}
