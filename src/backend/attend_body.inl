// Attention over tiles of tokens, written once over the 16-lane vectors. Included after
// kernels_body.inl. A row's operations are in token order inside a tile and do not depend on the
// other rows of the call.

constexpr size_t kScoreRows = 4;

/// s[r][u] = q[r] · K of unit u, for R rows and U units at once.
template <bool kF32, size_t R, size_t U>
void score_rows(const AttnRows& a, const AttnTile& t, size_t r0, size_t u0) {
    VF s[R][U];
    BATON_UNROLL
    for (size_t r = 0; r < R; ++r) BATON_UNROLL
    for (size_t u = 0; u < U; ++u) s[r][u] = vf_zero();
    const size_t hd = a.head_dim;
    const float* q = a.q + r0 * hd;
    for (size_t d = 0; d < hd; d += 2) {
        BATON_UNROLL
        for (size_t u = 0; u < U; ++u) {
            const size_t cap = t.capacity[u0 + u];
            if constexpr (kF32) {
                const float* k = reinterpret_cast<const float*>(t.k[u0 + u]) + d * cap;
                const VF even = vf_load_n(k, cap), odd = vf_load_n(k + cap, cap);
                BATON_UNROLL
                for (size_t r = 0; r < R; ++r) {
                    s[r][u] = vf_fma(even, vf_set1(q[r * hd + d]), s[r][u]);
                    s[r][u] = vf_fma(odd, vf_set1(q[r * hd + d + 1]), s[r][u]);
                }
            } else if constexpr (kHasBf16Dot) {
#ifdef __AVX512BF16__
                const __m512i k = _mm512_maskz_loadu_epi32(mask_n(cap), t.k[u0 + u] + 2 * d * cap);
                BATON_UNROLL
                for (size_t r = 0; r < R; ++r) {
                    uint32_t pair;
                    __builtin_memcpy(&pair, a.q16 + (r0 + r) * a.acc_ld + d, 4);
                    s[r][u] = vf_dot_bf16(s[r][u], k, pair);
                }
#endif
            } else {
                VF even, odd;
                vf_from_pairs_n(t.k[u0 + u] + 2 * d * cap, cap, even, odd);
                BATON_UNROLL
                for (size_t r = 0; r < R; ++r) {
                    s[r][u] = vf_fma(even, vf_set1(q[r * hd + d]), s[r][u]);
                    s[r][u] = vf_fma(odd, vf_set1(q[r * hd + d + 1]), s[r][u]);
                }
            }
        }
    }
    BATON_UNROLL
    for (size_t r = 0; r < R; ++r) BATON_UNROLL
    for (size_t u = 0; u < U; ++u)
        vf_store(a.p + (r0 + r) * kTileTokens + (u0 + u) * kUnitTokens, s[r][u]);
}

template <bool kF32, size_t R>
void score_tile(const AttnRows& a, const AttnTile& t, size_t r0) {
    if (t.units == kTileUnits && kHasBf16Dot) {
        score_rows<kF32, R, kTileUnits>(a, t, r0, 0);
    } else {
        for (size_t u = 0; u < t.units; ++u) score_rows<kF32, R, 1>(a, t, r0, u);
    }
}

/// How many tokens of unit u row r sees.
inline size_t seen(const AttnRows& a, const AttnTile& t, size_t r, size_t u) {
    return a.visible[r] > t.start[u] ? least(a.visible[r] - t.start[u], t.capacity[u]) : 0;
}

/// Scores of row r become weights e^(s - m); m and l advance. Returns the factor for what acc
/// holds.
inline float soften(const AttnRows& a, const AttnTile& t, size_t r) {
    float* p = a.p + r * kTileTokens;
    const VF scale = vf_set1(a.scale), none = vf_set1(-__builtin_inff());
    VF s[kTileUnits];
    VF top = none;
    for (size_t u = 0; u < t.units; ++u) {
        s[u] = vf_first_n(vf_mul(vf_load(p + u * kUnitTokens), scale), none, seen(a, t, r, u));
        top = vf_max(top, s[u]);
    }
    const float tile_top = vf_top(top);
    const float m = tile_top > a.m[r] ? tile_top : a.m[r];
    const float keep = exp1(a.m[r] - m);
    const VF mv = vf_set1(m);
    VF sum = vf_zero();
    for (size_t u = 0; u < t.units; ++u) {
        const VF e = vf_first_n(vf_exp(vf_sub(s[u], mv)), vf_zero(), seen(a, t, r, u));
        sum = vf_add(sum, e);
        vf_store(p + u * kUnitTokens, e);
    }
    a.l[r] = a.l[r] * keep + vf_sum(sum);
    a.m[r] = m;
    return keep;
}

