#include "backend/pack.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>

namespace baton::backend {

namespace {

using tensor::DType;

/// 32 consecutive weights of a row: unsigned quants, f16 scale(s) and minimum.
struct Block {
    std::array<uint8_t, 32> q{};
    uint16_t d = 0;
    uint16_t d1 = 0;  ///< kI6: scale of the second 16
    uint16_t m = 0;
};

uint16_t u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}

void low_and_high(const uint8_t* qs, Block& b) {
    for (size_t i = 0; i < 16; ++i) {
        b.q[i] = qs[i] & 15u;
        b.q[i + 16] = static_cast<uint8_t>(qs[i] >> 4);
    }
}

void add_fifth_bits(const uint8_t* qh, Block& b) {
    for (size_t i = 0; i < 32; ++i)
        b.q[i] = static_cast<uint8_t>(b.q[i] | ((qh[i / 8] >> (i % 8)) & 1u) << 4);
}

/// Six-bit scale and minimum of sub-block `j` of a Q4_K or Q5_K super-block.
void k_scale(const uint8_t* s, size_t j, uint32_t& scale, uint32_t& min) {
    if (j < 4) {
        scale = s[j] & 63u;
        min = s[j + 4] & 63u;
    } else {
        scale = (s[j + 4] & 15u) | static_cast<uint32_t>(s[j - 4] >> 6) << 4;
        min = static_cast<uint32_t>(s[j + 4] >> 4) | static_cast<uint32_t>(s[j] >> 6) << 4;
    }
}

/// Rounds to f16; false when a finite value would become infinite.
bool to_f16(float v, uint16_t& out) {
    out = tensor::f32_to_f16(v);
    return !std::isfinite(v) || std::isfinite(tensor::f16_to_f32(out));
}

/// Sub-block `j` (0 … 7) of the Q4_K or Q5_K super-block at `p`.
bool k45_block(const uint8_t* p, size_t j, bool five, Block& b) {
    uint32_t scale = 0, min = 0;
    k_scale(p + 4, j, scale, min);
    const float d = tensor::f16_to_f32(u16(p)), dmin = tensor::f16_to_f32(u16(p + 2));
    const uint8_t* qh = p + 16;
    const uint8_t* qs = p + (five ? 48 : 16) + 32 * (j / 2);
    for (size_t i = 0; i < 32; ++i) {
        const uint32_t low = j % 2 == 0 ? qs[i] & 15u : static_cast<uint32_t>(qs[i] >> 4);
        const uint32_t high = five ? (static_cast<uint32_t>(qh[i]) >> j & 1u) << 4 : 0;
        b.q[i] = static_cast<uint8_t>(low | high);
    }
    return to_f16(d * static_cast<float>(scale), b.d) &&
           to_f16(-(dmin * static_cast<float>(min)), b.m);
}

/// Columns 32·j … 32·j + 31 of the Q6_K super-block at `p`.
bool k6_block(const uint8_t* p, size_t j, Block& b) {
    const size_t half = j / 4, quarter = j % 4;
    const uint8_t* ql = p + 64 * half + 32 * (quarter % 2);
    const uint8_t* qh = p + 128 + 32 * half;
    for (size_t i = 0; i < 32; ++i) {
        const uint32_t low = quarter < 2 ? ql[i] & 15u : static_cast<uint32_t>(ql[i] >> 4);
        const uint32_t high = static_cast<uint32_t>(qh[i]) >> (2 * quarter) & 3u;
        b.q[i] = static_cast<uint8_t>(low | high << 4);
    }
    const float d = tensor::f16_to_f32(u16(p + 208));
    const auto scale = [&](size_t i) {
        return static_cast<float>(static_cast<int8_t>(p[192 + i]));
    };
    return to_f16(d * scale(2 * j), b.d) && to_f16(d * scale(2 * j + 1), b.d1);
}

/// Block `i` of a quantised row.
bool read_block(DType t, const uint8_t* row, size_t i, Block& b) {
    const size_t bytes = tensor::block_shape(t).bytes;
    const uint8_t* p = row + i * bytes;
    switch (t) {
        case DType::kQ8_0:
            for (size_t j = 0; j < 32; ++j) b.q[j] = static_cast<uint8_t>(p[2 + j] ^ 0x80u);
            b.d = u16(p);
            return true;
        case DType::kQ4_0:
            low_and_high(p + 2, b);
            b.d = u16(p);
            return true;
        case DType::kQ4_1:
            low_and_high(p + 4, b);
            b.d = u16(p), b.m = u16(p + 2);
            return true;
        case DType::kQ5_0:
            low_and_high(p + 6, b);
            add_fifth_bits(p + 2, b);
            b.d = u16(p);
            return true;
        case DType::kQ5_1:
            low_and_high(p + 8, b);
            add_fifth_bits(p + 4, b);
            b.d = u16(p), b.m = u16(p + 2);
            return true;
        case DType::kQ4_K:
            return k45_block(row + i / 8 * bytes, i % 8, false, b);
        case DType::kQ5_K:
            return k45_block(row + i / 8 * bytes, i % 8, true, b);
        case DType::kQ6_K:
            return k6_block(row + i / 8 * bytes, i % 8, b);
        default:
            return false;
    }
}

Packed packed_kind(DType t) {
    switch (t) {
        case DType::kF32:
            return Packed::kF32;
        case DType::kF16:
            return Packed::kF16;
        case DType::kBF16:
            return Packed::kBF16;
        case DType::kQ8_0:
            return Packed::kI8;
        case DType::kQ4_0:
            return Packed::kI4;
        case DType::kQ4_1:
        case DType::kQ4_K:
            return Packed::kI4M;
        case DType::kQ5_0:
            return Packed::kI5;
        case DType::kQ5_1:
        case DType::kQ5_K:
            return Packed::kI5M;
        case DType::kQ6_K:
            return Packed::kI6;
    }
    return Packed::kF32;
}

struct BlockLayout {
    size_t scales;
    size_t low;
    size_t high;
    [[nodiscard]] size_t bytes() const { return scales + low + high; }
};

BlockLayout block_layout(Packed k) {
    switch (k) {
        case Packed::kI4:
            return {32, 256, 0};
        case Packed::kI4M:
            return {64, 256, 0};
        case Packed::kI5:
            return {32, 256, 64};
        case Packed::kI5M:
            return {64, 256, 64};
        case Packed::kI6:
            return {64, 256, 128};
        case Packed::kI8:
            return {32, 512, 0};
        default:
            return {0, 0, 0};
    }
}

/// Writes row `r` (0 … 15) of one lowered block.
void write_block(Packed kind, const Block& b, size_t r, uint8_t* out) {
    const BlockLayout l = block_layout(kind);
    std::memcpy(out + 2 * r, &b.d, 2);
    if (l.scales == 64) std::memcpy(out + 32 + 2 * r, kind == Packed::kI6 ? &b.d1 : &b.m, 2);
    uint8_t* low = out + l.scales;
    uint8_t* high = low + l.low;
    for (size_t c = 0; c < 32; ++c) {
        const size_t j = c / 4, at = 4 * r + c % 4;
        if (kind == Packed::kI8) {
            low[64 * j + at] = b.q[c];
            continue;
        }
        const auto nibble = static_cast<uint32_t>(b.q[c] & 15u);
        uint8_t& byte = low[64 * (j % 4) + at];
        byte = static_cast<uint8_t>(byte | (j < 4 ? nibble : nibble << 4));
        const uint32_t top = b.q[c] >> 4;
        if (l.high == 64) high[at] = static_cast<uint8_t>(high[at] | top << j);
        if (l.high == 128) {
            uint8_t& h = high[64 * (j / 4) + at];
            h = static_cast<uint8_t>(h | top << 2 * (j % 4));
        }
    }
}

/// A row that does not exist: quants at the zero point, scales 0.
Block zero_block() {
    return {};
}

bool pack_int_group(const tensor::TensorView& w, Packed kind, size_t g, std::byte* out) {
    const size_t blocks = w.shape[1] / kBlockCols, bytes = block_layout(kind).bytes();
    bool ok = true;
    for (size_t r = 0; r < kGroupRows; ++r) {
        const size_t n = g * kGroupRows + r;
        const auto* row =
            n < w.shape[0] ? reinterpret_cast<const uint8_t*>(w.row(n).data()) : nullptr;
        for (size_t i = 0; i < blocks; ++i) {
            Block b = zero_block();
            if (row != nullptr) ok = read_block(w.dtype, row, i, b) && ok;
            write_block(kind, b, r, reinterpret_cast<uint8_t*>(out) + i * bytes);
        }
    }
    return ok;
}

void pack_float_group(const tensor::TensorView& w, size_t g, std::byte* out) {
    const size_t size = tensor::block_shape(w.dtype).bytes;
    const size_t pair = w.dtype == DType::kBF16 ? 2 : 1;
    for (size_t r = 0; r < kGroupRows && g * kGroupRows + r < w.shape[0]; ++r) {
        const std::byte* row = w.row(g * kGroupRows + r).data();
        for (size_t c = 0; c < w.shape[1]; ++c) {
            const size_t at = (c / pair * kGroupRows + r) * pair + c % pair;
            std::memcpy(out + at * size, row + c * size, size);
        }
    }
}

}  // namespace

