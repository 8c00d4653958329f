#include <functional>
#include <span>
#include <string>
#include <vector>

#include "attention_cases.hpp"
#include "backend/cuda/attention.hpp"
#include "backend/cuda/attention_decode.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/attention_prefill.hpp"
#include "backend/cuda/attention_prefill_sm90.cuh"
#if defined(BATON_WITH_FLASHINFER)
#include "backend/cuda/flashinfer_prefill.hpp"
#endif

/// Times the attention kernels and their variants in CUDA graphs. Usage: attention_bench [decode|lengths|chain|chain2|prefill|prefill90|append]...
/// Built on request (target attention_bench).
namespace baton::test {
namespace {

namespace cuda = backend::cuda;

constexpr double kBandwidth = 4.3e12;  ///< bytes a second that a copy reaches on an H200
constexpr double kFlops = 790e12;      ///< bf16 matrix products on an H200

__global__ void fill_kernel(uint16_t* p, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ seed;
        h ^= h >> 15;
        h *= 0x85ebca6bu;
        h ^= h >> 13;
        const __nv_bfloat16 v = __float2bfloat16(static_cast<float>(h & 0xffff) / 32768.0f - 1.0f);
        p[i] = *reinterpret_cast<const uint16_t*>(&v);
    }
}

/// Median time in microseconds of a graph of what `enqueue` enqueues.
double graph_us(const std::function<void(cudaStream_t)>& enqueue, int replays = 9) {
    cudaStream_t stream;
    BATON_CUDA(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    BATON_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue(stream);
    BATON_CUDA(cudaStreamEndCapture(stream, &graph));
    BATON_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t a;
    cudaEvent_t b;
    BATON_CUDA(cudaEventCreate(&a));
    BATON_CUDA(cudaEventCreate(&b));
    std::vector<double> times;
    for (int i = 0; i < replays + 2; ++i) {
        BATON_CUDA(cudaEventRecord(a, stream));
        BATON_CUDA(cudaGraphLaunch(exec, stream));
        BATON_CUDA(cudaEventRecord(b, stream));
        BATON_CUDA(cudaEventSynchronize(b));
        float ms = 0;
        BATON_CUDA(cudaEventElapsedTime(&ms, a, b));
        if (i >= 2)
            times.push_back(ms * 1e3);
    }
    BATON_CUDA(cudaGetLastError());
    BATON_CUDA(cudaGraphExecDestroy(exec));
    BATON_CUDA(cudaGraphDestroy(graph));
    BATON_CUDA(cudaStreamDestroy(stream));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/// Random KV of `layers` layers for sequences of given lengths; blocks shuffled.
class Bed {
  public:
    Bed(uint32_t heads, uint32_t kv_heads, uint32_t d, uint32_t bt, std::vector<int32_t> lens, uint32_t layers, size_t rows)
        : heads_(heads), kv_heads_(kv_heads), d_(d), bt_(bt), layers_(layers), lengths_host(std::move(lens)),
          blocks_(count_blocks()), stride_(longest()), page_(static_cast<size_t>(bt) * kv_heads * d),
          pool(page_ * 2 * layers * blocks_), q(rows * (heads + 2 * kv_heads) * d), out(rows * heads * d), lengths(lengths_host),
          table(make_table()), workspace(cuda::decode_workspace_bytes(static_cast<uint32_t>(lengths_host.size()), heads, d, 1024)),
          turns(static_cast<size_t>(40000) * d / 2), positions(lengths_host.size()), slots(lengths_host.size()) {
        fill_kernel<<<2048, 256>>>(pool.data(), pool.size(), 1);
        fill_kernel<<<2048, 256>>>(q.data(), q.size(), 2);
        workspace.fill(0);
        turns.fill(0);
        std::vector<int32_t> at;
        std::vector<int32_t> where;
        for (size_t i = 0; i < lengths_host.size(); ++i) {
            at.push_back(lengths_host[i] - 1);
            where.push_back(table_host[i * stride_ + static_cast<uint32_t>(at[i]) / bt_] * static_cast<int32_t>(bt_) +
                            at[i] % static_cast<int32_t>(bt_));
        }
        positions.put(at);
        slots.put(where);
        BATON_CUDA(cudaDeviceSynchronize());
    }
    [[nodiscard]] cuda::KvView view(uint32_t layer) const {
        cuda::KvView kv;
        kv.k = pool.data() + page_ * 2 * layer;
        kv.v = pool.data() + page_ * (2 * layer + 1);
        kv.block_stride = static_cast<int64_t>(page_ * 2 * layers_);
        kv.block_tokens = bt_;
        kv.kv_heads = kv_heads_;
        kv.head_dim = d_;
        return kv;
    }
    [[nodiscard]] cuda::AttentionArgs base(uint32_t layer) const {
        cuda::AttentionArgs a;
        a.kv = view(layer);
        a.heads = heads_;
        a.scale = 1.0f / std::sqrt(static_cast<float>(d_));
        a.sequences = static_cast<uint32_t>(lengths_host.size());
        a.kv_len = lengths.data();
        a.blocks = table.data();
        a.blocks_stride = stride_;
        a.out = out.data();
        return a;
    }
    [[nodiscard]] cuda::DecodeAttention decode(uint32_t layer, uint32_t splits) const {
        cuda::DecodeAttention a;
        a.base = base(layer);
        a.q = q.data();
        a.workspace = workspace.data();
        a.splits = splits;
        return a;
    }
    [[nodiscard]] cuda::RopeAppend fused(uint32_t layer) const {
        cuda::RopeAppend a;
        a.qkv = q.data();
        a.q = out.data();
        a.kv = view(layer);
        a.rows = static_cast<uint32_t>(lengths_host.size());
        a.heads = heads_;
        a.rope = turns.data();
        a.q_norm = a.k_norm = reinterpret_cast<const float*>(turns.data());
        a.positions = positions.data();
        a.slots = slots.data();
        return a;
    }

  private:
    [[nodiscard]] uint32_t of(int32_t n) const { return (static_cast<uint32_t>(n) + bt_ - 1) / bt_; }
    [[nodiscard]] uint32_t count_blocks() const {
        uint32_t n = 0;
        for (const int32_t x : lengths_host)
            n += of(x);
        return n;
    }
    [[nodiscard]] uint32_t longest() const { return of(*std::max_element(lengths_host.begin(), lengths_host.end())); }
    std::vector<int32_t> make_table() {
        std::vector<int32_t> order(blocks_);
        std::iota(order.begin(), order.end(), 0);
        std::mt19937 rng(1);
        std::shuffle(order.begin(), order.end(), rng);
        table_host.assign(lengths_host.size() * stride_, 0);
        size_t next = 0;
        for (size_t i = 0; i < lengths_host.size(); ++i)
            for (uint32_t b = 0; b < of(lengths_host[i]); ++b)
                table_host[i * stride_ + b] = order[next++];
        return table_host;
    }
    uint32_t heads_, kv_heads_, d_, bt_, layers_;

  public:
    std::vector<int32_t> lengths_host;

  private:
    uint32_t blocks_, stride_;
    size_t page_;
    std::vector<int32_t> table_host;

  public:
    DeviceArray<uint16_t> pool, q, out;
    DeviceArray<int32_t> lengths, table;
    DeviceArray<unsigned char> workspace;
    DeviceArray<float2> turns;
    DeviceArray<int32_t> positions, slots;
};

struct Model {
    const char* name;
    uint32_t heads, kv_heads, d;
};
constexpr Model kModels[] = {{"16/8 d128", 16, 8, 128}, {"32/8 d128", 32, 8, 128}, {"14/2 d64", 14, 2, 64}, {"9/3 d64", 9, 3, 64}};

struct DecodeVariant {
    const char* name;
    bool clusters;
    int per_sm;
    cudaError_t (*d128)(const cuda::Launch&, const cuda::DecodeAttention&, bool);
    cudaError_t (*d64)(const cuda::Launch&, const cuda::DecodeAttention&, bool);
};
/// Warps, stages, size of a slice, blocks a multiprocessor that registers are kept for, blocks a multiprocessor launched.
#define BATON_VARIANT(w, s, u, n, g, c)                                                                          \
    DecodeVariant{#w "w" #s "s" #u "u" #n "r" #g "g" #c, c, g, cuda::launch_decode<Elem::kBF16, 128, w, s, u, n>, \
                  cuda::launch_decode<Elem::kBF16, 64, w, s, u, n>}
const DecodeVariant kChain[] = {BATON_VARIANT(8, 2, 1, 2, 1, 0), BATON_VARIANT(8, 2, 1, 2, 1, 1), BATON_VARIANT(8, 2, 1, 1, 1, 1),
                                BATON_VARIANT(4, 2, 2, 3, 1, 0), BATON_VARIANT(4, 2, 2, 3, 1, 1), BATON_VARIANT(4, 2, 1, 4, 1, 1)};
const DecodeVariant kDecode[] = {BATON_VARIANT(8, 2, 1, 2, 1, 0), BATON_VARIANT(8, 2, 1, 1, 1, 0), BATON_VARIANT(4, 2, 2, 3, 1, 0),
                                 BATON_VARIANT(4, 2, 1, 4, 2, 0)};

/// Grid of a variant: with clusters as chosen, else so many blocks a multiprocessor.
uint32_t grid_of(const DecodeVariant& v, uint32_t sequences, uint32_t kv_heads, uint32_t length, int sms) {
    return v.clusters ? cuda::decode_splits(sequences, kv_heads, length, static_cast<uint32_t>(sms))
                      : static_cast<uint32_t>(sms * v.per_sm);
}

/// Stands for a matrix product of few rows: 16 bytes × LOADS a thread of weights, read ahead of the wait; holds HELD times
/// four registers.
template <int LOADS, int HELD>
__global__ void __launch_bounds__(256, (HELD > 16 ? 2 : 3)) product_kernel(const uint4* weights, const uint4* x, uint4* out) {
    cuda::dev::launch_dependents();
    uint4 w[HELD];
    const size_t at = blockIdx.x * size_t{256} * LOADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < HELD; ++i)
        asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(w[i].x), "=r"(w[i].y), "=r"(w[i].z), "=r"(w[i].w)
                     : "l"(i < LOADS ? weights + at + static_cast<size_t>(i) * 256 : out + ((threadIdx.x + 8 * i) & 255)));
    cuda::dev::wait_for_earlier();
    uint4 sum = __ldcg(x + threadIdx.x % 64);
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        sum.x += w[i].x * sum.y;
        sum.y ^= w[i].y + w[i].z;
        sum.z += w[i].w;
    }
    if (sum.x == 12345u && sum.z == 54321u)
        out[threadIdx.x + 256] = sum;
}

