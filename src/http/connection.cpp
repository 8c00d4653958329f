#include "http/connection.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <exception>

#include "baton/base/log.hpp"
#include "baton/http/direct_answer.hpp"

namespace baton::http {
namespace {

namespace asio = boost::asio;

constexpr size_t kReadBytes = 64 * 1024;
constexpr int kReadsPerTurn = 4;  ///< then other connections of the thread get their turn
constexpr size_t kAheadBytesMax = 64 * 1024;
constexpr size_t kLingerBytesMax = 1024 * 1024;
constexpr int64_t kLingerMs = 2'000;

/// The exchange a handler sees. It holds the request; everything else goes through the channel.
class ExchangeOfChannel final : public Exchange, public DirectAnswer {
  public:
    ExchangeOfChannel(Request request, std::shared_ptr<Channel> channel, BodyBudget budget)
        : request_(std::move(request)), channel_(std::move(channel)), budget_(std::move(budget)) {}
    ~ExchangeOfChannel() override { channel_->abandon(); }

    const Request& request() const override { return request_; }
    std::string take_body() override { return std::exchange(request_.body, {}); }
    void respond(int status, std::string body, Headers headers,
                 std::string_view content_type) override {
        channel_->respond(status, body, headers, content_type);
    }
    bool begin_stream(StreamStart start) override { return channel_->begin_stream(start); }
    bool write(std::string bytes) override { return channel_->write(bytes); }
    bool queue(std::string bytes) override { return channel_->queue(bytes); }
    void flush(bool here) override { channel_->flush(here); }
    void answer_here() override { channel_->answer_here(); }
    void end() override { channel_->end(); }
    void fail() override { channel_->fail(); }
    void on_disconnect(std::function<void()> callback) override {
        channel_->on_disconnect(std::move(callback));
    }
    bool client_gone() const override { return channel_->client_gone(); }
    bool answered() const override { return channel_->answered(); }
    size_t unsent_bytes() const override { return channel_->unsent_bytes(); }
    void hold(std::shared_ptr<void> token) override { channel_->hold(std::move(token)); }

