#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "baton/base/fd.hpp"
#include "baton/http/tls_stream.hpp"
#include "cli/bench_load.hpp"
#include "cli/bench_serve_answer.hpp"

namespace baton::cli {

/// Where requests go, resolved once.
struct LoadTarget {
    sockaddr_storage address{};
    socklen_t address_bytes = 0;
    int family = AF_INET;
    std::string head;  ///< of each request, up to the number after "Content-Length: "
    http::TlsContext tls = {};  ///< of https; null: plain HTTP
    std::string host;           ///< that the server's certificate must name
    /// kInvalidArgument for anything but http[s]://host[:port][/prefix] and a CA file without certificates, kUnavailable where
    /// the name is not known.
    static Expected<LoadTarget> resolve(const std::string& url, const std::string& api_key, const std::string& ca_file = {});
};

class LoadLoop;

/// What the client's threads share. Each outlives none: the loops end before it does.
class SharedLoad {
  public:
    SharedLoad(const BenchServeOptions& o, const LoadPlan& p, LoadTarget t) : options(o), plan(p), target(std::move(t)) {}
    const BenchServeOptions& options;
    const LoadPlan& plan;
    const LoadTarget target;
    std::vector<std::unique_ptr<LoadLoop>> loops;

    /// Closed loop: the next request's number; UINT64_MAX where no more is to be started at `now_us`.
    uint64_t take(int64_t now_us);
    /// The first measured request is due then (INT64_MAX: not known yet).
    std::atomic<int64_t> zero_us{INT64_MAX};
    /// Begins the measured part `settle_s` after the last background stream has begun.
    void background_begun();
    /// Ends the background streams once every loop has finished its requests, or one cannot go on.
    void loop_finished();
    void give_up();
    std::atomic<bool> stop{false};
    void count_in_flight(int by);
    [[nodiscard]] uint64_t in_flight_max() const { return in_flight_max_.load(); }
    std::atomic<uint64_t> done{0};  ///< requests over, for the display

    /// Waits until all loops have finished or `ms` are over; true when they have.
    bool wait_finished_ms(int ms);

  private:
    void wake_all();
    std::atomic<uint64_t> next_{0};
    std::atomic<int64_t> in_flight_{0};
    std::atomic<uint64_t> in_flight_max_{0};
    std::atomic<uint32_t> begun_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
    size_t finished_ = 0;
};

/// One thread of the client: many connections over one epoll, requests sent when they are due, events timed as they are
/// read. run() is called once, on the loop's own thread; what it measured is read after that thread has ended.
class LoadLoop {
  public:
    /// Loop `index` of `count`: it has that share of the requests, of the concurrency and of the background streams.
    LoadLoop(SharedLoad& shared, uint32_t index, uint32_t count);
    void run();
    /// Any thread: makes the loop look at the shared state.
    void wake();

    std::vector<RequestResult> results;
    std::vector<double> event_lag_us;
    struct Gap {
        int64_t at_us;
        uint32_t gap_us;
    };
    std::vector<Gap> background_gaps;
    uint64_t background_failed = 0;
    std::string background_error;
    uint64_t window_requests = 0, window_input_tokens = 0, window_events = 0;
    int64_t last_end_us = 0;
    double cpu_s = 0, cpu_share = 0;

  private:
    enum class State : uint8_t { kFree, kConnecting, kShaking, kSending, kReading };
    /// A connection and the request on it.
    struct Call {
        UniqueFd fd;
        std::unique_ptr<http::TlsStream> tls;  ///< over fd, which outlives it
        State state = State::kFree;
        bool background = false, reused = false, wants_write = false;
        bool opening = false;  ///< a background stream's first request, before its first token
        std::string out;
        size_t sent = 0;
        AnswerReader reader;
        RequestResult result;
        int64_t due_us = 0, last_us = 0, heard_us = 0;
        uint64_t events = 0;
    };

    void start_background();
    void begin_background(bool first);
    void issue(int64_t now_us);
    void issue_open(int64_t now_us);
    void issue_closed(int64_t now_us);
    void arm(int64_t at_us);
    void begin(std::string body, int64_t due_us, bool measured, bool background);
    size_t free_call();
    void connect(Call& call, size_t id);
    void connected(Call& call, size_t id);
    void shake_hands(Call& call, size_t id);
    static void disconnect(Call& call);
    void send(Call& call, size_t id);
    void watch(Call& call, size_t id, bool write, bool add);
    void on_ready(size_t id, uint32_t events, int64_t woken_us);
    void read(Call& call, size_t id, int64_t woken_us);
    void read_tls(Call& call, size_t id, int64_t woken_us);
    void take(Call& call, size_t bytes, int64_t woken_us);
    void on_texts(Call& call, uint32_t texts, int64_t now_us, int64_t woken_us);
    void broken(Call& call, size_t id, std::string why);
    void finish(Call& call, size_t id);
    void finish_background(Call& call);
    void look_at_time(int64_t now_us);
    void abandon(bool background);
    [[nodiscard]] bool requests_over(int64_t now_us) const;
    [[nodiscard]] int64_t window_end_us() const;

    SharedLoad& s_;
    const uint32_t index_, count_;
    uint32_t slots_ = 0;            ///< requests in flight at most; 0: unlimited
    uint32_t background_share_ = 0;
    uint32_t measured_running_ = 0, background_running_ = 0;
    uint64_t next_ = 0;             ///< open loop: the next of this loop's requests
    uint64_t background_next_ = 0;
    bool exhausted_ = false;        ///< nothing more to start
    uint32_t failures_ = 0;         ///< one after the other
    bool over_ = false;
    int64_t armed_us_ = 0, checked_us_ = 0;
    UniqueFd epoll_, timer_, wake_;
    std::vector<std::unique_ptr<Call>> calls_;
    std::vector<size_t> idle_, unused_;  ///< connected; without a connection
    std::vector<char> buffer_;
};

}  // namespace baton::cli
