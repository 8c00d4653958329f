#include "cli/split_measure.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "baton/backend/backend.hpp"
#include "baton/base/clock.hpp"
#include "baton/base/fd.hpp"
#include "baton/sched/sampler.hpp"
#include "baton/worker/host_facts.hpp"
#include "cli/bench_cuda.hpp"
#include "cli/bench_pool.hpp"
#include "cli/split_beside.hpp"

/// Steps timed on this machine.
namespace baton::cli::split {
namespace {

constexpr uint32_t kStepTokens = 512, kSequences = 64, kBlockTokens = 16;
constexpr uint64_t kKvBytes = 1ull << 30;  ///< a replica's own default
constexpr uint32_t kRoundsMin = 3, kRoundsMax = 15;
constexpr int64_t kAllUs = 10'000'000;      ///< of rounds of all
constexpr uint32_t kPauses = 7;
constexpr double kTogetherUs = 30'000;      ///< for so long at least a replica's steps run beside another's
constexpr uint32_t kRoundsTogether = 5;
constexpr int64_t kPauseMs = 300;
constexpr uint32_t kPauseChunk = 64;
constexpr double kHandoffMs = 1.0;         ///< between two processes of a host: links, wake-ups, the last pages
constexpr size_t kCopyBytes = 64u << 20;
constexpr int64_t kRelayUs[2] = {50, 30};  ///< processor time of a streamed token in the supervisor, and in a client (`baton bench serve`)

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

/// What a step's tokens cost after it: two threads in a row, each woken by the one before, as the supervisor and a client on the same
/// host are. Where a replica's threads have all cores, its next step pays for them.
class Relay {
  public:
    Relay() {
        threads_[0] = std::thread([this] { pass(0, &posted_[1]); });
        threads_[1] = std::thread([this] { pass(1, nullptr); });
    }
    ~Relay() {
        post(kEnd);
        for (std::thread& thread : threads_) thread.join();
    }
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;

    /// `tokens` of a step are on their way.
    void post(uint32_t tokens) { add(posted_[0], tokens); }

  private:
    static constexpr uint32_t kEnd = 1u << 31;
    static void add(std::atomic<uint32_t>& to, uint32_t tokens) {
        to.fetch_add(tokens);
        to.notify_one();
    }

    void pass(int which, std::atomic<uint32_t>* next) {
        for (;;) {
            posted_[which].wait(0);
            const uint32_t tokens = posted_[which].exchange(0);
            const int64_t end = thread_cpu_us() + kRelayUs[which] * static_cast<int64_t>(tokens & ~kEnd);
            while (thread_cpu_us() < end) {}
            if (next != nullptr) add(*next, tokens);
            if (tokens & kEnd) return;
        }
    }

    static int64_t thread_cpu_us() {
        timespec now{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
    }

    std::atomic<uint32_t> posted_[2]{};
    std::thread threads_[2];
};

uint64_t blocks_of(uint64_t positions, uint32_t block_tokens) { return (positions + block_tokens - 1) / block_tokens; }
uint64_t blocks_needed(const StepSample& s, uint32_t block_tokens) {
    return s.rows * blocks_of(s.context, block_tokens) + blocks_of(uint64_t{s.position} + s.prompt_tokens, block_tokens);
}

bool read_all(int fd, void* to, size_t bytes) {
    for (auto* at = static_cast<std::byte*>(to); bytes > 0;) {
        const ssize_t n = ::recv(fd, at, bytes, 0);
        if (n <= 0 && !(n < 0 && errno == EINTR)) return false;
        if (n > 0) at += n, bytes -= static_cast<size_t>(n);
    }
    return true;
}
bool write_all(int fd, const void* from, size_t bytes) {
    for (const auto* at = static_cast<const std::byte*>(from); bytes > 0;) {
        const ssize_t n = ::send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) return false;
        if (n > 0) at += n, bytes -= static_cast<size_t>(n);
    }
    return true;
}

/// A replica's backend with a pool of its own, and steps made up for it.
class Rig {
  public:
    static Expected<std::unique_ptr<Rig>> make(const backend::Plan& plan, backend::CpuOptions options) {
        auto rig = std::unique_ptr<Rig>(new Rig);
        BATON_TRY_ASSIGN(const kv::PoolLayout layout, backend::cpu_kv_layout(plan.shape, options));
        BATON_TRY_ASSIGN(rig->pool_, make_bench_pool("baton-split", layout.pool_bytes()));
        BATON_TRY_ASSIGN(rig->backend_, backend::make_cpu_backend(plan, options, rig->pool_.mutable_bytes()));
        rig->blocks_.resize(options.blocks);
        std::iota(rig->blocks_.begin(), rig->blocks_.end(), 0u);
        rig->block_tokens_ = options.block_tokens;
        rig->logits_.resize(size_t{options.max_batch_slices} * plan.shape.vocab);
        rig->greedy_.sampling.temperature = 0;
        rig->greedy_.prompt = {1};
        return rig;
    }