void bench_decode(int sms) {
    std::printf("decode, us (TB/s of KV) per layer; columns: ");
    for (const auto& v : kDecode)
        std::printf("%s ", v.name);
    std::printf("\n");
    struct Case {
        int batch, length;
    };
    for (const Model& m : kModels)
        for (const Case c : {Case{1, 1024}, {1, 4096}, {8, 1024}, {8, 4096}, {64, 1024}, {64, 4096}, {256, 1024}, {256, 4096}, {-64, 4096}}) {
            std::vector<int32_t> lens(static_cast<size_t>(std::abs(c.batch)), c.length);
            if (c.batch < 0) {  // mixed: one of 32k, some of 4k, most short
                for (size_t i = 0; i < lens.size(); ++i)
                    lens[i] = i == 17 ? 32768 : i % 4 == 0 ? 4096 : 100 + static_cast<int32_t>(i) * 10;
            }
            double tokens = 0;
            for (const int32_t n : lens)
                tokens += n;
            const double bytes = tokens * m.kv_heads * m.d * 4;
            const auto layers = static_cast<uint32_t>(std::clamp(400e6 / bytes, 2.0, 28.0));
            const Bed bed(m.heads, m.kv_heads, m.d, 64, lens, layers, lens.size());
            std::printf("%-9s B%-3d %5d floor %6.1f |", m.name, c.batch, c.length, bytes / kBandwidth * 1e6);
            for (const auto& v : kDecode) {
                const auto f = m.d == 128 ? v.d128 : v.d64;
                const double us = graph_us([&](cudaStream_t s) {
                    for (uint32_t l = 0; l < layers; ++l)
                        BATON_CUDA(f({s, true}, bed.decode(l, grid_of(v, static_cast<uint32_t>(lens.size()), m.kv_heads,
                                                                      static_cast<uint32_t>(c.length), sms)), v.clusters));
                }) / layers;
                std::printf(" %6.1f (%.2f)", us, bytes / us / 1e6);
            }
            std::printf("\n");
        }
}

