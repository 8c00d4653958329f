#include "baton/base/error.hpp"

#include <cstdio>
#include <cstdlib>

#include "baton/base/check.hpp"
#include "baton/base/ids.hpp"

namespace baton {

std::string_view to_string(ErrorCode code) {
    switch (code) {
        case ErrorCode::kOk: return "ok";
        case ErrorCode::kInvalidArgument: return "invalid_argument";
        case ErrorCode::kNotFound: return "not_found";
        case ErrorCode::kContextTooLong: return "context_too_long";
        case ErrorCode::kOverloaded: return "overloaded";
        case ErrorCode::kUnavailable: return "unavailable";
        case ErrorCode::kTimeout: return "timeout";
        case ErrorCode::kAborted: return "aborted";
        case ErrorCode::kCorrupt: return "corrupt";
        case ErrorCode::kUnsupported: return "unsupported";
        case ErrorCode::kIo: return "io";
        case ErrorCode::kInternal: return "internal";
        case ErrorCode::kUnauthorized: return "unauthorized";
        case ErrorCode::kPeerLost: return "peer_lost";
        case ErrorCode::kCancelled: return "cancelled";
    }
    return "unknown";
}

const char* to_string(Role role) {
    switch (role) {
        case Role::kHybrid: return "hybrid";
        case Role::kPrefill: return "prefill";
        case Role::kDecode: return "decode";
    }
    return "unknown";
}

namespace detail {
void check_failed(const char* expr, const char* file, int line) {
    std::fprintf(stderr, "check.failed expr=\"%s\" at=%s:%d\n", expr, file, line);
    std::fflush(stderr);
    std::abort();
}
}  // namespace detail

}  // namespace baton
