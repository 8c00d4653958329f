#pragma once

#include <cstddef>
#include <vector>

namespace baton {

/// Asks for the memory of a vector's elements, which are looked at soon; for writing too. Changes nothing, waits for nothing.
template <class T>
void fetch(const std::vector<T>& values) {
    constexpr size_t kLine = 64;
    const auto* bytes = reinterpret_cast<const char*>(values.data());
    for (size_t at = 0; at < values.size() * sizeof(T); at += kLine) __builtin_prefetch(bytes + at, 1);
}

}  // namespace baton
