// 16-lane vectors in plain C++. Included inside a namespace of one translation unit.

constexpr bool kHasBf16Dot = false;
constexpr bool kSignedI8 = true;  // vi_dot_i8 subtracts the offset of kI8 itself
constexpr size_t kIntRows = 4;
constexpr size_t kFloatRows = 2;
constexpr size_t kFloatGroups = 1;

struct VF {
    float v[16];
};
struct VI {
    int32_t v[16];
};
struct VB {
    uint8_t v[64];
};

#define BATON_LANES for (int i = 0; i < 16; ++i)
inline VF vf_set1(float x) {
    VF r;
    BATON_LANES r.v[i] = x;
    return r;
}
inline VF vf_zero() {
    return vf_set1(0.0f);
}
inline VF vf_load(const float* p) {
    VF r;
    BATON_LANES r.v[i] = p[i];
    return r;
}
inline VF vf_load_n(const float* p, size_t n) {
    VF r = vf_zero();
    for (size_t i = 0; i < n; ++i) r.v[i] = p[i];
    return r;
}
inline void vf_store(float* p, VF a) {
    BATON_LANES p[i] = a.v[i];
}
inline void vf_store_n(float* p, VF a, size_t n) {
    for (size_t i = 0; i < n; ++i) p[i] = a.v[i];
}
inline VF vf_add(VF a, VF b) {
    BATON_LANES a.v[i] += b.v[i];
    return a;
}
inline VF vf_sub(VF a, VF b) {
    BATON_LANES a.v[i] -= b.v[i];
    return a;
}
inline VF vf_mul(VF a, VF b) {
    BATON_LANES a.v[i] *= b.v[i];
    return a;
}
inline VF vf_div(VF a, VF b) {
    BATON_LANES a.v[i] /= b.v[i];
    return a;
}
inline VF vf_fma(VF a, VF b, VF c) {
    BATON_LANES c.v[i] += a.v[i] * b.v[i];
    return c;
}
inline VF vf_max(VF a, VF b) {
    BATON_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
inline VF vf_min(VF a, VF b) {
    BATON_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}
inline VF vf_abs(VF a) {
    BATON_LANES a.v[i] = __builtin_fabsf(a.v[i]);
    return a;
}
inline VF vf_first_n(VF a, VF other, size_t n) {
    for (size_t i = n; i < 16; ++i) a.v[i] = other.v[i];
    return a;
}
inline float vf_sum(VF a) {
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; ++i) a.v[i] += a.v[i + w];
    return a.v[0];
}
inline float vf_top(VF a) {
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; ++i) a.v[i] = a.v[i] > a.v[i + w] ? a.v[i] : a.v[i + w];
    return a.v[0];
}
inline float round_even(float x) {  // |x| < 2^22
    const float magic = 12582912.0f;
    const volatile float y = x + magic;
    return y - magic;
}
inline VF vf_round(VF a) {
    BATON_LANES a.v[i] = round_even(a.v[i]);
    return a;
}
/// a · 2^n for whole n in -126 … 127.
inline VF vf_scale2(VF a, VF n) {
    BATON_LANES {
        const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23;
        float s;
        __builtin_memcpy(&s, &bits, 4);
        a.v[i] *= s;
    }
    return a;
}
inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t mag = h & 0x7fffu;
    uint32_t bits = mag << 13;
    if (mag >= 0x7c00u) {
        bits += 0x70000000u;
    } else if (mag >= 0x0400u) {
        bits += 0x38000000u;
    } else {  // zero and subnormal: mag · 2^-24 is exact
        const float f = static_cast<float>(mag) * 5.9604644775390625e-8f;
        __builtin_memcpy(&bits, &f, 4);
    }
    bits |= sign;
    float out;
    __builtin_memcpy(&out, &bits, 4);
    return out;
}
inline float bf16_bits(uint32_t high) {
    float f;
    __builtin_memcpy(&f, &high, 4);
    return f;
}
inline VF vf_from_f16(const std::byte* p) {
    VF r;
    BATON_LANES {
        uint16_t h;
        __builtin_memcpy(&h, p + 2 * i, 2);
        r.v[i] = half_to_float(h);
    }
    return r;
}
inline VF vf_from_bf16_n(const std::byte* p, size_t n) {
    VF r = vf_zero();
    for (size_t i = 0; i < n; ++i) {
        uint16_t h;
        __builtin_memcpy(&h, p + 2 * i, 2);
        r.v[i] = bf16_bits(static_cast<uint32_t>(h) << 16);
    }
    return r;
}
/// The even and odd elements of n pairs of bf16.
inline void vf_from_pairs_n(const std::byte* p, size_t n, VF& even, VF& odd) {
    even = odd = vf_zero();
    for (size_t i = 0; i < n; ++i) {
        uint32_t u;
        __builtin_memcpy(&u, p + 4 * i, 4);
        even.v[i] = bf16_bits(u << 16);
        odd.v[i] = bf16_bits(u & 0xffff0000u);
    }
}

inline VI vi_zero() {
    VI r;
    BATON_LANES r.v[i] = 0;
    return r;
}
inline VF vi_to_f32(VI a) {
    VF r;
    BATON_LANES r.v[i] = static_cast<float>(a.v[i]);
    return r;
}
inline VB vb_load(const std::byte* p) {
    VB r;
    __builtin_memcpy(r.v, p, 64);
    return r;
}
inline VB vb_low4(VB a) {
    for (auto& x : a.v) x = x & 15u;
    return a;
}
inline VB vb_high4(VB a) {
    for (auto& x : a.v) x = static_cast<uint8_t>(x >> 4);
    return a;
}
/// a | (((h >> shift) or (h << -shift)) & mask), byte by byte.
template <int shift>
inline VB vb_or_bits(VB a, VB h, uint8_t mask) {
    for (int i = 0; i < 64; ++i) {
        const int s =
            shift >= 0 ? h.v[i] >> (shift >= 0 ? shift : 0) : h.v[i] << (shift < 0 ? -shift : 0);
        a.v[i] = static_cast<uint8_t>(a.v[i] | (s & mask));
    }
    return a;
}
inline VI vi_dot(VI acc, VB w, const int8_t* a) {
    BATON_LANES {
        int32_t s = acc.v[i];
        for (int j = 0; j < 4; ++j) s += static_cast<int32_t>(w.v[4 * i + j]) * a[j];
        acc.v[i] = s;
    }
    return acc;
}
inline VI vi_dot_i8(VI acc, VB w, const int8_t* a) {
    BATON_LANES {
        int32_t s = acc.v[i];
        for (int j = 0; j < 4; ++j) s += (static_cast<int32_t>(w.v[4 * i + j]) - 128) * a[j];
        acc.v[i] = s;
    }
    return acc;
}
/// Rounds to nearest even and stores as int8; the values are within ±127 (NaN becomes -127).
inline int32_t vf_store_i8(int8_t* p, VF a) {
    int32_t sum = 0;
    BATON_LANES {
        float x = a.v[i] > -127.0f ? a.v[i] : -127.0f;
        x = x < 127.0f ? x : 127.0f;
        p[i] = static_cast<int8_t>(round_even(x));
        sum += p[i];
    }
    return sum;
}
inline void vf_store_bf16_n(uint16_t* p, VF a, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        uint32_t u;
        __builtin_memcpy(&u, &a.v[i], 4);
        const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
        p[i] =
            static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
}
#undef BATON_LANES
