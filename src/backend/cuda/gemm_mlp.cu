// A layer's feed-forward part for few rows of x in one kernel. Blocks stand in teams, which own a part of the intermediate columns each:
// a block computes its share of them for all rows, the blocks of a team send theirs to each other, and each multiplies the team's with its
// share of the columns of the result. What the teams have of a result is added in a fixed order by one of them. Both go through L2: a
// number that has not come yet is known by its bits, so that the data need no flag and nobody a fence. All blocks must run at once.
#include <algorithm>
#include <array>

#include "backend/cuda/attention_warpgroup.cuh"
#include "backend/cuda/gemm_bring.cuh"
#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/laid_rows.cuh"
#include "backend/cuda/linear_mlp.hpp"
#include "backend/cuda/linear_shared.hpp"
#include "backend/cuda/slots.cuh"

namespace baton::backend::cuda {

namespace {

using dev::Ops;
using slots::forget;
using slots::has_come;
using slots::look;
using slots::publish;

constexpr uint32_t kUnit = 32;      // elements of k four lanes read at once
constexpr uint32_t kHeader = 128;   // bytes: the barriers
constexpr uint32_t kWarps = 8;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kGroup = 16;     // columns of the result that a warp computes at once
constexpr uint32_t kBehind = 8;     // floats behind a row of sums, the first of them the row's square

struct Args {
    const void* gate_up;
    const void* down;
    const float* norm;
    LaidRows x;
    LaidRows to;
    unsigned char* pieces;  // of intermediate rows: [team][to][from][row][column]
    unsigned char* sums;    // of the results: [rank][part][team][lane] of four
    uint32_t m;
    uint32_t hidden;
    uint32_t ffn;
    uint32_t teams;
    uint32_t pitch;    // bytes from a held row of gate or up to the next: an odd multiple of 64, so that two rows lie in different banks
    uint32_t act_at;   // offsets in shared memory: the team's intermediate rows,
    uint32_t gate_at;  // weights of gate and up, and afterwards the warps' sums,
    uint32_t down_at;  // weights of down
    float each;        // 1 / hidden
    float eps;
};

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ float gated(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }
#endif

/// MT tiles of 16 rows of x, TILES · 8 columns of gate and as many of up a block, teams of RANKS blocks. BF16 multiplies the norm's weight
/// into x, FP16, whose range x could leave, into the weights.
template <class T, int MT, int TILES, int RANKS>
__global__ void __launch_bounds__(kThreads, 2) mlp_kernel(const __grid_constant__ Args a) {
#if __CUDA_ARCH__ >= 900
    constexpr uint32_t kPasses = 4 / MT;  // units of x a warp asks for at once
    constexpr uint32_t kRows = MT * 16;
    constexpr uint32_t kEights = MT * 2;               // of rows
    constexpr uint32_t kMine = TILES * 8;              // columns of the intermediate rows
    constexpr uint32_t kHeld = 2 * kMine;              // weight rows of gate and up
    constexpr uint32_t kDepth = kMine * RANKS;         // k of the second product,
    constexpr uint32_t kSteps = kDepth / 16;           // in steps of 16
    constexpr uint32_t kPiece = kRows * kMine * 2;     // bytes of a block's intermediate rows
    constexpr uint32_t kStride = kHeld + kBehind;     // floats from a row of sums to the next
    constexpr uint32_t kPitchDown = kDepth * 2 + 16;   // an odd multiple of 16: eight rows' 16 bytes lie in different banks
    constexpr bool kScaleX = std::is_same_v<T, __nv_bfloat16>;
    extern __shared__ __align__(128) unsigned char shared[];
    dev::launch_dependents();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5;
    const uint32_t rank = blockIdx.x % RANKS;
    const uint32_t team = blockIdx.x / RANKS;
    const uint32_t wide = a.hidden / RANKS;  // columns of the result
    const uint32_t base = dev::shared_address(shared);
    const auto ask = [&](uint32_t r) {  // for a row of weights
        if (r < kHeld) {
            const uint32_t row = r < kMine ? blockIdx.x * kMine + r : a.ffn + blockIdx.x * kMine + r - kMine;
            gemm::bring(base + a.gate_at + r * a.pitch, static_cast<const T*>(a.gate_up) + static_cast<size_t>(row) * a.hidden, a.hidden * 2, base);
        } else if (r < kHeld + wide) {
            gemm::bring(base + a.down_at + (r - kHeld) * kPitchDown, static_cast<const T*>(a.down) + static_cast<size_t>(rank * wide + r - kHeld) * a.ffn + team * kDepth,
                        kDepth * 2, base + 8);
        }
    };
    if (threadIdx.x == 0) {
        for (uint32_t b = 0; b < 2; ++b) dev::barrier_init(base + b * 8, 1);
        dev::fence_for_products();
        dev::barrier_expect(base, kHeld * a.hidden * 2);
        dev::barrier_expect(base + 8, wide * kDepth * 2);
    }
    __syncthreads();
    // Few numbers that are waited for come first: behind weights they take as long as those. So the norm's weight is asked for ahead of them, and
    // down's weights behind the rows of x.
    const bool has_norm = threadIdx.x < a.hidden / 8;
    float4 norm[2] = {};
    if (has_norm)
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) norm[i] = dev::load_once_f32(a.norm + threadIdx.x * 8 + i * 4);
    // All warps ask: a copy takes its warp some tens of cycles.
    for (uint32_t r = warp + lane * kWarps; r < kHeld; r += kThreads) ask(r);
    if (has_norm) reinterpret_cast<uint4*>(shared + kHeader)[threadIdx.x] = dev::pack8<T>(norm[0], norm[1]);
    __syncthreads();
    const uint32_t g = lane >> 2;
    const uint32_t t = lane & 3;
    const uint32_t units = a.hidden / kUnit;
    const uint32_t begin = warp * units / kWarps;
    const uint32_t end = (warp + 1) * units / kWarps;
    const uint32_t groups = wide / kGroup;     // of columns of the result; a warp has one or none
    const uint32_t parts = groups * kEights;   // of the results: 16 columns × 8 rows each
    const uint32_t own = team + warp * a.teams;  // that this warp adds; or none
    const uint32_t own_row = own % kEights * 8 + g;
    const uint32_t own_column = rank * wide + own / kEights * kGroup + t * 2;
    const unsigned char* x_lane = a.x.of(g, t * 8);
    const unsigned char* w_lane = shared + a.gate_at + g * a.pitch + t * 16;
    const unsigned char* norm_lane = shared + kHeader + t * 16;
    const uint32_t right_at = base + a.down_at + (warp * kGroup + (lane >> 4) * 8 + (lane & 7)) * kPitchDown + (lane >> 3 & 1) * 16;