/// A batch whose lengths rise evenly from `low` to `high`, and one sequence more of length `extra` where that is not 0.
struct Lengths {
    const char* name;
    int count, low, high, extra;
    [[nodiscard]] std::vector<int32_t> all() const {
        std::vector<int32_t> v;
        for (int i = 0; i < count; ++i)
            v.push_back(low + (high - low) * i / std::max(1, count - 1));
        if (extra != 0)
            v.push_back(extra);
        return v;
    }
};
constexpr Lengths kLengths[] = {{"16 of 1024", 16, 1024, 1024, 0},      {"16 of 512 to 1112", 16, 512, 1112, 0},
                                {"16 of 800 and 8k", 16, 800, 800, 8192}, {"16 of 512 to 1112 and 8k", 16, 512, 1112, 8192},
                                {"32 of 1024", 32, 1024, 1024, 0},      {"32 of 512 to 1112", 32, 512, 1112, 0},
                                {"64 of 1024", 64, 1024, 1024, 0},      {"64 of 512 to 1536", 64, 512, 1536, 0},
                                {"64 of 1024 and 8k", 64, 1024, 1024, 8192}, {"256 of 1024", 256, 1024, 1024, 0}};

struct LengthVariant {
    const char* name;
    bool chosen;  ///< the grid of decode_splits, else one block a multiprocessor
    cudaError_t (*run)(const cuda::Launch&, const cuda::DecodeAttention&);
};
template <int WARPS, int STAGES>
cudaError_t line(const cuda::Launch& launch, const cuda::DecodeAttention& a) {
    return cuda::launch_decode<Elem::kBF16, 128, WARPS, STAGES, 1, 1>(launch, a, false);
}
constexpr LengthVariant kLengthVariants[] = {{"as chosen", true, cuda::decode_attention}, {"shared evenly", false, line<8, 2>},
                                             {"4 warps", false, line<4, 4>}};

