#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"

namespace baton::hub {

/// An http or https URL, split.
struct Url {
    bool tls = false;
    std::string host;       ///< without the brackets of an IPv6 address, in lower case
    uint16_t port = 0;
    std::string target;     ///< path and query, from '/'
    std::string user_info;  ///< decoded user:password; "" none

    /// Same scheme, host and port: credentials may be sent to one as to the other.
    [[nodiscard]] bool same_origin(const Url& other) const { return tls == other.tls && port == other.port && host == other.host; }
    /// Value of the Host field.
    [[nodiscard]] std::string authority() const;
    /// scheme://host:port, for messages: never a path or query, which may hold a signature.
    [[nodiscard]] std::string origin() const;
    [[nodiscard]] std::string text() const { return origin() + target; }
};

/// kInvalidArgument for anything but an absolute http or https URL without control characters.
[[nodiscard]] Expected<Url> parse_url(std::string_view text);
/// The URL of a Location field on an answer from `base`: absolute, //host/…, /path or relative.
[[nodiscard]] Expected<Url> resolve_location(const Url& base, std::string_view location);
/// Percent-encodes all but unreserved characters and '/'; with `query` '/' too.
[[nodiscard]] std::string percent_encode(std::string_view text, bool query = false);
/// The reverse; what is no valid escape stays.
[[nodiscard]] std::string percent_decode(std::string_view text);
/// Whether NO_PROXY names this host: *, names and their subdomains (with or without a leading dot), host:port.
[[nodiscard]] bool bypasses_proxy(std::string_view no_proxy, const Url& url);

}  // namespace baton::hub
