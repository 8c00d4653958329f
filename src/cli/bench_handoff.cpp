#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>
#include <utility>

#include "baton/backend/cuda.hpp"
#include "baton/base/clock.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/log.hpp"
#include "cli/bench_handoff_end.hpp"
#include "cli/bench_handoff_gap.hpp"
#include "cli/bench_handoff_peer.hpp"

/// `baton bench handoff`: this process decodes, a second one (bench_handoff_peer) prefills; what lies between them is what a
/// deployment uses.
namespace baton::cli {
namespace {

constexpr int64_t kPairMs = 40'000;
constexpr int64_t kPullDeadlineMs = 60'000;
constexpr int64_t kBesideUs = 400'000;  ///< how long a batch decodes with and without pulls beside it
constexpr uint32_t kWarmSteps = 8;
constexpr size_t kMemcpyBytes = 64u << 20;

double quantile(std::vector<double>& values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

double rounded(double v) { return std::round(v * 100) / 100; }

/// Bytes a second of one thread's memcpy: the floor of copies in host memory.
double memcpy_rate() {
    std::vector<std::byte> from(kMemcpyBytes, std::byte{1}), to(kMemcpyBytes);
    double best = 0;
    for (int i = 0; i < 3; ++i) {
        const int64_t begin = steady_now_us();
        std::memcpy(to.data(), from.data(), kMemcpyBytes);
        best = std::max(best, static_cast<double>(kMemcpyBytes) / static_cast<double>(std::max<int64_t>(steady_now_us() - begin, 1)) * 1e6);
    }
    return to.back() == std::byte{1} ? best : 0;
}

/// Sequences that decode in a thread of their own until they are told to stop.
class DecodingBatch {
  public:
    DecodingBatch(HandoffEnd& end, const BenchHandoffOptions& o) : end_(end), o_(o), wire_(o.decode_batch), blocks_(o.decode_batch) {
        const uint32_t each = o.decode_context / o.block_tokens + 1;
        for (uint32_t i = 0; i < o.decode_batch; ++i) {
            wire_[i].sampling.temperature = 0;
            wire_[i].sampling.max_tokens = UINT32_MAX;
            wire_[i].prompt = {1};
            blocks_[i].resize(each);
            std::iota(blocks_[i].begin(), blocks_[i].end(), end.handoff_blocks() + i * each);
        }
    }
    void start() {
        stop_ = false;
        thread_ = std::thread([this] { failed_ = !run(); });
    }
    /// Microseconds of each step.
    Expected<std::vector<double>> stop() {
        stop_ = true;
        thread_.join();
        if (failed_) return fail(ErrorCode::kIo, "the decoding batch failed");
        return std::move(steps_);
    }

  private:
    Expected<void> run() {
        backend::DeviceBackend& backend = *end_.backend();
        std::vector<backend::Slice> slices(o_.decode_batch);
        const std::vector<TokenId> ids(o_.decode_batch, 1);
        std::vector<wire::Token> tokens;
        // The contexts hold whatever lies in the pool; each step goes one position on, and back to the start at the end.
        uint32_t position = o_.decode_context / 2;
        steps_.clear();
        uint32_t queued = 0;
        int64_t last_us = 0;
        for (uint32_t step = 0; !stop_ || queued > 0; ++step) {
            if (!stop_) {
                for (uint32_t i = 0; i < o_.decode_batch; ++i) {
                    slices[i] = {};
                    slices[i].tokens = 1;
                    slices[i].position = position;
                    slices[i].blocks = blocks_[i];
                    slices[i].logits = true;
                    slices[i].sequence = &wire_[i];
                    slices[i].state = i;
                }
                if (++position >= o_.decode_context) position = o_.decode_context / 2;
                BATON_TRY(backend.submit({ids, slices}));
                ++queued;
                if (queued < backend::DeviceBackend::kDepth) continue;
            }
            BATON_TRY(backend.collect(tokens));
            --queued;
            const int64_t now = steady_now_us();
            if (step > kWarmSteps) steps_.push_back(static_cast<double>(now - last_us));
            last_us = now;
        }
        return {};
    }
    HandoffEnd& end_;
    const BenchHandoffOptions& o_;
    std::vector<wire::Sequence> wire_;
    std::vector<std::vector<BlockId>> blocks_;
    std::vector<double> steps_;
    std::atomic<bool> stop_{false};
    std::atomic<bool> failed_{false};
    std::thread thread_;
};

class Bench {
  public:
    Bench(const BenchHandoffOptions& o, HandoffEnd& end, BenchPeer& peer, bool two_gpus, std::string folder)
        : o_(o), end_(end), peer_(peer), two_gpus_(two_gpus), folder_(std::move(folder)) {}

    Expected<Json> run() {
        BATON_TRY(find_floor());
        Json out{{"pools", end_.backend() == nullptr ? "host memory" : end_.backend()->describe()},
                 {"devices", o_.devices}, {"page_kib", static_cast<double>(end_.layout().page_bytes()) / 1024}, {"block_tokens", o_.block_tokens},
                 {"copy_gb_per_s", rounded(rate_ / 1e9)}, {"sizes", Json::array()}, {"exposed", Json::array()}, {"concurrent", Json::array()}, {"beside", Json::array()}};
        for (const std::string& mover : o_.movers) {
            std::vector<Json> lines(o_.sizes_mib.size());
            for (uint32_t repeat = 0; repeat < o_.repeats; ++repeat) {
                BATON_TRY(link(mover));
                for (size_t i = 0; i < lines.size(); ++i) BATON_TRY(size(mover, o_.sizes_mib[i], lines[i]));
            }
            for (Json& line : lines) out["sizes"].push_back(summed_up(std::move(line)));
            for (const uint32_t tokens : o_.prompts) {
                BATON_TRY_ASSIGN(Json line, exposed(mover, 1, tokens, o_.rounds));
                out["exposed"].push_back(std::move(line));
            }
            if (o_.concurrent > 0) {
                BATON_TRY_ASSIGN(Json line, exposed(mover, o_.concurrent, o_.concurrent_tokens, std::max(o_.rounds / 5, 1u)));
                out["concurrent"].push_back(std::move(line));
            }
            if (end_.backend() == nullptr || o_.decode_batch == 0 || o_.sizes_mib.empty()) continue;
            for (const uint32_t ctas : o_.beside_ctas) {
                if (mover != "cuda_ipc" && ctas != o_.beside_ctas.front()) continue;
                BATON_TRY_ASSIGN(Json line, beside(mover, ctas));
                out["beside"].push_back(std::move(line));
            }
        }
        end_.unlink();
        return out;
    }

  private:
    Expected<void> find_floor() {
        if (end_.backend() == nullptr) rate_ = memcpy_rate();
        else if (two_gpus_) rate_ = o_.link_gb_per_s * 1e9;
        else {
            BATON_TRY_ASSIGN(const auto gpus, bench_gpus(o_.devices));
            BATON_TRY_ASSIGN(const auto c, backend::cuda_calibrate(gpus->decode));
            rate_ = c.copy_bytes_per_s / 2;
        }
        return {};
    }
    Expected<void> link(const std::string& mover) {
        end_.unlink();
        const std::string path = folder_ + "/" + mover + std::to_string(++links_);
        const std::string secret = random_hex(16);
        BATON_TRY(peer_.call({{"do", "link"}, {"path", path}, {"secret", secret}, {"mover", mover}}));
        BATON_TRY(end_.connect(path, secret, mover));
        if (mover != "nccl") return {};
        for (const TimeMs begin = steady_now(); steady_now() - begin < kPairMs;) {
            BATON_TRY_ASSIGN(const auto r, pull_whole(1, false));
            if (r.result.mover == "nccl") return {};
            ::usleep(10'000);
        }
        return fail(ErrorCode::kTimeout, "the two processes did not pair over NCCL");
    }
    [[nodiscard]] uint32_t blocks_of(uint32_t tokens) const { return (tokens + o_.block_tokens - 1) / o_.block_tokens; }

    pd::StartPull pull_of(uint64_t set, uint32_t i, uint32_t tokens) {
        const uint32_t n = blocks_of(tokens);
        pd::StartPull p;
        p.pull = set + i;
        p.peer = kBenchPrefill;
        p.offer = OfferId{set + i};
        p.progress_slot = i;
        p.tokens = tokens;
        p.source_blocks = bench_blocks(set, true, end_.handoff_blocks(), i, n);
        p.source_generations.assign(n, 1);
        p.target_blocks = bench_blocks(set, false, end_.handoff_blocks(), i, n);
        p.deadline = steady_now() + kPullDeadlineMs;
        return p;
    }
    /// Pulls what is all there; with `check` some blocks' checksums are compared.
    Expected<HandoffEnd::Ended> pull_whole(uint32_t blocks, bool check) {
        const uint64_t set = next_set(1);
        const uint32_t tokens = blocks * o_.block_tokens;
        const Json ask{{"set", set}, {"count", 1}, {"tokens", tokens}, {"done", true}};
        BATON_TRY(call("open", ask));
        const auto pull = pull_of(set, 0, tokens);
        end_.thread().start_pull(pull);
        BATON_TRY_ASSIGN(auto ended, end_.take(set));
        if (check) {
            BATON_TRY_ASSIGN(const Json theirs, call("sums", ask));
            const auto expected = theirs.at("sums").get<std::vector<uint64_t>>();
            BATON_TRY_ASSIGN(const auto own, end_.thread().checksums(std::span(pull.target_blocks).first(expected.size())));
            if (own != expected) return fail(ErrorCode::kCorrupt, "pages that arrived differ from those that were sent");
        }
        BATON_TRY(call("close", ask));
        return ended;
    }
    /// Adds one repeat to the line of a size.
    Expected<void> size(const std::string& mover, uint32_t mib, Json& line) {
        const auto block_bytes = static_cast<double>(end_.layout().block_bytes());
        const auto blocks = static_cast<uint32_t>(std::max<long>(std::lround(mib * 1048576.0 / block_bytes), 1));
        BATON_TRY(pull_whole(blocks, true));
        std::vector<double> us;
        for (uint32_t i = 0; i < o_.rounds; ++i) {
            BATON_TRY_ASSIGN(const auto ended, pull_whole(blocks, false));
            us.push_back(static_cast<double>(ended.result.total_us));
        }
        const double bytes = blocks * block_bytes;
        line["mover"] = mover;
        line["mib"] = rounded(bytes / 1048576);
        line["floor_us"] = rounded(bytes / rate_ * 1e6);
        for (const double u : us) line["us"].push_back(u);
        line["repeats_gb_per_s"].push_back(rounded(bytes / std::max(quantile(us, 0.5), 1.0) / 1e3));
        return {};
    }
    /// Over all repeats; the repeats' own medians beside them.
    static Json summed_up(Json line) {
        auto us = line["us"].get<std::vector<double>>(), rates = line["repeats_gb_per_s"].get<std::vector<double>>();
        line.erase("us");
        line["p50_us"] = quantile(us, 0.5);
        line["p99_us"] = quantile(us, 0.99);
        line["min_us"] = us.front();
        line["gb_per_s"] = rounded(line["mib"].get<double>() * 1048.576 / std::max(quantile(us, 0.5), 1.0));
        line["spread_gb_per_s"] = rates.size() == 1 ? "" : quantile_text(rates, 0) + " to " + quantile_text(rates, 1);
        return line;
    }
    static std::string quantile_text(std::vector<double>& rates, double share) { return std::to_string(std::lround(quantile(rates, share))); }
    /// From each prompt's last layer, as P's host sees it, to the end of its pull.
    Expected<Json> exposed(const std::string& mover, uint32_t count, uint32_t tokens, uint32_t rounds) {
        std::vector<double> us;
        for (uint32_t round = 0; round <= rounds; ++round) {
            const uint64_t set = next_set(count);
            const Json ask{{"set", set}, {"count", count}, {"tokens", tokens}};
            BATON_TRY(call("open", ask));
            for (uint32_t i = 0; i < count; ++i) end_.thread().start_pull(pull_of(set, i, tokens));
            BATON_TRY_ASSIGN(const Json computed, call("compute", ask));
            const auto last_us = computed.at("last_us").get<std::vector<int64_t>>();
            for (uint32_t i = 0; i < count; ++i) {
                BATON_TRY_ASSIGN(const auto ended, end_.take(set + i));
                if (round > 0) us.push_back(static_cast<double>(ended.at_us - last_us[i]));
            }
            BATON_TRY(call("close", ask));
        }
        const double bytes = static_cast<double>(blocks_of(tokens)) * static_cast<double>(end_.layout().block_bytes());
        Json line{{"mover", mover}, {"hand_offs", count}, {"tokens", tokens}, {"mib", rounded(bytes / 1048576)}, {"p50_us", quantile(us, 0.5)},
                  {"p99_us", quantile(us, 0.99)}, {"max_us", quantile(us, 1)}};
        // With everything else hidden one layer is left to move.
        line["floor_us"] = rounded(bytes / end_.layout().layers / rate_ * 1e6);
        return line;
    }
    Expected<Json> beside(const std::string& mover, uint32_t ctas) {
        const uint32_t largest = *std::max_element(o_.sizes_mib.begin(), o_.sizes_mib.end());
        const auto blocks = static_cast<uint32_t>(std::max<uint64_t>((uint64_t{largest} << 20) / end_.layout().block_bytes(), 1));
        end_.unlink();  // the transfer thread must not run
        end_.set_copy_ctas(o_, ctas);
        BATON_TRY(link(mover));
        DecodingBatch batch(end_, o_);
        batch.start();
        ::usleep(kBesideUs);
        BATON_TRY_ASSIGN(auto alone, batch.stop());
        batch.start();
        ::usleep(20'000);
        std::vector<double> us;
        Expected<void> pulls{};
        for (const int64_t begin = steady_now_us(); pulls && steady_now_us() - begin < kBesideUs;) {
            auto ended = pull_whole(blocks, false);
            if (ended) us.push_back(static_cast<double>(ended->result.total_us));
            else pulls = fail(std::move(ended).error());
        }
        BATON_TRY_ASSIGN(auto with, batch.stop());
        end_.unlink();
        end_.set_copy_ctas(o_, o_.ctas);
        BATON_TRY(pulls);
        BATON_TRY(link(mover));
        const double bytes = static_cast<double>(blocks) * static_cast<double>(end_.layout().block_bytes()), p50 = quantile(us, 0.5);
        double busy = 0;
        for (const double u : us) busy += u;
        return Json{{"mover", mover}, {"batch", o_.decode_batch}, {"context", o_.decode_context}, {"ctas", ctas}, {"mib", rounded(bytes / 1048576)},
                    {"pulls", us.size()}, {"pull_share", rounded(busy / static_cast<double>(kBesideUs))}, {"pull_p50_us", p50}, {"gb_per_s", rounded(bytes / std::max(p50, 1.0) / 1e3)},
                    {"step_alone_p50_us", quantile(alone, 0.5)}, {"step_alone_p99_us", quantile(alone, 0.99)},
                    {"step_p50_us", quantile(with, 0.5)}, {"step_p99_us", quantile(with, 0.99)}};
    }
    Expected<Json> call(const char* what, Json ask) {
        ask["do"] = what;
        return peer_.call(ask);
    }
    uint64_t next_set(uint32_t count) { return std::exchange(sets_, sets_ + count); }

    const BenchHandoffOptions& o_;
    HandoffEnd& end_;
    BenchPeer& peer_;
    const bool two_gpus_;
    const std::string folder_;
    double rate_ = 1;
    uint64_t sets_ = 1;
    uint32_t links_ = 0;
};

std::string text(const Json& v) { return v.is_string() ? v.get<std::string>() : v.dump(); }

void print_part(const Json& lines, const char* title, const std::vector<std::pair<const char*, const char*>>& columns) {
    if (lines.empty()) return;
    std::printf("\n%s\n", title);
    std::vector<std::vector<std::string>> rows(1);
    for (const auto& [key, name] : columns) rows[0].emplace_back(name);
    for (const Json& line : lines) {
        auto& row = rows.emplace_back();
        for (const auto& [key, name] : columns) row.push_back(text(line.at(key)));
    }
    print_table(rows);
}

void print_all(const Json& out) {
    std::printf("%s%s%s; pages of %s KiB, copies at %s GB/s\n", text(out["pools"]).c_str(), out["devices"] == "" ? "" : ", GPUs ", text(out["devices"]).c_str(),
                text(out["page_kib"]).c_str(), text(out["copy_gb_per_s"]).c_str());
    print_part(out["sizes"], "pulls of what is there", {{"mover", "MOVER"}, {"mib", "MIB"}, {"min_us", "LEAST US"}, {"p50_us", "P50 US"}, {"p99_us", "P99 US"}, {"gb_per_s", "GB/S"}, {"spread_gb_per_s", "REPEATS' MEDIANS"}, {"floor_us", "FLOOR US"}});
    const std::vector<std::pair<const char*, const char*>> exposed{{"mover", "MOVER"}, {"hand_offs", "AT ONCE"}, {"tokens", "TOKENS"}, {"mib", "MIB"}, {"p50_us", "P50 US"},
                                                                    {"p99_us", "P99 US"}, {"max_us", "MAX US"}, {"floor_us", "FLOOR US"}};
    print_part(out["exposed"], "from a prompt's last layer to the end of its pull", exposed);
    print_part(out["concurrent"], "the same with many open, computed one after the other", exposed);
    print_part(out["beside"], "pulls one after the other beside a decoding batch",
               {{"mover", "MOVER"}, {"batch", "BATCH"}, {"ctas", "CTAS"}, {"mib", "MIB"}, {"gb_per_s", "GB/S"}, {"pull_share", "BUSY"}, {"step_alone_p50_us", "STEP ALONE"},
                {"step_alone_p99_us", "P99"}, {"step_p50_us", "STEP US"}, {"step_p99_us", "P99"}});
}

Expected<Json> measure(BenchHandoffOptions o) {
    BATON_TRY_ASSIGN(const auto gpus, bench_gpus(o.devices));
    if (o.movers.empty()) o.movers = gpus ? std::vector<std::string>{"cuda_ipc", "nccl", "tcp"} : std::vector<std::string>{"shm", "tcp"};
    std::erase(o.sizes_mib, 0u);
    std::erase(o.prompts, 0u);
    if (o.concurrent_tokens == 0) o.concurrent_tokens = gpus ? 512 : 64;
    std::string folder = (std::filesystem::temp_directory_path() / "baton-bench-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) return fail(ErrorCode::kIo, "no temporary folder");
    const auto run = [&]() -> Expected<Json> {
        BATON_TRY_ASSIGN(const auto peer, BenchPeer::start(o));
        BATON_TRY_ASSIGN(const auto end, HandoffEnd::make(o, false));
        BATON_TRY(peer->wait_ready());
        return Bench(o, *end, *peer, gpus && gpus->prefill != gpus->decode, folder).run();
    };
    auto out = run();
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    return out;
}

}  // namespace

int run_bench_handoff(const BenchHandoffOptions& o) {
    if (o.peer_fd >= 0) return run_bench_handoff_peer(o);
    if (!o.url.empty()) return run_bench_handoff_gap(o);
    log::set_level(log::Level::kWarn);
    const auto out = measure(o);
    if (!out) {
        complain(out.error().message);
        return out.error().code == ErrorCode::kInvalidArgument ? kUsage : kFailed;
    }
    if (o.json) std::printf("%s\n", out->dump().c_str());
    else print_all(*out);
    return kDone;
}

}  // namespace baton::cli
