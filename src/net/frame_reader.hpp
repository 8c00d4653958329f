#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"
#include "baton/net/connection.hpp"
#include "baton/wire/messages.hpp"

namespace baton::net {

/// Cuts a byte stream into messages, their raw payloads and their descriptors. Does no I/O: the caller reads into
/// read_space() and says how much came. Large bodies and payloads are read straight into their own buffer.
/// After an error the stream is lost and the reader must not be used again.
class FrameReader {
  public:
    /// Bodies over `body_bytes_max` and payloads over `payload_bytes_max` are refused before memory is taken.
    FrameReader(uint32_t body_bytes_max, uint64_t payload_bytes_max);
    /// Other limits, from the next frame on.
    void set_limits(uint32_t body_bytes_max, uint64_t payload_bytes_max);

    /// Where to read to; never empty.
    [[nodiscard]] std::span<std::byte> read_space();
    /// `bytes` were read to the front of read_space(), and `fds` came with them. Descriptors belong to the last frame
    /// that begins within those bytes (a sender starts a call of its own for a frame with descriptors, and the kernel
    /// never reads past the first byte range that carries some).
    void on_read(size_t bytes, std::vector<UniqueFd> fds);
    /// The next whole message; none when more bytes are needed. kCorrupt for what is not a frame.
    [[nodiscard]] Expected<std::optional<Connection::Received>> next();

  private:
    enum class Stage : uint8_t { kHeader, kBody, kPayload };
    struct FdBatch {
        std::vector<UniqueFd> fds;
        uint64_t begin = 0, end = 0;  ///< stream positions of the read that brought them
    };

    [[nodiscard]] std::span<const std::byte> buffered() const;
    void take(size_t bytes);
    bool fill_target();
    Expected<bool> read_header();
    Expected<bool> read_body();
    Expected<Connection::Received> finish();

    uint32_t body_bytes_max_;
    uint64_t payload_bytes_max_;
    std::vector<std::byte> inbox_;
    size_t begin_ = 0, end_ = 0;   ///< unparsed bytes of the inbox
    bool direct_ = false;          ///< read_space() was the rest of the target
    Stage stage_ = Stage::kHeader;
    wire::FrameHeader header_;
    std::vector<std::byte> target_;  ///< body or payload being gathered
    size_t filled_ = 0;
    wire::Message message_;
    uint64_t read_position_ = 0;   ///< stream bytes read
    uint64_t parsed_position_ = 0; ///< stream bytes taken by frames
    uint64_t frame_begin_ = 0;
    std::deque<FdBatch> fds_;
};

}  // namespace baton::net
