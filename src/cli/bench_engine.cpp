#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

#include "baton/backend/backend.hpp"
#include "baton/base/clock.hpp"
#include "baton/cli/bench.hpp"
#include "baton/model/model.hpp"
#include "cli/bench_cuda.hpp"
#include "cli/bench_pool.hpp"
#include "cli/bench_shapes.hpp"
#include "cli/client_session.hpp"

/// `baton bench engine`: the compute of one replica alone, through the same plan and backend a replica uses.
namespace baton::cli {
namespace {

constexpr uint32_t kChunkTokens = 512;

/// Sequences of one run: their blocks, and what they have computed so far.
class Run {
  public:
    Run(backend::Backend& backend, const BenchEngineOptions& o, uint32_t blocks_each)
        : backend_(backend), vocab_(backend.shape().vocab), batch_(o.batch), blocks_(o.batch), next_(o.batch) {
        for (uint32_t i = 0; i < batch_; ++i) {
            blocks_[i].resize(blocks_each);
            std::iota(blocks_[i].begin(), blocks_[i].end(), i * blocks_each);
        }
    }

    /// Computes `tokens` random prompt tokens of every sequence, one sequence after the other.
    Expected<void> prefill(uint32_t tokens, uint64_t seed) {
        std::mt19937_64 random(seed);
        std::vector<float> logits(vocab_);
        std::vector<TokenId> ids(tokens);
        for (uint32_t i = 0; i < batch_; ++i) {
            for (TokenId& id : ids) id = static_cast<TokenId>(random() % vocab_);
            for (uint32_t at = 0; at < tokens; at += kChunkTokens) {
                const uint32_t n = std::min(kChunkTokens, tokens - at);
                const bool last = at + n == tokens;
                const backend::Slice slice{n, at, blocks_[i], last};
                BATON_TRY(backend_.forward({std::span(ids).subspan(at, n), std::span(&slice, 1)},
                                           last ? std::span(logits) : std::span<float>(), [](uint32_t) {}));
            }
            next_[i] = best(logits);
        }
        position_ = tokens;
        return {};
    }

    /// One token of every sequence, greedy.
    Expected<void> step() {
        std::vector<float> logits(static_cast<size_t>(batch_) * vocab_);
        std::vector<backend::Slice> slices;
        for (uint32_t i = 0; i < batch_; ++i) slices.push_back({1, position_, blocks_[i], true});
        BATON_TRY(backend_.forward({next_, slices}, logits, [](uint32_t) {}));
        for (uint32_t i = 0; i < batch_; ++i) next_[i] = best(std::span(logits).subspan(static_cast<size_t>(i) * vocab_, vocab_));
        ++position_;
        return {};
    }

  private:
    static TokenId best(std::span<const float> logits) {
        return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
    backend::Backend& backend_;
    size_t vocab_;
    uint32_t batch_, position_ = 0;
    std::vector<std::vector<BlockId>> blocks_;
    std::vector<TokenId> next_;
};

struct Speeds {
    double prefill = 0, decode = 0, load_ms = 0;
    std::string backend;
};

double per_second(uint64_t count, int64_t us) { return static_cast<double>(count) * 1e6 / static_cast<double>(std::max<int64_t>(us, 1)); }

Expected<Speeds> measure(const BenchEngineOptions& o, const backend::Plan& plan, int64_t load_start) {
    Speeds speeds;
    backend::CpuOptions options;
    options.threads = o.threads;
    options.isa = o.isa;
    options.max_batch_tokens = std::max(kChunkTokens, o.batch);
    options.max_batch_slices = std::max(o.batch, 1u);
    const uint64_t positions = uint64_t{o.prompt_tokens} + o.decode_tokens;
    if (positions > plan.shape.context)
        return fail(ErrorCode::kInvalidArgument, "prompt and decode tokens exceed the model's context of " + std::to_string(plan.shape.context));
    const auto blocks_each = static_cast<uint32_t>((positions + options.block_tokens - 1) / options.block_tokens);
    options.blocks = blocks_each * o.batch;
    BATON_TRY_ASSIGN(const kv::PoolLayout layout, backend::cpu_kv_layout(plan.shape, options));
    BATON_TRY_ASSIGN(Mapping pool, make_bench_pool("baton-bench", layout.pool_bytes()));
    BATON_TRY_ASSIGN(const auto backend, backend::make_cpu_backend(plan, options, pool.mutable_bytes()));
    speeds.load_ms = static_cast<double>(steady_now_us() - load_start) / 1000.0;
    speeds.backend = backend->describe();

    Run run(*backend, o, blocks_each);
    BATON_TRY(run.prefill(std::min(o.prompt_tokens, 32u), 1));  // pages and caches once, outside the measurement
    for (uint32_t i = 0; i < o.repeat; ++i) {
        const int64_t start = steady_now_us();
        BATON_TRY(run.prefill(o.prompt_tokens, i));
        const int64_t middle = steady_now_us();
        for (uint32_t t = 0; t < o.decode_tokens; ++t) BATON_TRY(run.step());
        const int64_t end = steady_now_us();
        speeds.prefill = std::max(speeds.prefill, per_second(uint64_t{o.prompt_tokens} * o.batch, middle - start));
        speeds.decode = std::max(speeds.decode, per_second(uint64_t{o.decode_tokens} * o.batch, end - middle));
    }
    return speeds;
}

}  // namespace

int run_bench_engine(const BenchEngineOptions& o) {
    if (o.model_path.empty() == o.shape.empty()) {
        complain("give either --model-path or --shape (" + shape_names() + ")");
        return kUsage;
    }
    const int64_t load_start = steady_now_us();
    const auto plan = o.shape.empty() ? model::load_plan(o.model_path) : random_plan(o.shape);
    if (!plan) {
        complain(plan.error().message);
        return kFailed;
    }
    if (o.device != "cpu") return run_bench_cuda(o, *plan);
    const auto speeds = measure(o, *plan, load_start);
    if (!speeds) {
        complain(speeds.error().message);
        return kFailed;
    }
    if (!o.json) {
        std::printf("%s\nprefill %u tokens: %.1f tokens/s\ndecode %u tokens x %u: %.1f tokens/s\n", speeds->backend.c_str(),
                    o.prompt_tokens, speeds->prefill, o.decode_tokens, o.batch, speeds->decode);
        return kDone;
    }
    const Json out{{"prefill_tok_per_s", speeds->prefill}, {"decode_tok_per_s", speeds->decode},
                   {"prompt_tokens", o.prompt_tokens},     {"decode_tokens", o.decode_tokens},
                   {"batch", o.batch},                     {"threads", o.threads},
                   {"repeat", o.repeat},                   {"load_ms", speeds->load_ms},
                   {"backend", speeds->backend},           {"model_path", o.model_path}};
    std::printf("%s\n", out.dump().c_str());
    return kDone;
}

}  // namespace baton::cli