/// Batches of even and uneven lengths, variants in turns; norm, rotation and append inside.
void bench_lengths(int sms) {
    std::printf("decode, fused, us and TB/s of KV per layer, the better of two rounds; columns: ");
    for (const auto& v : kLengthVariants)
        std::printf("%s, ", v.name);
    std::printf("\n");
    for (const Model& m : std::span(kModels).first(2))
        for (const Lengths& c : kLengths) {
            const std::vector<int32_t> lens = c.all();
            const double tokens = std::accumulate(lens.begin(), lens.end(), 0.0);
            const double bytes = tokens * m.kv_heads * m.d * 4;
            const auto layers = static_cast<uint32_t>(std::clamp(2e9 / bytes, 4.0, 14.0));
            const Bed bed(m.heads, m.kv_heads, m.d, 64, lens, layers, lens.size());
            const auto longest = static_cast<uint32_t>(*std::max_element(lens.begin(), lens.end()));
            std::vector<double> best(std::size(kLengthVariants), 1e9);
            for (int round = 0; round < 2; ++round)
                for (size_t i = 0; i < best.size(); ++i) {
                    const LengthVariant& v = kLengthVariants[i];
                    const uint32_t grid = v.chosen ? cuda::decode_splits(static_cast<uint32_t>(lens.size()), m.kv_heads, longest, static_cast<uint32_t>(sms))
                                                   : static_cast<uint32_t>(sms);
                    best[i] = std::min(best[i], graph_us([&](cudaStream_t s) {
                                                    for (uint32_t l = 0; l < layers; ++l) {
                                                        const cuda::RopeAppend fused = bed.fused(l);
                                                        cuda::DecodeAttention a = bed.decode(l, grid);
                                                        a.fused = &fused;
                                                        a.early = true;
                                                        BATON_CUDA(v.run({s, true}, a));
                                                    }
                                                }) / layers);
                }
            std::printf("%-9s %-25s floor %6.1f |", m.name, c.name, bytes / kBandwidth * 1e6);
            for (const double us : best)
                std::printf(" %6.1f (%.2f)", us, bytes / us / 1e6);
            std::printf("\n");
        }
}

