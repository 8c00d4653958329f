#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baton::cli {

/// Load against a running server, over HTTP.
struct BenchServeOptions {
    std::string url = "http://127.0.0.1:9997";
    std::string model;              ///< uid; "" the only one the server has
    std::string api_key;
    std::string ca_file;            ///< https: what the server's certificate is checked with; "" the system's
    uint32_t requests = 0;          ///< measured ones; 0: 100, or as many as start within `duration_s`
    double duration_s = 0;          ///< no request starts later than that after the first measured one; 0: `requests` decides
    double drain_s = 600;           ///< what still runs that long after `duration_s` is given up and counts as unfinished
    uint32_t warmup = 0;            ///< requests sent ahead of the measured ones, in the same way
    double rate = 0;                ///< requests a second, Poisson arrivals (open loop); 0: `concurrency` decides
    double interval_ms = 0;         ///< open loop with equal gaps instead; 0: `rate` decides
    uint32_t concurrency = 0;       ///< requests in flight; 0: 8 in the closed loop, unlimited in the open one
    uint32_t input_tokens = 128;    ///< words (or token ids) of a prompt
    uint32_t output_tokens = 64;
    std::vector<std::string> mix;   ///< "IN:OUT" tokens instead of the two, which requests have in turn
    uint32_t token_ids = 0;         ///< prompts are random token ids below that; 0: words
    double prefix_share = 0;        ///< 0…1: the part of each prompt that all share
    double slo_ttft_ms = 0;         ///< goodput limits; 0: none
    double slo_itl_ms = 0;
    std::vector<std::string> slos;  ///< further pairs of limits, "TTFT:ITL"
    uint32_t background = 0;        ///< streams kept running while the requests are measured
    uint32_t background_input = 512;
    uint32_t background_output = 600;
    double settle_s = 0.5;          ///< from the last background stream's first token to the first request
    uint32_t threads = 0;           ///< of the client; 0: a quarter of the cores, 1 to 8
    uint64_t seed = 0;
    bool json = false;              ///< print the result as JSON on stdout
    std::string dataset;            ///< file of prompts, one JSON string or {"prompt", "output_tokens"} a line; "" generated
};
/// Runs the load and prints TTFT, TPOT, ITL and E2E (mean, p50, p90, p99, max), requests and tokens a second, goodput, the
/// background streams' ITL apart, and how busy the client was. TTFT counts from when a request was due. Returns the exit
/// code: 1 where a request failed.
int run_bench_serve(const BenchServeOptions& options);

/// Prefill and decode speed of one replica without HTTP or hand-off.
struct BenchEngineOptions {
    std::string model_path;
    uint32_t prompt_tokens = 512;
    uint32_t decode_tokens = 64;
    uint32_t threads = 0;  ///< 0: one per core
    uint32_t batch = 1;    ///< sequences decoded together
    uint32_t repeat = 1;   ///< the best of that many runs counts
    std::string isa;       ///< see backend::CpuOptions
    bool json = false;
    std::string device = "cpu";  ///< "cpu", "cuda" or "cuda:N"
    std::string shape;           ///< random weights of a known model's sizes instead of `model_path`, e.g. "qwen3-0.6b"
    std::vector<uint32_t> batches{1, 8, 64, 256};                     ///< GPU: decode batches,
    std::vector<uint32_t> contexts{1024, 4096};                       ///< at each of these contexts
    std::vector<uint32_t> prompts{128, 512, 1024, 2048, 4096, 8192};  ///< GPU: prefill lengths
    uint32_t block_tokens = 64;  ///< GPU
    bool deterministic = false;  ///< GPU
    bool tuning = false;         ///< GPU: print which kernels were chosen
    bool cached = false;         ///< GPU: with the daemon's cache of what was tuned, as a replica starts
};
/// Prints prefill_tok_per_s and decode_tok_per_s; on a GPU a table over batches, contexts and prompt lengths, each time beside
/// the least that memory bandwidth and arithmetic of this GPU allow. Returns the exit code.
int run_bench_engine(const BenchEngineOptions& options);

/// The hand-off between two processes, or through a running server.
struct BenchHandoffOptions {
    std::string devices;                  ///< GPUs of prefill and decode, e.g. "0,1"; "" pools in host memory
    std::vector<std::string> movers;      ///< empty: all that the pools can use
    std::vector<uint32_t> sizes_mib{2, 7, 14, 56, 112, 448};
    std::vector<uint32_t> prompts{1024, 8192};  ///< lengths whose exposed time is measured
    uint32_t rounds = 15;                 ///< of each measurement
    uint32_t repeats = 1;                 ///< of each size, linked anew each time: their spread
    uint32_t concurrent = 64;             ///< hand-offs open at once; 0: not measured
    uint32_t concurrent_tokens = 0;       ///< of each; 0: 512 on GPUs, 64 in host memory
    uint32_t layer_us = 300;              ///< host memory: a layer of a chunk ends that long after the one before
    uint32_t chunk_tokens = 2048;
    uint32_t block_tokens = 16;
    std::string shape = "qwen3-0.6b";     ///< GPU: the model whose pages move and whose prompts are computed
    uint32_t decode_batch = 32;           ///< GPU: sequences that decode beside pulls; 0: not measured
    uint32_t decode_context = 1024;
    std::vector<uint32_t> beside_ctas{0}; ///< GPU: CTAs of the copy kernels beside the batch, tried one after the other
    uint32_t ctas = 0;                    ///< GPU: CTAs of the copy kernels; 0: the default
    uint32_t engine_run_kib = 0;          ///< see backend::CopyOptions
    uint32_t nccl_ctas = 0, nccl_buffers = 0, nccl_buffer_mib = 0, nccl_copy_ctas = 0, nccl_lanes = 0;  ///< see backend::LinkOptions
    double link_gb_per_s = 450;           ///< what the way between two GPUs could carry, for the floors (NVLink 4)
    bool json = false;
    int peer_fd = -1;                     ///< set for the second process alone
    // Through a server: the gap between token 1 and token 2 beside the other gaps.
    std::string url, model, api_key;
    uint32_t requests = 50, input_tokens = 512, output_tokens = 64;
    uint32_t streams = 0;                 ///< that run meanwhile
    uint64_t seed = 0;                    ///< of the prompts; 0: another each time, so that no cache has them
};
/// Two processes with the real movers between them: time and bandwidth over sizes, what is exposed after a prompt's last
/// layer, many hand-offs at once, and pulls beside a decoding batch, each beside the least it could take. With `url` the
/// server's hand-offs as a client sees them. Prints a table or JSON. Returns the exit code: 1 where a pull failed.
int run_bench_handoff(const BenchHandoffOptions& options);

}  // namespace baton::cli
