#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "baton/base/limits.hpp"
#include "baton/http/message.hpp"

namespace baton::http {

struct ParserLimits {
    size_t header_bytes_max = limits::kHeaderBytesMax;
    size_t header_fields_max = limits::kHeaderFieldsMax;
    size_t target_bytes_max = limits::kTargetBytesMax;
    size_t body_bytes_max = limits::kBodyBytesMax;
};

/// Reads one HTTP/1.x request from bytes as they come: no I/O, no clock. Framing is strict (RFC
/// 9112 where it says MUST, and refusing where it offers a choice), because two readers of one byte
/// stream that disagree about where a request ends are how requests get smuggled. Its memory is
/// bounded by its limits whatever arrives.
class RequestParser {
  public:
    enum class Event : uint8_t {
        kNeedMore,  ///< all input consumed
        kHead,      ///< the head is complete and its framing valid; feed on for the body
        kDone,      ///< the request is complete; what was not consumed belongs to the next one
        kError,     ///< see error_status(); the connection cannot go on
    };

    explicit RequestParser(ParserLimits limits) : limits_(limits) {}

    /// Reads from `in`; `consumed` tells how much. kHead and kDone come once each a request.
    [[nodiscard]] Event feed(std::string_view in, size_t& consumed);
    /// Starts over for the next request of the connection.
    void reset();

    [[nodiscard]] Request& request() { return request_; }
    [[nodiscard]] int error_status() const { return error_status_; }
    [[nodiscard]] std::string_view error_message() const { return error_message_; }

    /// After kHead: what the head says.
    [[nodiscard]] bool keep_alive() const { return keep_alive_; }
    [[nodiscard]] bool expects_continue() const { return expects_continue_; }
    [[nodiscard]] uint64_t content_length() const { return content_length_; }
    [[nodiscard]] bool chunked() const { return chunked_; }
    /// True from the first byte of a request on (leading blank lines do not count).
    [[nodiscard]] bool started() const { return started_; }

  private:
    enum class State : uint8_t {
        kHead,
        kLength,
        kChunkSize,
        kChunkData,
        kChunkEnd,
        kTrailer,
        kDone,
        kError
    };

    Event fail(int status, std::string_view message);
    Event feed_head(std::string_view in, size_t& consumed);
    Event feed_length(std::string_view in, size_t& consumed);
    Event feed_chunk_size(std::string_view in, size_t& consumed);
    Event feed_chunk_data(std::string_view in, size_t& consumed);
    Event feed_chunk_end(std::string_view in, size_t& consumed);
    Event feed_trailer(std::string_view in, size_t& consumed);
    bool take_line(std::string_view in, size_t& consumed, size_t bytes_max, bool& too_long);
    bool finish_head();
    bool read_request_line(std::string_view line);
    bool read_field(std::string_view line);
    bool check_framing();
    bool check_connection();
    bool check_transfer_encoding(std::string_view value, size_t count);
    bool check_content_length(std::string_view value, size_t count);

    ParserLimits limits_;
    Request request_;
    State state_ = State::kHead;
    std::string line_;     ///< the head so far, or the current chunk or trailer line
    size_t overhead_ = 0;  ///< bytes of chunk extensions and trailers so far
    size_t trailer_fields_ = 0;
    size_t blank_bytes_ = 0;
    uint64_t content_length_ = 0;
    uint64_t remaining_ = 0;
    int error_status_ = 0;
    std::string_view error_message_;
    bool keep_alive_ = true;
    bool expects_continue_ = false;
    bool chunked_ = false;
    bool started_ = false;
};

/// Splits and decodes the request target into path, segments and query; normalises the absolute
/// form. False when it is not a valid target (400).
[[nodiscard]] bool parse_target(Request& request);

/// True when `name` is an RFC 9110 token.
[[nodiscard]] bool is_token(std::string_view name);
/// ASCII lower case.
[[nodiscard]] std::string to_lower(std::string_view text);
/// Without spaces and tabs at both ends.
[[nodiscard]] std::string_view trim(std::string_view text);

}  // namespace baton::http
