#pragma once

#include <random>
#include <string>
#include <string_view>

namespace baton::test {

/// Changes, inserts or removes one byte of a text that is not empty; new bytes are some of `bytes`.
inline void mutate(std::string& text, std::string_view bytes, std::mt19937& random) {
    const size_t at = random() % text.size();
    const char byte = bytes[random() % bytes.size()];
    switch (random() % 3) {
        case 0: text[at] = byte; break;
        case 1: text.insert(at, 1, byte); break;
        default: text.erase(at, 1);
    }
}

}  // namespace baton::test
