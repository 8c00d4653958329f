// Times the matrix products of whole models: every candidate with cold weights, chains of a decode step in one graph, the
// tuning itself, the deterministic form. Built on request (target linear_bench); run on a GPU: linear_bench [detail file [part …]]; parts: tuning, chains,
// table, turns, steady, deterministic, small, fused.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "backend/cuda/linear_impl.hpp"
#include "backend/cuda/linear_mlp.hpp"
#include "baton/base/digest.hpp"

namespace baton::backend::cuda {
namespace {

struct Model {
    const char* name;
    uint32_t layers, hidden, qkv, attention, ffn, vocab;
    bool bias;
};
constexpr Model kQwen06 = {"0.6B", 28, 1024, 4096, 2048, 3072, 151936, false};
constexpr Model kLlama8 = {"8B", 32, 4096, 6144, 4096, 14336, 128256, false};
constexpr Model kQwen05 = {"0.5B", 24, 896, 1152, 896, 4864, 151936, true};
constexpr Model kSmol = {"135M", 30, 576, 960, 576, 1536, 49152, false};

[[noreturn]] void die(const std::string& what) {
    std::printf("FAILED %s\n", what.c_str());
    std::exit(1);
}
void check(cudaError_t e, const char* what) {
    if (e != cudaSuccess) die(std::string(what) + ": " + cudaGetErrorString(e));
}
template <class T>
T must(Expected<T> value) {
    if (!value) die(value.error().message);
    if constexpr (!std::is_void_v<T>) return std::move(*value);
}

/// Random bf16 of about ±0.03 everywhere, as weights are.
DeviceBuffer random_bf16(size_t elements) {
    DeviceBuffer buffer = must(DeviceBuffer::make(elements * 2, "the bench"));
    std::vector<uint16_t> some(size_t{1} << 20);
    uint64_t h = 88172645463325252ull;
    for (uint16_t& v : some) {
        h ^= h << 13, h ^= h >> 7, h ^= h << 17;
        v = static_cast<uint16_t>((h & 0x807f) | 0x3c00 | (h >> 20 & 0x80));
    }
    for (size_t at = 0; at < elements; at += some.size())
        check(cudaMemcpy(buffer.data() + at * 2, some.data(), std::min(some.size(), elements - at) * 2, cudaMemcpyHostToDevice), "fill");
    return buffer;
}

/// A model's matrices over one shared piece of memory.
struct Weights {
    explicit Weights(const Model& model, uint32_t layers_held) : m(model), held(layers_held) {
        const size_t layer = size_t{m.qkv} * m.hidden + size_t{m.attention} * m.hidden + 3 * size_t{m.ffn} * m.hidden;
        memory = random_bf16(layer * held + size_t{m.vocab} * m.hidden);
        bias = random_bf16(m.qkv);
        norm = must(DeviceBuffer::make(size_t{m.hidden} * 4, "the bench"));
        const std::vector<float> ones(m.hidden, 1.0f);
        check(cudaMemcpy(norm.data(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice), "fill");
    }
    /// 0 qkv, 1 o, 2 gate_up, 3 down, 4 head.
    [[nodiscard]] Matrix matrix(int which, uint32_t layer) const {
        const size_t sizes[4] = {size_t{m.qkv} * m.hidden, size_t{m.attention} * m.hidden, 2 * size_t{m.ffn} * m.hidden, size_t{m.ffn} * m.hidden};
        const uint32_t n[5] = {m.qkv, m.hidden, 2 * m.ffn, m.hidden, m.vocab};
        const uint32_t k[5] = {m.hidden, m.attention, m.hidden, m.ffn, m.hidden};
        constexpr Out outs[5] = {Out::kStore, Out::kAdd, Out::kSwiGlu, Out::kAdd, Out::kF32};
        size_t at = (sizes[0] + sizes[1] + sizes[2] + sizes[3]) * (which == 4 ? held : layer % held);
        for (int i = 0; i < which && which < 4; ++i) at += sizes[i];
        Matrix matrix;
        matrix.w = memory.as<uint16_t>() + at;
        matrix.n = n[which];
        matrix.k = k[which];
        matrix.out = outs[which];
        matrix.eps = 1e-6f;
        if (which == 0 && m.bias) matrix.bias = bias.data();
        if (which != 1 && which != 3) matrix.norm = norm.as<float>();
        return matrix;
    }
    Model m;
    uint32_t held;
    DeviceBuffer memory, bias, norm;
};
constexpr const char* kNames[5] = {"qkv", "o", "gate_up", "down", "head"};

LinearOptions options(uint32_t rows_max, bool deterministic = false, const std::string& folder = {}) {
    LinearOptions o;
    o.rows_max = rows_max;
    o.width_max = 28672;
    o.deterministic = deterministic;
    o.cache_folder = folder;
    return o;
}

float best_of(const std::vector<Choice>& found, Kind kind) {
    for (const Choice& c : found)
        if (c.kind == kind) return c.microseconds;
    return std::numeric_limits<float>::infinity();
}

void table(const Model& model, const std::vector<uint32_t>& rows, std::FILE* detail) {
    const Weights weights(model, 1);
    auto linear = must(LinearImpl::make(options(rows.back())));
    Stream stream = must(make_stream());
    for (int which = 0; which < 5; ++which) {
        const Matrix matrix = weights.matrix(which, 0);
        std::printf("%-4s %-7s %6ux%-5u", model.name, kNames[which], matrix.n, matrix.k);
        for (const uint32_t m : rows) {
            if (which == 4 && m > 256) break;
            const auto found = must(linear->measure_all(matrix, m, stream.get()));
            const float own = std::min({best_of(found, Kind::kGemv), best_of(found, Kind::kTile), best_of(found, Kind::kDirect)});
            const double best = static_cast<double>(found.front().microseconds);
            std::printf(" | m%u lt %.2f own %.2f held %.2f ring %.2f slab %.2f: %s", m, static_cast<double>(best_of(found, Kind::kLt)), static_cast<double>(own),
                        static_cast<double>(best_of(found, Kind::kHeld)), static_cast<double>(best_of(found, Kind::kRing)), static_cast<double>(best_of(found, Kind::kSlab)), describe(found.front()).c_str());
            if (m <= 128)
                std::printf(" %.0fGB/s", 2e-3 * matrix.n * matrix.k / best);
            else
                std::printf(" %.0fTF", 2e-6 * m * matrix.n * matrix.k / best);
            if (detail == nullptr) continue;
            const std::vector<Choice> order = linear->candidates(matrix, m);  // the library's answers, best guess first
            const auto at_of = [&](const Choice& c) {
                int at = 0;
                for (const Choice& o : order) {
                    if (o.kind != Kind::kLt) continue;
                    if (o.algo == c.algo) break;
                    ++at;
                }
                return at;
            };
            for (const Choice& c : found)
                std::fprintf(detail, "%s %s m %u: %s%s %.2f us\n", model.name, kNames[which], m, describe(c).c_str(),
                             c.kind == Kind::kLt ? (" answer " + std::to_string(at_of(c))).c_str() : "", static_cast<double>(c.microseconds));
        }
        std::printf("\n");
        std::fflush(stdout);
    }
}

std::vector<Choice> answers_of_library(const LinearImpl& linear, const Matrix& matrix, uint32_t m) {
    std::vector<Choice> all = linear.candidates(matrix, m);
    std::erase_if(all, [](const Choice& c) { return c.kind != Kind::kLt; });
    return all;
}

/// Products of many rows: the library, with norms left out and its SwiGLU as a kernel of its own, against the kernel for many rows in many
/// forms. On a warm GPU, in turns: the medians.
void turns(const Model& model, const std::vector<uint32_t>& rows, std::FILE* detail) {
    const Weights weights(model, 1);
    auto linear = must(LinearImpl::make(options(rows.back())));
    Stream stream = must(make_stream());
    const DeviceBuffer x = random_bf16(size_t{rows.back()} * model.ffn);
    const DeviceBuffer out = must(DeviceBuffer::make(size_t{rows.back()} * std::max(model.qkv, model.ffn) * 2, "the bench"));
    check(cudaMemset(out.data(), 0, out.size()), "fill");
    Event begin, end;
    cudaEvent_t made[2] = {};
    for (cudaEvent_t& event : made) check(cudaEventCreate(&event), "an event");
    begin = Event(made[0]);
    end = Event(made[1]);
    for (int which = 0; which < 4; ++which)
        for (const uint32_t m : rows) {
            Matrix matrix = weights.matrix(which, 0);
            matrix.norm = nullptr;
            must(linear->reserve(matrix));
            std::vector<Choice> all = answers_of_library(*linear, matrix, m);
            const size_t libraries = all.size();
            for (uint8_t v = 0; v < bulk_shapes().size(); ++v)
                for (const auto& [share_m, share_n] : {std::pair<uint8_t, uint8_t>{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}})
                    for (const uint32_t band : {8u, 16u, 32u}) {
                        Choice c;
                        c.kind = Kind::kBulk;
                        c.bulk = {v, share_m, share_n, static_cast<uint8_t>(band / share_m)};
                        if (share_m * share_n > 2 || (m <= 256 && band != 16) || band * 128 > std::max(2048u, m) || (band != 16 && (share_n == 2 || share_m != 2 || v != 0)) || (v != 0 && share_n == 2) || (m > 1024 && v > 2)) continue;
                        if (linear->takes(matrix, m, c)) all.push_back(c);
                    }
            const double guess = 2e-6 * m * matrix.n * matrix.k / 650;  // us
            const auto links = static_cast<uint32_t>(std::clamp(3000 / guess, 2.0, 60.0));
            std::vector<std::vector<float>> times(all.size());
            for (int round = 0; round < 6; ++round)
                for (size_t i = 0; i < all.size(); ++i) {
                    check(cudaEventRecord(begin.get(), stream.get()), "time");
                    for (uint32_t l = 0; l < links; ++l) check(linear->run_as({stream.get(), linear->pdl()}, matrix, x.data(), m, out.data(), all[i]), "run");
                    check(cudaEventRecord(end.get(), stream.get()), "time");
                    float ms = 0;
                    check(cudaEventSynchronize(end.get()), "run");
                    check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "time");
                    if (round > 0) times[i].push_back(ms * 1000 / static_cast<float>(links));
                }
            for (size_t i = 0; i < all.size(); ++i) {
                std::sort(times[i].begin(), times[i].end());
                all[i].microseconds = times[i][times[i].size() / 2];
                if (detail != nullptr)
                    std::fprintf(detail, "%s %s m %u: %s %.2f us (%.2f-%.2f) %.0f TF\n", model.name, kNames[which], m, describe(all[i]).c_str(), static_cast<double>(all[i].microseconds),
                                 static_cast<double>(times[i].front()), static_cast<double>(times[i].back()), 2e-6 * m * matrix.n * matrix.k / static_cast<double>(all[i].microseconds));
            }
            const double first = static_cast<double>(all.front().microseconds);
            const auto quicker = [](const Choice& a, const Choice& b) { return a.microseconds < b.microseconds; };
            std::sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(libraries), quicker);
            std::sort(all.begin() + static_cast<std::ptrdiff_t>(libraries), all.end(), quicker);
            std::printf("%-4s %-7s m%-5u lt first %.1f best %.1f", model.name, kNames[which], m, first, static_cast<double>(all.front().microseconds));
            for (size_t i = libraries; i < std::min(all.size(), libraries + 3); ++i)
                std::printf(" | %s %.1f (%.3f)", describe(all[i]).c_str(), static_cast<double>(all[i].microseconds), static_cast<double>(all[i].microseconds) / static_cast<double>(all.front().microseconds));
            std::printf("\n");
            std::fflush(stdout);
        }
}

/// The clock of the first GPU by NVML; 0 where there is none.
class Meter {
  public:
    Meter() {
        void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        if (library == nullptr) return;
        const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
        const auto device = reinterpret_cast<int (*)(unsigned, void**)>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
        clock_ = reinterpret_cast<int (*)(void*, int, unsigned*)>(dlsym(library, "nvmlDeviceGetClockInfo"));
        if (init == nullptr || device == nullptr || init() != 0 || device(0, &device_) != 0) clock_ = nullptr;
    }
    [[nodiscard]] unsigned mhz() const {
        unsigned v = 0;
        if (clock_ != nullptr) clock_(device_, 1, &v);
        return v;
    }

