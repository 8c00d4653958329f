#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "baton/hub/hub.hpp"
#include "response_parser.hpp"
#include "stream.hpp"
#include "url.hpp"

namespace baton::hub {

inline constexpr int kRedirectsMax = 10;
inline constexpr int64_t kRetryAfterMsMax = 60'000;

/// Why a request failed, and whether the same request may do better later.
struct Failure {
    Error error;
    bool retry = false;
    int64_t retry_after_ms = -1;  ///< as the server asks; -1: it does not
    int status = 0;               ///< of the answer; 0: there was none
};
template <class T>
using Attempt = tl::expected<T, Failure>;
[[nodiscard]] inline tl::unexpected<Failure> give_up(Error error, int status = 0) {
    return tl::unexpected<Failure>(Failure{std::move(error), false, -1, status});
}

struct Call {
    std::string method = "GET";
    Url url;
    std::vector<std::pair<std::string, std::string>> fields;
};

/// What all threads of a pull share.
struct Shared {
    const Settings& settings;
    std::shared_ptr<const TlsRoots> roots;
    const CancelSignal& cancel;
    Url credentials_for;  ///< the only origin that sees the token
    std::vector<std::pair<std::string, std::string>> credentials;  ///< header fields
};

/// Makes HTTP requests, one at a time, over connections it keeps. One thread.
class Session {
  public:
    /// Looks at a head before its body is read; an error ends the exchange.
    using OnHead = std::function<Attempt<void>(const ResponseHead&)>;
    using OnBody = std::function<Expected<void>(std::string_view)>;

    explicit Session(const Shared& shared) : shared_(shared) {}

    /// One request and its answer, redirects followed; `at_url`, where given, becomes the URL that answered. Credentials go
    /// to their origin alone; https never continues as http. Any status but a redirect is a success here.
    [[nodiscard]] Attempt<ResponseHead> request(Call call, const OnHead& on_head, const OnBody& on_body, Url* at_url = nullptr);
    /// The same without following redirects.
    [[nodiscard]] Attempt<ResponseHead> exchange(const Call& call, const OnHead& on_head, const OnBody& on_body);

  private:
    struct Kept {
        Url origin;
        std::unique_ptr<Stream> stream;
    };
    [[nodiscard]] Attempt<std::unique_ptr<Stream>> open(const Url& url);
    [[nodiscard]] Expected<void> open_tunnel(Stream& stream, const Url& proxy, const Url& url);
    [[nodiscard]] std::unique_ptr<Stream> take_kept(const Url& url);
    [[nodiscard]] std::string head_of(const Call& call) const;
    [[nodiscard]] Expected<std::string> proxy_for(const Url& url) const;
    struct Outcome {
        Attempt<ResponseHead> result;
        bool answered = false;  ///< a byte of the answer came
        bool keep = false;
    };
    [[nodiscard]] Outcome converse(Stream& stream, const Call& call, const OnHead& on_head, const OnBody& on_body);

    const Shared& shared_;
    std::vector<Kept> kept_;
};

/// Statuses after which the same request may succeed.
[[nodiscard]] bool is_passing(int status);
/// Seconds of a Retry-After field in milliseconds; -1 where it is absent or a date.
[[nodiscard]] int64_t retry_after_ms(const ResponseHead& head);

/// The pauses between the tries of one request.
class Patience {
  public:
    explicit Patience(const Shared& shared) : shared_(shared) {}
    /// Waits before the next try. False where there is none: `failure` is final, or there were enough.
    [[nodiscard]] bool again(const Failure& failure);
    /// Something came: count from the start again.
    void progress() { tries_ = 0; }

  private:
    const Shared& shared_;
    int tries_ = 0;
};

}  // namespace baton::hub
