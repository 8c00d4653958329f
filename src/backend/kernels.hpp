#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::backend {

/// Lowered weight formats. Weights lie in groups of 16 rows; a last group is filled up with zero
/// rows. Quantised groups are a run of blocks of 32 columns, one block being
///   f16 d[16] (one scale a row; kI6 has d0[16] for columns 0…15 and d1[16] for 16…31)
///   f16 m[16] (kI4M and kI5M only)
///   u8 low[4][64]: byte 4·row + i of low[j] holds columns 4·j + i (low nibble) and 16 + 4·j + i
///   (high nibble) u8 high[64] (kI5, kI5M: bit j of byte 4·row + i belongs to column 4·j + i) u8
///   high[2][64] (kI6: bits 2·(j mod 4) of high[j / 4] likewise)
/// kI8 has u8 q[8][64] (value + 128) in place of low and high. A weight is d·(q - offset), offset
/// 8, 16, 32 or 128, or d·q + m. Float groups are [column][16 rows], bf16 ones [column / 2][16
/// rows][2].
enum class Packed : uint8_t { kI4, kI4M, kI5, kI5M, kI6, kI8, kBF16, kF16, kF32 };
inline constexpr size_t kGroupRows = 16;
inline constexpr size_t kBlockCols = 32;

/// Error of a product Σ w·x over K columns against exact arithmetic on the file's weights
/// (tests/unit/backend/ kernels_test.cpp): with int8 activations Σ over blocks of max|x| / 254 ·
/// Σ|w|, since each x is off by at most half a step; for Q4_K, Q5_K and Q6_K also 2^-11 of each
/// block's |d·q| + |m| times |x|; bf16 activations 2^-8 · Σ|w·x|; all of them K · 2^-23 · Σ|w·x|
/// for f32 sums.
///
/// What a kernel wants its activation rows as.
enum class ActKind : uint8_t { kInt8 = 0, kBF16 = 1, kF32 = 2 };

struct PackedView {
    Packed kind;
    size_t rows;
    size_t cols;
    size_t groups;
    size_t group_bytes;
    const std::byte* data;
};

/// Prepared activation rows. Int8 rows lie in panels of 16 rows, block by block, so that a panel's
/// block is one run of bytes (an AMX tile): q[panel][block][16 rows][32], meta[panel][block][16
/// rows][4]. The four floats of `meta` are the scale s, s·Σq, and s·Σq of the first and second 16
/// columns; the value is s·q, |q| ≤ 127, s = max|x| / 127.
struct ActView {
    const int8_t* q;
    const float* meta;
    const uint16_t* bf16;  ///< [rows, cols]
    const float* f32;      ///< [rows, cols]
    size_t cols;
};
inline constexpr size_t kPanelRows = 16;
inline constexpr size_t kPanelBlockBytes = kPanelRows * kBlockCols;
inline constexpr size_t kPanelBlockMeta = kPanelRows * 4;

/// Where results go: data[(row - row0) · ld + n - col0] = (add ? old : 0) + (value + bias[n]).
struct OutView {
    float* data;
    size_t ld;
    const float* bias;  ///< null: none
    bool add;
    size_t row0 = 0;
    size_t col0 = 0;
};

/// A unit is at most 16 consecutive tokens of one page; a tile is up to 4 consecutive units.
inline constexpr uint32_t kUnitTokens = 16;
inline constexpr uint32_t kTileUnits = 4;
inline constexpr uint32_t kTileTokens = kUnitTokens * kTileUnits;

/// One kv head's keys and values of a tile. K of a unit lies as [head_dim / 2][capacity][2] (bf16)
/// or [head_dim][capacity] (f32), V as [token][head_dim].
struct AttnTile {
    const std::byte* k[kTileUnits];
    const std::byte* v[kTileUnits];
    uint32_t capacity[kTileUnits];
    uint32_t start[kTileUnits];  ///< tokens of the tile before the unit
    uint32_t valid[kTileUnits];  ///< tokens that exist, 1 … capacity; the bytes of others may be
                                 ///< anything
    uint32_t units;
};

/// Running softmax of `rows` query rows: maximum m, sum l and unnormalised output acc [rows,
/// acc_ld] (in an order of the kernel's own inside a row). Start: m = -inf, l = 0, acc = 0. The
/// memory of q16, acc and p goes on to a multiple of 16 rows.
struct AttnRows {
    uint32_t rows;
    uint32_t head_dim;
    bool kv_f32;
    float scale;
    const float* q;           ///< [rows, head_dim]
    const uint16_t* q16;      ///< [rows, acc_ld], the same in bf16 with zeros after head_dim
    const uint32_t* visible;  ///< [rows]: how many tokens of the tile the row sees, from the first
                              ///< on; at least 1
    float* m;
    float* l;
    float* acc;
    size_t acc_ld;  ///< round_up(head_dim, 32)
    float* p;       ///< scratch [rows, kTileTokens]
};

/// The functions of one instruction set. Every result depends only on the row's own inputs, not on
/// how many rows or groups a call covers.
struct Kernels {
    const char* name;      ///< what the isa option calls it
    const char* numerics;  ///< names the bits it computes
    ActKind (*act_kind)(Packed kind);
    /// out[m, n] for rows [m0, m1) and the weight rows of groups [g0, g1).
    void (*gemm)(const PackedView& w, size_t g0, size_t g1, const ActView& a, size_t m0, size_t m1,
                 const OutView& out);
    /// Writes one row of a panel; q and meta point at the row in the panel's first block.
    void (*quantize_row)(const float* in, size_t n, int8_t* q, float* meta);
    void (*bf16_row)(const float* in, size_t n, uint16_t* out);
    void (*rms_norm)(const float* in, const float* weight, float* out, size_t n, float eps);
    void (*rope)(float* head, const float* cos, const float* sin, size_t half);
    void (*swiglu)(const float* gate, const float* up, float* out, size_t n);
    void (*attend)(const AttnRows& rows, const AttnTile& tile);
    /// Merges `from` into `into` (m, l, acc of one row each), in this order of arguments.
    void (*attend_merge)(float* m, float* l, float* acc, const float* from_m, const float* from_l,
                         const float* from_acc, size_t acc_ld);
    /// out[d] = acc[d] / l in plain order, without negative zeros: a row that was computed beside
    /// others may have added zeros that it would not have met alone, and only the sign of a zero
    /// could tell.
    void (*attend_finish)(const float* acc, float l, float* out, size_t head_dim, bool kv_f32);
};

[[nodiscard]] const Kernels& kernels_portable();
[[nodiscard]] const Kernels& kernels_avx2();
[[nodiscard]] const Kernels& kernels_avx512();
[[nodiscard]] const Kernels& kernels_avx512bf16();
/// As avx512bf16 with matrix tiles. allow_amx() must have said true in this process.
[[nodiscard]] const Kernels& kernels_amx();
/// True when this CPU has AMX for int8 and bf16 and the system lets this process use it.
[[nodiscard]] bool allow_amx();

}  // namespace baton::backend
