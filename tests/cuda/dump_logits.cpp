// Runs given token ids through a backend and writes the logits: what scripts/gpu_parity.py compares with transformers.
//
//   dump_logits MODEL FOLDER CASE... [--cpu] [--deterministic] [--fp16] [--cache FOLDER]
//
// FOLDER/CASE.txt begins with a line `CHUNK EVERY TOGETHER REVERSED GREEDY`: prompts run in chunks of at most CHUNK rows a step;
// the logits after the prompt and after every EVERY-th further id are kept; at most TOGETHER sequences run at a time; with
// REVERSED 1 blocks are given from the pool's end; GREEDY is how many of its own tokens a sequence goes on with.
// Then a line a sequence: `PROMPT SHARED OF id ...`. PROMPT ids are the prompt, those behind it are fed one by one as if they
// had been sampled. The blocks of the first SHARED positions (whole blocks) are those of sequence number OF, which has the
// same ids there and comes first: a hit in the prefix cache.
// FOLDER/CASE.bin gets, for each sequence in order, the kept logits [vocab] f32; FOLDER/CASE.tokens a line a sequence: the
// token sampled after the prompt and after each further id. stdout gets a line a case, and what the load took.
// All cases run on one backend. --cpu is the CPU backend with f32 KV and greedy choice.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>

#include "baton/backend/backend.hpp"
#include "baton/backend/cuda.hpp"
#include "baton/model/model.hpp"

namespace baton::backend {

namespace {

constexpr uint32_t kCudaBlock = 64, kCpuBlock = 16;

struct Run {
    wire::Sequence wire;
    std::vector<TokenId> ids;
    std::vector<BlockId> blocks;
    uint32_t shared = 0, of = 0;
    uint32_t done = 0;
    uint32_t state = 0;
    bool running = false;
    std::vector<float> kept;
    std::vector<TokenId> sampled;
    [[nodiscard]] uint32_t prompt() const { return static_cast<uint32_t>(wire.prompt.size()); }
    [[nodiscard]] bool ended() const { return done == ids.size(); }
};

struct Case {
    std::string name;
    uint32_t chunk = 0, every = 1, together = 1, reversed = 0, greedy = 0;
    std::vector<Run> runs;
    uint32_t blocks = 0;
    [[nodiscard]] size_t longest() const {
        size_t most = 0;
        for (const Run& r : runs) most = std::max(most, r.ids.size());
        return most;
    }
};

struct Arguments {
    std::string model, folder, cache;
    std::vector<std::string> cases;
    bool cpu = false, deterministic = false, fp16 = false;
};

/// One step on either kind of backend, with greedy tokens and the logits of the slices that have some.
class Target {
  public:
    virtual ~Target() = default;
    virtual Expected<void> step(const Batch& batch, std::vector<TokenId>& tokens, std::vector<float>& logits) = 0;
    [[nodiscard]] virtual size_t vocab() const = 0;
};

class CudaTarget final : public Target {
  public:
    explicit CudaTarget(std::unique_ptr<DeviceBackend> backend) : backend_(std::move(backend)) {}
    Expected<void> step(const Batch& batch, std::vector<TokenId>& tokens, std::vector<float>& logits) override {
        BATON_TRY(backend_->submit(batch));
        BATON_TRY(backend_->collect(sampled_));
        tokens.clear();
        for (const wire::Token& t : sampled_) tokens.push_back(t.id);
        return tokens.empty() ? Expected<void>{} : backend_->debug_logits(logits);
    }
    [[nodiscard]] size_t vocab() const override { return backend_->shape().vocab; }

  private:
    std::unique_ptr<DeviceBackend> backend_;
    std::vector<wire::Token> sampled_;
};

class CpuTarget final : public Target {
  public:
    static Expected<std::unique_ptr<Target>> make(const Plan& plan, CpuOptions options) {
        auto target = std::make_unique<CpuTarget>();
        BATON_TRY_ASSIGN(const kv::PoolLayout layout, cpu_kv_layout(plan.shape, options));
        const size_t bytes = (layout.pool_bytes() + 63) / 64 * 64;
        target->pool_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
        std::fill_n(target->pool_.get(), bytes, std::byte{0});
        BATON_TRY_ASSIGN(target->backend_, make_cpu_backend(plan, options, {target->pool_.get(), bytes}));
        return target;
    }
    Expected<void> step(const Batch& batch, std::vector<TokenId>& tokens, std::vector<float>& logits) override {
        const auto rows = std::count_if(batch.slices.begin(), batch.slices.end(), [](const Slice& s) { return s.logits; });
        logits.resize(static_cast<size_t>(rows) * vocab());
        BATON_TRY(backend_->forward(batch, logits, [](uint32_t) {}));
        tokens.clear();
        for (auto row = logits.begin(); row != logits.end(); row += static_cast<ptrdiff_t>(vocab()))
            tokens.push_back(static_cast<TokenId>(std::max_element(row, row + static_cast<ptrdiff_t>(vocab())) - row));
        return {};
    }
    [[nodiscard]] size_t vocab() const override { return backend_->shape().vocab; }

