// Speed of the CPU backend on SmolLM2-135M shapes with random weights, or on a model's file, beside
// the memory bandwidth measured in the same minutes: backend_bench [type or path] [threads]
// [context] [isa] [rounds]. Takes the best of `rounds`, since other work on the machine only ever
// makes a round slower.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "backend/buffer.hpp"
#ifdef BATON_BENCH_MODEL
#include "baton/model/model.hpp"
#endif
#include "harness.hpp"

namespace baton::backend::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Processor time of the whole process: what counts on a machine that others use too.
double cpu_seconds() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double seconds_since(Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
}

/// Bytes a second that `threads` threads read from memory of a decode step's size, on huge pages as
/// weights are.
double read_bandwidth(uint32_t threads, const Buffer& memory) {
    double best = 0;
    for (int round = 0; round < 5; ++round) {
        std::vector<uint64_t> sums(threads * 8);
        const auto start = Clock::now();
        std::vector<std::thread> workers;
        for (uint32_t t = 0; t < threads; ++t) {
            workers.emplace_back([&, t] {
                const size_t n = memory.bytes() / 8 / threads;
                const uint64_t* p = memory.as<uint64_t>() + t * n;
                uint64_t s[8] = {};
                for (size_t i = 0; i + 8 <= n; i += 8) {
                    __builtin_prefetch(p + i + 320);
                    for (size_t j = 0; j < 8; ++j) s[j] += p[i + j];
                }
                for (const uint64_t x : s) sums[t * 8] += x;
            });
        }
        for (auto& w : workers) w.join();
        if (sums[0] != 0)
            best = std::max(best, static_cast<double>(memory.bytes()) / seconds_since(start));
    }
    return best;
}

size_t weight_bytes(const Plan& plan) {
    size_t bytes = plan.head.bytes.size();
    for (const auto& layer : plan.layers)
        for (const Step& step : layer)
            if (const auto* m = std::get_if<MatMul>(&step)) bytes += m->weight.bytes.size();
    return bytes;
}

tensor::DType type_named(const std::string& name) {
    for (const auto t : kAllTypes)
        if (to_string(t) == name) return t;
    std::fprintf(stderr, "unknown type %s\n", name.c_str());
    std::exit(2);
}

Plan plan_of(const std::string& what, TensorStore& head, Rng& rng) {
#ifdef BATON_BENCH_MODEL
    if (what.find('/') != std::string::npos) {
        auto plan = model::load_plan(what);
        if (plan) return std::move(*plan);
        std::fprintf(stderr, "%s\n", plan.error().message.c_str());
        std::exit(2);
    }
#endif
    ModelOptions m;
    m.type = type_named(what);
    m.shape = {30, 576, 9, 3, 64, 1536, 49152, 8192};
    Plan plan = make_plan(m);
    if (m.type == tensor::DType::kQ4_1)
        plan.head = head.random(rng, tensor::DType::kQ8_0, 49152, 576, 0.05f);
    return plan;
}

int bench(int argc, char** argv) {
    const std::string type = argc > 1 ? argv[1] : "Q4_1";
    CpuOptions o;
    o.threads = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 0;
    const auto context = argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 128u;
    o.isa = argc > 4 ? argv[4] : "";
    const int rounds = argc > 5 ? std::atoi(argv[5]) : 8;
    o.blocks = 600;
    Rng rng(7);
    TensorStore head;
    const Plan plan = plan_of(type, head, rng);
    const uint32_t vocab = plan.shape.vocab;
    Harness h(plan, o);
    const uint32_t threads =
        o.threads != 0 ? o.threads : std::max(1u, std::thread::hardware_concurrency());
    const double bytes = static_cast<double>(weight_bytes(plan));
    std::vector<BlockId> blocks(512);
    for (BlockId i = 0; i < 512; ++i) blocks[i] = i;
    const auto tokens = random_tokens(rng, 512, vocab);
    std::vector<float> logits(vocab);
    double prefill_cpu = 1e9, decode_cpu = 1e9;
    const auto step = [&](uint32_t position, uint32_t n) {
        const Slice slice{n, position, blocks, true};
        const auto start = Clock::now();
        const double cpu = cpu_seconds();
        if (!h.backend->forward({std::span(tokens).first(n), {&slice, 1}}, logits, {}))
            std::abort();
        const double cpu_time = cpu_seconds() - cpu;
        double& least = n == 1 ? decode_cpu : prefill_cpu;
        if (n == 1 || position == 0) least = std::min(least, cpu_time);
        return seconds_since(start);
    };
    Buffer memory = Buffer::make(size_t{96} << 20, "bandwidth").value();
    std::memset(memory.data(), 1, memory.bytes());
    double prefill = 1e9, decode = 1e9, bandwidth = 0;
    for (int r = 0; r < rounds; ++r) {
        bandwidth = std::max(bandwidth, read_bandwidth(threads, memory));
        prefill = std::min(prefill, step(0, 512));
        for (uint32_t at = 512; at < context; at += 512) step(at, 512);
        for (uint32_t i = 0; i < 32; ++i) decode = std::min(decode, step(context + i, 1));
    }
    std::printf("%s, %s, %s\n", h.backend->describe().c_str(), type.c_str(),
                h.layout.page_format.c_str());
    std::printf("read bandwidth %.1f GB/s; weights %.1f MB, bound %.0f tok/s\n", bandwidth / 1e9,
                bytes / 1e6, bandwidth / bytes);
    std::printf("decode at %u: %.2f ms, %.0f tok/s, %.0f %% of the bound, %.2f ms of cpu\n",
                context, decode * 1e3, 1 / decode, 100 * bytes / bandwidth / decode,
                decode_cpu * 1e3);
    std::printf("prefill 512: %.1f ms, %.0f tok/s, %.1f ms of cpu\n", prefill * 1e3, 512 / prefill,
                prefill_cpu * 1e3);
    return 0;
}

}  // namespace
}  // namespace baton::backend::test

int main(int argc, char** argv) {
    return baton::backend::test::bench(argc, argv);
}
