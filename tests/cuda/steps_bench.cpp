// What steps cost the host and the device: steps_bench SHAPE [decode | mixed | prefill | loads | stress | uneven | parts | joined]...
//   decode   steps of one row a sequence, one queued ahead: the loop's time and the host's, by what it is spent on, where the
//            host waits in a loop ("spin") and where it sleeps meanwhile, as an engine does ("nap")
//   mixed    decode rows and prompts in one step
//   prefill  prompts alone
//   loads    device memory and time of graphs
//   stress   for BATON_BENCH_SECONDS (8): deterministic; sequences in random company must get the tokens that they get alone
//   uneven   decode steps of 16 rows, one of a long context
//   parts    the device's time of a decode step with all, a quarter and none of the layers
//   joined   the same of up to 16 rows, with the kernels for 16 rows and without
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_backend.hpp"
#include "cli/bench_shapes.hpp"

namespace baton::backend::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

[[noreturn]] void stop(const std::string& why) {
    std::printf("error: %s\n", why.c_str());
    std::exit(1);
}

/// Sequences in a fixed part of the pool each.
class Crowd {
  public:
    Crowd(CudaBackend& backend, uint32_t count, uint32_t positions) : backend_(backend), wire_(count), blocks_(count), position_(count) {
        const uint32_t bt = backend.kv_layout().block_tokens, each = (positions + bt - 1) / bt;
        if (uint64_t{count} * each > backend.kv_layout().blocks) stop("the pool is too small");
        for (uint32_t i = 0; i < count; ++i) {
            wire_[i].ref.id.value = i + 1;
            wire_[i].sampling.temperature = 0;
            wire_[i].sampling.max_tokens = UINT32_MAX;
            wire_[i].prompt = {1};
            blocks_[i].resize(each);
            std::iota(blocks_[i].begin(), blocks_[i].end(), i * each);
        }
    }
    /// Adds rows of sequence i to the step that is put together.
    void add(uint32_t i, uint32_t tokens, uint32_t position, uint32_t pending) {
        Slice& s = slices_.emplace_back();
        s.tokens = tokens;
        s.position = position;
        s.blocks = blocks_[i];
        s.logits = true;
        s.sequence = &wire_[i];
        s.state = i;
        s.pending = pending;
        tokens_.insert(tokens_.end(), tokens, 1 + static_cast<TokenId>(i % 1000));
    }
    /// Submits it; gives the host's microseconds.
    double submit() {
        const auto start = Clock::now();
        const auto done = backend_.submit({tokens_, slices_});
        const double us = us_since(start);
        if (!done) stop(done.error().message);
        slices_.clear();
        tokens_.clear();
        return us;
    }
    double collect(bool nap) {
        while (nap && !backend_.ready()) std::this_thread::sleep_for(std::chrono::microseconds(200));
        const auto start = Clock::now();
        if (auto done = backend_.collect(out_); !done) stop(done.error().message);
        return us_since(start);
    }

  private:
    CudaBackend& backend_;
    std::vector<wire::Sequence> wire_;
    std::vector<std::vector<BlockId>> blocks_;
    std::vector<uint32_t> position_;
    std::vector<Slice> slices_;
    std::vector<TokenId> tokens_;
    std::vector<wire::Token> out_;
};

struct Result {
    double loop_us = 0, submit_us = 0, submit_p95_us = 0;
};

/// Steps of the same kind, one queued ahead; `add` puts step n together.
template <class Add>
Result run_steps(Crowd& crowd, uint32_t steps, bool nap, const Add& add) {
    constexpr uint32_t kWarm = 6;
    std::vector<double> submits;
    Clock::time_point start;
    for (uint32_t n = 0; n < steps + kWarm; ++n) {
        if (n == kWarm) start = Clock::now();
        add(n);
        const double us = crowd.submit();
        if (n >= kWarm) submits.push_back(us);
        if (n > 0) crowd.collect(nap);
    }
    const double all = us_since(start);
    crowd.collect(nap);
    std::sort(submits.begin(), submits.end());
    return {all / steps, std::accumulate(submits.begin(), submits.end(), 0.0) / steps, submits[submits.size() * 95 / 100]};
}

