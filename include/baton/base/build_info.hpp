#pragma once

#include <string>
#include <string_view>

namespace baton {

/// What this program was built from, and how.
struct BuildInfo {
    std::string_view version;    ///< "0.1.0"
    std::string_view revision;   ///< of the source, as git abbreviates it; "" unknown
    std::string_view type;       ///< "Release"
    std::string_view compiler;   ///< "gcc 12.2.0"
    /// "0.1.0 (revision 0a1b2c3, Release, gcc 12.2.0)".
    [[nodiscard]] std::string text() const;
};
[[nodiscard]] const BuildInfo& build_info();

}  // namespace baton