  private:
    Request request_;
    const std::shared_ptr<Channel> channel_;
    const BodyBudget budget_;
};

}  // namespace

void ServerState::exchange_started() {
    const std::lock_guard lock(mutex);
    ++exchanges;
}

void ServerState::exchange_finished() {
    const std::lock_guard lock(mutex);
    if (--exchanges == 0) idle.notify_all();
}

BodyBudget& BodyBudget::operator=(BodyBudget&& other) noexcept {
    if (this != &other) {
        release();
        state_ = std::move(other.state_);
        held_ = std::exchange(other.held_, 0);
    }
    return *this;
}

bool BodyBudget::grow_to(size_t bytes) {
    if (bytes <= held_) return true;
    const size_t more = bytes - held_;
    if (state_->body_bytes.fetch_add(more) + more > state_->options.bodies_bytes_max) {
        state_->body_bytes.fetch_sub(more);
        return false;
    }
    held_ = bytes;
    return true;
}

void BodyBudget::release() {
    if (state_ != nullptr && held_ != 0) state_->body_bytes.fetch_sub(std::exchange(held_, 0));
}

Connection::Connection(asio::io_context& io, FlushList<Connection>& flushes,
                       asio::ip::tcp::socket socket, std::string remote,
                       std::shared_ptr<ServerState> state, TlsContext tls)
    : io_(io),
      flushes_(flushes),
      transport_(std::move(socket)),
      tls_(std::move(tls)),
      timer_(io),
      remote_(std::move(remote)),
      state_(std::move(state)),
      parser_({.body_bytes_max = state_->options.body_bytes_max}),
      budget_(state_),
      idle_since_(steady_now().ms) {
    if (tls_ == nullptr) return;
    phase_ = Phase::kHandshake;
    handshake_since_ = idle_since_.load();
    ++state_->handshakes;
}

Connection::~Connection() {
    end_handshake();
    const std::lock_guard lock(state_->mutex);
    state_->connections.erase(this);
    const auto it = state_->per_ip.find(remote_);
    if (it != state_->per_ip.end() && --it->second == 0) state_->per_ip.erase(it);
}

void Connection::start() {
    boost::system::error_code ec;
    transport_.socket().set_option(asio::ip::tcp::no_delay(true), ec);
    transport_.socket().non_blocking(true, ec);
    if (ec || state_->stopping) return close();
    // A new connection must say something soon; later ones may rest between requests.
    set_deadline(read_deadline_, steady_now().ms + (phase_ == Phase::kHandshake ? state_->options.tls_handshake_timeout_ms : state_->options.header_timeout_ms));
    wait_readable();
}

void Connection::drop() {
    asio::post(io_, [self = shared_from_this()] { self->close(); });
}

void Connection::drop_if_idle(bool reading_too) {
    asio::post(io_, [self = shared_from_this(), reading_too] {
        self->settle();
        const bool idle = self->phase_ == Phase::kIdle || self->phase_ == Phase::kHandshake;
        if (idle || (reading_too && self->phase_ == Phase::kReading)) self->close();
    });
}

void Connection::evict() {
    idle_since_.store(INT64_MAX, std::memory_order_relaxed);
    handshake_since_.store(INT64_MAX, std::memory_order_relaxed);
    drop_if_idle(true);
}

// ---- TLS ----

/// One step of the handshake. Nothing is set up for a client before it has said something.
void Connection::on_handshake() {
    boost::system::error_code ec;
    if (!transport_.is_tls()) {
        const char first = transport_.peek(ec);
        if (ec == asio::error::would_block || ec == asio::error::try_again) return wait_readable();
        if (ec) return close();  // a look at the port: no handshake has failed
        if ((first >= 'A' && first <= 'Z') || (first >= 'a' && first <= 'z')) return refuse_plain_http();
    }
    transport_.handshake(tls_, ec);
    if (ec == asio::error::would_block) return wait_readable();
    if (ec) return handshake_failed(transport_.reason());
    end_handshake();
    phase_ = Phase::kIdle;
    const int64_t now = steady_now().ms;
    idle_since_.store(now, std::memory_order_relaxed);
    set_deadline(read_deadline_, now + state_->options.header_timeout_ms);
    on_readable();  // the request may have come along
}

void Connection::end_handshake() {
    if (tls_ == nullptr) return;
    tls_.reset();
    handshake_since_.store(INT64_MAX, std::memory_order_relaxed);
    --state_->handshakes;
}

/// A line a second at most: whoever reaches the port can make handshakes fail.
void Connection::handshake_failed(std::string_view reason) {
    const uint64_t failed = ++state_->handshakes_failed;
    const int64_t now = steady_now().ms;
    int64_t last = state_->handshake_logged_ms.load();
    if (now - last >= 1'000 && state_->handshake_logged_ms.compare_exchange_strong(last, now))
        log::info("http.handshake_failed", {{"remote", remote_}, {"reason", reason}, {"failed_so_far", failed}});
    close();
}

/// Plain HTTP where TLS is spoken: said in the client's own language.
void Connection::refuse_plain_http() {
    ++state_->protocol_errors;
    end_handshake();
    const AnswerForm form{.keep_alive = false};
    const std::string body = protocol_error_body(400, "this port speaks TLS: use https://");
    const std::string answer = format_head(form, 400, "application/json", static_cast<int64_t>(body.size()), {}, false) + body;
    boost::system::error_code ec;
    (void)transport_.write_some(asio::buffer(answer), ec);  // a new connection's buffer holds it
    if (ec) return close();
    linger();
}

// ---- reading ----

void Connection::wait_readable() {
    if (reading_ || peer_eof_ || phase_ == Phase::kClosed) return;
    reading_ = true;
    transport_.socket().async_wait(transport_.wait_before_read(),
                                   [self = shared_from_this()](const boost::system::error_code& ec) {
                                       self->reading_ = false;
                                       if (ec || self->phase_ == Phase::kClosed) return;
                                       self->on_readable();
                                   });
}

void Connection::on_readable() {
    if (phase_ == Phase::kHandshake) return on_handshake();
    std::array<char, kReadBytes> buffer;  // NOLINT: filled by the read
    reading_ = true;                      // no wait on the way
    for (int turn = 0; turn < kReadsPerTurn && phase_ != Phase::kClosed; ++turn) {
        boost::system::error_code ec;
        const size_t size = transport_.read_some(asio::buffer(buffer), ec);
        if (ec == asio::error::would_block || ec == asio::error::try_again) break;
        if (ec == asio::error::eof) return on_eof();
        if (ec) return close();
        on_bytes({buffer.data(), size});
        if (size < buffer.size() && !transport_.is_tls()) break;  // TLS gives what one record has
    }
    reading_ = false;
    wait_readable();
}

void Connection::on_eof() {
    settle();
    peer_eof_ = true;
    if (phase_ != Phase::kServing) return close();
    if (channel_ == nullptr) return;
    const Channel::PeerClosed state = channel_->peer_closed();
    count_disconnect(state.incomplete);
    if (state.nothing_left) close();
}

void Connection::count_disconnect(bool incomplete) {
    if (incomplete && !std::exchange(gone_counted_, true)) ++state_->disconnects;
}

void Connection::on_bytes(std::string_view bytes) {
    while (!bytes.empty() || (phase_ == Phase::kReading && parser_.started())) {
        settle();
        if (phase_ == Phase::kServing) {
            read_ahead(bytes);
            return;
        }
        if (phase_ == Phase::kLinger) {
            lingered_ += bytes.size();
            if (lingered_ > kLingerBytesMax) close();
            return;
        }
        if (phase_ == Phase::kClosed) return;
        size_t consumed = 0;
        const RequestParser::Event event = parser_.feed(bytes, consumed);
        bytes.remove_prefix(consumed);
        if (phase_ == Phase::kIdle && parser_.started()) {
            phase_ = Phase::kReading;
            request_started_ = steady_now().ms;
            set_deadline(read_deadline_, request_started_ + state_->options.header_timeout_ms);
        }
        switch (event) {
            case RequestParser::Event::kNeedMore:
                if (phase_ == Phase::kReading && body_started_ != 0) {
                    if (!budget_.grow_to(parser_.request().body.size())) {
                        return refuse(503, "too many request bodies at once",
                                      {{"Retry-After", "1"}});
                    }
                    // Thirty seconds, and one more for each kilobyte that has come: a trickle runs
                    // out of time.
                    const auto earned =
                        static_cast<int64_t>(parser_.request().body.size()) * 1000 /
                        std::max<int64_t>(1, state_->options.body_bytes_per_second_min);
                    set_deadline(read_deadline_,
                                 body_started_ + state_->options.body_timeout_ms + earned);
                }
                return;
            case RequestParser::Event::kHead:
                if (!on_head()) {
                    if (phase_ == Phase::kServing) read_ahead(bytes);
                    return;
                }
                break;
            case RequestParser::Event::kDone:
                on_request();
                break;
            case RequestParser::Event::kError:
                return refuse(parser_.error_status(), parser_.error_message());
        }
    }
}

/// Keeps what belongs to further requests. Reading never pauses, because the end of the stream
/// comes behind the data: a client that sends more than the bound ahead of its answer loses it, and
/// the connection after that answer.
void Connection::read_ahead(std::string_view bytes) {
    if (close_after_) return;
    ahead_.append(bytes);
    if (ahead_.size() > kAheadBytesMax) {
        ahead_ = {};
        close_after_ = true;
    }
    if (channel_ != nullptr && channel_->wake_at_end()) settle();
}

/// False when the request was refused or answered at its head.
bool Connection::on_head() {
    Request& request = parser_.request();
    request.remote_address = remote_;
    request.started = {request_started_};
    const bool has_body = parser_.chunked() || parser_.content_length() != 0;
    if (!is_preflight(state_->options, request)) {
        if (auto refusal = check_head(state_->options, *state_->keys(), request, has_body)) {
            if (refusal->status == 401) ++state_->unauthorized;
            refuse(refusal->status, refusal->message, std::move(refusal->headers));
            return false;
        }
    }
    body_started_ = steady_now().ms;
    set_deadline(read_deadline_, body_started_ + state_->options.body_timeout_ms);
    if (has_body && parser_.expects_continue()) {
        // Only now that nothing speaks against the request. A blocked socket here means a client
        // that does not read.
        boost::system::error_code ec;
        constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
        if (transport_.write_some(asio::buffer(kContinue), ec) != kContinue.size()) {
            close();
            return false;
        }
    }
    return true;
}

void Connection::open_channel() {
    phase_ = Phase::kServing;
    serving_self_ = shared_from_this();
    gone_counted_ = false;
    idle_since_.store(INT64_MAX, std::memory_order_relaxed);
    set_deadline(read_deadline_, INT64_MAX);
    set_deadline(look_at_, steady_now().ms + state_->options.idle_timeout_ms);
    AnswerForm form{.http_1_0 = parser_.request().http_1_0,
                    .head_only = parser_.request().method == "HEAD",
                    .keep_alive = parser_.keep_alive() && !close_after_,
                    .extra = cors_headers(state_->options, parser_.request())};
    channel_ = std::make_shared<Channel>(
        std::move(form), [weak = weak_from_this(), &flushes = flushes_] { flushes.add(weak); },
        [state = state_] { return state->stopping.load(std::memory_order_relaxed); },
        transport_.is_tls() ? -1 : transport_.socket().native_handle(), [this] { on_settled(); });
}

void Connection::on_request() {
    body_started_ = 0;
    ++state_->requests;
    open_channel();
    if (is_preflight(state_->options, parser_.request()))
        return channel_->respond(204, "", preflight_headers(), "");
    state_->exchange_started();
    counted_ = true;
    permissions_ = parser_.request().permissions;
    auto exchange = std::make_shared<ExchangeOfChannel>(std::move(parser_.request()), channel_,
                                                        std::move(budget_));
    budget_ = BodyBudget(state_);
    try {
        state_->handler(std::move(exchange));
    } catch (const std::exception& e) {
        log::error("http.handler_failed", {{"error", e.what()}});
        channel_->abandon();
    } catch (...) {
        log::error("http.handler_failed", {{"error", "not a standard exception"}});
        channel_->abandon();
    }
}

/// Answers a request that no handler will see. The connection closes after it, unless the request
/// has no body.
void Connection::refuse(int status, std::string_view message, Headers headers) {
    ++state_->protocol_errors;
    const bool framing_known = status == 401 || status == 421 || status == 429;
    const bool has_body = parser_.chunked() || parser_.content_length() != 0;
    close_after_ = !framing_known || has_body;
    budget_.release();
    open_channel();
    channel_->respond(status, protocol_error_body(status, message), headers, "application/json");
}

void Connection::next_request() {
    channel_.reset();
    parser_.reset();
    body_started_ = 0;
    phase_ = Phase::kIdle;
    // An answer that settled was over before this thread saw it.
    const int64_t now = std::min(steady_now().ms, idle_since_.load(std::memory_order_relaxed));
    idle_since_.store(now, std::memory_order_relaxed);
    look_at_ = INT64_MAX;
    set_deadline(read_deadline_, now + state_->options.idle_timeout_ms);
    const std::string ahead = std::exchange(ahead_, {});
    on_bytes(ahead);
    wait_readable();
}

// ---- writing ----

void Connection::flush_guarded() {
    try {
        flush();
    } catch (const std::exception& e) {
        log::error("http.io_failed", {{"error", e.what()}});
        close();
    }
}

void Connection::flush() {
    if (writing_ || phase_ == Phase::kClosed || phase_ == Phase::kLinger) return;
    while (channel_ != nullptr) {
        if (out_sent_ == out_.size()) {
            out_.clear();
            out_sent_ = 0;
            taken_ = channel_->take(out_);
            if (taken_.overflow) return close();
            const int64_t ping_ms = channel_->ping_ms();
            set_deadline(ping_at_, ping_ms == 0 ? INT64_MAX : steady_now().ms + ping_ms);
            if (out_.empty()) {
                if (taken_.finished) finish_exchange(taken_);
                return;
            }
        }
        if (!write_some()) return;
    }
}

/// Writes until all is out or the socket is full. False when it must wait or the connection is
/// gone.
bool Connection::write_some() {
    while (out_sent_ < out_.size()) {
        boost::system::error_code ec;
        const size_t size = transport_.write_some(
            asio::buffer(out_.data() + out_sent_, out_.size() - out_sent_), ec);
        if (ec == asio::error::would_block || ec == asio::error::try_again) {
            writing_ = true;
            set_deadline(write_deadline_, steady_now().ms + state_->options.write_stall_ms);
            transport_.socket().async_wait(
                asio::ip::tcp::socket::wait_write,
                [self = shared_from_this()](const boost::system::error_code& wait_ec) {
                    self->writing_ = false;
                    self->set_deadline(self->write_deadline_, INT64_MAX);
                    if (!wait_ec) self->flush();
                });
            return false;
        }
        if (ec) {
            close();
            return false;
        }
        out_sent_ += size;
        channel_->sent(size);
    }
    return true;
}

/// Once for each exchange, however it ends.
void Connection::end_exchange() {
    if (!counted_.exchange(false)) return;
    if (state_->options.on_exchange_end)
        state_->options.on_exchange_end(permissions_, steady_now().ms - request_started_);
    state_->exchange_finished();
}

/// On the thread that answered; what of the connection belongs to its I/O thread waits for settle().
void Connection::on_settled() {
    end_exchange();
    idle_since_.store(steady_now().ms, std::memory_order_relaxed);
}

/// Ends an exchange whose answer another thread has sent.
void Connection::settle() {
    if (phase_ == Phase::kServing && channel_ != nullptr && channel_->settled()) flush();
}

void Connection::finish_exchange(const Channel::Taken& taken) {
    set_deadline(ping_at_, INT64_MAX);
    const auto self = std::exchange(serving_self_, nullptr);
    count_disconnect(channel_->detach());
    end_exchange();
    out_ = {};
    out_sent_ = 0;
    if (!taken.broken && peer_eof_) transport_.say_end();
    if (taken.broken || peer_eof_) return close();
    if (taken.close || close_after_) return linger();
    next_request();
}

// ---- ending ----

/// Closing a socket with unread bytes resets it, and the client may lose the answer it has not read
/// yet: so say that we are done, and read on for a moment.
void Connection::linger() {
    phase_ = Phase::kLinger;
    boost::system::error_code ec;
    transport_.shut_down(ec);
    if (ec) return close();
    ahead_ = {};
    set_deadline(read_deadline_, steady_now().ms + kLingerMs);
    wait_readable();
}

void Connection::close() {
    if (phase_ == Phase::kClosed) return;
    if (phase_ == Phase::kIdle) transport_.say_end();
    phase_ = Phase::kClosed;
    const auto self = shared_from_this();
    serving_self_.reset();
    end_handshake();
    if (channel_ != nullptr) channel_->keep_socket();
    transport_.close();
    timer_.cancel();
    if (channel_ != nullptr) {
        count_disconnect(channel_->detach());
        channel_.reset();
    }
    end_exchange();
    budget_.release();
    const std::lock_guard lock(state_->mutex);
    state_->connections.erase(this);
}

// ---- time ----

void Connection::set_deadline(int64_t& slot, int64_t at_ms) {
    slot = at_ms;
    if (at_ms < armed_at_) arm();
}

/// The timer runs to the earliest deadline. A deadline that moves later leaves it alone: it wakes
/// once too early and is set anew, which is cheaper than setting it with every token.
void Connection::arm() {
    if (phase_ == Phase::kClosed) return;
    armed_at_ = std::min({read_deadline_, write_deadline_, ping_at_, look_at_});
    if (armed_at_ == INT64_MAX) return;
    timer_.expires_at(std::chrono::steady_clock::time_point(std::chrono::milliseconds(armed_at_)));
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
        if (!ec) self->on_timer();
    });
}

void Connection::on_timer() {
    if (phase_ == Phase::kClosed) return;
    armed_at_ = INT64_MAX;
    const int64_t now = steady_now().ms;
    if (now >= look_at_) {
        look_at_ = now + state_->options.idle_timeout_ms;
        settle();
    }
    if (now >= write_deadline_) return close();
    if (now >= read_deadline_) on_read_deadline();
    if (now >= ping_at_) {
        ping_at_ = INT64_MAX;  // set again by the flush that follows
        if (channel_ != nullptr) {
            const int64_t due = channel_->written_ms() + channel_->ping_ms();
            if (now < due) ping_at_ = due;
            else channel_->ping();
        }
    }
    if (phase_ != Phase::kClosed) arm();
}

void Connection::on_read_deadline() {
    read_deadline_ = INT64_MAX;
    if (phase_ == Phase::kHandshake) return handshake_failed("it took too long");
    if (phase_ == Phase::kReading) return refuse(408, "the request took too long to arrive");
    close();
}

}  // namespace baton::http