void print_times(const char* name, const Result& r, const HostTimes& before, const HostTimes& now) {
    const auto each = [&](uint64_t HostTimes::*part) {
        return static_cast<double>(now.*part - before.*part) / 1000.0 / static_cast<double>(std::max<uint64_t>(1, now.steps - before.steps));
    };
    std::printf("%-34s loop %9.1f us  submit %7.1f p95 %7.1f | followed %llu, check %5.1f fill %5.1f settings %5.1f launch %6.1f eager %7.1f (%llu) take %5.1f\n", name,
                r.loop_us, r.submit_us, r.submit_p95_us, static_cast<unsigned long long>(now.followed - before.followed), each(&HostTimes::check), each(&HostTimes::fill), each(&HostTimes::settings),
                each(&HostTimes::launch), each(&HostTimes::eager), static_cast<unsigned long long>(now.eager_steps - before.eager_steps),
                each(&HostTimes::take));
    std::fflush(stdout);
}

void bench_decode(CudaBackend& backend) {
    for (const uint32_t context : {1024u, 4096u})
        for (const uint32_t batch : {1u, 8u, 16u, 64u, 256u})
            for (const bool nap : {false, true}) {
                if (context > 1024 && batch != 64) continue;
                Crowd crowd(backend, batch, context + 64);
                const HostTimes before = backend.host_times();
                const Result r = run_steps(crowd, 40, nap, [&](uint32_t n) {
                    for (uint32_t i = 0; i < batch; ++i) crowd.add(i, 1, context + n, n == 0 ? 0 : 1);
                });
                print_times(("decode " + std::to_string(batch) + " at " + std::to_string(context) + (nap ? " nap" : " spin")).c_str(), r, before,
                            backend.host_times());
            }
}

void bench_mixed(CudaBackend& backend) {
    for (const uint32_t decode : {16u, 200u})
        for (const uint32_t prompt : {128u, 512u})
            for (const uint32_t prompts : {1u, 3u}) {
                Crowd crowd(backend, decode + 2 * prompts, 1024);
                const HostTimes before = backend.host_times();
                const Result r = run_steps(crowd, 16, true, [&](uint32_t n) {
                    for (uint32_t i = 0; i < decode; ++i) crowd.add(i, 1, 600 + n, n == 0 ? 0 : 1);
                    for (uint32_t i = 0; i < prompts; ++i) crowd.add(decode + i + (n & 1) * prompts, prompt - n % 16, 0, 0);
                });
                print_times(("mixed " + std::to_string(decode) + " + " + std::to_string(prompts) + " x " + std::to_string(prompt)).c_str(), r, before,
                            backend.host_times());
            }
}

void bench_prefill(CudaBackend& backend) {
    for (const uint32_t prompt : {128u, 512u, 1024u, 1500u, 2048u, 4096u}) {
        Crowd crowd(backend, 2, prompt + 16);
        const HostTimes before = backend.host_times();
        const Result r = run_steps(crowd, 12, true, [&](uint32_t n) { crowd.add(n & 1, prompt, 0, 0); });
        print_times(("prefill " + std::to_string(prompt)).c_str(), r, before, backend.host_times());
    }
}

