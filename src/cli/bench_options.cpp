#include <CLI/CLI.hpp>

#include "cli/options.hpp"

/// The options of `baton bench` and `baton doctor split`.
namespace baton::cli {
namespace {

void add_bench_handoff(CLI::App& bench, Options& o) {
    CLI::App* sub = bench.add_subcommand("handoff", "KV hand-off between two processes, or through a server (--url)");
    BenchHandoffOptions& h = o.bench_handoff;
    sub->add_option("--devices", h.devices, "GPUs of prefill and decode, e.g. 0,1 or 0,0; default: pools in host memory");
    sub->add_option("--movers", h.movers, "cuda_ipc, nccl, tcp, shm; default: all that the pools can use")->delimiter(',');
    sub->add_option("--sizes", h.sizes_mib, "MiB of the pulls; 0: none")->delimiter(',')->check(CLI::Range(0u, 16'384u));
    sub->add_option("--prompts", h.prompts, "lengths of prompts whose exposed time is measured; 0: none")->delimiter(',')->check(CLI::Range(0u, 65'536u));
    sub->add_option("--rounds", h.rounds, "of each measurement")->check(CLI::Range(1u, 1000u));
    sub->add_option("--repeats", h.repeats, "of each size, linked anew, for the spread")->check(CLI::Range(1u, 100u));
    sub->add_option("--concurrent", h.concurrent, "hand-offs open at once; 0: none")->check(CLI::Range(0u, 512u));
    sub->add_option("--concurrent-tokens", h.concurrent_tokens, "of each; default 512 on GPUs, 64 in host memory")->check(CLI::Range(0u, 65'536u));
    sub->add_option("--layer-us", h.layer_us, "host memory: microseconds between two layers")->check(CLI::Range(0u, 1'000'000u));
    sub->add_option("--chunk", h.chunk_tokens, "tokens of a prefill step")->check(CLI::Range(1u, 65'536u));
    sub->add_option("--block-tokens", h.block_tokens, "16, 32 or 64")->check(CLI::IsMember({16, 32, 64}));
    sub->add_option("--shape", h.shape, "GPU: sizes of the model");
    sub->add_option("--decode-batch", h.decode_batch, "GPU: sequences that decode beside pulls; 0: none")->check(CLI::Range(0u, 512u));
    sub->add_option("--decode-context", h.decode_context, "GPU: of those")->check(CLI::Range(64u, 65'536u));
    sub->add_option("--beside-ctas", h.beside_ctas, "GPU: CTAs of the copy kernels beside the batch, each tried; 0: the default")->delimiter(',');
    sub->add_option("--ctas", h.ctas, "GPU: CTAs of the copy kernels; 0: the default")->check(CLI::Range(0u, 1024u));
    sub->add_option("--engine-run-kib", h.engine_run_kib, "GPUs: runs from that size on go by copy engine; 0: the default")->check(CLI::Range(0u, 1u << 30));
    sub->add_option("--nccl-ctas", h.nccl_ctas, "0: the default")->check(CLI::Range(0u, 64u));
    sub->add_option("--nccl-buffers", h.nccl_buffers, "staging buffers a side; 0: the default")->check(CLI::Range(0u, 16u));
    sub->add_option("--nccl-buffer-mib", h.nccl_buffer_mib, "MiB of each; 0: the default")->check(CLI::Range(0u, 1024u));
    sub->add_option("--nccl-copy-ctas", h.nccl_copy_ctas, "of the copies into and out of them; 0: the default")->check(CLI::Range(0u, 1024u));
    sub->add_option("--nccl-lanes", h.nccl_lanes, "communicators of a channel; 0: the default")->check(CLI::Range(0u, 4u));
    sub->add_option("--link-gb-per-s", h.link_gb_per_s, "of the way between two GPUs, for the floors")->check(CLI::PositiveNumber);
    sub->add_option("--url,-e,--endpoint", h.url, "measure the gap between token 1 and 2 through this server instead");
    sub->add_option("--model", h.model, "server: uid; default: the only one it has");
    sub->add_option("--api-key", h.api_key, "server: bearer key");
    sub->add_option("--requests", h.requests, "server: requests, one after the other")->check(CLI::Range(1u, 100'000u));
    sub->add_option("--input-tokens", h.input_tokens, "server: of a prompt")->check(CLI::Range(1u, 1'000'000u));
    sub->add_option("--output-tokens", h.output_tokens, "server: of an answer")->check(CLI::Range(2u, 100'000u));
    sub->add_option("--streams", h.streams, "server: other streams that run meanwhile")->check(CLI::Range(0u, 1024u));
    sub->add_option("--seed", h.seed, "server: of the prompts; 0: another each time");
    sub->add_option("--peer-fd", h.peer_fd, "")->group("");
    sub->add_flag("--json", h.json, "print JSON");
    sub->callback([&o] { o.command = [&o] { return run_bench_handoff(o.bench_handoff); }; });
}

}  // namespace

void add_split(CLI::App& doctor, Options& o) {
    CLI::App* split = doctor.add_subcommand("split", "should prefill and decode be apart? Which P:D ratio, or hybrid replicas, meets limits");
    SplitOptions& s = o.split;
    BenchServeOptions& load = s.load;
    split->add_option("--model-path", s.model_path, "file or folder of the model to be measured");
    split->add_option("--shape", s.shape, "measure random weights of a known model's sizes instead, e.g. qwen3-0.6b");
    split->add_option("--device", s.device, "cpu, cuda or cuda:N");
    split->add_option("--threads", s.threads, "of a replica on the CPU; 0: one per core")->check(CLI::Range(0u, 1024u));
    split->add_option("--isa", s.isa, "portable, avx2, avx512, avx512bf16; default: the best");
    split->add_option("--rates", s.rates_file, "an earlier measurement: --save, or `bench engine --device cuda --json`");
    split->add_option("--save", s.save_file, "write the measurement to this file");
    split->add_option("--prefill-ms", s.prefill_ms, "known times of prompts, TOKENS:MS, e.g. 512:11.5,4096:98.8")->delimiter(',');
    split->add_option("--decode-ms", s.decode_ms, "known times of decode steps, BATCH@CONTEXT:MS, e.g. 1@1024:3.7,64@1024:6.6")->delimiter(',');
    split->add_option("--input-tokens", load.input_tokens, "of a prompt")->check(CLI::Range(1u, 1'000'000u));
    split->add_option("--output-tokens", load.output_tokens, "of an answer")->check(CLI::Range(1u, 1'000'000u));
    split->add_option("--mix", load.mix, "lengths in turn instead, IN:OUT,IN:OUT")->delimiter(',')->excludes("--input-tokens")->excludes("--output-tokens");
    split->add_option("--rate", load.rate, "requests a second, Poisson arrivals")->check(CLI::Range(0.0, 1e6));
    split->add_option("--concurrency", load.concurrency, "requests in flight instead")->check(CLI::Range(0u, 16384u));
    split->add_option("--prefix-share", load.prefix_share, "part of each prompt that all share, found in the prefix cache")->check(CLI::Range(0.0, 1.0));
    split->add_option("--requests", load.requests, "simulated; default a minute's, 200 to 2000")->check(CLI::Range(1u, 1'000'000u));
    split->add_option_function<uint32_t>("--warmup", [&s](uint32_t n) { s.load.warmup = n, s.warmup_given = true; }, "requests ahead of those")->check(CLI::Range(0u, 1'000'000u));
    split->add_option("--seed", load.seed, "of arrivals");
    split->add_option("--ttft-ms", s.ttft_ms, "limit of the time to the first token; 0: none")->check(CLI::Range(0.0, 1e9));
    split->add_option("--tpot-ms", s.tpot_ms, "limit of a request's mean time a token after it")->check(CLI::Range(0.0, 1e9));
    split->add_option("--itl-ms", s.itl_ms, "limit of the gap between two tokens")->check(CLI::Range(0.0, 1e9));
    split->add_option("--percentile", s.percentile, "at which limits hold: 50, 90 or 99")->check(CLI::IsMember({50, 90, 99}));
    split->add_option("--devices", s.devices, "GPUs; on the CPU replicas at most, which share the cores")->check(CLI::Range(1u, 64u));
    split->add_option("--topology", s.topologies, "only these, e.g. 1p1d,2hybrid")->delimiter(',');
    split->add_option("--max-num-batched-tokens", s.step_tokens, "of a replica, as at launch")->check(CLI::Range(1u, 65'536u));
    split->add_option("--max-num-seqs", s.sequences, "of a replica, as at launch")->check(CLI::Range(1u, 4096u));
    split->add_option("--block-size", s.block_tokens, "of a replica, as at launch")->check(CLI::Range(1u, 256u));
    split->add_option("--kv-tokens", s.kv_tokens, "positions that a replica's KV pool holds");
    split->add_option("--handoff-ms", s.handoff_ms, "of a hand-off, whatever its size")->check(CLI::Range(0.0, 1e6));
    split->add_option("--handoff-gb-per-s", s.handoff_gb_per_s, "of its bytes; 0: they take no time")->check(CLI::Range(0.0, 1e6));
    split->add_flag("--no-search", s.no_search, "do not look for the highest rate within the limits");
    split->add_flag("--json", s.json, "print JSON");
    split->callback([&o] { o.command = [&o] { return run_split(o.split); }; });
}

void add_bench(CLI::App& app, Options& o) {
    CLI::App* bench = app.add_subcommand("bench", "measure");
    bench->require_subcommand(1);
    CLI::App* serve = bench->add_subcommand("serve", "load a server: TTFT, TPOT, ITL, E2E, goodput");
    BenchServeOptions& s = o.bench_serve;
    serve->add_option("--url,-e,--endpoint", o.server.endpoint, "URL of the server");
    serve->add_option("--model", s.model, "uid; default: the only one it has");
    serve->add_option("--api-key", o.server.api_key, "bearer key");
    serve->add_option("--ca-file", o.server.ca_file, "PEM file that an https server's certificate is checked with (else BATON_CA_FILE,\nthe system's)");
    serve->add_option("--requests", s.requests, "measured requests; default 100, with --duration unlimited")->check(CLI::Range(1u, 1'000'000u));
    serve->add_option("--duration", s.duration_s, "seconds in which requests are started")->check(CLI::Range(0.0, 86'400.0));
    serve->add_option("--drain", s.drain_s, "seconds after --duration until what still runs is given up")->check(CLI::Range(0.0, 86'400.0));
    serve->add_option("--warmup", s.warmup, "requests ahead of the measured ones")->check(CLI::Range(0u, 1'000'000u));
    serve->add_option("--rate", s.rate, "requests a second, Poisson arrivals; 0: fixed concurrency")->check(CLI::Range(0.0, 1e6));
    serve->add_option("--interval-ms", s.interval_ms, "a request every so many milliseconds")->check(CLI::Range(0.001, 1e7))->excludes("--rate");
    serve->add_option("--concurrency", s.concurrency, "requests in flight; default 8, with --rate unlimited")->check(CLI::Range(0u, 16384u));
    serve->add_option("--input-tokens", s.input_tokens, "words of a generated prompt, about its tokens")->check(CLI::Range(1u, 1'000'000u));
    serve->add_option("--output-tokens", s.output_tokens, "of each answer")->check(CLI::Range(1u, 1'000'000u));
    serve->add_option("--mix", s.mix, "lengths in turn instead, IN:OUT,IN:OUT")->delimiter(',')->excludes("--input-tokens")->excludes("--output-tokens");
    serve->add_option("--token-ids", s.token_ids, "prompts of random token ids below this")->check(CLI::Range(2u, 1'000'000u));
    serve->add_option("--prefix-share", s.prefix_share, "part of each prompt that all share")->check(CLI::Range(0.0, 1.0));
    serve->add_option("--slo-ttft-ms", s.slo_ttft_ms, "goodput limit; 0: none")->check(CLI::NonNegativeNumber);
    serve->add_option("--slo-itl-ms", s.slo_itl_ms, "goodput limit of a request's mean gap; 0: none")->check(CLI::NonNegativeNumber);
    serve->add_option("--slo", s.slos, "further goodput limits in ms, TTFT:ITL, repeatable");
    serve->add_option("--background", s.background, "streams kept running beside the measured requests")->check(CLI::Range(0u, 4096u));
    serve->add_option("--background-input", s.background_input, "words of their prompts")->check(CLI::Range(1u, 1'000'000u));
    serve->add_option("--background-output", s.background_output, "tokens of their answers")->check(CLI::Range(2u, 1'000'000u));
    serve->add_option("--settle", s.settle_s, "seconds they run before the first request")->check(CLI::Range(0.0, 3600.0));
    serve->add_option("--threads", s.threads, "of the client; default a quarter of the cores")->check(CLI::Range(0u, 64u));
    serve->add_option("--seed", s.seed, "of prompts and arrivals");
    serve->add_option("--dataset", s.dataset, "prompts, one JSON value a line");
    serve->add_flag("--json", s.json, "print JSON");
    serve->callback([&o] {
        o.bench_serve.url = resolve_endpoint(o.server);
        o.bench_serve.api_key = resolve_api_key(o.server);
        o.bench_serve.ca_file = resolve_ca_file(o.server);
        o.command = [&o] { return run_bench_serve(o.bench_serve); };
    });
    CLI::App* engine = bench->add_subcommand("engine", "prefill and decode speed of one replica, without HTTP");
    BenchEngineOptions& e = o.bench_engine;
    engine->add_option("--model-path", e.model_path, "file or folder");
    engine->add_option("--shape", e.shape, "random weights of a known model's sizes instead, e.g. qwen3-0.6b");
    engine->add_option("--device", e.device, "cpu, cuda or cuda:N");
    engine->add_option("--batches", e.batches, "GPU: decode batches")->delimiter(',')->check(CLI::Range(1u, 1024u));
    engine->add_option("--contexts", e.contexts, "GPU: contexts of the decode steps")->delimiter(',')->check(CLI::Range(2u, 1'000'000u));
    engine->add_option("--prompts", e.prompts, "GPU: lengths of prompts")->delimiter(',')->check(CLI::Range(1u, 65'536u));
    engine->add_option("--block-tokens", e.block_tokens, "GPU: 16, 32 or 64")->check(CLI::IsMember({16, 32, 64}));
    engine->add_flag("--deterministic", e.deterministic, "GPU: bits that do not depend on the batch");
    engine->add_flag("--tuning", e.tuning, "GPU: print which kernels were chosen");
    engine->add_flag("--cached", e.cached, "GPU: use and fill the cache of what was tuned, as a replica does");
    engine->add_option("--prompt-tokens", e.prompt_tokens, "")->check(CLI::Range(1u, 1'000'000u));
    engine->add_option("--decode-tokens", e.decode_tokens, "")->check(CLI::Range(1u, 1'000'000u));
    engine->add_option("--threads", e.threads, "0: one per core")->check(CLI::Range(0u, 1024u));
    engine->add_option("--batch", e.batch, "sequences decoded together")->check(CLI::Range(1u, 1024u));
    engine->add_option("--repeat", e.repeat, "runs, of which the best counts")->check(CLI::Range(1u, 1000u));
    engine->add_option("--isa", e.isa, "portable, avx2, avx512, avx512bf16; default: the best");
    engine->add_flag("--json", e.json, "print JSON");
    engine->callback([&o] { o.command = [&o] { return run_bench_engine(o.bench_engine); }; });
    add_bench_handoff(*bench, o);
}

}  // namespace baton::cli
