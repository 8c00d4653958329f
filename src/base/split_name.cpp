#include "baton/base/split_name.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace baton {
namespace {

constexpr size_t kDigits = 5;

std::optional<uint32_t> number_of(std::string_view digits) {
    uint32_t out = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9') return std::nullopt;
        out = out * 10 + static_cast<uint32_t>(c - '0');
    }
    return out;
}

}  // namespace

std::string SplitName::part(uint32_t which) const {
    char tail[40];
    std::snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", which, count);
    return stem + tail;
}

std::optional<SplitName> parse_split_name(std::string_view path) {
    constexpr std::string_view kEnd = ".gguf", kOf = "-of-";
    constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits;  // -NNNNN-of-NNNNN
    const auto is_end = [&](std::string_view tail) {
        return std::equal(tail.begin(), tail.end(), kEnd.begin(), kEnd.end(),
                          [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
    };
    if (path.size() <= kTail + kEnd.size() || !is_end(path.substr(path.size() - kEnd.size()))) return std::nullopt;
    path.remove_suffix(kEnd.size());
    const std::string_view tail = path.substr(path.size() - kTail);
    if (tail.front() != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf) return std::nullopt;
    const auto number = number_of(tail.substr(1, kDigits)), count = number_of(tail.substr(kTail - kDigits));
    if (!number || !count || *number < 1 || *number > *count) return std::nullopt;
    return SplitName{std::string(path.substr(0, path.size() - kTail)), *number, *count};
}

}  // namespace baton
