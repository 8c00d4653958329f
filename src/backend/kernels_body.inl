// The kernels, written once over the 16-lane vectors of vec_*.inl. Included inside a namespace of
// one translation unit per instruction set. Nothing here may depend on how many rows or groups a
// call covers: each output element has one chain of operations, in column order (the numerics
// contract of backend.hpp).

// Register tiles are arrays over template sizes; they stay in registers only when these loops are
// unrolled.
#define BATON_UNROLL _Pragma("GCC unroll 16")

inline size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

// ---- weight formats
// ------------------------------------------------------------------------------------------------

struct IntBlock {
    VB q[8];
    VF d0, d1, m;
};

template <Packed kind>
struct IntFormat {
    static constexpr bool kMin = kind == Packed::kI4M || kind == Packed::kI5M;
    static constexpr bool kHalves = kind == Packed::kI6;
    static constexpr bool kBytes = kind == Packed::kI8;
    static constexpr size_t kScaleBytes = kMin || kHalves ? 64 : 32;
    static constexpr size_t kHighBytes =
        kind == Packed::kI5 || kind == Packed::kI5M ? 64 : (kHalves ? 128 : 0);
    static constexpr size_t kBlockBytes = kScaleBytes + (kBytes ? 512 : 256) + kHighBytes;
    static constexpr float kOffset =
        kBytes ? 128.0f : (kHalves ? 32.0f : (kHighBytes ? 16.0f : 8.0f));
    /// The zero point needs a term of its own: always, except where the dot product already took it
    /// off.
    static constexpr bool kOffsetTerm = !(kBytes && kSignedI8);
};

template <Packed kind, int j>
inline void unpack_high(IntBlock& b, VB h0, VB h1) {
    if constexpr (kind == Packed::kI5 || kind == Packed::kI5M) {
        b.q[j] = vb_or_bits<j - 4>(b.q[j], h0, 0x10);
    } else {
        b.q[j] = vb_or_bits<2 * (j % 4) - 4>(b.q[j], j < 4 ? h0 : h1, 0x30);
    }
    if constexpr (j < 7) unpack_high<kind, j + 1>(b, h0, h1);
}

template <Packed kind>
inline IntBlock load_block(const std::byte* p) {
    using F = IntFormat<kind>;
    IntBlock b;
    b.d0 = vf_from_f16(p);
    b.d1 = b.m = b.d0;
    if constexpr (F::kHalves) b.d1 = vf_from_f16(p + 32);
    if constexpr (F::kMin) b.m = vf_from_f16(p + 32);
    if constexpr (!F::kMin && !F::kHalves) b.m = vf_mul(b.d0, vf_set1(-F::kOffset));
    p += F::kScaleBytes;
    if constexpr (F::kBytes) {
        BATON_UNROLL
        for (int j = 0; j < 8; ++j) b.q[j] = vb_load(p + 64 * j);
    } else {
        BATON_UNROLL
        for (int j = 0; j < 4; ++j) {
            const VB v = vb_load(p + 64 * j);
            b.q[j] = vb_low4(v);
            b.q[j + 4] = vb_high4(v);
        }
        if constexpr (F::kHighBytes != 0) {
            const VB h0 = vb_load(p + 256);
            unpack_high<kind, 0>(b, h0, F::kHalves ? vb_load(p + 256 + F::kHighBytes - 64) : h0);
        }
    }
    return b;
}

/// acc += block · (one row's 32 activations q with scales s).
template <Packed kind>
inline VF fold_block(const IntBlock& b, const int8_t* q, const float* s, VF acc) {
    using F = IntFormat<kind>;
    VI low = vi_zero();
    if constexpr (F::kHalves) {
        VI high = vi_zero();
        BATON_UNROLL
        for (int j = 0; j < 4; ++j) {
            low = vi_dot(low, b.q[j], q + 4 * j);
            high = vi_dot(high, b.q[j + 4], q + 16 + 4 * j);
        }
        const VF off = vf_set1(-F::kOffset);
        acc = vf_fma(vf_fma(off, vf_set1(s[2]), vf_mul(vi_to_f32(low), vf_set1(s[0]))), b.d0, acc);
        acc = vf_fma(vf_fma(off, vf_set1(s[3]), vf_mul(vi_to_f32(high), vf_set1(s[0]))), b.d1, acc);
        return acc;
    } else {
        BATON_UNROLL
        for (int j = 0; j < 8; ++j) {
            low = F::kBytes ? vi_dot_i8(low, b.q[j], q + 4 * j) : vi_dot(low, b.q[j], q + 4 * j);
        }
        acc = vf_fma(vi_to_f32(low), vf_mul(b.d0, vf_set1(s[0])), acc);
        if constexpr (F::kOffsetTerm) acc = vf_fma(b.m, vf_set1(s[1]), acc);
        return acc;
    }
}

