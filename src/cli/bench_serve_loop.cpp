#include "cli/bench_serve_loop.hpp"

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "baton/base/clock.hpp"

namespace baton::cli {
namespace {

constexpr uint64_t kTimer = UINT64_MAX, kWake = UINT64_MAX - 1;
constexpr size_t kReadBytes = 256 * 1024;
constexpr size_t kEventsAtOnce = 256;
constexpr int64_t kSilenceUs = 600'000'000;
constexpr int64_t kSilenceCheckUs = 5'000'000;
constexpr int kTickMs = 10;                   ///< at least that often a loop looks at the time
constexpr uint32_t kFailuresMax = 50;         ///< one after the other: the server is gone
constexpr int64_t kNotYet = INT64_MAX;

double thread_cpu_s() {
    rusage use{};
    ::getrusage(RUSAGE_THREAD, &use);
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; };
    return seconds(use.ru_utime) + seconds(use.ru_stime);
}

std::string errno_text(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

uint32_t share_of(uint32_t all, uint32_t index, uint32_t count) { return all / count + (index < all % count ? 1 : 0); }

}  // namespace

Expected<LoadTarget> LoadTarget::resolve(const std::string& url, const std::string& api_key, const std::string& ca_file) {
    const bool https = url.starts_with("https://");
    if (!https && !url.starts_with("http://")) return fail(ErrorCode::kInvalidArgument, "the address must look like http://host:port or https://host:port");
    const std::string rest = url.substr(url.find("://") + 3);
    const std::string authority = rest.substr(0, rest.find('/'));
    std::string prefix = rest.substr(authority.size());
    while (prefix.ends_with('/')) prefix.pop_back();
    std::string host = authority, port = https ? "443" : "80";
    const size_t colon = authority.rfind(':');
    if (colon != std::string::npos && authority.find(']', colon) == std::string::npos) {
        host = authority.substr(0, colon);
        port = authority.substr(colon + 1);
    }
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int rc = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); rc != 0 || found == nullptr)
        return fail(ErrorCode::kUnavailable, "cannot find " + authority + ": " + ::gai_strerror(rc));
    LoadTarget out;
    out.host = host;
    std::memcpy(&out.address, found->ai_addr, found->ai_addrlen);
    out.address_bytes = found->ai_addrlen;
    out.family = found->ai_family;
    ::freeaddrinfo(found);
    if (https) {
        BATON_TRY_ASSIGN(out.tls, http::load_client_tls(ca_file));
    }
    out.head = "POST " + prefix + "/v1/completions HTTP/1.1\r\nHost: " + authority + "\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n";
    if (!api_key.empty()) out.head += "Authorization: Bearer " + api_key + "\r\n";
    out.head += "Content-Length: ";
    return out;
}

// ---- what the loops share

uint64_t SharedLoad::take(int64_t now_us) {
    const int64_t zero = zero_us.load();
    const auto duration_us = static_cast<int64_t>(options.duration_s * 1e6);
    if (duration_us > 0 && zero != kNotYet && now_us >= zero + duration_us) return UINT64_MAX;
    const uint64_t i = next_++;
    if (i >= plan.size()) return UINT64_MAX;
    int64_t none = kNotYet;
    if (i >= plan.warmup()) zero_us.compare_exchange_strong(none, now_us);
    return i;
}

void SharedLoad::background_begun() {
    if (++begun_ != options.background) return;
    const int64_t lead_us = plan.open() && plan.size() > 0 ? -plan.due_us().front() : 0;
    zero_us = steady_now_us() + static_cast<int64_t>(options.settle_s * 1e6) + lead_us;
    wake_all();
}

void SharedLoad::loop_finished() {
    const std::lock_guard lock(mutex_);
    if (++finished_ < loops.size()) return;
    stop = true;
    wake_all();
    changed_.notify_all();
}

void SharedLoad::give_up() {
    stop = true;
    wake_all();
}

void SharedLoad::wake_all() {
    for (const auto& loop : loops) loop->wake();
}

