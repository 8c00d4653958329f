#pragma once

#include <span>
#include <string_view>

namespace baton::web {

/// A file of the web page, compiled into the binary.
struct Asset {
    std::string_view path;          ///< as it is asked for, e.g. "/ui/app.js"; the page itself is "/"
    std::string_view content_type;
    std::string_view bytes;
    std::string_view etag;          ///< with its quotes; other bytes have another one
};

/// All files of src/web/page. They live as long as the process. Any thread.
[[nodiscard]] std::span<const Asset> assets();

/// The Content-Security-Policy that the page is written for: files of its own server alone, no inline script or style.
inline constexpr std::string_view kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace baton::web
