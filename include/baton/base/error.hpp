#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace baton {

/// What kind of thing went wrong. One table maps these to HTTP (openai module), one to the wire (as its number:
/// append only).
enum class ErrorCode : uint8_t {
    kOk = 0,
    kInvalidArgument = 1,     ///< the caller's input is wrong: HTTP 400
    kNotFound = 2,            ///< no such model, route or object: HTTP 404
    kContextTooLong = 3,      ///< prompt does not fit the context: HTTP 400
    kOverloaded = 4,          ///< a queue or pool is full: HTTP 429
    kUnavailable = 5,         ///< nothing can serve this now: HTTP 503
    kTimeout = 6,             ///< a deadline passed: HTTP 504 or 503
    kAborted = 7,             ///< the client or an operator aborted it
    kCorrupt = 8,             ///< a file, frame or transfer failed its checks
    kUnsupported = 9,         ///< understood, but not built: HTTP 400
    kIo = 10,                 ///< the operating system refused
    kInternal = 11,           ///< our bug: HTTP 500
    kUnauthorized = 12,       ///< HTTP 401
    kPeerLost = 13,           ///< a process at the other end is gone
    kCancelled = 14,          ///< a launch was cancelled: HTTP 499
};

[[nodiscard]] std::string_view to_string(ErrorCode code);

/// An error with the message a user reads (lower-case start, no internal address, no prompt text) and, where a
/// request field is to blame, that field's name in `param`.
struct [[nodiscard]] Error {
    ErrorCode code = ErrorCode::kInternal;
    std::string message;
    std::string param;
};

template <class T>
using Expected = tl::expected<T, Error>;

/// `return fail(ErrorCode::kInvalidArgument, "temperature must be within 0..2", "temperature");`
[[nodiscard]] inline tl::unexpected<Error> fail(ErrorCode code, std::string message, std::string param = {}) {
    return tl::unexpected<Error>(Error{code, std::move(message), std::move(param)});
}
[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
    return tl::unexpected<Error>(std::move(error));
}

}  // namespace baton

#define BATON_CONCAT_INNER(a, b) a##b
#define BATON_CONCAT(a, b) BATON_CONCAT_INNER(a, b)
/// Returns the error of an Expected<void> expression to the caller.
#define BATON_TRY(expr)                                                       \
    do {                                                                      \
        if (auto&& baton_try_r = (expr); !baton_try_r)                        \
            return ::baton::fail(std::move(baton_try_r).error());             \
    } while (false)
/// Declares `var` from an Expected<T> expression, or returns its error to the caller.
#define BATON_TRY_ASSIGN(var, expr) BATON_TRY_ASSIGN_INNER(var, expr, BATON_CONCAT(baton_try_, __LINE__))
#define BATON_TRY_ASSIGN_INNER(var, expr, tmp)                \
    auto tmp = (expr);                                        \
    if (!tmp) return ::baton::fail(std::move(tmp).error());   \
    var = std::move(*tmp)