    /// Runs the step once; microseconds.
    Expected<double> run(const StepSample& s) {
        const size_t vocab = backend_->shape().vocab;
        std::vector<TokenId> tokens(s.prompt_tokens + s.rows);
        for (TokenId& id : tokens) id = static_cast<TokenId>(random_() % vocab);
        std::vector<backend::Slice> slices;
        size_t used = 0;
        const auto add = [&](uint32_t rows, uint32_t position) {
            const size_t blocks = blocks_of(uint64_t{position} + rows);
            slices.push_back({});
            slices.back().tokens = rows;
            slices.back().position = position;
            slices.back().blocks = std::span<const BlockId>(blocks_).subspan(used, blocks);
            slices.back().logits = true;
            used += blocks;
        };
        for (uint32_t i = 0; i < s.rows; ++i) add(1, s.context - 1);
        if (s.prompt_tokens > 0) {
            used = next_blocks(used, blocks_of(uint64_t{s.position} + s.prompt_tokens));
            add(s.prompt_tokens, s.position);
        }
        const int64_t begin = steady_now_us();
        const auto logits = std::span(logits_).first(slices.size() * vocab);
        BATON_TRY(backend_->forward({tokens, slices}, logits, [](uint32_t) {}));
        for (size_t i = 0; i < slices.size(); ++i) last_ = sched::sample(logits.subspan(i * vocab, vocab), greedy_, scratch_).id;
        relay_.post(static_cast<uint32_t>(slices.size()));
        return static_cast<double>(std::max<int64_t>(1, steady_now_us() - begin));
    }

    /// Median times of many steps in rounds, so that what disturbs the machine for a while touches each a little. Before each comes a
    /// decode step, the same where it is one itself: most steps of a replica follow one, and find the weights where it left them.
    Expected<std::vector<StepSample>> time_all(std::vector<StepSample> steps) {
        std::vector<std::vector<double>> us(steps.size());
        int64_t begin = 0;
        for (uint32_t round = 0; round <= kRoundsMax && (round <= kRoundsMin || steady_now_us() - begin < kAllUs); ++round) {
            if (round == 1) begin = steady_now_us();
            for (size_t i = 0; i < steps.size(); ++i) {
                BATON_TRY(run(steps[i].prompt_tokens > 0 ? StepSample{0, 0, 1, block_tokens_, 0} : steps[i]));
                BATON_TRY_ASSIGN(const double once, run(steps[i]));
                if (round > 0) us[i].push_back(once);  // the first fills pages and buffers
            }
        }
        for (size_t i = 0; i < steps.size(); ++i) steps[i].us = median(std::move(us[i]));
        return steps;
    }

    [[nodiscard]] std::string describe() const { return backend_->describe(); }
    [[nodiscard]] uint64_t positions() const { return uint64_t{block_tokens_} * blocks_.size(); }
    /// Whether all sequences of the step find blocks.
    [[nodiscard]] bool fits(const StepSample& s) const { return blocks_needed(s, block_tokens_) <= blocks_.size(); }

  private:
    Rig() = default;
    [[nodiscard]] uint64_t blocks_of(uint64_t positions) const { return split::blocks_of(positions, block_tokens_); }

