#pragma once

namespace baton::detail {
[[noreturn]] void check_failed(const char* expr, const char* file, int line);
}

/// Ends the process with a message when an invariant of our own code does not hold. Never for input.
#define BATON_CHECK(cond) \
    ((cond) ? static_cast<void>(0) : ::baton::detail::check_failed(#cond, __FILE__, __LINE__))
#ifdef NDEBUG
#define BATON_DCHECK(cond) static_cast<void>(0)
#else
#define BATON_DCHECK(cond) BATON_CHECK(cond)
#endif
