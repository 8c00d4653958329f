#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

/// Sets of Unicode characters, and the byte ranges their UTF-8 forms make.
namespace baton::grammar {

inline constexpr uint32_t kCharMax = 0x10FFFF;

/// A set of Unicode scalar values as sorted, disjoint, closed ranges. Surrogates are never in it.
class CharSet {
  public:
    CharSet() = default;
    /// One character, or a range of them.
    static CharSet of(uint32_t first, uint32_t last);
    static CharSet of(uint32_t c) { return of(c, c); }
    static CharSet all() { return of(0, kCharMax); }

    void add(uint32_t first, uint32_t last);
    void add(const CharSet& other);
    [[nodiscard]] CharSet complement() const;
    [[nodiscard]] CharSet minus(const CharSet& other) const;
    [[nodiscard]] CharSet intersect(const CharSet& other) const;
    [[nodiscard]] bool has(uint32_t c) const;
    [[nodiscard]] bool empty() const { return ranges_.empty(); }
    [[nodiscard]] const std::vector<std::pair<uint32_t, uint32_t>>& ranges() const { return ranges_; }
    friend bool operator==(const CharSet&, const CharSet&) = default;

  private:
    void tidy();
    std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

/// Ranges for each byte of characters whose UTF-8 form has `size` bytes.
struct ByteRanges {
    uint32_t size = 0;
    std::array<uint8_t, 4> low{}, high{};
};
/// The set's UTF-8 forms as few products of byte ranges.
[[nodiscard]] std::vector<ByteRanges> utf8_ranges(const CharSet& set);

}  // namespace baton::grammar