    const uint32_t m = a.m;
    dev::wait_for_earlier();

    float acc[MT][2 * TILES][4] = {};
    float square[MT][2][4] = {};  // of rows g in the first's first two, of rows g + 8 in the second's last two
    uint32_t residual[2] = {};
    const bool adds = own < parts && own_row < m;
    for (uint32_t first = begin; first < end; first += kPasses) {
        uint4 x[kPasses][MT][2];
#pragma unroll
        for (uint32_t eight = 0; eight < kEights; ++eight)
#pragma unroll
            for (uint32_t c = 0; c < kPasses; ++c) {
                const bool in = eight * 8 + g < m && first + c < end;
                x[c][eight / 2][eight % 2] = in ? __ldcg(reinterpret_cast<const uint4*>(x_lane + eight * a.x.eight + (first + c) * a.x.unit)) : uint4{};
            }
        if (first == begin) {
            const auto* old = reinterpret_cast<const uint32_t*>(a.x.of(own_row, own_column));
            if (adds) residual[0] = __ldcg(old), residual[1] = __ldcg(old + 4);
            for (uint32_t r = kHeld + warp + lane * kWarps; r < kHeld + wide; r += kThreads) ask(r);
            __syncwarp();
            dev::barrier_wait(base, 0);
        }
#pragma unroll
        for (uint32_t c = 0; c < kPasses; ++c) {
            if (first + c >= end) break;
            const uint4 factors = *reinterpret_cast<const uint4*>(norm_lane + (first + c) * 64);
#pragma unroll
            for (int i = 0; i < MT; ++i) {
                uint4& lo = x[c][i][0];
                uint4& hi = x[c][i][1];
                const uint32_t lo_left[2][4] = {{lo.x, 0, lo.y, 0}, {lo.z, 0, lo.w, 0}};
                const uint32_t hi_left[2][4] = {{0, hi.x, 0, hi.y}, {0, hi.z, 0, hi.w}};
                dev::mma<T>(square[i][0], lo_left[0], lo.x, lo.y);
                dev::mma<T>(square[i][1], hi_left[0], hi.x, hi.y);
                dev::mma<T>(square[i][0], lo_left[1], lo.z, lo.w);
                dev::mma<T>(square[i][1], hi_left[1], hi.z, hi.w);
                if constexpr (kScaleX) lo = gemm::multiply8<T>(lo, factors), hi = gemm::multiply8<T>(hi, factors);
            }
#pragma unroll
            for (int j = 0; j < 2 * TILES; ++j) {
                uint4 w = *reinterpret_cast<const uint4*>(w_lane + static_cast<uint32_t>(j) * 8 * a.pitch + (first + c) * 64);
                if (!kScaleX) w = gemm::multiply8<T>(w, factors);
#pragma unroll
                for (int i = 0; i < MT; ++i) {
                    const uint4& lo = x[c][i][0];
                    const uint4& hi = x[c][i][1];
                    const uint32_t left[2][4] = {{lo.x, hi.x, lo.y, hi.y}, {lo.z, hi.z, lo.w, hi.w}};
                    dev::mma<T>(acc[i][j], left[0], w.x, w.y);
                    dev::mma<T>(acc[i][j], left[1], w.z, w.w);
                }
            }
        }
    }
    __syncthreads();  // the warps' sums take the place of the weights
    float* sums = reinterpret_cast<float*>(shared + a.gate_at);
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        float* row = sums + (warp * kRows + static_cast<uint32_t>(i) * 16 + g) * kStride;
#pragma unroll
        for (int j = 0; j < 2 * TILES; ++j) {
            *reinterpret_cast<float2*>(row + j * 8 + t * 2) = {acc[i][j][0], acc[i][j][1]};
            *reinterpret_cast<float2*>(row + 8 * kStride + j * 8 + t * 2) = {acc[i][j][2], acc[i][j][3]};
        }
        if (t == g >> 1) {
            const bool odd = (g & 1) != 0;
            row[kHeld] = odd ? square[i][0][1] : square[i][0][0];
            row[8 * kStride + kHeld] = odd ? square[i][1][3] : square[i][1][2];
        }
    }
    __syncthreads();
    constexpr uint32_t kPairs = kMine / 2;
    constexpr uint32_t kItems = kRows * kPairs;
    static_assert(kPairs % 4 == 0 && kItems % 32 == 0);
#pragma unroll 1
    for (uint32_t item = threadIdx.x; item < kItems; item += kThreads) {  // whole warps
        const uint32_t row = item / kPairs;
        const uint32_t pair = item % kPairs;
        const float* from = sums + row * kStride + pair * 2;
        float2 gate = {};
        float2 up = {};
        float total = 0;
#pragma unroll 4
        for (uint32_t p = 0; p < kWarps; ++p, from += kRows * kStride) {
            const float2 v = *reinterpret_cast<const float2*>(from);
            const float2 u = *reinterpret_cast<const float2*>(from + kMine);
            gate.x += v.x, gate.y += v.y;
            up.x += u.x, up.y += u.y;
            total += from[kHeld - pair * 2];
        }
        const float scale = rsqrtf(total * a.each + a.eps);
        const uint32_t word = Ops<T>::pack(gated(gate.x * scale, up.x * scale), gated(gate.y * scale, up.y * scale));
        uint4 all;
        all.x = __shfl_sync(0xffffffffu, word, 0, 4);
        all.y = __shfl_sync(0xffffffffu, word, 1, 4);
        all.z = __shfl_sync(0xffffffffu, word, 2, 4);
        all.w = __shfl_sync(0xffffffffu, word, 3, 4);
        unsigned char* to = a.pieces + rank * kPiece + row * kMine * 2 + (pair & ~3u) * 4;
        if (row < m)
#pragma unroll
            for (uint32_t d = 0; d < RANKS; d += 4) {
                const uint32_t other = (rank + d + (pair & 3)) % RANKS;
                publish(to + (team * RANKS + other) * (RANKS * kPiece), all);
            }
    }
    // Operands of the second product, while the others' pieces come.
    uint32_t right[kSteps][4];
    dev::barrier_wait(base + 8, 0);
    if (warp < groups)
#pragma unroll
        for (uint32_t s = 0; s < kSteps; ++s) dev::load_matrices(right[s], right_at + s * 32);
    {
        constexpr uint32_t kWords = RANKS * kPiece / 16;  // of 16 bytes
        constexpr uint32_t kEach = (kWords + kThreads - 1) / (kThreads);
        unsigned char* from = a.pieces + blockIdx.x * (RANKS * kPiece) + threadIdx.x * 16;
        uint4 v[kEach];
        bool wanted[kEach];
        bool missing = false;
#pragma unroll
        for (uint32_t i = 0; i < kEach; ++i) {
            const uint32_t word = threadIdx.x + i * kThreads;
            wanted[i] = word < kWords && word % (kPiece / 16) / TILES < m;
            v[i] = wanted[i] ? look(from + i * kThreads * 16) : uint4{};
        }
        do {
            missing = false;
#pragma unroll
            for (uint32_t i = 0; i < kEach; ++i)
                if (!has_come(v[i])) {
                    missing = true;
                    v[i] = look(from + i * kThreads * 16);
                }
        } while (missing);
#pragma unroll
        for (uint32_t i = 0; i < kEach; ++i) {
            if (!wanted[i]) continue;
            *reinterpret_cast<uint4*>(shared + a.act_at + (threadIdx.x + i * kThreads) * 16) = v[i];
            forget(from + i * kThreads * 16);
        }
    }
    __syncthreads();
    const bool high = lane >= 16;  // of the two halves of a step's 16 elements
    const uint32_t act_lane = base + a.act_at + (lane & 15) * kMine * 2;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        float d[2][2][4] = {};
        constexpr uint32_t kBatch = 4;
#pragma unroll
        for (uint32_t s0 = 0; s0 < kSteps; s0 += kBatch) {
            uint32_t left[kBatch][4];
#pragma unroll
            for (uint32_t b = 0; b < kBatch; ++b) {
                const uint32_t q = (s0 + b) * 2;
                if (s0 + b < kSteps)
                    dev::load_matrices(left[b], act_lane + static_cast<uint32_t>(i) * 16 * kMine * 2 +
                                                    (high ? (q + 1) / TILES * kPiece + (q + 1) % TILES * 16 : q / TILES * kPiece + q % TILES * 16));
            }
#pragma unroll
            for (uint32_t b = 0; b < kBatch; ++b) {
                if (s0 + b >= kSteps) continue;
                dev::mma<T>(d[0][b & 1], left[b], right[s0 + b][0], right[s0 + b][1]);
                dev::mma<T>(d[1][b & 1], left[b], right[s0 + b][2], right[s0 + b][3]);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) d[j][0][e] += d[j][1][e];
        if (warp >= groups) continue;
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t eight = static_cast<uint32_t>(i) * 2 + half;
            const uint32_t e = half * 2;
            const uint4 v = {__float_as_uint(d[0][0][e]), __float_as_uint(d[0][0][e + 1]), __float_as_uint(d[1][0][e]), __float_as_uint(d[1][0][e + 1])};
            if (eight * 8 + g < m) publish(a.sums + (((rank * parts + warp * kEights + eight) * a.teams + team) * 32 + lane) * 16, v);
        }
    }
    if (own < parts) {
        unsigned char* from = a.sums + ((rank * parts + own) * a.teams * 32 + lane) * 16;
        float y[4] = {};
        constexpr uint32_t kAtOnce = 16;
        for (uint32_t first = 0; first < a.teams; first += kAtOnce) {
            uint4 v[kAtOnce];
            bool missing = false;
#pragma unroll
            for (uint32_t i = 0; i < kAtOnce; ++i) v[i] = adds && first + i < a.teams ? look(from + (first + i) * 512) : uint4{};
            do {
                missing = false;
#pragma unroll
                for (uint32_t i = 0; i < kAtOnce; ++i)
                    if (!has_come(v[i])) {
                        missing = true;
                        v[i] = look(from + (first + i) * 512);
                    }
            } while (missing);
#pragma unroll
            for (uint32_t i = 0; i < kAtOnce; ++i) {
                y[0] += __uint_as_float(v[i].x), y[1] += __uint_as_float(v[i].y);
                y[2] += __uint_as_float(v[i].z), y[3] += __uint_as_float(v[i].w);
            }
        }
        const float2 old0 = Ops<T>::unpack_bits(residual[0]);
        const float2 old1 = Ops<T>::unpack_bits(residual[1]);
        const uint32_t low = Ops<T>::pack(y[0] + old0.x, y[1] + old0.y);
        const uint32_t up = Ops<T>::pack(y[2] + old1.x, y[3] + old1.y);
        if (adds) {
            auto* result = reinterpret_cast<uint32_t*>(a.to.of(own_row, own_column));
            result[0] = low;
            result[4] = up;
            for (uint32_t i = 0; i < a.teams; ++i) forget(from + i * 512);
        }
    }