// ---- matrix products
// -----------------------------------------------------------------------------------------------

inline void write_out(const OutView& out, size_t row, size_t n0, size_t n, VF v) {
    if (out.bias != nullptr) v = vf_add(v, vf_load_n(out.bias + n0, n));
    float* p = out.data + (row - out.row0) * out.ld + (n0 - out.col0);
    if (out.add) v = vf_add(vf_load_n(p, n), v);
    vf_store_n(p, v, n);
}

/// Rows m … m + M - 1, which are of one panel.
template <Packed kind, size_t M>
void int_tile(const PackedView& w, size_t g, const ActView& a, size_t m, const OutView& out) {
    const std::byte* p = w.data + g * w.group_bytes;
    const size_t blocks = w.cols / kBlockCols;
    const size_t panel = m / kPanelRows * blocks, lane = m % kPanelRows;
    const int8_t* q = a.q + panel * kPanelBlockBytes + lane * kBlockCols;
    const float* s = a.meta + panel * kPanelBlockMeta + lane * 4;
    VF acc[M];
    BATON_UNROLL
    for (size_t i = 0; i < M; ++i) acc[i] = vf_zero();
    for (size_t b = 0; b < blocks; ++b) {
        if constexpr (M == 1) {
            for (size_t x = 0; x < IntFormat<kind>::kBlockBytes; x += 64)
                __builtin_prefetch(p + 2560 + x);
        }
        const IntBlock block = load_block<kind>(p);
        p += IntFormat<kind>::kBlockBytes;
        BATON_UNROLL
        for (size_t i = 0; i < M; ++i)
            acc[i] = fold_block<kind>(block, q + i * kBlockCols, s + i * 4, acc[i]);
        q += kPanelBlockBytes;
        s += kPanelBlockMeta;
    }
    const size_t n0 = g * kGroupRows;
    BATON_UNROLL
    for (size_t i = 0; i < M; ++i)
        write_out(out, m + i, n0, least(kGroupRows, w.rows - n0), acc[i]);
}

/// Columns a step of a float kernel takes.
template <Packed kind>
constexpr size_t float_step() {
    return kind == Packed::kBF16 ? 2 : 1;
}

template <Packed kind, size_t M, size_t G>
void float_tile(const PackedView& w, size_t g, const ActView& a, size_t m, const OutView& out) {
    constexpr size_t kVecBytes = kind == Packed::kF16 ? 32 : 64;
    const std::byte* p[G];
    BATON_UNROLL
    for (size_t j = 0; j < G; ++j) p[j] = w.data + (g + j) * w.group_bytes;
    VF acc[M][G];
    BATON_UNROLL
    for (size_t i = 0; i < M; ++i) BATON_UNROLL
    for (size_t j = 0; j < G; ++j) acc[i][j] = vf_zero();
    const size_t steps = w.cols / float_step<kind>();
    const float* f = a.f32 + m * a.cols;
#ifdef __AVX512BF16__
    const uint16_t* h = a.bf16 + m * a.cols;
#endif
    for (size_t k = 0; k < steps; ++k) {
        BATON_UNROLL
        for (size_t j = 0; j < G; ++j) {
            const std::byte* at = p[j] + k * kVecBytes;
            if constexpr (M == 1) __builtin_prefetch(at + 1024);
            if constexpr (kind == Packed::kBF16 && kHasBf16Dot) {
#ifdef __AVX512BF16__
                const __m512i v = _mm512_loadu_si512(at);
                BATON_UNROLL
                for (size_t i = 0; i < M; ++i) {
                    uint32_t pair;
                    __builtin_memcpy(&pair, h + i * a.cols + 2 * k, 4);
                    acc[i][j] = vf_dot_bf16(acc[i][j], v, pair);
                }
#endif
            } else if constexpr (kind == Packed::kBF16) {
                VF even, odd;
                vf_from_pairs_n(at, 16, even, odd);
                BATON_UNROLL
                for (size_t i = 0; i < M; ++i) {
                    acc[i][j] = vf_fma(even, vf_set1(f[i * a.cols + 2 * k]), acc[i][j]);
                    acc[i][j] = vf_fma(odd, vf_set1(f[i * a.cols + 2 * k + 1]), acc[i][j]);
                }
            } else {
                VF v;
                if constexpr (kind == Packed::kF16)
                    v = vf_from_f16(at);
                else
                    v = vf_load(reinterpret_cast<const float*>(at));
                BATON_UNROLL
                for (size_t i = 0; i < M; ++i)
                    acc[i][j] = vf_fma(v, vf_set1(f[i * a.cols + k]), acc[i][j]);
            }
        }
    }
    BATON_UNROLL
    for (size_t j = 0; j < G; ++j) {
        const size_t n0 = (g + j) * kGroupRows;
        BATON_UNROLL
        for (size_t i = 0; i < M; ++i)
            write_out(out, m + i, n0, least(kGroupRows, w.rows - n0), acc[i][j]);
    }
}

