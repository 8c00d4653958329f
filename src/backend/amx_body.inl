// Matrix tiles (AMX) for many rows: int8 products whose sums are the same integers that the vector
// kernels get and are folded by the same operations, so the bits are the same; bf16 products and
// bf16 attention, which use tiles for any number of rows, one row's numbers never meeting
// another's. Included after attend_body.inl.

constexpr bool kTiles = true;

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t col_bytes[16] = {};
    uint8_t rows[16] = {};
    void set(int tile, size_t r, size_t bytes) {
        rows[tile] = static_cast<uint8_t>(r);
        col_bytes[tile] = static_cast<uint16_t>(bytes);
    }
};

// The compiler's own intrinsics do not say that they read and write memory; these do.
inline void tiles_on(const TileConfig& c) {
    __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
}
inline void tiles_off() {
    __asm__ volatile("tilerelease" ::: "memory");
}
template <int T>
inline void tile_zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
inline void tile_load(const void* p, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void tile_store(void* p, size_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
/// C += A (signed bytes) · B (unsigned bytes).
template <int C, int A, int B>
inline void tile_dot_i8() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
inline void tile_dot_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

// ---- int8 products
// -------------------------------------------------------------------------------------------------

constexpr size_t kTileBlocks = 64;  // blocks of columns unpacked at a time: 32 KiB of bytes
constexpr size_t kTilePanels = 16;  // panels of rows that use them meanwhile

struct alignas(64) Unpacked {
    uint8_t q[kTileBlocks][8][64];
    float d0[kTileBlocks][16];
    float d1[kTileBlocks][16];  ///< kI6: second scales; else the minima
};

template <Packed kind>
void unpack_blocks(const std::byte* p, size_t blocks, Unpacked& u) {
    for (size_t b = 0; b < blocks; ++b, p += IntFormat<kind>::kBlockBytes) {
        const IntBlock block = load_block<kind>(p);
        BATON_UNROLL
        for (int j = 0; j < 8; ++j) _mm512_store_si512(u.q[b][j], block.q[j]);
        vf_store(u.d0[b], block.d0);
        vf_store(u.d1[b], IntFormat<kind>::kHalves ? block.d1 : block.m);
    }
}

/// A step is one block, in kI6 half a block: the dot products of 16 rows with 16 weights over
/// columns of one scale.
template <Packed kind>
constexpr size_t steps_of_block() {
    return IntFormat<kind>::kHalves ? 2 : 1;
}

/// Tile T = the dot products of step i.
template <Packed kind, int T>
inline void step_start(const Unpacked& u, const int8_t* q, size_t i) {
    constexpr size_t kPer = steps_of_block<kind>();
    tile_zero<T>();
    tile_load<4 + T>(q + i / kPer * kPanelBlockBytes + i % kPer * 16, kBlockCols);
    tile_load<6 + T>(u.q[0][0] + i * (512 / kPer), 64);
    tile_dot_i8<T, 4 + T, 6 + T>();
}

/// What fold_block does after its dot products, for the 16 rows of step i.
template <Packed kind>
inline void step_fold(const Unpacked& u, const int32_t* dots, const float* meta, size_t i,
                      VF* acc) {
    constexpr size_t kPer = steps_of_block<kind>();
    const float* s = meta + i / kPer * kPanelBlockMeta;
    if constexpr (kPer == 2) {
        const VF d = vf_load(i % 2 == 0 ? u.d0[i / 2] : u.d1[i / 2]);
        const VF off = vf_set1(-IntFormat<kind>::kOffset);
        const float* sum = s + 2 + i % 2;
        BATON_UNROLL
        for (size_t r = 0; r < 16; ++r) {
            const VF x = vf_mul(vi_to_f32(_mm512_load_si512(dots + 16 * r)), vf_set1(s[4 * r]));
            acc[r] = vf_fma(vf_fma(off, vf_set1(sum[4 * r]), x), d, acc[r]);
        }
    } else {
        const VF d = vf_load(u.d0[i]), m = vf_load(u.d1[i]);
        BATON_UNROLL
        for (size_t r = 0; r < 16; ++r) {
            const VF x = vi_to_f32(_mm512_load_si512(dots + 16 * r));
            acc[r] = vf_fma(x, vf_mul(d, vf_set1(s[4 * r])), acc[r]);
            acc[r] = vf_fma(m, vf_set1(s[4 * r + 1]), acc[r]);
        }
    }
}

/// One panel of rows against `blocks` unpacked blocks; sums come from and go to `sums` [16][16]
/// between calls. Three steps are under way at a time, so that nothing waits for a tile: one in the
/// tile unit, one being stored, one folded.
template <Packed kind>
void tile_panel(const Unpacked& u, size_t blocks, const int8_t* q, const float* s, float* sums) {
    alignas(64) int32_t dots[2][256];
    const size_t steps = blocks * steps_of_block<kind>();
    VF acc[16];
    BATON_UNROLL
    for (size_t i = 0; i < 16; ++i) acc[i] = vf_load(sums + 16 * i);
    step_start<kind, 0>(u, q, 0);
    for (size_t i = 0; i < steps; i += 2) {
        if (i + 1 < steps) step_start<kind, 1>(u, q, i + 1);
        if (i > 0) step_fold<kind>(u, dots[1], s, i - 1, acc);
        tile_store<0>(dots[0], 64);
        if (i + 1 == steps) break;
        if (i + 2 < steps) step_start<kind, 0>(u, q, i + 2);
        step_fold<kind>(u, dots[0], s, i, acc);
        tile_store<1>(dots[1], 64);
    }
    step_fold<kind>(u, dots[(steps - 1) % 2], s, steps - 1, acc);
    BATON_UNROLL
    for (size_t i = 0; i < 16; ++i) vf_store(sums + 16 * i, acc[i]);
}

template <Packed kind>
void tile_group(const PackedView& w, size_t g, const ActView& a, size_t m, size_t panels,
                const OutView& out) {
    alignas(64) Unpacked u;
    alignas(64) float sums[kTilePanels][256];
    __builtin_memset(sums, 0, panels * sizeof(sums[0]));
    const size_t blocks = w.cols / kBlockCols, panel0 = m / kPanelRows;
    for (size_t b = 0; b < blocks; b += kTileBlocks) {
        const size_t n = least(kTileBlocks, blocks - b);
        unpack_blocks<kind>(w.data + g * w.group_bytes + b * IntFormat<kind>::kBlockBytes, n, u);
        for (size_t p = 0; p < panels; ++p) {
            const size_t at = (panel0 + p) * blocks + b;
            tile_panel<kind>(u, n, a.q + at * kPanelBlockBytes, a.meta + at * kPanelBlockMeta,
                             sums[p]);
        }
    }
    const size_t n0 = g * kGroupRows, n = least(kGroupRows, w.rows - n0);
    for (size_t p = 0; p < panels; ++p)
        for (size_t i = 0; i < kPanelRows; ++i)
            write_out(out, m + p * kPanelRows + i, n0, n, vf_load(sums[p] + 16 * i));
}

template <Packed kind>
void tile_int_gemm(const PackedView& w, size_t g0, size_t g1, const ActView& a, size_t m0,
                   size_t m1, const OutView& out) {
    size_t m = m0;
    if (m0 % kPanelRows == 0 && m1 - m0 >= kPanelRows) {
        TileConfig c;
        const size_t cols = IntFormat<kind>::kHalves ? 16 : 32;
        for (int t = 0; t < 2; ++t) c.set(t, 16, 64);
        for (int t = 4; t < 6; ++t) c.set(t, 16, cols);
        for (int t = 6; t < 8; ++t) c.set(t, cols / 4, 64);
        tiles_on(c);
        while (m1 - m >= kPanelRows) {
            const size_t panels = least(kTilePanels, (m1 - m) / kPanelRows);
            for (size_t g = g0; g < g1; ++g) tile_group<kind>(w, g, a, m, panels, out);
            m += panels * kPanelRows;
        }
        tiles_off();
    }
    if (m < m1) int_gemm<kind>(w, g0, g1, a, m, m1, out);
}

// ---- bf16 products
// -------------------------------------------------------------------------------------------------

inline TileConfig bf16_config(size_t tail_cols) {
    TileConfig c;
    for (int t = 0; t < 6; ++t) c.set(t, 16, 64);
    if (tail_cols != 0) {
        c.set(6, 16, 2 * tail_cols);
        c.set(7, tail_cols / 2, 64);
    }
    return c;
}

template <int C>
inline void tile_out(const PackedView& w, size_t g, size_t m, size_t m1, const OutView& out) {
    alignas(64) float sums[256];
    tile_store<C>(sums, 64);
    const size_t n0 = g * kGroupRows, n = least(kGroupRows, w.rows - n0);
    for (size_t i = 0; i < least(16, m1 - m); ++i)
        write_out(out, m + i, n0, n, vf_load(sums + 16 * i));
}

/// 16 rows from `m` against groups g … g + G - 1 (G ≤ 4), each with a tile of sums of its own.
template <int G>
void tile_bf16_rows(const PackedView& w, size_t g, const ActView& a, size_t m, size_t m1,
                    const OutView& out) {
    const size_t stride = a.cols * 2, whole = a.cols / 32;
    const uint16_t* x = a.bf16 + m * a.cols;
    const std::byte* p = w.data + g * w.group_bytes;
    tile_zero<0>();
    if constexpr (G > 1) tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (size_t k = 0; k < whole; ++k, p += 1024) {
        for (size_t j = 0; j < (m1 - m <= 16 ? 1024u : 0u); j += 64)
            for (size_t i = 0; i < G; ++i) __builtin_prefetch(p + i * w.group_bytes + 2048 + j);
        tile_load<4>(x + 32 * k, stride);
        tile_load<5>(p, 64);
        tile_dot_bf16<0, 4, 5>();
        if constexpr (G > 1) {
            tile_load<5>(p + w.group_bytes, 64);
            tile_dot_bf16<1, 4, 5>();
            tile_load<5>(p + 2 * w.group_bytes, 64);
            tile_dot_bf16<2, 4, 5>();
            tile_load<5>(p + 3 * w.group_bytes, 64);
            tile_dot_bf16<3, 4, 5>();
        }
    }
    if (a.cols % 32 != 0) {
        tile_load<6>(x + 32 * whole, stride);
        tile_load<7>(p, 64);
        tile_dot_bf16<0, 6, 7>();
        if constexpr (G > 1) {
            tile_load<7>(p + w.group_bytes, 64);
            tile_dot_bf16<1, 6, 7>();
            tile_load<7>(p + 2 * w.group_bytes, 64);
            tile_dot_bf16<2, 6, 7>();
            tile_load<7>(p + 3 * w.group_bytes, 64);
            tile_dot_bf16<3, 6, 7>();
        }
    }
    tile_out<0>(w, g, m, m1, out);
    if constexpr (G > 1) {
        tile_out<1>(w, g + 1, m, m1, out);
        tile_out<2>(w, g + 2, m, m1, out);
        tile_out<3>(w, g + 3, m, m1, out);
    }
}

void tile_bf16_gemm(const PackedView& w, size_t g0, size_t g1, const ActView& a, size_t m0,
                    size_t m1, const OutView& out) {
    tiles_on(bf16_config(a.cols % 32));
    for (size_t g = g0; g < g1;) {
        const bool wide = g + 4 <= g1;
        for (size_t m = m0; m < m1; m += 16) {
            if (wide)
                tile_bf16_rows<4>(w, g, a, m, m1, out);
            else
                tile_bf16_rows<1>(w, g, a, m, m1, out);
        }
        g += wide ? 4 : 1;
    }
    tiles_off();
}

void tile_gemm(const PackedView& w, size_t g0, size_t g1, const ActView& a, size_t m0, size_t m1,
               const OutView& out) {
    switch (w.kind) {
        case Packed::kI4:
            return tile_int_gemm<Packed::kI4>(w, g0, g1, a, m0, m1, out);
        case Packed::kI4M:
            return tile_int_gemm<Packed::kI4M>(w, g0, g1, a, m0, m1, out);
        case Packed::kI5:
            return tile_int_gemm<Packed::kI5>(w, g0, g1, a, m0, m1, out);
        case Packed::kI5M:
            return tile_int_gemm<Packed::kI5M>(w, g0, g1, a, m0, m1, out);
        case Packed::kI6:
            return tile_int_gemm<Packed::kI6>(w, g0, g1, a, m0, m1, out);
        case Packed::kI8:
            return tile_int_gemm<Packed::kI8>(w, g0, g1, a, m0, m1, out);
        case Packed::kBF16:
            return tile_bf16_gemm(w, g0, g1, a, m0, m1, out);
        default:
            return gemm(w, g0, g1, a, m0, m1, out);
    }
}

// ---- bf16 attention
// ------------------------------------------------------------------------------------------------

constexpr size_t kHeadMax = 256;

/// K of a unit as tiles [head_dim / 32][16 pairs][16 tokens][2], zeros where there is no coordinate
/// or token; the page itself where it has that form.
inline const std::byte* key_tiles(const AttnRows& a, const AttnTile& t, size_t u, std::byte* copy) {
    const size_t hd = a.head_dim, cap = t.capacity[u];
    if (cap == kUnitTokens && hd % 32 == 0) return t.k[u];
    for (size_t i = 0; i < a.acc_ld / 2; ++i) {
        const __m512i x =
            _mm512_maskz_loadu_epi32(2 * i < hd ? mask_n(cap) : 0, t.k[u] + 4 * i * cap);
        _mm512_store_si512(copy + 64 * i, x);
    }
    return copy;
}

/// V of a tile as tiles [token half][column chunk of 16][16 pairs of tokens][16 columns][2],
/// columns in the order that unpacking gives (see attend_finish), zeros for tokens that do not
/// exist.
inline void value_tiles(const AttnRows& a, const AttnTile& t, std::byte* out) {
    const size_t hd = a.head_dim, chunks = a.acc_ld / 16;
    for (size_t u = 0; u < (t.units + 1) / 2 * 2; ++u) {
        std::byte* base = out + (u / 2 * chunks * 16 + u % 2 * 8) * 64;
        const size_t valid = u < t.units ? t.valid[u] : 0;
        for (size_t i = 0; i < 8; ++i) {
            for (size_t d = 0; d < a.acc_ld; d += 32) {
                const size_t n = least(32, hd > d ? hd - d : 0);
                const __mmask32 mask = static_cast<__mmask32>(n == 32 ? ~0u : (1u << n) - 1u);
                const std::byte* v = u < t.units ? t.v[u] + 2 * (2 * i * hd + d) : nullptr;
                const __m512i x = _mm512_maskz_loadu_epi16(2 * i < valid ? mask : 0, v);
                const __m512i y =
                    _mm512_maskz_loadu_epi16(2 * i + 1 < valid ? mask : 0, v + 2 * hd);
                std::byte* tile = base + (d / 16 * 16 + i) * 64;
                _mm512_store_si512(tile, _mm512_unpacklo_epi16(x, y));
                _mm512_store_si512(tile + 1024, _mm512_unpackhi_epi16(x, y));
            }
        }
    }
}

template <int U>
void tile_scores(const AttnRows& a, const std::byte* const* k, size_t r0) {
    tile_zero<0>();
    if constexpr (U > 1) tile_zero<1>();
    if constexpr (U > 2) tile_zero<2>();
    if constexpr (U > 3) tile_zero<3>();
    for (size_t c = 0; c < a.acc_ld / 32; ++c) {
        tile_load<4>(a.q16 + r0 * a.acc_ld + 32 * c, a.acc_ld * 2);
        tile_load<5>(k[0] + 1024 * c, 64);
        tile_dot_bf16<0, 4, 5>();
        if constexpr (U > 1) tile_load<5>(k[1] + 1024 * c, 64), tile_dot_bf16<1, 4, 5>();
        if constexpr (U > 2) tile_load<5>(k[2] + 1024 * c, 64), tile_dot_bf16<2, 4, 5>();
        if constexpr (U > 3) tile_load<5>(k[3] + 1024 * c, 64), tile_dot_bf16<3, 4, 5>();
    }
    float* p = a.p + r0 * kTileTokens;
    constexpr size_t kStride = kTileTokens * sizeof(float);
    tile_store<0>(p, kStride);
    if constexpr (U > 1) tile_store<1>(p + 16, kStride);
    if constexpr (U > 2) tile_store<2>(p + 32, kStride);
    if constexpr (U > 3) tile_store<3>(p + 48, kStride);
}

/// acc of 16 rows, columns of the chunks c and c + 1, += P · V over `halves` halves of the tile's
/// tokens.
inline void tile_values(const AttnRows& a, const std::byte* v, size_t r0, size_t c, size_t halves) {
    float* acc = a.acc + r0 * a.acc_ld + 16 * c;
    const size_t stride = a.acc_ld * sizeof(float), chunks = a.acc_ld / 16;
    tile_load<0>(acc, stride);
    tile_load<1>(acc + 16, stride);
    for (size_t h = 0; h < halves; ++h) {
        const std::byte* p = reinterpret_cast<const std::byte*>(a.p + r0 * kTileTokens) + 64 * h;
        tile_load<4>(p, kTileTokens * sizeof(float));
        tile_load<2>(v + (h * chunks + c) * 1024, 64);
        tile_load<3>(v + (h * chunks + c + 1) * 1024, 64);
        tile_dot_bf16<0, 4, 2>();
        tile_dot_bf16<1, 4, 3>();
    }
    tile_store<0>(acc, stride);
    tile_store<1>(acc + 16, stride);
}

/// Softmax weights of a row as bf16 at the row's start, zeros up to an even number of units; scales
/// its acc.
inline void tile_soften(const AttnRows& a, const AttnTile& t, size_t r) {
    const float keep = soften(a, t, r);
    pack_weights(a, t, r);
    if (t.units % 2 != 0) {
        uint16_t* p = reinterpret_cast<uint16_t*>(a.p + r * kTileTokens) + t.units * kUnitTokens;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_setzero_si256());
    }
    if (keep == 1.0f) return;
    float* acc = a.acc + r * a.acc_ld;
    const VF k = vf_set1(keep);
    for (size_t d = 0; d < a.acc_ld; d += 16) vf_store(acc + d, vf_mul(vf_load(acc + d), k));
}

void tile_attend(const AttnRows& a, const AttnTile& t) {
    if (a.kv_f32) return attend(a, t);
    alignas(64) std::byte keys[kTileUnits][kHeadMax / 2 * 64];
    alignas(64) std::byte values[2 * kHeadMax / 16 * 1024];
    const std::byte* k[kTileUnits];
    for (size_t u = 0; u < t.units; ++u) k[u] = key_tiles(a, t, u, keys[u]);
    value_tiles(a, t, values);
    tiles_on(bf16_config(0));
    for (size_t r = 0; r < a.rows; r += 16) {
        if (t.units == 4) tile_scores<4>(a, k, r);
        if (t.units == 3) tile_scores<3>(a, k, r);
        if (t.units == 2) tile_scores<2>(a, k, r);
        if (t.units == 1) tile_scores<1>(a, k, r);
        for (size_t i = r; i < least(a.rows, r + 16); ++i) tile_soften(a, t, i);
        for (size_t c = 0; c < a.acc_ld / 16; c += 2)
            tile_values(a, values, r, c, (t.units + 1) / 2);
    }
    tiles_off();
}