#else
    (void)a;
#endif
}

constexpr std::array<MlpShape, 2> kShapes = {{{2, 3, 8}, {1, 3, 8}}};

using Kernel = void (*)(Args);
template <class T>
constexpr std::array<Kernel, kShapes.size()> kernels() {
    return {{mlp_kernel<T, 2, 3, 8>, mlp_kernel<T, 1, 3, 8>}};
}
Kernel kernel_of(Elem elem, uint8_t variant) {
    return elem == Elem::kBF16 ? kernels<__nv_bfloat16>()[variant] : kernels<__half>()[variant];
}

/// Where everything lies in shared memory.
struct Places {
    uint32_t pitch = 0;
    uint32_t act_at = 0;
    uint32_t gate_at = 0;
    uint32_t down_at = 0;
    uint32_t bytes = 0;
};
Places places_of(uint32_t hidden, const MlpShape& shape) {
    Places p;
    const uint32_t depth = shape.tiles * 8u * shape.ranks;
    p.pitch = hidden * 2 + (hidden % 64 == 0 ? 64 : 0);
    p.act_at = kHeader + hidden * 2;
    p.gate_at = p.act_at + shape.x_tiles * 16u * depth * 2;
    const uint32_t held = shape.tiles * 16u;
    p.down_at = p.gate_at + std::max(held * p.pitch, kWarps * shape.x_tiles * 16u * (held + kBehind) * 4);
    p.bytes = p.down_at + hidden / shape.ranks * (depth * 2 + 16);
    return p;
}
uint32_t blocks_of(const Mlp& part, const MlpShape& shape) { return part.down.k / (shape.tiles * 8u); }
/// Bytes of the pieces that the blocks of all teams send each other.
size_t piece_bytes(const Mlp& part, const MlpShape& shape) { return size_t{part.down.k} * shape.x_tiles * 16 * 2 * shape.ranks; }

}  // namespace

