#pragma once

#include <string_view>

namespace baton {

/// The host of an address that ends with a port: "10.0.0.1:9000" → "10.0.0.1", "[::1]:9000" → "[::1]". All of one without a colon.
inline std::string_view host_of(std::string_view address) { return address.substr(0, address.rfind(':')); }

}  // namespace baton