#ifdef __AVX512BF16__
/// Weights of row r as bf16 pairs, in place: 32 numbers of 16 bits a unit pair lie at the row's
/// start.
inline void pack_weights(const AttnRows& a, const AttnTile& t, size_t r) {
    float* p = a.p + r * kTileTokens;
    for (size_t u = 0; u < t.units; ++u) {
        const VF e = vf_load(p + u * kUnitTokens);
        vf_store_bf16_n(reinterpret_cast<uint16_t*>(p) + u * kUnitTokens, e, 16);
    }
}

/// acc[r][d0 … d0 + 32·C) += Σ p·V by pairs of tokens. A column chunk of 32 is held as the two
/// halves that unpacking two rows of V gives; attend_finish puts them in order.
template <size_t R, size_t C>
void value_rows(const AttnRows& a, const AttnTile& t, size_t r0, size_t d0, const float* keep) {
    VF acc[R][2 * C];
    BATON_UNROLL
    for (size_t r = 0; r < R; ++r) BATON_UNROLL
    for (size_t c = 0; c < 2 * C; ++c)
        acc[r][c] = vf_mul(vf_load(a.acc + (r0 + r) * a.acc_ld + d0 + 16 * c), vf_set1(keep[r]));
    const size_t hd = a.head_dim;
    const size_t width = least(32 * C, hd - d0);
    const __mmask32 last =
        static_cast<__mmask32>(width % 32 == 0 ? ~0u : (1u << (width % 32)) - 1u);
    for (size_t u = 0; u < t.units; ++u) {
        for (size_t i = 0; i < t.valid[u]; i += 2) {
            const std::byte* v = t.v[u] + 2 * (i * hd + d0);
            const bool two = i + 1 < t.valid[u];
            __m512i low[C], high[C];
            BATON_UNROLL
            for (size_t c = 0; c < C; ++c) {
                const __mmask32 mask = c + 1 == C ? last : ~__mmask32{0};
                const __m512i x = _mm512_maskz_loadu_epi16(mask, v + 64 * c);
                const __m512i y = _mm512_maskz_loadu_epi16(two ? mask : 0, v + 64 * c + 2 * hd);
                low[c] = _mm512_unpacklo_epi16(x, y);
                high[c] = _mm512_unpackhi_epi16(x, y);
            }
            BATON_UNROLL
            for (size_t r = 0; r < R; ++r) {
                uint32_t pair;
                __builtin_memcpy(&pair,
                                 reinterpret_cast<const uint16_t*>(a.p + (r0 + r) * kTileTokens) +
                                     u * kUnitTokens + i,
                                 4);
                BATON_UNROLL
                for (size_t c = 0; c < C; ++c) {
                    acc[r][2 * c] = vf_dot_bf16(acc[r][2 * c], low[c], pair);
                    acc[r][2 * c + 1] = vf_dot_bf16(acc[r][2 * c + 1], high[c], pair);
                }
            }
        }
    }
    BATON_UNROLL
    for (size_t r = 0; r < R; ++r) BATON_UNROLL
    for (size_t c = 0; c < 2 * C; ++c)
        vf_store(a.acc + (r0 + r) * a.acc_ld + d0 + 16 * c, acc[r][c]);
}

template <size_t R>
void value_tile_pairs(const AttnRows& a, const AttnTile& t, size_t r0, const float* keep) {
    size_t d = 0;
    for (; d + 64 <= a.head_dim; d += 64) value_rows<R, 2>(a, t, r0, d, keep);
    for (; d < a.head_dim; d += 32) value_rows<R, 1>(a, t, r0, d, keep);
}
#endif