std::span<const MlpShape> mlp_shapes() { return kShapes; }

cudaError_t mlp_prepare(Elem elem, AtOnceLimits& limits) {
    std::array<const void*, kShapes.size()> all = {};
    for (uint8_t v = 0; v < all.size(); ++v) all[v] = reinterpret_cast<const void*>(kernel_of(elem, v));
    return prepare_at_once(all, limits);
}

size_t mlp_slot_bytes(const Mlp& part, uint8_t shape_index) {
    const MlpShape& shape = kShapes[shape_index];
    const uint32_t teams = blocks_of(part, shape) / shape.ranks;
    return piece_bytes(part, shape) + size_t{part.down.n} * shape.x_tiles * 16 * teams * 4;
}

bool mlp_takes(const Mlp& part, uint8_t shape_index, const AtOnceLimits& limits) {
    if (shape_index >= kShapes.size()) return false;
    const MlpShape& shape = kShapes[shape_index];
    const uint32_t hidden = part.gate_up.k;
    const uint32_t ffn = part.down.k;
    if (part.m <= (shape.x_tiles == 1 ? 8 : 16) || part.m > shape.x_tiles * 16u) return false;  // for fewer rows two products are as quick
    if (part.gate_up.n != 2 * ffn || part.down.n != hidden || part.gate_up.norm == nullptr || part.gate_up.bias != nullptr || part.down.bias != nullptr) return false;
    if (hidden < kWarps * kUnit) return false;  // a warp without a part of k would neither wait for the weights nor read what it adds to
    if (hidden % (shape.ranks * kGroup) != 0 || hidden % kUnit != 0 || ffn % (shape.tiles * 8u * shape.ranks) != 0) return false;
    const uint32_t groups = hidden / shape.ranks / kGroup;
    if (groups > kWarps) return false;
    if (groups * shape.x_tiles * 2u > kWarps * (ffn / (shape.tiles * 8u * shape.ranks))) return false;
    // A block may take most of a multiprocessor: none counts on two.
    return blocks_of(part, shape) <= limits.multiprocessors && places_of(hidden, shape).bytes <= limits.shared_bytes;
}

cudaError_t mlp(const Launch& launch, const Mlp& part, uint8_t shape_index) {
    const MlpShape& shape = kShapes[shape_index];
    const uint32_t hidden = part.gate_up.k;
    if ((part.x.for_lanes || part.to.for_lanes) && shape.x_tiles != 1) return cudaErrorInvalidValue;
    const Places p = places_of(hidden, shape);
    const uint32_t blocks = blocks_of(part, shape);
    auto* pieces = reinterpret_cast<unsigned char*>(part.slots);
    const Args args = {part.gate_up.w, part.down.w, part.gate_up.norm, laid_rows(part.x, hidden), laid_rows(part.to, hidden), pieces, pieces + piece_bytes(part, shape), part.m, hidden,
                       part.down.k, blocks / shape.ranks, p.pitch, p.act_at, p.gate_at, p.down_at, 1.0f / static_cast<float>(hidden), part.gate_up.eps};
    return start(launch, kernel_of(part.elem, shape_index), blocks, kThreads, p.bytes, 1, args);
}

}  // namespace baton::backend::cuda