template <Packed kind>
void int_gemm(const PackedView& w, size_t g0, size_t g1, const ActView& a, size_t m0, size_t m1,
              const OutView& out) {
    for (size_t g = g0; g < g1; ++g) {
        size_t m = m0;
        for (; m + kIntRows <= m1; m += kIntRows) int_tile<kind, kIntRows>(w, g, a, m, out);
        if constexpr (kIntRows > 8)
            for (; m + 8 <= m1; m += 8) int_tile<kind, 8>(w, g, a, m, out);
        if constexpr (kIntRows > 4)
            for (; m + 4 <= m1; m += 4) int_tile<kind, 4>(w, g, a, m, out);
        if constexpr (kIntRows > 2)
            for (; m + 2 <= m1; m += 2) int_tile<kind, 2>(w, g, a, m, out);
        for (; m < m1; ++m) int_tile<kind, 1>(w, g, a, m, out);
    }
}

template <Packed kind>
void float_gemm(const PackedView& w, size_t g0, size_t g1, const ActView& a, size_t m0, size_t m1,
                const OutView& out) {
    constexpr size_t kWide = kFloatGroups;
    size_t g = g0;
    while (g < g1) {
        const bool wide = kWide > 1 && g + kWide <= g1;
        size_t m = m0;
        if (wide) {
            for (; m + kFloatRows <= m1; m += kFloatRows)
                float_tile<kind, kFloatRows, kWide>(w, g, a, m, out);
            if constexpr (kFloatRows > 2)
                for (; m + 2 <= m1; m += 2) float_tile<kind, 2, kWide>(w, g, a, m, out);
            for (; m < m1; ++m) float_tile<kind, 1, kWide>(w, g, a, m, out);
            g += kWide;
        } else {
            for (; m + kFloatRows <= m1; m += kFloatRows)
                float_tile<kind, kFloatRows, 1>(w, g, a, m, out);
            for (; m < m1; ++m) float_tile<kind, 1, 1>(w, g, a, m, out);
            ++g;
        }
    }
}

void gemm(const PackedView& w, size_t g0, size_t g1, const ActView& a, size_t m0, size_t m1,
          const OutView& out) {
    switch (w.kind) {
        case Packed::kI4:
            return int_gemm<Packed::kI4>(w, g0, g1, a, m0, m1, out);
        case Packed::kI4M:
            return int_gemm<Packed::kI4M>(w, g0, g1, a, m0, m1, out);
        case Packed::kI5:
            return int_gemm<Packed::kI5>(w, g0, g1, a, m0, m1, out);
        case Packed::kI5M:
            return int_gemm<Packed::kI5M>(w, g0, g1, a, m0, m1, out);
        case Packed::kI6:
            return int_gemm<Packed::kI6>(w, g0, g1, a, m0, m1, out);
        case Packed::kI8:
            return int_gemm<Packed::kI8>(w, g0, g1, a, m0, m1, out);
        case Packed::kBF16:
            return float_gemm<Packed::kBF16>(w, g0, g1, a, m0, m1, out);
        case Packed::kF16:
            return float_gemm<Packed::kF16>(w, g0, g1, a, m0, m1, out);
        case Packed::kF32:
            return float_gemm<Packed::kF32>(w, g0, g1, a, m0, m1, out);
    }
}