  private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    std::unique_ptr<std::byte, Free> pool_;
    std::unique_ptr<Backend> backend_;  // after the pool it writes to
};

Expected<Run> read_run(const std::string& line, const Case& c, uint32_t block_tokens) {
    std::istringstream text(line);
    size_t prompt = 0;
    Run run;
    text >> prompt >> run.shared >> run.of;
    for (TokenId id = 0; text >> id;) run.ids.push_back(id);
    if (prompt == 0 || prompt > run.ids.size()) return fail(ErrorCode::kInvalidArgument, c.name + ": a sequence needs a prompt");
    if (run.shared % block_tokens != 0 || run.shared >= prompt || (run.shared > 0 && run.of >= c.runs.size()))
        return fail(ErrorCode::kInvalidArgument, c.name + ": whole blocks of an earlier sequence can be shared, not " + std::to_string(run.shared));
    run.wire.prompt.assign(run.ids.begin(), run.ids.begin() + static_cast<ptrdiff_t>(prompt));
    run.wire.sampling.temperature = 0;
    run.wire.sampling.max_tokens = UINT32_MAX;
    run.done = run.shared;
    return run;
}

Expected<Case> read_case(const Arguments& a, const std::string& name, uint32_t block_tokens) {
    std::ifstream file(a.folder + "/" + name + ".txt");
    Case c;
    c.name = name;
    std::string line;
    std::getline(file, line);
    if (!(std::istringstream(line) >> c.chunk >> c.every >> c.together >> c.reversed >> c.greedy) || c.chunk * c.every * c.together == 0)
        return fail(ErrorCode::kNotFound, "no case in " + a.folder + "/" + name + ".txt");
    while (std::getline(file, line)) {
        BATON_TRY_ASSIGN(Run run, read_run(line, c, block_tokens));
        const auto blocks = static_cast<uint32_t>((run.ids.size() + c.greedy + block_tokens - 1) / block_tokens);
        const uint32_t theirs = run.shared / block_tokens;
        if (theirs > 0) run.blocks.assign(c.runs[run.of].blocks.begin(), c.runs[run.of].blocks.begin() + theirs);
        while (run.blocks.size() < blocks) run.blocks.push_back(c.blocks++);
        c.runs.push_back(std::move(run));
    }
    return c;
}

/// Makes up to `together` sequences run; one that shares blocks waits until they are filled.
void admit(Case& c) {
    std::vector<bool> taken(c.together);
    for (const Run& r : c.runs)
        if (r.running) taken[r.state] = true;
    for (Run& r : c.runs) {
        const auto room = std::find(taken.begin(), taken.end(), false);
        if (room == taken.end()) return;
        if (r.running || r.ended() || (r.shared > 0 && c.runs[r.of].done < r.shared)) continue;
        r.running = *room = true;
        r.state = static_cast<uint32_t>(room - taken.begin());
    }
}

/// One step over all sequences that run.
Expected<void> step(Target& target, Case& c) {
    std::vector<TokenId> ids, tokens;
    std::vector<Slice> slices;
    std::vector<size_t> wanted;
    std::vector<float> logits;
    uint32_t left = c.chunk;
    admit(c);
    for (size_t i = 0; i < c.runs.size(); ++i) {
        Run& r = c.runs[i];
        if (!r.running) continue;
        const uint32_t n = r.done < r.prompt() ? std::min(r.prompt() - r.done, left) : 1;
        if (n == 0) continue;
        if (r.done < r.prompt()) left -= n;
        Slice s;
        s.tokens = n;
        s.position = r.done;
        s.blocks = r.blocks;
        s.logits = r.done + n >= r.prompt();
        s.sequence = &r.wire;
        s.state = r.state;
        ids.insert(ids.end(), r.ids.begin() + r.done, r.ids.begin() + r.done + n);
        if (s.logits) wanted.push_back(i);
        slices.push_back(s);
        r.done += n;
    }
    if (slices.empty()) return fail(ErrorCode::kInternal, c.name + ": no sequence can run");
    BATON_TRY(target.step({ids, slices}, tokens, logits));
    const size_t vocab = target.vocab();
    for (size_t i = 0; i < wanted.size(); ++i) {
        Run& r = c.runs[wanted[i]];
        if ((r.done - r.prompt()) % c.every == 0)
            r.kept.insert(r.kept.end(), logits.begin() + static_cast<ptrdiff_t>(i * vocab), logits.begin() + static_cast<ptrdiff_t>((i + 1) * vocab));
        r.sampled.push_back(tokens[i]);
        if (r.sampled.size() <= c.greedy) r.ids.push_back(tokens[i]);
        if (r.ended()) r.running = false;
        else r.wire.emitted.push_back(r.ids[r.done]);
    }
    return {};
}

Expected<void> write(const Arguments& a, const Case& c) {
    std::ofstream out(a.folder + "/" + c.name + ".bin", std::ios::binary);
    std::ofstream tokens(a.folder + "/" + c.name + ".tokens");
    for (const Run& r : c.runs) {
        out.write(reinterpret_cast<const char*>(r.kept.data()), static_cast<std::streamsize>(r.kept.size() * sizeof(float)));
        for (const TokenId id : r.sampled) tokens << id << ' ';
        tokens << '\n';
    }
    if (!out.flush() || !tokens.flush()) return fail(ErrorCode::kIo, "cannot write to " + a.folder);
    return {};
}

/// A backend with room for the largest case.
Expected<std::unique_ptr<Target>> make_target(const Arguments& a, const Plan& plan, const std::vector<Case>& cases) {
    uint32_t rows = 0, slices = 0, blocks = 0;
    size_t longest = 0;
    for (const Case& c : cases) {
        rows = std::max(rows, c.chunk + c.together);
        slices = std::max(slices, c.together);
        blocks = std::max(blocks, c.blocks);
        longest = std::max(longest, c.longest() + c.greedy);
    }
    if (a.cpu) {
        CpuOptions options;
        options.kv_f32 = true;
        options.block_tokens = kCpuBlock;
        options.max_batch_tokens = rows;
        options.max_batch_slices = slices;
        options.blocks = blocks;
        return CpuTarget::make(plan, options);
    }
    CudaOptions options;
    options.block_tokens = kCudaBlock;
    options.max_batch_tokens = rows;
    options.max_batch_slices = slices;
    options.max_model_len = static_cast<uint32_t>(longest);
    options.blocks = blocks;
    options.deterministic = a.deterministic;
    options.fp16 = a.fp16;
    options.cache_folder = a.cache;
    options.keep_logits = options.noise = true;
    BATON_TRY_ASSIGN(auto backend, make_cuda_backend(plan, options));
    const std::string tuning = backend->tuning();
    std::cout << tuning.substr(0, tuning.find('\n')) << '\n';
    return std::make_unique<CudaTarget>(std::move(backend));
}

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Expected<void> run(const Arguments& a) {
    BATON_TRY_ASSIGN(const Plan plan, model::load_plan(a.model));
    std::vector<Case> cases;
    for (const std::string& name : a.cases) {
        BATON_TRY_ASSIGN(Case c, read_case(a, name, a.cpu ? kCpuBlock : kCudaBlock));
        cases.push_back(std::move(c));
    }
    BATON_TRY_ASSIGN(const auto target, make_target(a, plan, cases));
    for (Case& c : cases) {
        if (c.reversed == 1)
            for (Run& r : c.runs)
                for (BlockId& b : r.blocks) b = c.blocks - 1 - b;
        const double begin = seconds();
        size_t steps = 0;
        for (; std::any_of(c.runs.begin(), c.runs.end(), [](const Run& r) { return !r.ended(); }); ++steps) BATON_TRY(step(*target, c));
        BATON_TRY(write(a, c));
        std::cout << c.name << ": " << steps << " steps, " << seconds() - begin << " s" << std::endl;
        c.runs.clear();
    }
    return {};
}

}  // namespace

}  // namespace baton::backend

int main(int argc, char** argv) {
    baton::backend::Arguments a;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--deterministic") a.deterministic = true;
        else if (word == "--fp16") a.fp16 = true;
        else if (word == "--cpu") a.cpu = true;
        else if (word == "--cache" && i + 1 < argc) a.cache = argv[++i];
        else if (a.model.empty()) a.model = word;
        else if (a.folder.empty()) a.folder = word;
        else a.cases.push_back(word);
    }
    if (a.cases.empty()) {
        std::fprintf(stderr, "usage: dump_logits MODEL FOLDER CASE... [--cpu] [--deterministic] [--fp16] [--cache FOLDER]\n");
        return 2;
    }
    const auto done = baton::backend::run(a);
    if (!done) std::fprintf(stderr, "dump_logits: %s\n", done.error().message.c_str());
    return done ? 0 : 1;
}
