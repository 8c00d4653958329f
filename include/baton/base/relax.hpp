#pragma once

namespace baton {

/// Tells the core that its thread waits in a loop.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace baton
