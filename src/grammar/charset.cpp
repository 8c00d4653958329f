#include "grammar/charset.hpp"

#include <algorithm>
#include <string>

#include "baton/base/utf8.hpp"

namespace baton::grammar {
namespace {

constexpr uint32_t kSurrogateFirst = 0xD800, kSurrogateLast = 0xDFFF;

std::array<uint8_t, 4> utf8(uint32_t c) {
    std::string text;
    append_utf8(text, c);
    std::array<uint8_t, 4> out{};
    text.copy(reinterpret_cast<char*>(out.data()), out.size());
    return out;
}

/// Cuts [first, last], whose characters have `size` bytes, where the bytes after some place do not run through all their
/// values.
void split(uint32_t first, uint32_t last, uint32_t size, std::vector<ByteRanges>& out) {
    for (uint32_t i = 1; i < size; ++i) {
        const uint32_t mask = (1u << (6 * i)) - 1;
        if ((first & ~mask) == (last & ~mask)) continue;
        if ((first & mask) != 0) {
            split(first, first | mask, size, out);
            return split((first | mask) + 1, last, size, out);
        }
        if ((last & mask) != mask) {
            split(first, (last & ~mask) - 1, size, out);
            return split(last & ~mask, last, size, out);
        }
    }
    out.push_back({size, utf8(first), utf8(last)});
}

}  // namespace

CharSet CharSet::of(uint32_t first, uint32_t last) {
    CharSet set;
    set.add(first, last);
    return set;
}

void CharSet::add(uint32_t first, uint32_t last) {
    last = std::min(last, kCharMax);
    if (first > last) return;
    if (first < kSurrogateFirst) ranges_.emplace_back(first, std::min(last, kSurrogateFirst - 1));
    if (last > kSurrogateLast) ranges_.emplace_back(std::max(first, kSurrogateLast + 1), last);
    tidy();
}

void CharSet::add(const CharSet& other) {
    ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
    tidy();
}

void CharSet::tidy() {
    std::ranges::sort(ranges_);
    size_t kept = 0;
    for (const auto& [first, last] : ranges_) {
        if (kept > 0 && first <= ranges_[kept - 1].second + 1) {
            ranges_[kept - 1].second = std::max(ranges_[kept - 1].second, last);
        } else {
            ranges_[kept++] = {first, last};
        }
    }
    ranges_.resize(kept);
}

CharSet CharSet::complement() const {
    CharSet out;
    uint32_t next = 0;
    for (const auto& [first, last] : ranges_) {
        if (first > next) out.add(next, first - 1);
        next = last + 1;
    }
    if (next <= kCharMax) out.add(next, kCharMax);
    return out;
}

CharSet CharSet::intersect(const CharSet& other) const {
    CharSet out;
    for (size_t i = 0, k = 0; i < ranges_.size() && k < other.ranges_.size();) {
        const auto& a = ranges_[i];
        const auto& b = other.ranges_[k];
        const uint32_t first = std::max(a.first, b.first), last = std::min(a.second, b.second);
        if (first <= last) out.ranges_.emplace_back(first, last);
        if (a.second < b.second) ++i;
        else ++k;
    }
    return out;
}

CharSet CharSet::minus(const CharSet& other) const { return intersect(other.complement()); }

bool CharSet::has(uint32_t c) const {
    return std::ranges::any_of(ranges_, [c](const auto& r) { return c >= r.first && c <= r.second; });
}

std::vector<ByteRanges> utf8_ranges(const CharSet& set) {
    constexpr std::array<uint32_t, 5> kLast{0, 0x7F, 0x7FF, 0xFFFF, kCharMax};
    std::vector<ByteRanges> out;
    for (const auto& [first, last] : set.ranges()) {
        for (uint32_t size = 1; size <= 4; ++size) {
            const uint32_t from = std::max(first, size == 1 ? 0 : kLast[size - 1] + 1), to = std::min(last, kLast[size]);
            if (from <= to) split(from, to, size, out);
        }
    }
    return out;
}

}  // namespace baton::grammar