size_t free_bytes() {
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

void bench_loads(CudaBackend& backend) {
    const size_t before = free_bytes();
    const HostTimes times = backend.host_times();
    Crowd crowd(backend, 40, 1100);
    for (uint32_t n = 0; n < 24; ++n) {
        for (uint32_t i = 0; i < 20; ++i) crowd.add(i, 1, 100 + n, n == 0 ? 0 : 1);
        crowd.add(20 + (n & 1), 64 + 40 * n, 0, 0);
        crowd.submit();
        if (n > 0) crowd.collect(false);
    }
    crowd.collect(false);
    const HostTimes now = backend.host_times();
    const auto made = static_cast<double>(std::max<uint64_t>(1, now.eager_steps - times.eager_steps));
    std::printf("%.0f graphs of mixed steps: %.1f MiB of device memory, %.2f ms of host time each, with the step's own launches\n", made,
                static_cast<double>(before - free_bytes()) / (1 << 20), static_cast<double>(now.eager - times.eager) / made * 1e-6);
}

/// Many short sequences with all kinds of sampling, prompts and pending rows in one step, one step queued ahead, blocks and state
/// rows given to others as soon as they are free: what a server does. Each must get the tokens and logprobs, bit for bit, that it
/// gets alone.
class Stress {
  public:
    explicit Stress(CudaBackend& backend) : backend_(backend), random_(std::random_device{}()) {
        for (BlockId b = 0; b < std::min(backend.kv_layout().blocks, 2048u); ++b) free_blocks_.push_back(b);
        for (uint32_t s = 0; s < kRunning; ++s) free_states_.push_back(s);
        words_ = static_cast<uint64_t*>(std::aligned_alloc(4096, 4096));
        if (auto shared = backend.share_words(std::as_writable_bytes(std::span(words_, 512))); !shared) stop(shared.error().message);
        for (uint64_t kind = 0; kind < kKinds; ++kind) {
            start(kind);
            while (!running_.empty()) turn(false);
        }
        alone_ = std::move(got_);
        got_.clear();
    }
    /// Number of answers, after the wrong ones were printed.
    uint64_t run(double seconds) {
        const auto begin = Clock::now();
        uint64_t wrong = 0;
        while (us_since(begin) < seconds * 1e6) {
            // Now and then nothing begins and nobody is left out, so that steps follow one another.
            calm_ = calm_ > 0 ? calm_ - 1 : random_() % 12 == 0 ? 40 : 0;
            while (calm_ == 0 && running_.size() < kRunning && random_() % 4 != 0) start(random_() % kKinds);
            turn(true);
            wrong += compare();
        }
        while (!running_.empty()) turn(true);
        wrong += compare();
        std::printf("stress: %llu answers, %llu wrong; %llu of %llu steps followed\n", static_cast<unsigned long long>(answers_),
                    static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(backend_.host_times().followed),
                    static_cast<unsigned long long>(backend_.host_times().steps));
        return wrong;
    }

  private:
    static constexpr uint32_t kRunning = 24;
    static constexpr uint64_t kKinds = 160;
    struct Sequence {
        uint64_t kind = 0;
        uint32_t state = 0, want = 0, planned = 0, in_flight = 0, pending = 0;
        wire::Sequence wire;
        std::vector<BlockId> blocks;
        std::vector<wire::Token> got;
        bool watched = false;
    };
    void start(uint64_t kind) {
        auto s = std::make_unique<Sequence>();
        std::mt19937_64 own(kind * 7919 + 1);
        constexpr uint32_t kLengths[] = {1, 2, 2, 3, 15, 16, 17, 64, 65, 130, 300};
        s->kind = kind;
        const uint32_t length = kLengths[own() % std::size(kLengths)];
        for (uint32_t i = 0; i < length; ++i) s->wire.prompt.push_back(static_cast<TokenId>(own() % 100'000));
        s->wire.ref = {SequenceId{++ids_}, 1};
        wire::Sampling& w = s->wire.sampling;
        w.seed = kind;
        w.top_logprobs = 2;
        w.max_tokens = s->want = kind % 3 == 0 ? 1 : kind % 5 == 0 ? 20 + static_cast<uint32_t>(own() % 60) : 2 + static_cast<uint32_t>(own() % 9);
        w.temperature = 0.6f;
        switch (kind % 6) {
            case 0: w.temperature = 0; break;
            case 1: w.min_p = 0.05f; break;
            case 2: w.top_p = 0.9f; break;
            case 3: w.top_k = 40; break;
            case 4: w.frequency_penalty = 0.5f, w.repetition_penalty = 1.1f; break;
            default: break;
        }
        s->watched = kind % 2 == 0;
        const uint32_t bt = backend_.kv_layout().block_tokens, need = (length + s->want + bt - 1) / bt;
        if (free_blocks_.size() < need || free_states_.empty()) return;
        for (uint32_t i = 0; i < need; ++i) s->blocks.push_back(take(free_blocks_));
        s->state = take(free_states_);
        running_.push_back(std::move(s));
    }
    template <class T>
    T take(std::vector<T>& from) {
        std::swap(from[random_() % from.size()], from.back());
        const T t = from.back();
        from.pop_back();
        return t;
    }
    /// Submits a step, if there is one, and collects the oldest where two are under way or nothing was submitted.
    void turn(bool company) {
        std::vector<Slice> slices;
        std::vector<TokenId> tokens;
        std::vector<Sequence*> of;
        uint32_t rows = 0;
        for (auto& p : running_) {
            Sequence& s = *p;
            const auto length = static_cast<uint32_t>(s.wire.prompt.size());
            if (s.in_flight > 1 || s.planned == s.want || (company && calm_ == 0 && random_() % 8 == 0)) continue;
            Slice& slice = slices.emplace_back();
            slice.blocks = s.blocks;
            slice.logits = true;
            slice.sequence = &s.wire;
            slice.state = s.state;
            if (s.planned == 0) {
                slice.tokens = length;
                tokens.insert(tokens.end(), s.wire.prompt.begin(), s.wire.prompt.end());
                if (s.watched) slice.progress = words_ + s.state, slice.progress_base = 1;
            } else {
                slice.tokens = 1;
                slice.position = length + s.planned - 1;
                slice.pending = s.pending;
                tokens.push_back(s.pending != 0 ? 0 : s.got.back().id);
            }
            rows += slice.tokens;
            ++s.planned, ++s.in_flight, s.pending = 1;
            of.push_back(&s);
            if (rows > 3'000) break;
        }
        if (!slices.empty()) {
            if (auto done = backend_.submit({tokens, slices}); !done) stop(done.error().message);
            flights_.push_back(std::move(of));
        }
        if (flights_.size() == 2 || (slices.empty() && !flights_.empty())) collect();
    }
    void collect() {
        std::vector<wire::Token> out;
        if (auto done = backend_.collect(out); !done) stop(done.error().message);
        const std::vector<Sequence*> of = std::move(flights_.front());
        flights_.erase(flights_.begin());
        if (out.size() != of.size()) stop("tokens are missing");
        for (size_t i = 0; i < of.size(); ++i) {
            Sequence& s = *of[i];
            s.got.push_back(out[i]);
            s.wire.emitted.push_back(out[i].id);
            if (--s.in_flight == 0) s.pending = 0;
        }
        std::erase_if(running_, [&](const std::unique_ptr<Sequence>& s) {
            if (s->got.size() < s->want) return false;
            free_blocks_.insert(free_blocks_.end(), s->blocks.begin(), s->blocks.end());
            free_states_.push_back(s->state);
            got_.emplace_back(s->kind, s->got);
            return true;
        });
    }
    uint64_t compare() {
        uint64_t wrong = 0;
        for (const auto& [kind, tokens] : got_) {
            ++answers_;
            const auto& alone = std::find_if(alone_.begin(), alone_.end(), [k = kind](const auto& a) { return a.first == k; })->second;
            for (size_t i = 0; i < alone.size(); ++i) {
                if (tokens[i].id == alone[i].id && tokens[i].logprob == alone[i].logprob && tokens[i].top == alone[i].top) continue;
                if (++wrong < 6)
                    std::printf("stress: kind %llu token %zu is %d (%a, best %a) instead of %d (%a, best %a)\n", static_cast<unsigned long long>(kind), i,
                                tokens[i].id, static_cast<double>(tokens[i].logprob), static_cast<double>(tokens[i].top.front().second), alone[i].id,
                                static_cast<double>(alone[i].logprob), static_cast<double>(alone[i].top.front().second));
                break;
            }
        }
        got_.clear();
        return wrong;
    }

    CudaBackend& backend_;
    std::mt19937_64 random_;
    std::vector<std::unique_ptr<Sequence>> running_;
    std::vector<std::vector<Sequence*>> flights_;
    std::vector<BlockId> free_blocks_;
    std::vector<uint32_t> free_states_;
    std::vector<std::pair<uint64_t, std::vector<wire::Token>>> got_, alone_;
    uint64_t* words_ = nullptr;
    uint64_t ids_ = 0, answers_ = 0;
    uint32_t calm_ = 0;  ///< steps to come in which no sequence begins or is left out
};

void bench_stress(CudaBackend& backend) {
    const char* seconds = std::getenv("BATON_BENCH_SECONDS");
    if (Stress(backend).run(seconds != nullptr ? std::atof(seconds) : 8) != 0) std::exit(1);
}

void bench_parts_of(CudaBackend& backend, uint32_t rows, uint32_t context, const char* name) {
    const uint32_t layers = backend.shape().layers;
    std::printf("parts %3u rows of %u%s:", rows, context, name);
    for (const uint32_t n : {layers, layers / 4, 0u}) {
        const auto seconds = backend.time_decode(rows, context, n);
        if (!seconds) stop(seconds.error().message);
        std::printf("  %2u layers %7.1f us", n, *seconds * 1e6);
    }
    std::printf("\n");
}

void bench_parts(CudaBackend& backend) {
    for (const uint32_t rows : {1u, 2u, 4u, 8u, 16u, 24u, 64u}) bench_parts_of(backend, rows, 1024, "");
}

/// Steps of few rows with the kernels for 16 rows, and without, in turns.
void bench_joined(CudaBackend& backend) {
    for (int turn = 0; turn < 3; ++turn)
        for (const bool on : {false, true}) {
            if (!backend.force_joined(on)) stop("there is no kernel of qkv and attention for this model");
            for (const uint32_t rows : {4u, 8u, 16u})
                for (const uint32_t context : {128u, 820u, 1024u}) bench_parts_of(backend, rows, context, on ? " joined" : "");
        }
}

/// 15 contexts of 800 and one that is long beside them, by the rule that was measured, with the kernels for 16 rows and without.
void bench_uneven(CudaBackend& backend) {
    for (const char* name : {"as chosen", "joined", "one by one"}) {
        if (*name != 'a' && !backend.force_joined(*name == 'j')) stop("there is no kernel of qkv and attention for this model");
        for (const uint32_t longest : {800u, 2000u, 4000u, 8000u}) {
            Crowd crowd(backend, 16, 8192);
            const HostTimes before = backend.host_times();
            const Result r = run_steps(crowd, 40, false, [&](uint32_t n) {
                for (uint32_t i = 0; i < 16; ++i) crowd.add(i, 1, (i == 3 ? longest : 800) + n, n == 0 ? 0 : 1);
            });
            print_times(("15 of 800, one of " + std::to_string(longest) + " " + name).c_str(), r, before, backend.host_times());
        }
    }
}

int run(int argc, char** argv) {
    auto plan = cli::random_plan(argc > 1 ? argv[1] : "qwen3-0.6b");
    if (!plan) stop(plan.error().message);
    CudaOptions options;
    options.max_batch_tokens = 4096;
    options.max_batch_slices = 256;
    options.max_model_len = 8192;
    options.noise = true;
    for (int i = 2; i < argc; ++i) options.deterministic = options.deterministic || std::strcmp(argv[i], "stress") == 0;
    if (options.deterministic) options.memory_bytes = uint64_t{8} << 30;  // several of these share a GPU
    if (const char* cache = std::getenv("BATON_BENCH_CACHE")) options.cache_folder = cache;
    const auto start = Clock::now();
    auto made = CudaBackend::make(*plan, options);
    if (!made) stop(made.error().message);
    CudaBackend& backend = **made;
    const std::string tuning = backend.tuning();
    std::printf("%s: loaded in %.0f ms\n%s", argv[1], us_since(start) / 1000, tuning.substr(0, tuning.find('\n') + 1).c_str());
    for (int i = 2; i < argc; ++i) {
        if (std::strcmp(argv[i], "decode") == 0) bench_decode(backend);
        else if (std::strcmp(argv[i], "mixed") == 0) bench_mixed(backend);
        else if (std::strcmp(argv[i], "prefill") == 0) bench_prefill(backend);
        else if (std::strcmp(argv[i], "loads") == 0) bench_loads(backend);
        else if (std::strcmp(argv[i], "stress") == 0) bench_stress(backend);
        else if (std::strcmp(argv[i], "uneven") == 0) bench_uneven(backend);
        else if (std::strcmp(argv[i], "parts") == 0) bench_parts(backend);
        else if (std::strcmp(argv[i], "joined") == 0) bench_joined(backend);
        else stop(std::string("unknown part ") + argv[i]);
    }
    return 0;
}

}  // namespace
}  // namespace baton::backend::cuda

int main(int argc, char** argv) { return baton::backend::cuda::run(argc, argv); }