void SharedLoad::count_in_flight(int by) {
    const auto now = static_cast<uint64_t>(std::max<int64_t>(0, in_flight_.fetch_add(by) + by));
    uint64_t most = in_flight_max_.load();
    while (now > most && !in_flight_max_.compare_exchange_weak(most, now)) {
    }
}

bool SharedLoad::wait_finished_ms(int ms) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return finished_ >= loops.size(); });
}

// ---- one loop

LoadLoop::LoadLoop(SharedLoad& shared, uint32_t index, uint32_t count)
    : s_(shared), index_(index), count_(count), next_(index), buffer_(kReadBytes) {
    if (s_.options.concurrency > 0) slots_ = share_of(s_.options.concurrency, index, count);
    background_share_ = share_of(s_.options.background, index, count);
    background_next_ = index;
    exhausted_ = s_.options.concurrency > 0 && slots_ == 0;
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    wake_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    for (const auto& [fd, id] : {std::pair{timer_.get(), kTimer}, std::pair{wake_.get(), kWake}}) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = id;
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
    }
}

void LoadLoop::wake() {
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
}

void LoadLoop::run() {
    const double cpu_before = thread_cpu_s();
    const int64_t begun_us = steady_now_us();
    start_background();
    issue(steady_now_us());
    std::array<epoll_event, kEventsAtOnce> ready{};
    while (!(over_ && background_running_ == 0)) {
        const int n = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), kTickMs);
        const int64_t woken_us = steady_now_us();
        for (int i = 0; i < n; ++i) {
            const uint64_t id = ready[static_cast<size_t>(i)].data.u64;
            uint64_t drop = 0;
            if (id == kTimer) {
                (void)!::read(timer_.get(), &drop, sizeof drop);
                armed_us_ = 0;
            }
            if (id == kWake) (void)!::read(wake_.get(), &drop, sizeof drop);
            if (id != kTimer && id != kWake) on_ready(static_cast<size_t>(id), ready[static_cast<size_t>(i)].events, woken_us);
        }
        const int64_t now = steady_now_us();
        issue(now);
        look_at_time(now);
    }
    cpu_s = thread_cpu_s() - cpu_before;
    cpu_share = cpu_s / std::max(1e-6, static_cast<double>(steady_now_us() - begun_us) / 1e6);
}

void LoadLoop::start_background() {
    for (uint32_t i = 0; i < background_share_; ++i) begin_background(true);
}

void LoadLoop::begin_background(bool first) {
    // The first answers end at different times, so that the streams are not restarted all at once.
    uint32_t output = s_.options.background_output;
    if (first) {
        std::mt19937_64 random(s_.options.seed ^ background_next_);
        output = std::max<uint32_t>(2, output / 2 + static_cast<uint32_t>(random() % output));
    }
    begin(s_.plan.background_body(background_next_, output), steady_now_us(), false, true);
    background_next_ += count_;
}

void LoadLoop::issue(int64_t now_us) {
    if (over_ || exhausted_ || s_.stop) return;
    if (s_.options.background > 0 && s_.zero_us == kNotYet) return;
    if (s_.plan.open()) issue_open(now_us);
    else if (s_.options.background == 0 || now_us >= s_.zero_us) issue_closed(now_us);
    else arm(s_.zero_us);
}

void LoadLoop::issue_open(int64_t now_us) {
    const int64_t zero_us = s_.zero_us;
    const std::vector<int64_t>& due = s_.plan.due_us();
    for (; next_ < due.size(); next_ += count_) {
        if (slots_ > 0 && measured_running_ >= slots_) return;
        const int64_t due_us = zero_us + due[next_];
        if (due_us > now_us) return arm(due_us);
        begin(s_.plan.body(next_), due_us, next_ >= s_.plan.warmup(), false);
        now_us = steady_now_us();
    }
    exhausted_ = true;
}