/// acc[r][d … d + 16) += Σ p·V token by token.
template <bool kF32, size_t R>
void value_column(const AttnRows& a, const AttnTile& t, size_t r0, size_t d, const float* keep) {
    const size_t hd = a.head_dim, n = least(16, hd - d);
    VF acc[R];
    BATON_UNROLL
    for (size_t r = 0; r < R; ++r)
        acc[r] = vf_mul(vf_load(a.acc + (r0 + r) * a.acc_ld + d), vf_set1(keep[r]));
    for (size_t u = 0; u < t.units; ++u) {
        for (size_t i = 0; i < t.valid[u]; ++i) {
            VF v;
            if constexpr (kF32)
                v = vf_load_n(reinterpret_cast<const float*>(t.v[u]) + i * hd + d, n);
            else
                v = vf_from_bf16_n(t.v[u] + 2 * (i * hd + d), n);
            BATON_UNROLL
            for (size_t r = 0; r < R; ++r)
                acc[r] =
                    vf_fma(v, vf_set1(a.p[(r0 + r) * kTileTokens + u * kUnitTokens + i]), acc[r]);
        }
    }
    BATON_UNROLL
    for (size_t r = 0; r < R; ++r) vf_store(a.acc + (r0 + r) * a.acc_ld + d, acc[r]);
}

template <bool kF32, size_t R>
void attend_rows(const AttnRows& a, const AttnTile& t, size_t r0) {
    score_tile<kF32, R>(a, t, r0);
    float keep[R];
    BATON_UNROLL
    for (size_t r = 0; r < R; ++r) keep[r] = soften(a, t, r0 + r);
#ifdef __AVX512BF16__
    if constexpr (!kF32) {
        BATON_UNROLL
        for (size_t r = 0; r < R; ++r) pack_weights(a, t, r0 + r);
        value_tile_pairs<R>(a, t, r0, keep);
        return;
    }
#endif
    for (size_t d = 0; d < a.head_dim; d += 16) value_column<kF32, R>(a, t, r0, d, keep);
}

template <bool kF32>
void attend_all(const AttnRows& a, const AttnTile& t) {
    size_t r = 0;
    for (; r + kScoreRows <= a.rows; r += kScoreRows) attend_rows<kF32, kScoreRows>(a, t, r);
    if (a.rows - r == 3) attend_rows<kF32, 3>(a, t, r);
    if (a.rows - r == 2) attend_rows<kF32, 2>(a, t, r);
    if (a.rows - r == 1) attend_rows<kF32, 1>(a, t, r);
}

void attend(const AttnRows& a, const AttnTile& t) {
    a.kv_f32 ? attend_all<true>(a, t) : attend_all<false>(a, t);
}

void attend_merge(float* m, float* l, float* acc, const float* from_m, const float* from_l,
                  const float* from_acc, size_t acc_ld) {
    const float top = *from_m > *m ? *from_m : *m;
    const float a = exp1(*m - top), b = exp1(*from_m - top);
    *m = top;
    *l = *l * a + *from_l * b;
    const VF va = vf_set1(a), vb = vf_set1(b);
    for (size_t d = 0; d < acc_ld; d += 16)
        vf_store(acc + d, vf_fma(vf_load(from_acc + d), vb, vf_mul(vf_load(acc + d), va)));
}

#ifdef __AVX512BF16__
/// Pair order: of 32 columns, those with bit 2 clear lie in the first half.
void attend_finish_pairs(const float* acc, float l, float* out, size_t head_dim) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const VF lv = vf_set1(l), zero = vf_zero();
    for (size_t d = 0; d < head_dim; d += 32) {
        const VF x = vf_add(vf_div(vf_load(acc + d), lv), zero);
        const VF y = vf_add(vf_div(vf_load(acc + d + 16), lv), zero);
        vf_store_n(out + d, _mm512_permutex2var_ps(x, low, y), least(16, head_dim - d));
        if (head_dim - d > 16)
            vf_store_n(out + d + 16, _mm512_permutex2var_ps(x, high, y),
                       least(16, head_dim - d - 16));
    }
}
#endif

void attend_finish(const float* acc, float l, float* out, size_t head_dim, bool kv_f32) {
#ifdef __AVX512BF16__
    if (!kv_f32) return attend_finish_pairs(acc, l, out, head_dim);
#endif
    static_cast<void>(kv_f32);
    for (size_t d = 0; d < head_dim; d += 16) {
        const VF x = vf_add(vf_div(vf_load(acc + d), vf_set1(l)), vf_zero());
        vf_store_n(out + d, x, least(16, head_dim - d));
    }
}