  private:
    void* device_ = nullptr;
    int (*clock_)(void*, int, unsigned*) = nullptr;
};

/// The same, each for a quarter of a second on end, so that the power it draws sets its clock.
void steady(const Model& model, uint32_t m) {
    const Meter meter;
    const Weights weights(model, 1);
    auto linear = must(LinearImpl::make(options(m)));
    Stream stream = must(make_stream());
    const DeviceBuffer x = random_bf16(size_t{m} * model.ffn);
    const DeviceBuffer out = must(DeviceBuffer::make(size_t{m} * std::max(model.qkv, model.ffn) * 2, "the bench"));
    check(cudaMemset(out.data(), 0, out.size()), "fill");
    for (int which = 0; which < 4; ++which) {
        Matrix matrix = weights.matrix(which, 0);
        matrix.norm = nullptr;
        must(linear->reserve(matrix));
        std::vector<Choice> all = answers_of_library(*linear, matrix, m);
        for (const auto& [v, share_m, share_n] : {std::array<uint8_t, 3>{0, 1, 1}, {0, 2, 1}, {0, 1, 2}, {2, 2, 1}}) {
            Choice c;
            c.kind = Kind::kBulk;
            c.bulk = {v, share_m, share_n, static_cast<uint8_t>(16 / share_m)};
            all.push_back(c);
        }
        std::printf("%s %s m%u steady:", model.name, kNames[which], m);
        for (const Choice& c : all) {
            const auto links = static_cast<int>(10000 / (2e-6 * m * matrix.n * matrix.k / 650)) + 1;  // about 10 ms
            const auto turn = [&] {
                for (int l = 0; l < links; ++l) check(linear->run_as({stream.get(), linear->pdl()}, matrix, x.data(), m, out.data(), c), "run");
                check(cudaStreamSynchronize(stream.get()), "run");
            };
            for (int i = 0; i < 8; ++i) turn();
            const auto began = std::chrono::steady_clock::now();
            unsigned clocks = 0;
            for (int i = 0; i < 15; ++i) turn(), clocks += meter.mhz();
            const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count();
            std::printf(" | %s %.1f us %u MHz", describe(c).c_str(), us / (15.0 * links), clocks / 15);
        }
        std::printf("\n");
        std::fflush(stdout);
    }
}

/// Milliseconds of a replay of what `launch` puts on the stream, back to back, the median; infinity where a kernel refuses. `longer`: of
/// steps that take so long that fewer will do.
template <class Launches>
float time_captured(cudaStream_t stream, bool longer, const Launches& launch) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    cudaError_t status = launch();
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    cudaGraphExec_t exec = nullptr;
    if (status == cudaSuccess) status = ended;
    if (status == cudaSuccess) status = cudaGraphInstantiate(&exec, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    const GraphExec owner(exec);
    if (status != cudaSuccess) return std::numeric_limits<float>::infinity();
    std::vector<float> times;
    const int steps = longer ? 2 : 8;
    for (int i = 0; i < (longer ? 4 : 6); ++i) {
        const auto began = std::chrono::steady_clock::now();
        for (int s = 0; s < steps; ++s) check(cudaGraphLaunch(exec, stream), "graph");
        check(cudaStreamSynchronize(stream), "chain");
        times.push_back(std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - began).count() / static_cast<float>(steps));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/// A decode step's products in one graph; `ways` says how each of the five runs.
class Chain {
  public:
    Chain(const Weights& weights, LinearImpl& linear, uint32_t m, cudaStream_t stream)
        : weights_(weights), linear_(linear), m_(m), stream_(stream), x_(random_bf16(size_t{m} * weights.m.hidden)),
          wide_(random_bf16(size_t{m} * std::max(weights.m.qkv, 2 * weights.m.ffn))),
          logits_(must(DeviceBuffer::make(size_t{m} * weights.m.vocab * 4, "the bench"))) {}

    /// Milliseconds a step, back to back; infinity where a kernel refuses.
    /// `ahead`: 0 no prefetch; 1 the next product's weights; 2 those after the next; 3 qkv both, the others the next. The product
    /// `without` is left out.
    /// `bare`: 1 without norms, 2 without SwiGLU as well.
    float time(const std::vector<Choice>& ways, bool pdl, int ahead = 0, int without = -1, int bare = 0) {
        return time_captured(stream_, weights_.m.hidden > 2048, [&] {
            cudaError_t status = cudaSuccess;
            for (uint32_t l = 0; l < weights_.m.layers && status == cudaSuccess; ++l)
                for (int i = 0; i < 4 && status == cudaSuccess; ++i)
                    if (i != without) status = linear_.run_as({stream_, pdl}, bare_of(ahead_of(i, l, ahead), bare), i % 2 == 0 ? x_.data() : wide_.data(), m_,
                                            i % 2 == 0 ? wide_.data() : x_.data(), ways[static_cast<size_t>(i)]);
            if (status == cudaSuccess && without != 4) status = linear_.run_as({stream_, pdl}, weights_.matrix(4, 0), x_.data(), m_, logits_.data(), ways[4]);
            return status;
        });
    }

  private:
    static Matrix bare_of(Matrix matrix, int bare) {
        if (bare > 0) matrix.norm = nullptr;
        if (bare > 1 && matrix.out == Out::kSwiGlu) matrix.out = Out::kStore;
        return matrix;
    }
    Matrix ahead_of(int i, uint32_t layer, int ahead) const {
        Matrix matrix = weights_.matrix(i, layer);
        if (ahead == 0) return matrix;
        const int step = ahead == 2 ? 2 : 1;
        if (i + step > 3 && layer + 1 >= weights_.m.layers) return matrix;
        const Matrix next = i + step <= 3 ? weights_.matrix(i + step, layer) : weights_.matrix(i + step - 4, layer + 1);
        matrix.ahead = next.w;
        matrix.ahead_bytes = size_t{next.n} * next.k * 2;
        if (ahead == 3 && i == 0) {
            const Matrix after = weights_.matrix(2, layer);  // they lie one behind the other
            matrix.ahead_bytes += size_t{after.n} * after.k * 2;
        }
        return matrix;
    }
    const Weights& weights_;
    LinearImpl& linear_;
    uint32_t m_;
    cudaStream_t stream_;
    DeviceBuffer x_, wide_, logits_;
};

/// Times the step with each product's quickest candidate, then looks whether others do better in the chain.
void chains(const Model& model, uint32_t held, const std::vector<uint32_t>& rows, std::FILE* detail) {
    const Weights weights(model, held);
    auto linear = must(LinearImpl::make(options(256)));
    Stream stream = must(make_stream());
    for (const uint32_t m : rows) {
        Chain chain(weights, *linear, m, stream.get());
        std::vector<std::vector<Choice>> found;
        std::vector<Choice> ways;
        std::vector<Choice> library;
        for (int i = 0; i < 5; ++i) {
            found.push_back(must(linear->measure_all(weights.matrix(i, 0), m, stream.get())));
            ways.push_back(found.back().front());
            library.push_back(ways.back());
            for (const Choice& c : found.back())
                if (c.kind == Kind::kLt) {
                    library.back() = c;
                    break;
                }
        }
        std::vector<Choice> others = ways;  // without slabs
        for (size_t i = 0; i < 5; ++i)
            for (const Choice& c : found[i])
                if (c.kind != Kind::kSlab) {
                    others[i] = c;
                    break;
                }
        const float lt = chain.time(library, true);
        const float ringless = chain.time(others, true);
        float best = chain.time(ways, true);
        const float plain = chain.time(ways, false);
        std::printf("%s chain m %u: cublaslt %.3f ms, as before %.3f, tuned %.3f, without overlap %.3f", model.name, m, static_cast<double>(lt),
                    static_cast<double>(ringless), static_cast<double>(best), static_cast<double>(plain));
        for (int i = 0; i < 5; ++i) {
            const auto at = static_cast<size_t>(i);
            for (size_t j = 1; j < std::min<size_t>(found[at].size(), 14); ++j) {
                if (found[at][j].microseconds > 1.6f * found[at][0].microseconds) break;
                auto other = ways;
                other[at] = found[at][j];
                const float ms = chain.time(other, true);
                if (detail != nullptr)
                    std::fprintf(detail, "%s chain m %u %s: %s alone %.2f us, chain %.4f ms\n", model.name, m, kNames[i],
                                 describe(found[at][j]).c_str(), static_cast<double>(found[at][j].microseconds), static_cast<double>(ms));
                if (ms < best) best = ms, ways = other;
            }
        }
        std::printf(", best in chain %.3f:", static_cast<double>(best));
        for (const Choice& c : ways) std::printf(" [%s %.2f]", describe(c).c_str(), static_cast<double>(c.microseconds));
        std::printf(", cublaslt again %.3f, best again %.3f", static_cast<double>(chain.time(library, true)), static_cast<double>(chain.time(ways, true)));
        std::printf(", each in it, us a layer:");
        const float whole = chain.time(ways, true);
        for (int i = 0; i < 5; ++i)
            std::printf(" %s %.2f", kNames[i], 1e3 * static_cast<double>(whole - chain.time(ways, true, 0, i)) / (i < 4 ? model.layers : 1));
        std::printf(", library without norms %.3f, without SwiGLU %.3f", static_cast<double>(chain.time(library, true, 0, -1, 1)), static_cast<double>(chain.time(library, true, 0, -1, 2)));
        std::printf("\n");
        std::fflush(stdout);
    }
}

/// The layers' products in one graph, the feed-forward part as two kernels or one.
class Layers {
  public:
    Layers(const Weights& weights, LinearImpl& linear, uint32_t m, cudaStream_t stream)
        : weights_(weights), linear_(linear), m_(m), stream_(stream), x_(random_bf16(size_t{m} * weights.m.hidden)),
          wide_(random_bf16(size_t{m} * std::max(weights.m.qkv, 2 * weights.m.ffn))), slots_(must(DeviceBuffer::make(size_t{4} << 20, "the bench"))) {
        check(cudaMemset(slots_.data(), 0xff, slots_.size()), "fill");
    }
    Mlp part(uint32_t layer, void* x) const { return {Elem::kBF16, weights_.matrix(2, layer), weights_.matrix(3, layer), {x}, {x}, m_, slots_.data()}; }
    /// Milliseconds of a replay; `form` null: two kernels.
    float time(const std::vector<Choice>& ways, const uint8_t* form) {
        check(cudaMemset(x_.data(), 0, x_.size()), "fill");
        return time_captured(stream_, false, [&] {
            cudaError_t status = cudaSuccess;
            for (uint32_t l = 0; l < weights_.m.layers && status == cudaSuccess; ++l) {
                for (int i = 0; i < (form != nullptr ? 2 : 4) && status == cudaSuccess; ++i)
                    status = linear_.run_as({stream_, true}, weights_.matrix(i, l), i % 2 == 0 ? x_.data() : wide_.data(), m_, i % 2 == 0 ? wide_.data() : x_.data(), ways[static_cast<size_t>(i)]);
                if (form != nullptr && status == cudaSuccess) status = mlp({stream_, true}, part(l, x_.data()), *form);
            }
            return status;
        });
    }

  private:
    const Weights& weights_;
    LinearImpl& linear_;
    uint32_t m_;
    cudaStream_t stream_;
    DeviceBuffer x_, wide_, slots_;
};

/// The feed-forward part as one kernel against its two products, each with the products ahead that suit it.
void fused(const Model& model, const std::vector<uint32_t>& rows) {
    const Weights weights(model, model.layers);
    auto linear = must(LinearImpl::make(options(256)));
    Stream stream = must(make_stream());
    AtOnceLimits limits;
    check(mlp_prepare(Elem::kBF16, limits), "preparing");
    const auto name = [](uint8_t form) { return "teams of " + std::to_string(mlp_shapes()[form].ranks); };
    for (const uint32_t m : rows) {
        std::vector<std::vector<Choice>> found;
        std::vector<Choice> ways;
        for (int i = 0; i < 4; ++i) {
            found.push_back(must(linear->measure_all(weights.matrix(i, 0), m, stream.get())));
            ways.push_back(found.back().front());
        }
        Layers layers(weights, *linear, m, stream.get());
        const auto search = [&](std::vector<Choice>& from, const uint8_t* form, int products) {
            float best = layers.time(from, form);
            for (int sweep = 0; sweep < 2; ++sweep)
                for (int i = 0; i < products; ++i) {
                    const auto at = static_cast<size_t>(i);
                    for (size_t j = 0; j < found[at].size(); ++j) {
                        if (found[at][j].microseconds > 1.7f * found[at][0].microseconds || j > 24) break;
                        auto other = from;
                        other[at] = found[at][j];
                        const float ms = layers.time(other, form);
                        if (ms < best * 0.998f) best = ms, from = other;
                    }
                }
            return best;
        };
        const auto print = [&](const std::vector<Choice>& set, int products) {
            for (int i = 0; i < products; ++i) std::printf(" [%s]", describe(set[static_cast<size_t>(i)]).c_str());
        };
        std::vector<Choice> apart = ways;
        const float two = search(apart, nullptr, 4);
        std::printf("m %u two kernels: quickest alone %.4f ms, best %.4f", m, static_cast<double>(layers.time(ways, nullptr)), static_cast<double>(two));
        print(apart, 4);
        std::printf("\n");
        std::fflush(stdout);
        std::vector<Choice> together = apart;
        uint8_t best_form = 0;
        float best = std::numeric_limits<float>::infinity();
        for (uint8_t form = 0; form < mlp_shapes().size(); ++form) {
            if (!mlp_takes(layers.part(0, nullptr), form, limits)) continue;
            const float ms = layers.time(together, &form);
            std::printf("m %u one kernel, %s: %.4f ms\n", m, name(form).c_str(), static_cast<double>(ms));
            if (ms < best) best = ms, best_form = form;
        }
        if (best == std::numeric_limits<float>::infinity()) continue;
        best = search(together, &best_form, 2);
        for (int round = 0; round < 2; ++round) {
            std::printf("m %u best one kernel, %s: %.4f ms", m, name(best_form).c_str(), static_cast<double>(layers.time(together, &best_form)));
            print(together, 2);
            std::printf("; best two kernels %.4f ms\n", static_cast<double>(layers.time(apart, nullptr)));
        }
        std::fflush(stdout);
    }
}

void tuning(const Model& model) {
    const std::string folder = std::filesystem::temp_directory_path() / ("linear-bench-" + random_hex(6));
    const Weights weights(model, 1);
    Stream stream = must(make_stream());
    for (const char* what : {"nothing cached", "cached"}) {
        const auto began = std::chrono::steady_clock::now();
        auto linear = must(LinearImpl::make(options(2048, false, folder)));
        auto head = must(LinearImpl::make(options(256, false, folder)));
        for (int i = 0; i < 4; ++i) must(linear->tune(weights.matrix(i, 0), stream.get()));
        must(head->tune(weights.matrix(4, 0), stream.get()));
        std::printf("%s tuning, %s: %.0f ms, %u measurements\n", model.name, what,
                    std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count(),
                    linear->measured() + head->measured());
    }
    std::filesystem::remove_all(folder);
}

void deterministic(const Model& model) {
    const Weights weights(model, 1);
    auto linear = must(LinearImpl::make(options(4096, true)));
    Stream stream = must(make_stream());
    for (int i = 0; i < 4; ++i) {
        const Matrix matrix = weights.matrix(i, 0);
        std::printf("%s deterministic %-7s", model.name, kNames[i]);
        for (const uint32_t m : {1u, 8u, 64u, 256u, 1024u, 4096u}) {
            const auto found = must(linear->measure_all(matrix, m, stream.get()));
            std::printf(" | m%u %.1f us %s %.0fTF", m, static_cast<double>(found.front().microseconds), describe(found.front()).c_str(),
                        2e-6 * m * matrix.n * matrix.k / static_cast<double>(found.front().microseconds));
        }
        std::printf("\n");
    }
}

}  // namespace
}  // namespace baton::backend::cuda