ActKind act_kind(Packed kind) {
    if (kind < Packed::kBF16) return ActKind::kInt8;
    return kind == Packed::kBF16 && kHasBf16Dot ? ActKind::kBF16 : ActKind::kF32;
}

// ---- rows
// ----------------------------------------------------------------------------------------------------------

void quantize_row(const float* in, size_t n, int8_t* q, float* meta) {
    for (size_t b = 0; b < n / kBlockCols;
         ++b, in += 32, q += kPanelBlockBytes, meta += kPanelBlockMeta) {
        const VF x0 = vf_load(in), x1 = vf_load(in + 16);
        const float top = vf_top(vf_max(vf_abs(x0), vf_abs(x1)));
        const float s = top * (1.0f / 127.0f);
        // 127 / top overflows for a denormal top; such a block counts as zero.
        const VF inverse = vf_set1(s > 1e-37f ? 127.0f / top : 0.0f);
        const int32_t sum0 = vf_store_i8(q, vf_mul(x0, inverse));
        const int32_t sum1 = vf_store_i8(q + 16, vf_mul(x1, inverse));
        meta[0] = s;
        meta[1] = s * static_cast<float>(sum0 + sum1);
        meta[2] = s * static_cast<float>(sum0);
        meta[3] = s * static_cast<float>(sum1);
    }
}

void bf16_row(const float* in, size_t n, uint16_t* out) {
    for (size_t i = 0; i < n; i += 16) {
        const size_t k = least(16, n - i);
        vf_store_bf16_n(out + i, vf_load_n(in + i, k), k);
    }
}

void rms_norm(const float* in, const float* weight, float* out, size_t n, float eps) {
    VF sum = vf_zero();
    for (size_t i = 0; i < n; i += 16) {
        const VF x = vf_load_n(in + i, least(16, n - i));
        sum = vf_fma(x, x, sum);
    }
    const float mean = vf_sum(sum) / static_cast<float>(n);
    const VF scale = vf_set1(1.0f / __builtin_sqrtf(mean + eps));
    for (size_t i = 0; i < n; i += 16) {
        const size_t k = least(16, n - i);
        vf_store_n(out + i, vf_mul(vf_mul(vf_load_n(in + i, k), scale), vf_load_n(weight + i, k)),
                   k);
    }
}

void rope(float* head, const float* cos, const float* sin, size_t half) {
    for (size_t i = 0; i < half; i += 16) {
        const size_t k = least(16, half - i);
        const VF x = vf_load_n(head + i, k), y = vf_load_n(head + half + i, k);
        const VF c = vf_load_n(cos + i, k), s = vf_load_n(sin + i, k);
        vf_store_n(head + i, vf_sub(vf_mul(x, c), vf_mul(y, s)), k);
        vf_store_n(head + half + i, vf_add(vf_mul(y, c), vf_mul(x, s)), k);
    }
}

/// e^x within 2 ulp for x in -87 … 88; outside, the value at the nearer end.
inline VF vf_exp(VF x) {
    x = vf_min(vf_max(x, vf_set1(-87.0f)), vf_set1(88.0f));
    const VF n = vf_round(vf_mul(x, vf_set1(1.44269504088896341f)));
    VF r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    VF p = vf_set1(1.0f / 720.0f);
    p = vf_fma(p, r, vf_set1(1.0f / 120.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 24.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 6.0f));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale2(p, n);
}
inline float exp1(float x) {
    float out[16];
    vf_store(out, vf_exp(vf_set1(x)));
    return out[0];
}

void swiglu(const float* gate, const float* up, float* out, size_t n) {
    const VF one = vf_set1(1.0f);
    for (size_t i = 0; i < n; i += 16) {
        const size_t k = least(16, n - i);
        const VF g = vf_load_n(gate + i, k);
        const VF silu = vf_div(g, vf_add(one, vf_exp(vf_sub(vf_zero(), g))));
        vf_store_n(out + i, vf_mul(silu, vf_load_n(up + i, k)), k);
    }
}
