#include "cli/bench_cuda.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "baton/backend/cuda.hpp"
#include "baton/base/clock.hpp"
#include "baton/config/settings.hpp"
#include "cli/client_session.hpp"

namespace baton::cli {
namespace {

constexpr uint32_t kWarmSteps = 4;
constexpr uint32_t kDecodeSteps = 32;
constexpr uint32_t kDecodeRounds = 3;
constexpr uint32_t kPrefillRounds = 5;

struct Line {
    bool decode;
    uint32_t batch, tokens;
    double seconds, floor, host;
    std::string error;
};

/// The least time this GPU needs for the bytes and operations of a step.
class Floor {
  public:
    Floor(const backend::ModelShape& s, const backend::CudaCalibration& c) : s_(s), c_(c) {
        const double h = s.hidden, d = s.head_dim;
        layers_ = s.layers * (h * (s.heads + 2.0 * s.kv_heads) * d + s.heads * d * h + 3.0 * h * s.ffn);
        head_ = static_cast<double>(s.vocab) * h;
        kv_bytes_ = s.layers * 2.0 * s.kv_heads * d * 2.0;
    }
    [[nodiscard]] double decode(double batch, double context) const {
        const double weights = layers_ + head_;
        return std::max(2 * weights / c_.copy_bytes_per_s, 2 * weights * batch / c_.gemm_flops_per_s) +
               batch * context * kv_bytes_ / c_.copy_bytes_per_s;
    }
    [[nodiscard]] double prefill(double tokens) const {
        const double flops = 2 * layers_ * tokens + 2 * head_ + 2.0 * s_.layers * s_.heads * s_.head_dim * tokens * tokens;
        return std::max(flops / c_.gemm_flops_per_s, 2 * (layers_ + head_) / c_.copy_bytes_per_s);
    }

  private:
    backend::ModelShape s_;
    backend::CudaCalibration c_;
    double layers_ = 0, head_ = 0, kv_bytes_ = 0;
};

/// Sequences with blocks of their own and what a backend asks to know of them.
class Sequences {
  public:
    Sequences(const backend::DeviceBackend& backend, uint32_t count, uint32_t positions) : wire_(count), blocks_(count) {
        const uint32_t bt = backend.kv_layout().block_tokens, each = (positions + bt - 1) / bt;
        for (uint32_t i = 0; i < count; ++i) {
            wire_[i].sampling.temperature = 0;
            wire_[i].sampling.max_tokens = UINT32_MAX;
            wire_[i].prompt = {1};
            blocks_[i].resize(each);
            std::iota(blocks_[i].begin(), blocks_[i].end(), i * each);
        }
    }
    [[nodiscard]] backend::Slice slice(uint32_t i, uint32_t tokens, uint32_t position, bool logits, uint32_t pending) const {
        backend::Slice s;
        s.tokens = tokens;
        s.position = position;
        s.blocks = blocks_[i];
        s.logits = logits;
        s.sequence = &wire_[i];
        s.state = i;
        s.pending = pending;
        return s;
    }
    void push(uint32_t i, TokenId id) { wire_[i].emitted.push_back(id); }

