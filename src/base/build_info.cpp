#include "baton/base/build_info.hpp"

#ifndef BATON_REVISION
#define BATON_REVISION ""
#endif
#ifndef BATON_BUILD_TYPE
#define BATON_BUILD_TYPE ""
#endif

namespace baton {

const BuildInfo& build_info() {
#if defined(__clang__)
    static constexpr BuildInfo kInfo{BATON_VERSION, BATON_REVISION, BATON_BUILD_TYPE, "clang " __clang_version__};
#else
    static constexpr BuildInfo kInfo{BATON_VERSION, BATON_REVISION, BATON_BUILD_TYPE, "gcc " __VERSION__};
#endif
    return kInfo;
}

std::string BuildInfo::text() const {
    std::string out(version);
    std::string more;
    const auto add = [&](std::string_view label, std::string_view value) {
        if (value.empty()) return;
        more.append(more.empty() ? "" : ", ").append(label).append(value);
    };
    add("revision ", revision);
    add("", type);
    add("", compiler);
    return more.empty() ? out : out + " (" + more + ")";
}

}  // namespace baton
