#include "session.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "baton/base/digest.hpp"
#include "baton/base/encoding.hpp"
#include "names.hpp"

namespace baton::hub {
namespace {

constexpr size_t kKeptMax = 4;
constexpr size_t kRedirectBodyMax = 64 * 1024;
constexpr int64_t kPauseMsMax = 8'000;

tl::unexpected<Failure> lost(Error error) {
    const bool retry = error.code == ErrorCode::kPeerLost || error.code == ErrorCode::kTimeout || error.code == ErrorCode::kUnavailable;
    if (error.code == ErrorCode::kPeerLost) error.code = ErrorCode::kUnavailable;
    return tl::unexpected<Failure>(Failure{std::move(error), retry, -1, 0});
}

bool is_redirect(int status) { return status == 301 || status == 302 || status == 303 || status == 307 || status == 308; }

std::string basic_authorization(const Url& proxy) {
    return proxy.user_info.empty() ? "" : "Proxy-Authorization: Basic " + to_base64({reinterpret_cast<const uint8_t*>(proxy.user_info.data()), proxy.user_info.size()}) + "\r\n";
}

}  // namespace

bool is_passing(int status) {
    return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

int64_t retry_after_ms(const ResponseHead& head) {
    const std::string_view text = head.field("retry-after");
    int64_t seconds = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (text.empty() || error != std::errc() || end != text.data() + text.size() || seconds < 0) return -1;
    return std::min<int64_t>(seconds, 1'000'000) * 1000;
}

bool Patience::again(const Failure& failure) {
    if (!failure.retry || failure.retry_after_ms > kRetryAfterMsMax || ++tries_ >= shared_.settings.retries_max) return false;
    int64_t pause = std::min(shared_.settings.retry_pause_ms << std::min(tries_ - 1, 10), kPauseMsMax);
    pause = pause / 2 + static_cast<int64_t>(random_u64() % static_cast<uint64_t>(std::max<int64_t>(1, pause)));
    return !shared_.cancel.wait(std::max(pause, failure.retry_after_ms));
}

Expected<std::string> Session::proxy_for(const Url& url) const {
    const Settings& s = shared_.settings;
    const std::string& proxy = url.tls ? s.https_proxy : s.http_proxy;
    return proxy.empty() || bypasses_proxy(s.no_proxy, url) ? std::string() : proxy;
}

std::unique_ptr<Stream> Session::take_kept(const Url& url) {
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
        if (!it->origin.same_origin(url)) continue;
        auto stream = std::move(it->stream);
        kept_.erase(it);
        if (stream->idle_and_open()) return stream;
        break;
    }
    return nullptr;
}

Expected<void> Session::open_tunnel(Stream& stream, const Url& proxy, const Url& url) {
    const int64_t timeout = shared_.settings.connect_timeout_ms;
    const std::string name = url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
    const std::string target = name + ":" + std::to_string(url.port);
    BATON_TRY(stream.write("CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n" + basic_authorization(proxy) + "\r\n", timeout));
    ResponseParser parser(true);
    std::array<char, 1> byte{};  // what follows the head belongs to TLS
    std::string none;
    while (!parser.done()) {
        BATON_TRY_ASSIGN(const size_t n, stream.read(byte, timeout));
        if (n == 0) return fail(ErrorCode::kUnavailable, "the proxy closed the connection");
        BATON_TRY(parser.take({byte.data(), n}, none));
    }
    if (parser.head().status / 100 == 2) return {};
    return fail(ErrorCode::kUnavailable, "the proxy refuses to connect to " + url.host + ": status " + std::to_string(parser.head().status));
}

Attempt<std::unique_ptr<Stream>> Session::open(const Url& url) {
    auto proxy_text = proxy_for(url);
    if (!proxy_text) return give_up(proxy_text.error());
    Url proxy;
    if (!proxy_text->empty()) {
        auto parsed = parse_url(proxy_text->find("://") == std::string::npos ? "http://" + *proxy_text : *proxy_text);
        if (!parsed || parsed->tls) return give_up({ErrorCode::kInvalidArgument, "a proxy must look like http://host:port", "https_proxy"});
        proxy = std::move(*parsed);
    }
    const int64_t timeout = shared_.settings.connect_timeout_ms;
    const Url& peer = proxy_text->empty() ? url : proxy;
    auto stream = Stream::connect(peer.host, peer.port, shared_.cancel, timeout);
    if (!stream) return lost(stream.error());
    if (url.tls && !proxy_text->empty())
        if (auto ok = open_tunnel(**stream, proxy, url); !ok) return lost(ok.error());
    if (url.tls) {
        if (auto ok = (*stream)->start_tls(*shared_.roots, url.host, timeout); !ok) {
            auto failure = lost(ok.error());
            // A certificate does not get better.
            if (ok.error().message.find("not trusted") != std::string::npos) failure.value().retry = false;
            return failure;
        }
    }
    return std::move(*stream);
}

std::string Session::head_of(const Call& call) const {
    const auto proxy = proxy_for(call.url);
    const bool through_proxy = !call.url.tls && proxy && !proxy->empty();
    std::string out = call.method + " " + (through_proxy ? call.url.text() : call.url.target) + " HTTP/1.1\r\nHost: " + call.url.authority() +
                      "\r\nUser-Agent: baton/" BATON_VERSION "\r\nAccept: */*\r\nAccept-Encoding: identity\r\n";
    if (through_proxy)
        if (const auto parsed = parse_url(proxy->find("://") == std::string::npos ? "http://" + *proxy : *proxy)) out += basic_authorization(*parsed);
    if (call.url.same_origin(shared_.credentials_for))
        for (const auto& [name, value] : shared_.credentials) out.append(name).append(": ").append(value).append("\r\n");
    for (const auto& [name, value] : call.fields) out.append(name).append(": ").append(value).append("\r\n");
    return out + "\r\n";
}

Session::Outcome Session::converse(Stream& stream, const Call& call, const OnHead& on_head, const OnBody& on_body) {
    const int64_t timeout = shared_.settings.silence_timeout_ms;
    Outcome out;
    if (auto ok = stream.write(head_of(call), timeout); !ok) {
        out.result = lost(ok.error());
        return out;
    }
    ResponseParser parser(call.method == "HEAD");
    std::vector<char> buffer(128 * 1024);
    std::string body;
    bool head_told = false;
    while (!parser.done()) {
        if (shared_.cancel.requested()) {
            out.result = give_up(cancelled().value());
            return out;
        }
        const auto n = stream.read(buffer, timeout);
        if (!n || *n == 0) {
            const Expected<void> end = n ? parser.close() : Expected<void>(fail(n.error()));
            if (end) break;
            out.result = lost(end.error());
            return out;
        }
        out.answered = true;
        for (std::string_view rest(buffer.data(), *n); !rest.empty() && !parser.done();) {
            body.clear();
            const auto taken = parser.take(rest, body);
            if (!taken) {
                out.result = give_up(taken.error());
                return out;
            }
            rest.remove_prefix(*taken);
            if (parser.head_done() && !head_told) {
                head_told = true;
                if (on_head)
                    if (auto ok = on_head(parser.head()); !ok) {
                        out.result = tl::unexpected<Failure>(ok.error());
                        return out;
                    }
                if (const auto coding = parser.head().field("content-encoding"); !coding.empty() && lower(coding) != "identity") {
                    out.result = give_up({ErrorCode::kCorrupt, "the server compresses what was asked for as it is", ""});
                    return out;
                }
            }
            if (body.empty() || !on_body) continue;
            if (auto ok = on_body(body); !ok) {
                out.result = give_up(ok.error());
                return out;
            }
        }
    }
    out.keep = parser.keeps_alive();
    out.result = parser.head();
    return out;
}

Attempt<ResponseHead> Session::exchange(const Call& call, const OnHead& on_head, const OnBody& on_body) {
    if (auto stream = take_kept(call.url)) {
        Outcome out = converse(*stream, call, on_head, on_body);
        if (out.keep && kept_.size() < kKeptMax) kept_.push_back({call.url, std::move(stream)});
        // The server may close a connection at the moment we use it again.
        if (out.result || out.answered || !out.result.error().retry) return out.result;
    }
    auto stream = open(call.url);
    if (!stream) return tl::unexpected<Failure>(stream.error());
    Outcome out = converse(**stream, call, on_head, on_body);
    if (out.keep && kept_.size() < kKeptMax) kept_.push_back({call.url, std::move(*stream)});
    return out.result;
}

Attempt<ResponseHead> Session::request(Call call, const OnHead& on_head, const OnBody& on_body, Url* at_url) {
    for (int hop = 0; hop <= kRedirectsMax; ++hop) {
        bool redirected = false;
        size_t ignored = 0;
        const auto head_seen = [&](const ResponseHead& head) -> Attempt<void> {
            redirected = is_redirect(head.status);
            if (redirected || !on_head) return {};
            return on_head(head);
        };
        const auto body_seen = [&](std::string_view bytes) -> Expected<void> {
            if (!redirected) return on_body ? on_body(bytes) : Expected<void>{};
            ignored += bytes.size();
            return ignored <= kRedirectBodyMax ? Expected<void>{} : fail(ErrorCode::kCorrupt, "a redirect comes with too long a text");
        };
        auto head = exchange(call, head_seen, body_seen);
        if (!head) return head;
        if (!is_redirect(head->status)) {
            if (at_url != nullptr) *at_url = call.url;
            return head;
        }
        auto next = resolve_location(call.url, head->field("location"));
        if (!next) return give_up({ErrorCode::kCorrupt, "the server redirects to no valid address", ""}, head->status);
        if (call.url.tls && !next->tls) return give_up({ErrorCode::kCorrupt, "the server redirects from https to http", ""}, head->status);
        next->user_info.clear();
        call.url = std::move(*next);
    }
    return give_up({ErrorCode::kCorrupt, "the server redirects in circles", ""});
}

}  // namespace baton::hub
