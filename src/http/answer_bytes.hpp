#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "baton/http/message.hpp"

namespace baton::http {

/// What of a request shapes the form of its answer.
struct AnswerForm {
    bool http_1_0 = false;
    bool head_only = false;  ///< HEAD
    bool keep_alive = true;  ///< as the client asked
    Headers extra = {};      ///< further headers, our own (CORS)
};

/// The head of an answer. `length` < 0: chunked (HTTP/1.1) or ended by closing (HTTP/1.0). Headers
/// that could start another one, or are larger than a head may be, are left out.
[[nodiscard]] std::string format_head(const AnswerForm& form, int status,
                                      std::string_view content_type, int64_t length,
                                      const Headers& headers, bool keep_alive);

/// Appends `bytes` (not empty) as one chunk of the chunked coding.
void append_chunk(std::string& out, std::string_view bytes);
/// Appends the chunk that ends an answer.
void append_last_chunk(std::string& out);

}  // namespace baton::http