    /// Where `n` blocks begin for a prompt, none of the first `taken`: a replica too gives prompts blocks that no cache holds, in
    /// memory that was never written or long ago.
    size_t next_blocks(size_t taken, size_t n) {
        if (prompt_at_ < taken || prompt_at_ + n > blocks_.size()) prompt_at_ = taken;
        return std::exchange(prompt_at_, prompt_at_ + n);
    }

    Mapping pool_;
    std::unique_ptr<backend::Backend> backend_;
    std::vector<BlockId> blocks_;
    uint32_t block_tokens_ = 0;
    size_t prompt_at_ = 0;  ///< blocks for the next prompt
    std::vector<float> logits_;
    wire::Sequence greedy_;
    sched::SamplerScratch scratch_;
    TokenId last_ = 0;
    std::mt19937_64 random_{1};
    Relay relay_;
};

/// A memory file of zeros that can still be sealed against writing, as the image of the weights is.
Expected<UniqueFd> make_image(uint64_t bytes) {
    UniqueFd fd(::memfd_create("baton-split-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return fail(ErrorCode::kIo, std::string("cannot make a memory file: ") + std::strerror(errno));
    return fd;
}

/// The steps that are timed for sequences of up to `longest` positions.
std::vector<StepSample> points(const Rates& rates, uint32_t longest, uint32_t batch) {
    std::vector<StepSample> out;
    const uint32_t step = std::min(rates.step_tokens, longest);
    for (const uint32_t n : {16u, 64u, step / 4, step / 2, step})
        if (n > 0 && n <= step && (out.empty() || n > out.back().prompt_tokens)) out.push_back({n, 0, 0, 0, 0});
    for (const uint32_t position : {longest / 2, longest - step})
        if (position >= rates.block_tokens && longest > step) out.push_back({std::min(step, longest - position), position - position % rates.block_tokens, 0, 0, 0});
    for (uint32_t b = 1; b <= rates.sequences; b = b < 4 ? b + 1 : b * 2)
        for (const uint32_t context : {std::min(64u, longest), longest}) out.push_back({0, 0, b, context, 0});
    for (const uint32_t n : {step / 4, step / 2})
        if (n > 0) out.push_back({n, 0, std::min(batch, rates.sequences), longest, 0});
    return out;
}

/// How much longer a step takes after a pause than right after another one, ms: of pairs, one after the other.
Expected<double> after_pause(Rig& rig, const StepSample& step) {
    BATON_TRY(rig.run(step));
    std::vector<double> longer;
    for (uint32_t i = 0; i < kPauses; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(kPauseMs));
        BATON_TRY_ASSIGN(const double rested, rig.run(step));
        BATON_TRY(rig.run(step));
        BATON_TRY_ASSIGN(const double at_once, rig.run(step));
        longer.push_back(rested - at_once);
    }
    return std::max(0.0, median(std::move(longer))) / 1000;
}

/// A second replica, in a process of its own as one that serves is. It computes the same step again and again while it is let.
class Neighbour {
  public:
    /// `options` and `plan` are the replica's. Before this process has threads: those would not be there in the other.
    static Expected<std::unique_ptr<Neighbour>> start(const backend::Plan& plan, const backend::CpuOptions& options) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
            return fail(ErrorCode::kIo, std::string("cannot make a pair of sockets: ") + std::strerror(errno));
        auto out = std::unique_ptr<Neighbour>(new Neighbour(UniqueFd(ends[0]), options));
        UniqueFd other(ends[1]);
        out->pid_ = ::fork();
        if (out->pid_ < 0) return fail(ErrorCode::kIo, std::string("cannot start a process: ") + std::strerror(errno));
        if (out->pid_ == 0) {
            out->link_.reset();
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::_exit(serve(plan, options, other.get()) ? 0 : 1);
        }
        other.reset();
        BATON_TRY(out->ready());
        return out;
    }
    ~Neighbour() {
        link_.reset();
        if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    }
    Neighbour(const Neighbour&) = delete;
    Neighbour& operator=(const Neighbour&) = delete;

    /// Lets it compute, and returns once so many steps are over.
    Expected<void> go_on(const StepSample& step, uint32_t steps) {
        const Order order{step, steps};
        return write_all(link_.get(), &order, sizeof order) ? ready() : gone();
    }
    /// Returns its steps since it went on, once none is under way.
    Expected<std::vector<Span>> pause() {
        const Order order{};
        uint32_t count = 0;
        if (!write_all(link_.get(), &order, sizeof order) || !read_all(link_.get(), &count, sizeof count)) return gone();
        std::vector<Span> spans(count);
        if (!read_all(link_.get(), spans.data(), count * sizeof(Span))) return gone();
        return spans;
    }
    [[nodiscard]] bool fits(const StepSample& s) const { return blocks_needed(s, block_tokens_) <= blocks_; }

  private:
    /// `steps` of this kind and then more until the next order; none: a pause.
    struct Order {
        StepSample step;
        uint32_t steps = 0;
    };
    Neighbour(UniqueFd link, const backend::CpuOptions& options) : link_(std::move(link)), blocks_(options.blocks), block_tokens_(options.block_tokens) {}

    Expected<void> ready() const {
        char byte = 0;
        return read_all(link_.get(), &byte, sizeof byte) ? Expected<void>{} : gone();
    }
    static tl::unexpected<Error> gone() { return fail(ErrorCode::kInternal, "the second replica that was to be measured has gone"); }
    /// The other process: until this one closes its end, or a step fails.
    static bool serve(const backend::Plan& plan, const backend::CpuOptions& options, int link) {
        const auto rig = Rig::make(plan, options);
        const char ready = 1;
        if (!rig || !write_all(link, &ready, sizeof ready)) return false;
        std::vector<Span> spans;
        for (Order order; read_all(link, &order, sizeof order);) {
            spans.clear();
            for (pollfd asked{link, POLLIN, 0}; spans.size() < order.steps || ::poll(&asked, 1, 0) == 0;) {
                const auto begin = static_cast<double>(steady_now_us());
                const auto once = (*rig)->run(order.step);
                if (!once) return false;
                spans.push_back({begin, begin + *once});
                if (spans.size() == order.steps && !write_all(link, &ready, sizeof ready)) return false;
            }
            if (!read_all(link, &order, sizeof order)) return true;
            const auto count = static_cast<uint32_t>(spans.size());
            if (!write_all(link, &count, sizeof count) || !write_all(link, spans.data(), count * sizeof(Span))) return false;
        }
        return true;
    }

    UniqueFd link_;
    pid_t pid_ = -1;
    uint64_t blocks_;
    uint32_t block_tokens_;
};

/// How many steps fill some time, 16 at most.
uint32_t steps_in(double us, double once_us) { return static_cast<uint32_t>(std::clamp(std::ceil(us / std::max(once_us, 1.0)), 1.0, 16.0)); }

/// How much longer steps take while another replica's run on the same cores: of `a`, which comes for some milliseconds, and of `b`, which
/// goes on all the time. Each round times them together and alone, so that a machine that gets slower or quicker is no difference.
Expected<std::pair<double, double>> beside(Rig& a, const StepSample& of_a, Neighbour& b, const StepSample& of_b, uint32_t rounds_min, double seconds) {
    BATON_TRY(a.run(of_a));
    BATON_TRY_ASSIGN(const double once_us, a.run(of_a));
    BATON_TRY(b.go_on(of_b, 2));
    BATON_TRY_ASSIGN(const std::vector<Span> first, b.pause());
    const uint32_t steps = steps_in(kTogetherUs, once_us), others = 1 + steps_in(kTogetherUs, first.back().length());
    const auto run = [&]() -> Expected<Span> {
        const auto begin = static_cast<double>(steady_now_us());
        for (uint32_t i = 0; i < steps; ++i) BATON_TRY(a.run(of_a));
        return Span{begin, static_cast<double>(steady_now_us())};
    };
    std::vector<double> longer;
    Slowed slowed;
    const int64_t end = steady_now_us() + static_cast<int64_t>(seconds * 1e6);
    for (uint32_t round = 0; round < rounds_min || (round < kRoundsMax && steady_now_us() < end); ++round) {
        BATON_TRY(b.go_on(of_b, others));
        BATON_TRY_ASSIGN(const Span together, run());
        BATON_TRY_ASSIGN(const std::vector<Span> spans, b.pause());
        BATON_TRY_ASSIGN(const Span alone, run());
        longer.push_back(together.length() / alone.length());
        slowed.add(together, spans);
    }
    return std::pair(std::max(1.0, median(std::move(longer))), slowed.factor());
}

/// Sequences that decode at once, by Little's law: answers' tokens a second times what a token takes one sequence alone.
uint32_t rows_at_once(const MeasureOptions& o, const std::vector<StepSample>& samples) {
    const auto alone = std::find_if(samples.rbegin(), samples.rend(), [](const StepSample& s) { return s.rows == 1 && s.prompt_tokens == 0; });
    if (o.tokens_per_second <= 0 || alone == samples.rend()) return o.batch;
    return static_cast<uint32_t>(std::clamp(std::ceil(o.tokens_per_second * alone->us / 1e6), 1.0, 64.0));
}

Expected<void> measure_beside(Rig& rig, Neighbour& second, const MeasureOptions& o, Rates& rates) {
    // As long as the load's own: the shorter a chunk's parts, the more it suffers from others on its cores.
    const StepSample chunk{std::min(rates.step_tokens, o.prompt), 0, 0, 0, 0};
    StepSample rows{0, 0, std::min(rows_at_once(o, rates.samples), rates.sequences), std::min(o.longest, (o.prompt + o.longest) / 2), 0};
    while (rows.rows > 1 && (!rig.fits(rows) || !second.fits(rows))) rows.rows /= 2;
    BATON_TRY_ASSIGN(const auto mixed, beside(rig, chunk, second, rows, kRoundsTogether, 2 * o.seconds));
    BATON_TRY_ASSIGN(const auto chunks, beside(rig, chunk, second, chunk, 2, o.seconds));
    BATON_TRY_ASSIGN(const auto decodes, beside(rig, rows, second, rows, kRoundsTogether, o.seconds));
    rates.beside[0][1] = mixed.first;
    rates.beside[1][0] = mixed.second;
    rates.beside[0][0] = chunks.first;
    rates.beside[1][1] = decodes.first;
    return {};
}

/// What a thread copies in memory, GB/s.
double copy_rate() {
    std::vector<char> from(kCopyBytes, 1), to(kCopyBytes, 2);
    double best = 0;
    for (int i = 0; i < 3; ++i) {
        const int64_t begin = steady_now_us();
        std::copy(from.begin(), from.end(), to.begin());
        best = std::max(best, static_cast<double>(kCopyBytes) / 1e3 / static_cast<double>(std::max<int64_t>(1, steady_now_us() - begin)));
        std::swap(from, to);
    }
    return best;
}

Expected<Rates> measure_cpu(const backend::Plan& plan, const MeasureOptions& o) {
    Rates rates;
    rates.step_tokens = o.step_tokens > 0 ? o.step_tokens : kStepTokens;
    rates.sequences = o.sequences > 0 ? o.sequences : kSequences;
    rates.block_tokens = o.block_tokens > 0 ? o.block_tokens : kBlockTokens;
    backend::CpuOptions options;
    options.threads = o.threads;
    options.isa = o.isa;
    options.block_tokens = rates.block_tokens;
    options.max_batch_tokens = std::max(rates.step_tokens, rates.sequences) + rates.block_tokens;
    options.max_batch_slices = rates.sequences + 1;
    options.blocks = 1;
    BATON_TRY_ASSIGN(const kv::PoolLayout unit, backend::cpu_kv_layout(plan.shape, options));
    rates.kv_bytes_per_token = static_cast<double>(unit.block_bytes()) / rates.block_tokens;
    const uint64_t memory = worker::read_memory().total;
    const uint64_t bytes = std::min(kKvBytes, memory / 8);
    const auto blocks_of = [&](uint64_t positions) { return split::blocks_of(positions, rates.block_tokens); };
    const uint64_t blocks = std::clamp<uint64_t>(bytes / unit.block_bytes(), blocks_of(plan.shape.context) + 1, 1u << 22);
    rates.kv_tokens = blocks * rates.block_tokens;
    options.blocks = static_cast<uint32_t>(std::min(blocks, rates.sequences * blocks_of(o.longest) + blocks_of(rates.step_tokens)));
    // Two replicas of a host read one image of the weights.
    BATON_TRY_ASSIGN(const backend::WeightImage image, backend::cpu_weight_image(plan, options));
    BATON_TRY_ASSIGN(const UniqueFd weights, make_image(image.bytes));
    BATON_TRY(backend::fill_cpu_weights(plan, options, weights.get()));
    options.weights_fd = weights.get();
    std::unique_ptr<Neighbour> second;
    if (o.beside) {
        backend::CpuOptions fewer = options;
        fewer.blocks = static_cast<uint32_t>(std::min<uint64_t>(options.blocks, uint64_t{o.batch} * blocks_of(o.longest) + blocks_of(rates.step_tokens)));
        BATON_TRY_ASSIGN(second, Neighbour::start(plan, fewer));
    }
    BATON_TRY_ASSIGN(const auto rig, Rig::make(plan, options));
    rates.engine = rig->describe();
    std::vector<StepSample> all = points(rates, o.longest, o.batch);
    std::erase_if(all, [&](const StepSample& point) { return !rig->fits(point); });
    BATON_TRY_ASSIGN(rates.samples, rig->time_all(std::move(all)));
    // What the caches have lost is the same for any chunk, and shows best beside a short one.
    BATON_TRY_ASSIGN(rates.after_pause_ms[0], after_pause(*rig, {std::min({kPauseChunk, rates.step_tokens, o.prompt}), 0, 0, 0, 0}));
    BATON_TRY_ASSIGN(rates.after_pause_ms[1], after_pause(*rig, {0, 0, 1, std::min(o.longest, (o.prompt + o.longest) / 2), 0}));
    rates.handoff_ms = kHandoffMs;
    rates.handoff_gb_per_s = copy_rate();
    if (second) BATON_TRY(measure_beside(*rig, *second, o, rates));
    return rates;
}

Expected<Rates> measure_gpu(const backend::Plan& plan, const MeasureOptions& o) {
    BenchEngineOptions bench;
    bench.device = o.device;
    const uint32_t sequences = o.sequences > 0 ? o.sequences : 256, step = o.step_tokens > 0 ? o.step_tokens : 2048;
    if (o.block_tokens > 0) bench.block_tokens = o.block_tokens;
    constexpr uint32_t kMargin = 272;  // positions that the decode steps of a measurement go on for
    const uint32_t most = plan.shape.context > 2 * kMargin ? plan.shape.context - kMargin : plan.shape.context / 2;
    bench.contexts = {std::min(256u, o.longest), std::min(o.longest, most)};
    if (bench.contexts[0] >= bench.contexts[1]) bench.contexts.erase(bench.contexts.begin());
    bench.batches.clear();
    for (uint32_t b = 1; b < sequences; b *= 2) bench.batches.push_back(b);
    bench.batches.push_back(sequences);
    bench.prompts.clear();
    const uint32_t prompt = std::min(std::max(o.longest, step), most);
    for (uint32_t n = 64; n < prompt; n *= 2) bench.prompts.push_back(n);
    bench.prompts.push_back(prompt);
    bench.cached = true;
    BATON_TRY_ASSIGN(const Json json, measure_cuda(bench, plan));
    BATON_TRY_ASSIGN(Rates rates, parse_rates(json));
    rates.sequences = sequences;
    rates.step_tokens = step;
    rates.block_tokens = bench.block_tokens;
    return rates;
}

}  // namespace

Expected<Rates> measure(const backend::Plan& plan, const MeasureOptions& o) {
    if (o.longest > plan.shape.context)
        return fail(ErrorCode::kInvalidArgument, "prompt and answer of " + std::to_string(o.longest) + " tokens exceed the model's context of " + std::to_string(plan.shape.context), "input_tokens");
    return o.device == "cpu" ? measure_cpu(plan, o) : measure_gpu(plan, o);
}

}  // namespace baton::cli::split
