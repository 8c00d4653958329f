#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/openai/response.hpp"
#include "openai/choice.hpp"

namespace baton::openai {

/// Prints the JSON of answers: written by hand because a stream prints one object a token.
class AnswerWriter {
  public:
    AnswerWriter(const ResponseOptions& options, const text::Tokenizer& tokenizer);

    /// One frame for choice `index`. `delta` is the delta object (chat) or the text string
    /// (completions), as JSON; `finish_reason` may be nullptr.
    void append_chunk(std::string& out, uint32_t index, std::string_view delta,
                      std::span<const LogprobEntry> entries, const char* finish_reason,
                      std::string_view usage) const;
    /// The last frame before [DONE] with include_usage.
    void append_usage_chunk(std::string& out, std::string_view usage) const;
    /// The logprobs object, or null where none are wanted (or, in a stream, none are there).
    void append_logprobs(std::string& out, std::span<const LogprobEntry> entries,
                         bool null_when_empty) const;
    [[nodiscard]] std::string usage(const Usage& usage) const;
    /// `{"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…,"choices":[` of a body or a
    /// chunk.
    [[nodiscard]] std::string head(bool chunk) const;
    /// About how many bytes an entry prints.
    [[nodiscard]] static size_t entry_bytes(const LogprobEntry& entry);

  private:
    void append_chat_entry(std::string& out, TokenId id, float logprob) const;
    void append_completion_logprobs(std::string& out, std::span<const LogprobEntry> entries) const;

    const ResponseOptions& options_;
    const text::Tokenizer& tokenizer_;
    std::string chunk_head_;
};

}  // namespace baton::openai
