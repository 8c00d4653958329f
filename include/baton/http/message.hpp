#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/clock.hpp"

namespace baton::http {

using Header = std::pair<std::string, std::string>;
using Headers = std::vector<Header>;

/// One right, as a route asks for it. kOpen asks for none; an administrator has them all.
enum class Access : uint8_t {
    kOpen = 0,
    kList = 1,        ///< what there is: models, replicas, families
    kInference = 2,   ///< use of models, and what concerns one's requests
    kStart = 4,       ///< launches
    kStop = 8,        ///< ends of models
    kRegister = 16,   ///< new model families
    kUnregister = 32,
    kAdmin = 64,  ///< the cluster
};

/// What a caller may do. Without keys every caller is an administrator; on the open list a caller
/// without a key may do nothing but what is open.
struct Permissions {
    uint8_t bits = 0;  ///< values of Access, or-ed
    /// The key may list and use models alone, whatever its user may do.
    bool limited_key = false;
    constexpr Permissions() = default;
    constexpr Permissions(std::initializer_list<Access> rights) {
        for (const Access right : rights) bits |= static_cast<uint8_t>(right);
    }
    [[nodiscard]] static constexpr Permissions all() { return {Access::kAdmin}; }
    [[nodiscard]] constexpr bool allow(Access right) const {
        return right == Access::kOpen || (bits & static_cast<uint8_t>(right)) != 0 ||
               (bits & static_cast<uint8_t>(Access::kAdmin)) != 0;
    }
    friend constexpr bool operator==(const Permissions&, const Permissions&) = default;
};

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
    Permissions permissions = Permissions::all();
    TimeMs started{};  ///< when its first byte was there

    /// The value of a header by its lower-case name, or "" when it is absent.
    [[nodiscard]] std::string_view header(std::string_view lower_case_name) const;
    /// The value of a query parameter, or nullptr when it is absent.
    [[nodiscard]] const std::string* query_value(std::string_view name) const;
};

/// The trace that a request belongs to: the trace id, 32 hexadecimal digits, of its `traceparent` header (W3C Trace Context). "" where there
/// is none, several, or one that is not valid. A view into the request.
[[nodiscard]] std::string_view trace_id(const Request& request);

/// The standard reason phrase of a status, "Unknown" for others.
[[nodiscard]] std::string_view reason_phrase(int status);

/// {"error":{"message","type","param":null,"code"},"detail"} for faults of the protocol itself
/// (400, 401, 404, 405, …). Errors about models and request fields come from the openai module.
[[nodiscard]] std::string protocol_error_body(int status, std::string_view message);

}  // namespace baton::http
