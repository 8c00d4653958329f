#include "cli/bench_handoff_peer.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "baton/base/clock.hpp"
#include "baton/base/log.hpp"
#include "cli/bench_handoff_end.hpp"

namespace baton::cli {
namespace {

/// Blocks of a hand-off whose checksums are compared at most: each takes a copy to the host.
constexpr uint32_t kChecked = 8;
constexpr size_t kLineMax = 1u << 20;

std::string joined(const std::vector<uint32_t>& numbers) {
    std::string out;
    for (const uint32_t n : numbers) out += (out.empty() ? "" : ",") + std::to_string(n);
    return out.empty() ? "0" : out;
}

/// The command line of the child: what the two must have in common.
std::vector<std::string> child_arguments(const BenchHandoffOptions& o, int fd) {
    std::vector<std::string> args{"baton", "bench", "handoff", "--peer-fd", std::to_string(fd)};
    const auto add = [&](const char* name, const std::string& value) { args.insert(args.end(), {name, value}); };
    if (!o.devices.empty()) add("--devices", o.devices);
    add("--sizes", joined(o.sizes_mib));
    add("--prompts", joined(o.prompts));
    add("--shape", o.shape);
    add("--block-tokens", std::to_string(o.block_tokens));
    add("--chunk", std::to_string(o.chunk_tokens));
    add("--concurrent", std::to_string(o.concurrent));
    add("--concurrent-tokens", std::to_string(o.concurrent_tokens));
    add("--layer-us", std::to_string(o.layer_us));
    add("--nccl-ctas", std::to_string(o.nccl_ctas));
    add("--nccl-buffers", std::to_string(o.nccl_buffers));
    add("--nccl-buffer-mib", std::to_string(o.nccl_buffer_mib));
    add("--nccl-copy-ctas", std::to_string(o.nccl_copy_ctas));
    add("--nccl-lanes", std::to_string(o.nccl_lanes));
    return args;
}

/// Computes prompts as a prefill replica does, and notes when the last layer of each was there.
class Prefill {
  public:
    Prefill(HandoffEnd& end, const BenchHandoffOptions& o, uint64_t set, uint32_t count, uint32_t tokens)
        : end_(end), o_(o), tokens_(tokens), last_us_(count, 0) {
        const uint32_t n = (tokens + o.block_tokens - 1) / o.block_tokens;
        for (uint32_t i = 0; i < count; ++i) blocks_.push_back(bench_blocks(set, true, end.handoff_blocks(), i, n));
    }
    [[nodiscard]] const std::vector<BlockId>& blocks(uint32_t i) const { return blocks_[i]; }
    Expected<std::vector<int64_t>> run() {
        if (end_.backend() == nullptr) {
            for (uint32_t i = 0; i < last_us_.size(); ++i) paced(i);
            return last_us_;
        }
        std::atomic<bool> over{false};
        std::thread watcher([&] { watch(over); });
        auto done = compute();
        if (!done) over = true;
        watcher.join();
        if (!done) return fail(std::move(done).error());
        return last_us_;
    }

  private:
    /// No model: layers that end at a given pace.
    void paced(uint32_t i) {
        const uint32_t layers = end_.layout().layers;
        auto at = std::chrono::steady_clock::now();
        for (uint32_t begin = 0; begin < tokens_; begin += o_.chunk_tokens)
            for (uint32_t layer = 1; layer <= layers; ++layer) {
                at += std::chrono::microseconds(o_.layer_us);
                std::this_thread::sleep_until(at);
                end_.pool().set_progress(i, begin, std::min(tokens_, begin + o_.chunk_tokens), layer);
            }
        last_us_[i] = steady_now_us();
    }
    /// The GPU's words say when; looked at without rest, as long as prompts are computed.
    void watch(const std::atomic<bool>& over) {
        const uint64_t last = xavier::progress_base(0, tokens_) | (uint64_t{end_.layout().layers} << 48);
        const uint64_t mask = ~uint64_t{0xffffff};  // where the last chunk began does not matter
        for (size_t left = last_us_.size(); left > 0 && !over;)
            for (uint32_t i = 0; i < last_us_.size(); ++i) {
                if (last_us_[i] != 0) continue;
                const uint64_t word = std::atomic_ref<uint64_t>(*end_.pool().progress_word(i)).load(std::memory_order_acquire);
                if ((word & mask) != (last & mask)) continue;
                last_us_[i] = steady_now_us();
                --left;
            }
    }
    /// Prompts one behind the other, in steps of at most a chunk, two steps queued.
    Expected<void> compute() {
        backend::DeviceBackend& backend = *end_.backend();
        wire::Sequence sequence;
        sequence.sampling.temperature = 0;
        sequence.sampling.max_tokens = UINT32_MAX;
        sequence.prompt = {1};
        std::mt19937_64 random(tokens_);
        std::vector<wire::Token> sampled;
        std::vector<TokenId> ids;
        std::vector<backend::Slice> slices;
        uint32_t queued = 0;
        const auto submit = [&]() -> Expected<void> {
            if (queued == backend::DeviceBackend::kDepth) {
                BATON_TRY(backend.collect(sampled));
                --queued;
            }
            BATON_TRY(backend.submit({ids, slices}));
            ++queued;
            ids.clear();
            slices.clear();
            return {};
        };
        for (uint32_t i = 0; i < blocks_.size(); ++i)
            for (uint32_t begin = 0; begin < tokens_;) {
                const uint32_t n = std::min(tokens_ - begin, o_.chunk_tokens - static_cast<uint32_t>(ids.size()));
                backend::Slice s;
                s.tokens = n;
                s.position = begin;
                s.blocks = blocks_[i];
                s.logits = begin + n == tokens_;
                s.sequence = &sequence;
                s.state = i;
                s.progress = end_.pool().progress_word(i);
                s.progress_base = xavier::progress_base(begin, begin + n);
                slices.push_back(s);
                for (uint32_t t = 0; t < n; ++t) ids.push_back(static_cast<TokenId>(random() % backend.shape().vocab));
                begin += n;
                if (ids.size() == o_.chunk_tokens) BATON_TRY(submit());
            }
        if (!ids.empty()) BATON_TRY(submit());
        for (; queued > 0; --queued) BATON_TRY(backend.collect(sampled));
        return {};
    }

