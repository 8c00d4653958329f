#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

/// The path of one file of a GGUF that is split over several: "folder/name-00002-of-00005.gguf".
struct SplitName {
    std::string stem;     ///< folder and name
    uint32_t number = 0;  ///< from 1 to count
    uint32_t count = 0;   ///< at least 1
    /// The path of another part.
    [[nodiscard]] std::string part(uint32_t number) const;
};

/// Nothing for a path that is not named like that. Case does not matter in ".gguf".
[[nodiscard]] std::optional<SplitName> parse_split_name(std::string_view path);

}  // namespace baton
