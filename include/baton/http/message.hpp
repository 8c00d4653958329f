#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/clock.hpp"

namespace baton::http {

using Header = std::pair<std::string, std::string>;
using Headers = std::vector<Header>;

/// What a key may do. Without keys every caller is an administrator; on the open list a caller
/// without a key is kOpen.
enum class Access : uint8_t { kOpen = 0, kInference = 1, kAdmin = 2 };

/// One complete request whose framing, sizes and key have been checked.
struct Request {
    std::string method;  ///< "GET", "POST", … (HEAD arrives as "HEAD")
    std::string target;  ///< as sent
    std::string path;    ///< of the target, without query, still percent-encoded
    std::vector<std::string>
        segments;     ///< of the path, percent-decoded, valid UTF-8 without control characters
    Headers query;    ///< decoded, in order
    Headers headers;  ///< names in lower case, in order; trailers are not among them
    std::string body;
    bool body_framed = false;  ///< a Content-Length or chunked body was announced (it may be empty)
    bool http_1_0 = false;
    std::string remote_address;  ///< ip of the other side
    Access access = Access::kAdmin;
    TimeMs started{};  ///< when its first byte was there

    /// The value of a header by its lower-case name, or "" when it is absent.
    [[nodiscard]] std::string_view header(std::string_view lower_case_name) const;
    /// The value of a query parameter, or nullptr when it is absent.
    [[nodiscard]] const std::string* query_value(std::string_view name) const;
};

/// The standard reason phrase of a status, "Unknown" for others.
[[nodiscard]] std::string_view reason_phrase(int status);

/// {"error":{"message","type","param":null,"code"},"detail"} for faults of the protocol itself
/// (400, 401, 404, 405, …). Errors about models and request fields come from the openai module.
[[nodiscard]] std::string protocol_error_body(int status, std::string_view message);

}  // namespace baton::http
