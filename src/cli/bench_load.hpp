#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "baton/cli/bench.hpp"
#include "cli/client_session.hpp"

namespace baton::cli {

/// What one request measured. Times are in microseconds.
struct RequestResult {
    bool measured = false;              ///< false: warm-up
    bool ok = false;
    bool unfinished = false;            ///< given up at the end, not failed
    std::string error;
    int64_t sent_late_us = 0;           ///< after it was due
    int64_t ttft_us = 0;                ///< from when it was due; 0 where no token came
    int64_t e2e_us = 0;                 ///< until the last token, from when it was due
    std::vector<uint32_t> gaps_us;      ///< between events with text
    uint64_t input_tokens = 0, output_tokens = 0;
    /// Time per output token after the first.
    [[nodiscard]] double tpot_us() const {
        return output_tokens > 1 ? static_cast<double>(e2e_us - ttft_us) / static_cast<double>(output_tokens - 1) : 0;
    }
};

/// A load decided ahead: how many requests, when, with which prompts. Immutable, shared by the client's threads.
class LoadPlan {
  public:
    /// Prompts and arrival times, generated from the seed or read from the dataset. kInvalidArgument where the options
    /// contradict each other or the dataset cannot be read.
    static Expected<LoadPlan> make(const BenchServeOptions& options);

    /// Requests with the warm-up; UINT64_MAX where only the duration bounds them (closed loop).
    [[nodiscard]] uint64_t size() const { return size_; }
    [[nodiscard]] uint64_t warmup() const { return warmup_; }
    [[nodiscard]] bool open() const { return open_; }
    /// Open loop: microseconds after the first measured request, negative for the warm-up. size() of them.
    [[nodiscard]] const std::vector<int64_t>& due_us() const { return due_us_; }
    /// Of request `i`, where prompts are generated: tokens of its prompt, of those the ones that all requests begin with, and tokens of
    /// its answer.
    [[nodiscard]] uint32_t input_tokens(uint64_t i) const { return lengths_[i % lengths_.size()].input; }
    [[nodiscard]] uint32_t shared_tokens(uint64_t i) const;
    [[nodiscard]] uint32_t output_tokens(uint64_t i) const;
    /// The prompt as JSON text. Generated prompts are pieces of one long random text, each from another place, so that no
    /// two begin alike (unless a shared prefix is asked for) and making one costs a copy.
    [[nodiscard]] std::string prompt(uint64_t i) const;
    /// The body of request `i`. The requests that a closed loop's warm-up starts with have answers of different lengths, so
    /// that not all end, and start again, at once.
    [[nodiscard]] std::string body(uint64_t i) const;
    /// The body of the `i`-th background request, with another text than all measured ones.
    [[nodiscard]] std::string background_body(uint64_t i, uint32_t output_tokens) const;

  private:
    struct Given {
        std::string prompt;  ///< as JSON
        uint32_t output_tokens;
    };
    struct Lengths {
        uint32_t input, output;
    };
    Expected<void> read_mix(const BenchServeOptions& o);
    Expected<void> read_dataset(const std::string& path);
    void make_text(uint32_t longest, uint32_t token_ids, uint64_t seed);
    void make_arrivals(const BenchServeOptions& o);
    [[nodiscard]] std::string piece(uint64_t at, uint32_t words) const;
    [[nodiscard]] std::string wrap(const std::string& prompt, uint32_t output_tokens) const;

    std::string model_json_;
    uint64_t size_ = 0, warmup_ = 0;
    bool open_ = false, ids_ = false;
    double prefix_share_ = 0;
    uint32_t background_input_ = 0, staggered_ = 0;
    std::vector<Lengths> lengths_;  ///< requests have them in turn
    std::vector<int64_t> due_us_;
    std::string text_;              ///< words or numbers with a separator behind each
    std::vector<uint32_t> starts_;  ///< of each in text_, and the end
    std::vector<Given> given_;
};

/// What all threads of the client measured together.
struct LoadOutcome {
    std::vector<RequestResult> results;
    double window_s = 0;              ///< from the first measured request to the last's end, or the duration
    bool windowed = false;            ///< rates count what ended within the window, warm-up included
    uint64_t window_requests = 0, window_input_tokens = 0, window_events = 0;
    uint64_t in_flight_max = 0;
    uint32_t threads = 0;
    double cpu_s = 0, busiest_cpu = 0;      ///< processor time in all; share of one core of the busiest thread
    std::vector<double> event_lag_us;       ///< from a thread's wake-up to the reading of an event: its own delay at most
    std::vector<double> background_gaps_us, background_quiet_gaps_us;  ///< while requests were measured; before
    uint64_t background_failed = 0;
    std::string background_error;
};

/// Parses a pair of limits "TTFT:ITL"; false where it is none.
[[nodiscard]] bool parse_slo(const std::string& text, double& ttft_ms, double& itl_ms);
/// Sums a finished load up as one JSON object.
[[nodiscard]] Json summarise(const BenchServeOptions& options, LoadOutcome outcome);
/// The same as a table on stdout.
void print_summary(const Json& summary);

}  // namespace baton::cli