void LoadLoop::issue_closed(int64_t now_us) {
    while (measured_running_ < slots_) {
        const uint64_t i = s_.take(now_us);
        if (i == UINT64_MAX || failures_ >= kFailuresMax) {
            exhausted_ = true;
            return;
        }
        begin(s_.plan.body(i), now_us, i >= s_.plan.warmup(), false);
        now_us = steady_now_us();
    }
}

void LoadLoop::arm(int64_t at_us) {
    if (armed_us_ == at_us) return;
    armed_us_ = at_us;
    itimerspec when{};
    const int64_t in_us = std::max<int64_t>(1, at_us - steady_now_us());
    when.it_value.tv_sec = in_us / 1'000'000;
    when.it_value.tv_nsec = in_us % 1'000'000 * 1000;
    ::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

void LoadLoop::begin(std::string body, int64_t due_us, bool measured, bool background) {
    const size_t id = free_call();
    Call& call = *calls_[id];
    call.reused = static_cast<bool>(call.fd);
    call.background = background;
    call.opening = background && background_next_ < s_.options.background;
    call.out = s_.target.head + std::to_string(body.size()) + "\r\n\r\n" + body;
    call.sent = 0;
    call.reader.reset();
    call.result = RequestResult{};
    call.result.measured = measured;
    call.due_us = due_us;
    call.last_us = 0;
    call.events = 0;
    call.heard_us = steady_now_us();
    call.result.sent_late_us = std::max<int64_t>(0, call.heard_us - due_us);
    ++(background ? background_running_ : measured_running_);
    if (!background) s_.count_in_flight(1);
    if (call.fd) send(call, id);
    else connect(call, id);
}

size_t LoadLoop::free_call() {
    for (std::vector<size_t>* list : {&idle_, &unused_}) {
        if (list->empty()) continue;
        const size_t id = list->back();
        list->pop_back();
        return id;
    }
    calls_.push_back(std::make_unique<Call>());
    return calls_.size() - 1;
}

void LoadLoop::connect(Call& call, size_t id) {
    call.fd = UniqueFd(::socket(s_.target.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    call.wants_write = false;
    if (!call.fd) return broken(call, id, errno_text("cannot open a socket"));
    const int one = 1;
    ::setsockopt(call.fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (::connect(call.fd.get(), reinterpret_cast<const sockaddr*>(&s_.target.address), s_.target.address_bytes) == 0) {
        watch(call, id, false, true);
        return connected(call, id);
    }
    if (errno != EINPROGRESS) return broken(call, id, errno_text("cannot connect"));
    call.state = State::kConnecting;
    watch(call, id, true, true);
}

void LoadLoop::connected(Call& call, size_t id) {
    if (s_.target.tls == nullptr) return send(call, id);
    call.tls = http::TlsStream::connect(s_.target.tls, call.fd.get(), s_.target.host);
    if (call.tls == nullptr) return broken(call, id, "no memory for TLS");
    shake_hands(call, id);
}

void LoadLoop::shake_hands(Call& call, size_t id) {
    using Outcome = http::TlsStream::Outcome;
    call.state = State::kShaking;
    switch (call.tls->handshake()) {
        case Outcome::kDone: return send(call, id);
        case Outcome::kWantRead: return watch(call, id, false, false);
        case Outcome::kWantWrite: return watch(call, id, true, false);
        case Outcome::kEnd:
        case Outcome::kBroken: break;
    }
    const std::string why = call.tls->reason();
    broken(call, id, "TLS: " + why + (why.find("not trusted") != std::string::npos ? ": --ca-file or BATON_CA_FILE name the certificates to trust" : ""));
}

void LoadLoop::disconnect(Call& call) {
    call.tls.reset();
    call.fd.reset();
}

void LoadLoop::watch(Call& call, size_t id, bool write, bool add) {
    if (!add && call.wants_write == write) return;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP | (write ? EPOLLOUT : 0u);
    event.data.u64 = id;
    call.wants_write = write;
    ::epoll_ctl(epoll_.get(), add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, call.fd.get(), &event);
}

void LoadLoop::send(Call& call, size_t id) {
    call.state = State::kSending;
    while (call.tls != nullptr && call.sent < call.out.size()) {
        const http::TlsStream::Moved moved = call.tls->write(call.out.data() + call.sent, call.out.size() - call.sent);
        if (moved.outcome == http::TlsStream::Outcome::kWantWrite) return watch(call, id, true, false);
        if (moved.outcome == http::TlsStream::Outcome::kWantRead) return watch(call, id, false, false);
        if (moved.outcome != http::TlsStream::Outcome::kDone) return broken(call, id, "cannot send: " + call.tls->reason());
        call.sent += moved.bytes;
    }
    while (call.sent < call.out.size()) {
        const ssize_t n = ::send(call.fd.get(), call.out.data() + call.sent, call.out.size() - call.sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return watch(call, id, true, false);
        if (n < 0) return broken(call, id, errno_text("cannot send"));
        call.sent += static_cast<size_t>(n);
    }
    call.state = State::kReading;
    watch(call, id, false, false);
}

void LoadLoop::on_ready(size_t id, uint32_t events, int64_t woken_us) {
    Call& call = *calls_[id];
    if (!call.fd) return;  // closed by an earlier event of this round
    if (call.state == State::kFree) {  // an idle connection that the server closes
        disconnect(call);
        std::erase(idle_, id);
        unused_.push_back(id);
        return;
    }
    if (call.state == State::kConnecting) {
        int error = 0;
        socklen_t size = sizeof error;
        ::getsockopt(call.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
        errno = error;
        if (error != 0) return broken(call, id, errno_text("cannot connect"));
        if ((events & EPOLLOUT) == 0) return;
        return connected(call, id);
    }
    if (call.state == State::kShaking) return shake_hands(call, id);
    if (call.state == State::kSending && ((events & EPOLLOUT) != 0 || call.tls != nullptr)) send(call, id);
    if (call.fd && call.state != State::kShaking && call.state != State::kConnecting && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) read(call, id, woken_us);
}

void LoadLoop::read(Call& call, size_t id, int64_t woken_us) {
    if (call.tls != nullptr) return read_tls(call, id, woken_us);
    ssize_t n = 0;
    do n = ::recv(call.fd.get(), buffer_.data(), buffer_.size(), 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) return broken(call, id, errno_text("the connection broke"));
    if (n > 0) {
        take(call, static_cast<size_t>(n), woken_us);
    } else {
        if (!call.reader.begun()) return broken(call, id, "the server closed the connection");
        call.reader.close();
    }
    if (call.reader.done()) finish(call, id);
}

/// What TLS holds decrypted shows in no event of the socket: read until it has nothing more.
void LoadLoop::read_tls(Call& call, size_t id, int64_t woken_us) {
    using Outcome = http::TlsStream::Outcome;
    while (!call.reader.done()) {
        const http::TlsStream::Moved moved = call.tls->read(buffer_.data(), buffer_.size());
        if (moved.outcome == Outcome::kWantRead || moved.outcome == Outcome::kWantWrite) return;
        if (moved.outcome == Outcome::kDone) {
            take(call, moved.bytes, woken_us);
            continue;
        }
        if (moved.outcome == Outcome::kBroken) return broken(call, id, "the connection broke: " + call.tls->reason());
        if (!call.reader.begun()) return broken(call, id, "the server closed the connection");
        call.reader.close();
    }
    finish(call, id);
}

/// Bytes of an answer that lie in the buffer.
void LoadLoop::take(Call& call, size_t bytes, int64_t woken_us) {
    const int64_t now = steady_now_us();
    call.heard_us = now;
    const uint32_t texts = call.reader.feed({buffer_.data(), bytes});
    if (texts > 0) on_texts(call, texts, now, woken_us);
}

void LoadLoop::on_texts(Call& call, uint32_t texts, int64_t now_us, int64_t woken_us) {
    event_lag_us.push_back(static_cast<double>(now_us - woken_us));
    if (!call.background && s_.options.duration_s > 0 && now_us >= s_.zero_us && now_us < window_end_us()) window_events += texts;
    for (uint32_t i = 0; i < texts; ++i, ++call.events) {
        if (call.events == 0) {
            call.result.ttft_us = std::max<int64_t>(1, now_us - call.due_us);
            if (call.opening) s_.background_begun();
            call.opening = false;
        } else {
            const auto gap = static_cast<uint32_t>(now_us - call.last_us);
            if (call.background) background_gaps.push_back({now_us, gap});
            else call.result.gaps_us.push_back(gap);
        }
        call.last_us = now_us;
    }
}

void LoadLoop::broken(Call& call, size_t id, std::string why) {
    disconnect(call);
    if (call.reused && !call.reader.begun()) {  // the server had closed an idle connection
        call.reused = false;
        call.sent = 0;
        return connect(call, id);
    }
    call.result.error = std::move(why);
    finish(call, id);
}

void LoadLoop::finish(Call& call, size_t id) {
    RequestResult& r = call.result;
    if (r.error.empty()) r.error = call.reader.error();
    if (call.events == 0 && r.error.empty()) r.error = "no token came";
    const int64_t now = steady_now_us();
    r.ok = r.error.empty() && !r.unfinished;
    r.e2e_us = (call.last_us > 0 ? call.last_us : now) - call.due_us;
    r.input_tokens = call.reader.input_tokens();
    r.output_tokens = call.reader.output_tokens() > 0 ? call.reader.output_tokens() : call.events;
    const bool reusable = call.fd && call.reader.reusable() && !r.unfinished;
    if (!reusable) disconnect(call);
    call.state = State::kFree;
    (reusable ? idle_ : unused_).push_back(id);
    failures_ = r.ok || r.unfinished ? 0 : failures_ + 1;
    if (call.background) return finish_background(call);
    --measured_running_;
    s_.count_in_flight(-1);
    ++s_.done;
    last_end_us = std::max(last_end_us, now);
    if (r.ok && s_.options.duration_s > 0 && now >= s_.zero_us && now < window_end_us()) {
        ++window_requests;
        window_input_tokens += r.input_tokens;
    }
    results.push_back(std::move(r));
}

void LoadLoop::finish_background(Call& call) {
    --background_running_;
    if (s_.stop || call.result.unfinished) return;
    if (call.result.ok) return begin_background(false);
    if (background_failed++ == 0) background_error = call.result.error;
    s_.give_up();
}

int64_t LoadLoop::window_end_us() const {
    const int64_t zero = s_.zero_us;
    if (zero == kNotYet || s_.options.duration_s <= 0) return kNotYet;
    return zero + static_cast<int64_t>(s_.options.duration_s * 1e6);
}

bool LoadLoop::requests_over(int64_t now_us) const {
    if (s_.stop) return true;
    if (exhausted_ && measured_running_ == 0) return true;
    const int64_t end = window_end_us();
    return end != kNotYet && now_us >= end + static_cast<int64_t>(s_.options.drain_s * 1e6);
}

void LoadLoop::look_at_time(int64_t now_us) {
    if (now_us - checked_us_ > kSilenceCheckUs) {
        checked_us_ = now_us;
        for (size_t i = 0; i < calls_.size(); ++i) {
            if (calls_[i]->state == State::kFree || now_us - calls_[i]->heard_us < kSilenceUs) continue;
            calls_[i]->reused = false;
            broken(*calls_[i], i, "the server was silent for ten minutes");
        }
    }
    if (!over_ && requests_over(now_us)) {
        abandon(false);
        over_ = true;
        s_.loop_finished();
    }
    if (s_.stop) abandon(true);
}

void LoadLoop::abandon(bool background) {
    for (size_t i = 0; i < calls_.size(); ++i) {
        Call& call = *calls_[i];
        if (call.state == State::kFree || call.background != background) continue;
        call.result.unfinished = true;
        finish(call, i);
    }
}

}  // namespace baton::cli
