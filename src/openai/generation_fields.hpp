#pragma once

#include <string_view>

#include "baton/openai/request.hpp"
#include "openai/json.hpp"

namespace baton::openai {

enum class Route : uint8_t { kChat, kCompletions };

/// The model's name: a non-empty string, or the default.
[[nodiscard]] Expected<std::string> read_model(const Json& body, const ParseOptions& options);
/// The fields that both routes share. `allow_no_tokens`: max_tokens may be 0 (echo).
[[nodiscard]] Expected<GenerationOptions> read_generation(const Json& body,
                                                          const ParseOptions& options, Route route,
                                                          bool allow_no_tokens);
/// Refuses fields that are understood but not built, internal ones, and (where asked) unknown ones.
[[nodiscard]] Expected<void> refuse_unsupported(const Json& body, const ParseOptions& options,
                                                Route route);
/// Names and ids: 1 to `bytes_max` printable ASCII characters.
[[nodiscard]] bool is_plain_name(std::string_view text, size_t bytes_max);

}  // namespace baton::openai