/// What an attention adds to a layer of four matrix products (8, 4, 12 and 6 MB of weights) that prefetch them, in one chain.
template <int HELD>
void bench_chain(int sms) {
    std::printf("chain, products that hold %d registers: us that a fused attention adds to a layer: early no and yes: ", 4 * HELD);
    for (const auto& v : kChain)
        std::printf("%s ", v.name);
    std::printf("\n");
    constexpr uint32_t kLayers = 14;
    constexpr size_t kLayerWords = (8 + 4 + 12 + 6) * 256 * 256;
    const DeviceArray<uint4> weights(kLayers * kLayerWords);
    const DeviceArray<uint4> sink(512);
    for (const Model& m : kModels)
        for (const auto& [batch, length] : {std::pair{1, 128}, {1, 1024}, {1, 4096}, {2, 1024}, {4, 1024}, {8, 1024}, {64, 1024}}) {
            if (m.d == 64 && batch > 8)
                continue;
            const std::vector<int32_t> lens(static_cast<size_t>(batch), length);
            const Bed bed(m.heads, m.kv_heads, m.d, 64, lens, kLayers, lens.size());
            const auto* x = reinterpret_cast<const uint4*>(bed.out.data());
            auto product = [&](cudaStream_t s, auto kernel, const uint4* w) {
                cudaLaunchConfig_t config{};
                config.gridDim = dim3(256);
                config.blockDim = dim3(256);
                config.stream = s;
                cudaLaunchAttribute at{};
                at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
                at.val.programmaticStreamSerializationAllowed = 1;
                config.attrs = &at;
                config.numAttrs = 1;
                BATON_CUDA(cudaLaunchKernelEx(&config, kernel, w, x, sink.data()));
            };
            auto layer = [&](cudaStream_t s, uint32_t l, const std::function<void()>& attention) {
                const uint4* w = weights.data() + l * kLayerWords;
                product(s, product_kernel<8, HELD>, w);
                attention();
                product(s, product_kernel<4, HELD>, w + 8 * 65536);
                product(s, product_kernel<12, HELD>, w + 12 * 65536);
                product(s, product_kernel<6, HELD>, w + 24 * 65536);
            };
            const double alone = graph_us([&](cudaStream_t s) {
                for (uint32_t l = 0; l < kLayers; ++l)
                    layer(s, l, [] {});
            });
            std::printf("%-9s B%-3d %5d alone %5.2f |", m.name, batch, length, alone / kLayers);
            for (const auto& v : kChain) {
                const auto f = m.d == 128 ? v.d128 : v.d64;
                for (const bool early : {false, true}) {
                    const double us = (graph_us([&](cudaStream_t s) {
                        for (uint32_t l = 0; l < kLayers; ++l)
                            layer(s, l, [&] {
                                const cuda::RopeAppend fused = bed.fused(l);
                                cuda::DecodeAttention a = bed.decode(l, grid_of(v, static_cast<uint32_t>(batch), m.kv_heads,
                                                                              static_cast<uint32_t>(length), sms));
                                a.fused = &fused;
                                a.early = early;
                                BATON_CUDA(f({s, true}, a, v.clusters));
                            });
                    }) - alone) / kLayers;
                    std::printf(" %5.2f", us);
                }
                std::printf(" |");
            }
            std::printf("\n");
        }
}