    HandoffEnd& end_;
    const BenchHandoffOptions& o_;
    const uint32_t tokens_;
    std::vector<std::vector<BlockId>> blocks_;
    std::vector<int64_t> last_us_;
};

/// Carries out one ask; the answer's members.
Expected<Json> carry_out(HandoffEnd& end, const BenchHandoffOptions& o, const Json& ask) {
    const std::string what = text_of(ask, "do");
    if (what == "link") {
        BATON_TRY(end.listen(text_of(ask, "path"), text_of(ask, "secret"), text_of(ask, "mover")));
        return Json::object();
    }
    const auto set = ask.value("set", uint64_t{0});
    const auto count = ask.value("count", uint32_t{1}), tokens = ask.value("tokens", uint32_t{1});
    Prefill prefill(end, o, set, count, tokens);
    if (what == "open") {
        for (uint32_t i = 0; i < count; ++i) {
            const auto& blocks = prefill.blocks(i);
            end.pool().open_progress({i, OfferId{set + i}, tokens, blocks, std::vector<Generation>(blocks.size(), 1), ask.value("done", false) ? tokens : 0});
        }
        return Json::object();
    }
    if (what == "compute") {
        BATON_TRY_ASSIGN(const auto last_us, prefill.run());
        return Json{{"last_us", last_us}};
    }
    if (what == "close") {
        for (uint32_t i = 0; i < count; ++i) end.pool().close_progress({i, OfferId{set + i}});
        return Json::object();
    }
    if (what == "sums") {
        const auto& blocks = prefill.blocks(0);
        BATON_TRY_ASSIGN(const auto sums, end.thread().checksums(std::span(blocks).first(std::min<size_t>(blocks.size(), kChecked))));
        return Json{{"sums", sums}};
    }
    return fail(ErrorCode::kInvalidArgument, "unknown ask " + what);
}

}  // namespace

bool BenchControl::send(const Json& line) {
    const std::string text = line.dump() + "\n";
    for (size_t at = 0; at < text.size();) {
        const ssize_t n = ::send(fd_.get(), text.data() + at, text.size() - at, MSG_NOSIGNAL);
        if (n <= 0) return false;
        at += static_cast<size_t>(n);
    }
    return true;
}

Expected<Json> BenchControl::receive() {
    for (;;) {
        if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
            Json line = Json::parse(buffer_.substr(0, end), nullptr, false);
            buffer_.erase(0, end + 1);
            return line;
        }
        char bytes[4096];
        const ssize_t n = ::recv(fd_.get(), bytes, sizeof bytes, 0);
        if (n <= 0 || buffer_.size() > kLineMax) return fail(ErrorCode::kPeerLost, "the prefill process is gone");
        buffer_.append(bytes, static_cast<size_t>(n));
    }
}

Expected<std::unique_ptr<BenchPeer>> BenchPeer::start(const BenchHandoffOptions& o) {
    int sv[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sv) != 0) return fail(ErrorCode::kIo, "no socket pair");
    UniqueFd own(sv[0]), other(sv[1]);
    const std::vector<std::string> args = child_arguments(o, other.get());
    std::vector<char*> argv;
    for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    const pid_t parent = ::getpid(), pid = ::fork();
    if (pid < 0) return fail(ErrorCode::kIo, "no second process");
    if (pid == 0) {
        ::close(own.get());
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() == parent) ::execv("/proc/self/exe", argv.data());
        ::_exit(127);
    }
    return std::unique_ptr<BenchPeer>(new BenchPeer(pid, std::move(own)));
}

BenchPeer::~BenchPeer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
}

Expected<void> BenchPeer::wait_ready() {
    BATON_TRY_ASSIGN(const Json ready, answer());
    (void)ready;
    return {};
}

Expected<void> BenchPeer::send(const Json& ask) {
    if (!control_.send(ask)) return fail(ErrorCode::kPeerLost, "the prefill process is gone");
    return {};
}

Expected<Json> BenchPeer::answer() {
    BATON_TRY_ASSIGN(Json line, control_.receive());
    if (const auto error = line.find("error"); error != line.end()) return fail(ErrorCode::kIo, "the prefill process: " + error->get<std::string>());
    return line;
}

int run_bench_handoff_peer(const BenchHandoffOptions& o) {
    log::set_level(log::Level::kWarn);
    BenchControl control{UniqueFd(o.peer_fd)};
    auto end = HandoffEnd::make(o, true);
    if (!end) {
        control.send({{"error", end.error().message}});
        return kFailed;
    }
    control.send(Json::object());
    for (;;) {
        const auto ask = control.receive();
        if (!ask) return kDone;
        const auto answer = carry_out(**end, o, *ask);
        control.send(answer ? *answer : Json{{"error", answer.error().message}});
    }
}

}  // namespace baton::cli
