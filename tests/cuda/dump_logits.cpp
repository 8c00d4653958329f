// Runs given token ids through the CUDA backend and writes the logits: what scripts/gpu_parity.py compares with transformers.
//
//   dump_logits MODEL REQUESTS OUT [--chunk N] [--every N] [--deterministic] [--fp16]
//
// REQUESTS has a line a sequence: the number of prompt ids, then all ids; those behind the prompt are fed one by one, as if
// they had been sampled. All sequences run together, prompts in chunks of at most N rows a step beside the decode rows.
// OUT gets, for each sequence in order, the logits [vocab] f32 after the prompt and after every N-th of the further ids;
// stdout gets a line a sequence: the token sampled after the prompt and after each further id.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>

#include "backend/cuda/cuda_backend.hpp"
#include "baton/model/model.hpp"

namespace baton::backend::cuda {

namespace {

struct Run {
    wire::Sequence wire;
    std::vector<TokenId> ids;
    std::vector<BlockId> blocks;
    uint32_t done = 0;
    std::vector<float> kept;
    std::vector<TokenId> sampled;
    [[nodiscard]] uint32_t prompt() const { return static_cast<uint32_t>(wire.prompt.size()); }
    [[nodiscard]] bool ended() const { return done == ids.size(); }
};

struct Arguments {
    std::string model, requests, out;
    uint32_t chunk = 2048, every = 1;
    bool deterministic = false, fp16 = false;
};

Expected<std::vector<Run>> read_requests(const std::string& path, uint32_t block_tokens) {
    std::ifstream file(path);
    if (!file) return fail(ErrorCode::kNotFound, "cannot read " + path);
    std::vector<Run> runs;
    BlockId block = 0;
    for (std::string line; std::getline(file, line);) {
        std::istringstream text(line);
        size_t prompt = 0;
        text >> prompt;
        Run run;
        for (TokenId id = 0; text >> id;) run.ids.push_back(id);
        if (prompt == 0 || prompt > run.ids.size()) return fail(ErrorCode::kInvalidArgument, "a sequence needs a prompt");
        run.wire.prompt.assign(run.ids.begin(), run.ids.begin() + static_cast<ptrdiff_t>(prompt));
        run.wire.sampling.temperature = 0;
        run.wire.sampling.max_tokens = UINT32_MAX;
        run.blocks.resize((run.ids.size() + block_tokens - 1) / block_tokens);
        std::iota(run.blocks.begin(), run.blocks.end(), block);
        block += static_cast<BlockId>(run.blocks.size());
        runs.push_back(std::move(run));
    }
    return runs;
}

/// One step over all sequences that are not at their end.
Expected<void> step(CudaBackend& backend, std::vector<Run>& runs, const Arguments& a) {
    std::vector<TokenId> ids;
    std::vector<Slice> slices;
    std::vector<size_t> wanted;
    uint32_t left = a.chunk;
    for (size_t i = 0; i < runs.size(); ++i) {
        Run& r = runs[i];
        if (r.ended()) continue;
        const uint32_t open = r.done < r.prompt() ? r.prompt() - r.done : 1;
        const uint32_t n = r.done < r.prompt() ? std::min(open, left) : 1;
        if (n == 0) continue;
        if (r.done < r.prompt()) left -= n;
        Slice s;
        s.tokens = n;
        s.position = r.done;
        s.blocks = r.blocks;
        s.logits = r.done + n >= r.prompt();
        s.sequence = &r.wire;
        s.state = static_cast<uint32_t>(i);
        ids.insert(ids.end(), r.ids.begin() + r.done, r.ids.begin() + r.done + n);
        if (s.logits) wanted.push_back(i);
        slices.push_back(s);
        r.done += n;
    }
    std::vector<wire::Token> tokens;
    std::vector<float> logits;
    BATON_TRY(backend.submit({ids, slices}));
    BATON_TRY(backend.collect(tokens));
    BATON_TRY(backend.debug_logits(logits));
    const size_t vocab = backend.shape().vocab;
    for (size_t i = 0; i < wanted.size(); ++i) {
        Run& r = runs[wanted[i]];
        r.sampled.push_back(tokens[i].id);
        if (!r.ended()) r.wire.emitted.push_back(r.ids[r.done]);
        if ((r.done - r.prompt()) % a.every == 0)
            r.kept.insert(r.kept.end(), logits.begin() + static_cast<ptrdiff_t>(i * vocab), logits.begin() + static_cast<ptrdiff_t>((i + 1) * vocab));
    }
    return {};
}

Expected<void> run(const Arguments& a) {
    CudaOptions options;
    BATON_TRY_ASSIGN(const Plan plan, model::load_plan(a.model));
    BATON_TRY_ASSIGN(std::vector<Run> runs, read_requests(a.requests, options.block_tokens));
    size_t longest = 0;
    for (const Run& r : runs) longest = std::max(longest, r.ids.size());
    options.max_batch_tokens = a.chunk + static_cast<uint32_t>(runs.size());
    options.max_batch_slices = static_cast<uint32_t>(runs.size());
    options.max_model_len = static_cast<uint32_t>(longest);
    options.deterministic = a.deterministic;
    options.fp16 = a.fp16;
    options.keep_logits = options.noise = true;
    BATON_TRY_ASSIGN(const auto backend, CudaBackend::make(plan, options));
    while (std::any_of(runs.begin(), runs.end(), [](const Run& r) { return !r.ended(); })) BATON_TRY(step(*backend, runs, a));
    std::ofstream out(a.out, std::ios::binary);
    for (const Run& r : runs) {
        out.write(reinterpret_cast<const char*>(r.kept.data()), static_cast<std::streamsize>(r.kept.size() * sizeof(float)));
        for (const TokenId id : r.sampled) std::cout << id << ' ';
        std::cout << '\n';
    }
    if (!out) return fail(ErrorCode::kIo, "cannot write " + a.out);
    return {};
}

}  // namespace

}  // namespace baton::backend::cuda

int main(int argc, char** argv) {
    baton::backend::cuda::Arguments a;
    std::vector<std::string> places;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--deterministic") a.deterministic = true;
        else if (word == "--fp16") a.fp16 = true;
        else if (word == "--chunk" && i + 1 < argc) a.chunk = static_cast<uint32_t>(std::stoul(argv[++i]));
        else if (word == "--every" && i + 1 < argc) a.every = static_cast<uint32_t>(std::stoul(argv[++i]));
        else places.push_back(word);
    }
    if (places.size() != 3) {
        std::fprintf(stderr, "usage: dump_logits MODEL REQUESTS OUT [--chunk N] [--every N] [--deterministic] [--fp16]\n");
        return 2;
    }
    a.model = places[0], a.requests = places[1], a.out = places[2];
    const auto done = baton::backend::cuda::run(a);
    if (!done) std::fprintf(stderr, "dump_logits: %s\n", done.error().message.c_str());
    return done ? 0 : 1;
}