struct PrefillVariant {
    const char* name;
    cudaError_t (*d128)(const cuda::Launch&, const cuda::PrefillAttention&);
    cudaError_t (*d64)(const cuda::Launch&, const cuda::PrefillAttention&);
};
const PrefillVariant kPortable[] = {{"portable", cuda::prefill_attention_portable, cuda::prefill_attention_portable}};
template <int D, int GROUPS>
cudaError_t hopper(const cuda::Launch& launch, const cuda::PrefillAttention& a) {
    return cuda::launch_prefill_90<Elem::kBF16, D, GROUPS>(launch, a, 132);
}
const PrefillVariant kHopper[] = {{"chosen", cuda::prefill_attention_90, cuda::prefill_attention_90},
                                  {"128 rows", hopper<128, 2>, hopper<64, 2>},
                                  {"64 rows", hopper<128, 1>, hopper<64, 1>},
#if defined(BATON_WITH_FLASHINFER)
                                  {"flashinfer", cuda::flashinfer_prefill_attention, cuda::flashinfer_prefill_attention},
#endif
};

void bench_prefill(std::span<const PrefillVariant> variants) {
    std::printf("prefill, us (TFLOP/s); columns: ");
    for (const auto& v : variants)
        std::printf("%s ", v.name);
    std::printf("\n");
    for (const Model& m : kModels)
        for (const auto& [rows, length] : {std::pair{512, 512}, {1024, 1024}, {2048, 2048}, {4096, 4096}, {8192, 8192}, {32768, 32768}, {2048, 16384}, {16, 2048}}) {
            const Bed bed(m.heads, m.kv_heads, m.d, 64, {length}, 1, static_cast<size_t>(rows));
            const DeviceArray<int32_t> begin(std::vector<int32_t>{0, rows});
            cuda::PrefillAttention a;
            a.base = bed.base(0);
            a.q = bed.q.data();
            a.row_begin = begin.data();
            a.rows = a.rows_max = static_cast<uint32_t>(rows);
            const double flops = 4.0 * m.heads * m.d * (static_cast<double>(rows) * (length - rows) + 0.5 * rows * (rows + 1.0));
            std::printf("%-9s %5d of %5d |", m.name, rows, length);
            for (const auto& v : variants) {
                const auto f = m.d == 128 ? v.d128 : v.d64;
                constexpr int kTimes = 4;
                const double us = graph_us([&](cudaStream_t s) {
                    for (int i = 0; i < kTimes; ++i)
                        BATON_CUDA(f({s, false}, a));
                }, 5) / kTimes;
                std::printf(" %8.1f (%3.0f)", us, flops / us / 1e6);
            }
            std::printf(" floor %.1f\n", flops / kFlops * 1e6);
        }
}

void bench_append() {
    for (const Model& m : kModels)
        for (const int rows : {1, 64, 2048, 8192}) {
            std::vector<int32_t> lens(static_cast<size_t>(rows), 16);
            const Bed bed(m.heads, m.kv_heads, m.d, 16, lens, 1, lens.size());
            const cuda::RopeAppend a = bed.fused(0);
            const double us = graph_us([&](cudaStream_t s) {
                for (int i = 0; i < 8; ++i)
                    BATON_CUDA(cuda::rope_append({s, true}, a));
            }) / 8;
            const double bytes = 4.0 * rows * (m.heads + 2 * m.kv_heads) * m.d;
            std::printf("append %-9s rows %4d: %6.2f us, %.2f TB/s, floor %.2f us\n", m.name, rows, us, bytes / us / 1e6,
                        bytes / kBandwidth * 1e6);
        }
}

}  // namespace
}  // namespace baton::test

int main(int argc, char** argv) {
    int sms = 0;
    BATON_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    const std::vector<std::string> what(argv + 1, argv + argc);
    auto wanted = [&](const char* name) { return what.empty() || std::find(what.begin(), what.end(), name) != what.end(); };
    if (wanted("decode"))
        baton::test::bench_decode(sms);
    if (wanted("lengths"))
        baton::test::bench_lengths(sms);
    if (wanted("chain"))
        baton::test::bench_chain<16>(sms);
    if (wanted("chain2"))
        baton::test::bench_chain<27>(sms);
    if (wanted("prefill"))
        baton::test::bench_prefill(baton::test::kPortable);
    if (wanted("prefill90") && baton::backend::cuda::runs_prefill_90())
        baton::test::bench_prefill(baton::test::kHopper);
    if (wanted("append"))
        baton::test::bench_append();
    return 0;
}