  private:
    std::vector<wire::Sequence> wire_;
    std::vector<std::vector<BlockId>> blocks_;
};

/// Decode steps of `batch` sequences around position `context`, one queued ahead as the engine does; the shortest mean of
/// some rounds, and the host's share of it.
Expected<Line> decode(backend::DeviceBackend& backend, uint32_t batch, uint32_t context) {
    constexpr uint32_t kSteps = kWarmSteps + kDecodeRounds * kDecodeSteps;
    const uint32_t first = context > kSteps ? context - kSteps : 1;
    Sequences sequences(backend, batch, first + kSteps + 2);
    std::vector<TokenId> ids(batch, 1);
    std::vector<wire::Token> tokens;
    std::vector<backend::Slice> slices(batch);
    Line line{true, batch, context, 1e9, 0, 1e9, {}};
    uint32_t position = first;
    double host = 0;
    const auto submit = [&](uint32_t pending) {
        for (uint32_t i = 0; i < batch; ++i) slices[i] = sequences.slice(i, 1, position, true, pending);
        ++position;
        const int64_t begin = steady_now_us();
        auto ok = backend.submit({ids, slices});
        host += static_cast<double>(steady_now_us() - begin) * 1e-6;
        return ok;
    };
    const auto collect = [&]() -> Expected<void> {
        BATON_TRY(backend.collect(tokens));
        for (uint32_t i = 0; i < batch; ++i) sequences.push(i, tokens[i].id);
        return {};
    };
    BATON_TRY(submit(0));
    for (uint32_t i = 0; i < kWarmSteps; ++i) {
        BATON_TRY(submit(1));
        BATON_TRY(collect());
    }
    for (uint32_t round = 0; round < kDecodeRounds; ++round) {
        host = 0;
        const int64_t begin = steady_now_us();
        for (uint32_t i = 0; i < kDecodeSteps; ++i) {
            BATON_TRY(submit(1));
            BATON_TRY(collect());
        }
        line.seconds = std::min(line.seconds, static_cast<double>(steady_now_us() - begin) * 1e-6 / kDecodeSteps);
        line.host = std::min(line.host, host / kDecodeSteps);
    }
    BATON_TRY(collect());
    return line;
}

/// One prompt in one step, from submitting it to its token; the median of some.
Expected<Line> prefill(backend::DeviceBackend& backend, uint32_t length) {
    std::mt19937_64 random(length);
    std::vector<TokenId> ids(length);
    std::vector<double> seconds;
    std::vector<wire::Token> tokens;
    double host = 1e9;
    for (uint32_t round = 0; round <= kPrefillRounds; ++round) {
        for (TokenId& id : ids) id = static_cast<TokenId>(random() % backend.shape().vocab);
        const Sequences sequences(backend, 1, length);
        const backend::Slice slice = sequences.slice(0, length, 0, true, 0);
        const int64_t begin = steady_now_us();
        BATON_TRY(backend.submit({ids, std::span(&slice, 1)}));
        host = std::min(host, static_cast<double>(steady_now_us() - begin) * 1e-6);
        BATON_TRY(backend.collect(tokens));
        if (round > 0) seconds.push_back(static_cast<double>(steady_now_us() - begin) * 1e-6);
    }
    std::nth_element(seconds.begin(), seconds.begin() + kPrefillRounds / 2, seconds.end());
    return Line{false, 1, length, seconds[kPrefillRounds / 2], 0, host, {}};
}

Expected<uint32_t> device_index(const std::string& device) {
    if (device == "cuda") return 0;
    if (device.starts_with("cuda:") && device.size() > 5 && device.size() < 9 &&
        std::all_of(device.begin() + 5, device.end(), [](char c) { return c >= '0' && c <= '9'; }))
        return static_cast<uint32_t>(std::stoul(device.substr(5)));
    return fail(ErrorCode::kInvalidArgument, "device must be cpu, cuda or cuda:N", "device");
}

std::vector<Line> measure(backend::DeviceBackend& backend, const BenchEngineOptions& o, const Floor& floor) {
    const uint64_t room = uint64_t{backend.kv_layout().blocks} * backend.kv_layout().block_tokens;
    const uint32_t longest = backend.shape().context;
    std::vector<Line> lines;
    for (const uint32_t context : o.contexts) {
        for (const uint32_t batch : o.batches) {
            if (context + 8 > longest || uint64_t{batch} * (context + 2 * o.block_tokens) > room) {
                lines.push_back({true, batch, context, 0, floor.decode(batch, context), 0, "does not fit"});
                continue;
            }
            auto line = decode(backend, batch, context);
            lines.push_back(line ? *line : Line{true, batch, context, 0, 0, 0, line.error().message});
            lines.back().floor = floor.decode(batch, context);
        }
    }
    for (const uint32_t length : o.prompts) {
        if (length > longest) continue;
        auto line = prefill(backend, length);
        lines.push_back(line ? *line : Line{false, 1, length, 0, 0, 0, line.error().message});
        lines.back().floor = floor.prefill(length);
    }
    return lines;
}

double rate(const Line& l) { return (l.decode ? l.batch : l.tokens) / l.seconds; }

std::string phases(const backend::DeviceBackend& backend) {
    std::string text;
    for (const backend::LoadPhase& phase : backend.load_phases())
        text += (text.empty() ? "" : ", ") + phase.name + " " + std::to_string(std::lround(phase.ms));
    return text;
}

void print_table(const std::vector<Line>& lines) {
    std::printf("%-8s %6s %7s %9s %9s %8s %11s %8s\n", "", "batch", "tokens", "ms", "floor ms", "x floor", "tokens/s", "host us");
    for (const Line& l : lines) {
        const char* what = l.decode ? "decode" : "prefill";
        if (!l.error.empty()) {
            std::printf("%-8s %6u %7u %s\n", what, l.batch, l.tokens, l.error.c_str());
            continue;
        }
        std::printf("%-8s %6u %7u %9.3f %9.3f %8.2f %11.0f %8.1f\n", what, l.batch, l.tokens, l.seconds * 1e3, l.floor * 1e3,
                    l.seconds / l.floor, rate(l), l.host * 1e6);
    }
}

Json as_json(const std::vector<Line>& lines, const backend::DeviceBackend& backend, const backend::CudaCalibration& c, double load_ms) {
    const kv::PoolLayout& pool = backend.kv_layout();
    Json out{{"backend", backend.describe()}, {"load_ms", load_ms}, {"load_phases_ms", Json::object()},
             {"copy_bytes_per_s", c.copy_bytes_per_s}, {"gemm_flops_per_s", c.gemm_flops_per_s},
             {"upload_bytes_per_s", c.upload_bytes_per_s}, {"kv_tokens", uint64_t{pool.blocks} * pool.block_tokens}, {"block_tokens", pool.block_tokens},
             {"kv_bytes_per_token", static_cast<double>(pool.block_bytes()) / pool.block_tokens}, {"lines", Json::array()}};
    for (const backend::LoadPhase& phase : backend.load_phases()) out["load_phases_ms"][phase.name] = phase.ms;
    for (const Line& l : lines) {
        out["lines"].push_back({{"phase", l.decode ? "decode" : "prefill"}, {"batch", l.batch}, {"tokens", l.tokens},
                                {"floor_ms", l.floor * 1e3}, {"error", l.error}});
        if (l.error.empty())
            out["lines"].back().update({{"ms", l.seconds * 1e3}, {"ratio", l.seconds / l.floor}, {"tok_per_s", rate(l)}, {"host_us", l.host * 1e6}});
    }
    return out;
}

/// Loads the model and times it; prints, or gives it as JSON alone.
Expected<Json> run(const BenchEngineOptions& o, const backend::Plan& plan, bool print) {
    BATON_TRY_ASSIGN(const uint32_t device, device_index(o.device));
    BATON_TRY_ASSIGN(const backend::CudaCalibration calibration, backend::cuda_calibrate(device));
    backend::CudaOptions options;
    options.device = device;
    options.block_tokens = o.block_tokens;
    options.max_batch_tokens = o.prompts.empty() ? 2048 : *std::max_element(o.prompts.begin(), o.prompts.end());
    options.max_batch_slices = o.batches.empty() ? 1 : *std::max_element(o.batches.begin(), o.batches.end());
    options.max_model_len = std::max({options.max_batch_tokens + 8, o.contexts.empty() ? 0 : *std::max_element(o.contexts.begin(), o.contexts.end()) + 256});
    options.deterministic = o.deterministic;
    options.noise = true;
    if (o.cached) options.cache_folder = config::default_cache_dir() + "/cuda";
    const int64_t start = steady_now_us();
    BATON_TRY_ASSIGN(const auto backend, backend::make_cuda_backend(plan, options));
    const double load_ms = static_cast<double>(steady_now_us() - start) / 1000.0;
    const std::vector<Line> lines = measure(*backend, o, Floor(plan.shape, calibration));
    Json json = as_json(lines, *backend, calibration, load_ms);
    if (!print) return json;
    if (o.json) {
        std::printf("%s\n", json.dump().c_str());
        return json;
    }
    if (o.tuning) std::printf("%s\n", backend->tuning().c_str());
    std::printf("%s %s: loaded in %.0f ms (%s), %.1f GiB; copy %.2f TB/s, upload %.1f GB/s, bf16 products %.0f TFLOP/s\n",
                backend->describe().c_str(), o.shape.empty() ? o.model_path.c_str() : o.shape.c_str(), load_ms, phases(*backend).c_str(),
                static_cast<double>(backend->memory_bytes()) / (1 << 30), calibration.copy_bytes_per_s / 1e12,
                calibration.upload_bytes_per_s / 1e9, calibration.gemm_flops_per_s / 1e12);
    print_table(lines);
    return json;
}

}  // namespace

Expected<Json> measure_cuda(const BenchEngineOptions& options, const backend::Plan& plan) { return run(options, plan, false); }

int run_bench_cuda(const BenchEngineOptions& options, const backend::Plan& plan) {
    const auto done = run(options, plan, true);
    if (done) return kDone;
    complain(done.error().message);
    return kFailed;
}

}  // namespace baton::cli