Expected<PackedMatrix> packed_form(const tensor::TensorView& w) {
    const size_t block = tensor::block_shape(w.dtype).elements;
    if (w.shape[0] == 0 || w.shape[1] == 0 || w.shape[1] % block != 0 ||
        (w.dtype == DType::kBF16 && w.shape[1] % 2 != 0)) {
        return fail(ErrorCode::kUnsupported, "tensor " + w.name + " has " +
                                                 std::to_string(w.shape[1]) + " columns, which " +
                                                 std::string(to_string(w.dtype)) + " cannot hold");
    }
    if (w.bytes.size() != w.shape[0] * w.row_bytes())
        return fail(ErrorCode::kCorrupt, "tensor " + w.name + " has the wrong number of bytes");
    PackedMatrix m;
    m.kind = packed_kind(w.dtype);
    m.rows = w.shape[0];
    m.cols = w.shape[1];
    m.groups = (m.rows + kGroupRows - 1) / kGroupRows;
    m.group_bytes = tensor::is_quantized(w.dtype)
                        ? m.cols / kBlockCols * block_layout(m.kind).bytes()
                        : kGroupRows * m.cols * tensor::block_shape(w.dtype).bytes;
    return m;
}

Expected<void> pack(const tensor::TensorView& w, const PackedMatrix& form, std::byte* out,
                    ThreadPool& pool) {
    std::atomic<bool> ok{true};
    constexpr size_t kChunk = 16;
    const auto chunks = static_cast<uint32_t>((form.groups + kChunk - 1) / kChunk);
    pool.run(chunks, [&](uint32_t chunk, uint32_t) {
        for (size_t g = chunk * kChunk; g < std::min(form.groups, (chunk + 1) * kChunk); ++g) {
            std::byte* group = out + g * form.group_bytes;
            if (!tensor::is_quantized(w.dtype))
                pack_float_group(w, g, group);
            else if (!pack_int_group(w, form.kind, g, group))
                ok.store(false);
        }
    });
    if (!ok.load())
        return fail(ErrorCode::kUnsupported,
                    "tensor " + w.name + " has a block scale beyond the range of f16");
    return {};
}

}  // namespace baton::backend
