#pragma once

#include <cstddef>
#include <cstdint>

#include "baton/base/error.hpp"
#include "baton/model/gguf_file.hpp"
#include "baton/text/tokenizer.hpp"

namespace baton::model {

/// The token id that metadata `key` holds, or -1 where the file has none; kCorrupt where it is not
/// one of `tokens`.
[[nodiscard]] Expected<int64_t> gguf_token_id(const GgufFile& file, const char* key, size_t tokens);

/// The `tokenizer.ggml.*` fields of `file`, types and lengths checked; kCorrupt with the field to
/// blame.
[[nodiscard]] Expected<text::GgufTokenizer> gguf_tokenizer(const GgufFile& file);

}  // namespace baton::model