int main(int argc, char** argv) {
    using namespace baton::backend::cuda;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        std::printf("no GPU here\n");
        return 0;
    }
    std::FILE* detail = argc > 1 ? std::fopen(argv[1], "w") : nullptr;
    std::string parts;
    for (int i = 2; i < argc; ++i) parts += std::string(argv[i]) + " ";
    const auto wanted = [&](const char* part) { return parts.empty() || parts.find(part) != std::string::npos; };
    if (wanted("tuning")) tuning(kQwen06);
    if (wanted("tuning8")) tuning(kLlama8);
    if (wanted("fused")) fused(kQwen06, {24, 32});
    if (wanted("chains ") || parts.empty()) chains(kQwen06, 28, {8, 16, 32, 64}, detail);
    if (wanted("chains8")) chains(kLlama8, 2, {32, 64, 256}, detail);
    if (wanted("rows")) {
        table(kQwen06, {1, 8, 16, 17, 18, 24, 32, 64, 128, 256}, detail);
        table(kLlama8, {1, 8, 16, 17, 18, 24, 32, 64, 128, 256}, detail);
    }
    if (wanted("table")) {
        const std::vector<uint32_t> rows = {1, 8, 16, 32, 64, 128, 256, 1024, 4096};
        table(kQwen06, rows, detail);
        table(kLlama8, rows, detail);
    }
    if (wanted("turns")) {
        turns(kLlama8, {128, 256, 512, 4096}, detail);
        turns(kQwen06, {256, 1024, 4096}, detail);
    }
    if (wanted("steady")) steady(kLlama8, 4096);
    if (wanted("deterministic")) {
        deterministic(kQwen06);
        deterministic(kLlama8);
    }
    if (wanted("small")) {
        table(kQwen05, {1, 8, 64, 256, 4096}, detail);
        table(kSmol, {1, 8, 64, 256, 4096}, detail);
    }
    if (detail != nullptr) std::fclose(detail);
    return 0;
}
