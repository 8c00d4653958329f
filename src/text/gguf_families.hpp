#pragma once

#include <span>
#include <string>
#include <string_view>

namespace baton::text {

/// What a pre-tokenizer name of a GGUF file (`tokenizer.ggml.pre`) stands for: GGUF has no other
/// trace of tokenizer.json's components.
struct GgufFamily {
    std::string_view names;                      ///< each between two spaces
    std::span<const std::string_view> patterns;  ///< splits in their order, each match alone
    bool nfc = false;
    bool ignore_merges = false;
    bool digits_after_bytes = false;  ///< Falcon: numbers are cut in the spelling of bytes
};

/// The family of a name, or null where it is not known.
[[nodiscard]] const GgufFamily* find_gguf_family(std::string_view name);

}  // namespace baton::text
