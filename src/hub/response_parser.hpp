#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::hub {

inline constexpr size_t kHeadBytesMax = 64 * 1024;
inline constexpr size_t kHeadFieldsMax = 200;
inline constexpr size_t kChunkLineBytesMax = 1024;
inline constexpr size_t kTrailerBytesMax = 8 * 1024;

struct ResponseHead {
    int status = 0;
    std::vector<std::pair<std::string, std::string>> fields;  ///< names in lower case
    /// The field's value; "" where it is absent.
    [[nodiscard]] std::string_view field(std::string_view lower_case_name) const;
    /// Content-Length, where there is one.
    std::optional<uint64_t> length;
};

/// Reads one HTTP/1.1 response from bytes of an untrusted server: heads, lengths and chunks are bounded and must be
/// exact. No I/O. After an error it must not be used again.
class ResponseParser {
  public:
    /// `no_body`: of a HEAD or CONNECT request.
    explicit ResponseParser(bool no_body = false) : no_body_(no_body) {}

    /// Takes bytes up to the end of the head, or, once the head was taken, of the body, whose bytes are appended to `body`.
    /// Returns how many were taken: fewer than given only where the head or the response ends. kCorrupt.
    [[nodiscard]] Expected<size_t> take(std::string_view bytes, std::string& body);
    /// The server closed its side. kPeerLost unless the response is complete with that.
    [[nodiscard]] Expected<void> close();

    [[nodiscard]] bool head_done() const { return state_ > State::kHead; }
    [[nodiscard]] bool done() const { return state_ == State::kDone; }
    [[nodiscard]] const ResponseHead& head() const { return head_; }
    /// Whether the connection may be used again after this response.
    [[nodiscard]] bool keeps_alive() const { return keep_alive_; }

  private:
    enum class State : uint8_t { kHead, kLength, kUntilClose, kChunkSize, kChunkData, kChunkEnd, kTrailer, kDone };

    Expected<void> finish_head();
    Expected<void> parse_status_line(std::string_view line);
    Expected<void> parse_field(std::string_view line);
    Expected<void> choose_framing();
    Expected<void> finish_line();
    Expected<size_t> take_line(std::string_view bytes);

    State state_ = State::kHead;
    bool no_body_;
    bool http_1_0_ = false;
    bool keep_alive_ = false;
    int interim_ = 0;
    uint64_t left_ = 0;
    size_t trailer_bytes_ = 0;
    std::string line_;  // the head, or a line of the chunked framing, so far
    ResponseHead head_;
};

}  // namespace baton::hub
