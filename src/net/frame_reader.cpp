#include "net/frame_reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "baton/base/check.hpp"

namespace baton::net {
namespace {

constexpr size_t kInboxBytes = 64 * 1024;
/// From this much on, the rest of a body or payload is read in place instead of through the inbox.
constexpr size_t kDirectBytes = 8 * 1024;
/// A buffer that grew beyond this for one body is given back.
constexpr size_t kKeptBytes = 1024 * 1024;

}  // namespace

FrameReader::FrameReader(uint32_t body_bytes_max, uint64_t payload_bytes_max)
    : body_bytes_max_(body_bytes_max), payload_bytes_max_(payload_bytes_max), inbox_(kInboxBytes) {}

void FrameReader::set_limits(uint32_t body_bytes_max, uint64_t payload_bytes_max) {
    body_bytes_max_ = body_bytes_max;
    payload_bytes_max_ = payload_bytes_max;
}

std::span<std::byte> FrameReader::read_space() {
    direct_ = stage_ != Stage::kHeader && begin_ == end_ && target_.size() - filled_ >= kDirectBytes;
    if (direct_) return std::span(target_).subspan(filled_);
    if (begin_ > 0) {
        std::memmove(inbox_.data(), inbox_.data() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
    }
    // next() leaves less than a header, or nothing when a body is being gathered: there is always room.
    BATON_CHECK(end_ < inbox_.size());
    return std::span(inbox_).subspan(end_);
}

void FrameReader::on_read(size_t bytes, std::vector<UniqueFd> fds) {
    if (!fds.empty()) fds_.push_back({std::move(fds), read_position_, read_position_ + bytes});
    read_position_ += bytes;
    if (direct_) {
        filled_ += bytes;
        parsed_position_ += bytes;
    } else {
        end_ += bytes;
    }
    direct_ = false;
}

std::span<const std::byte> FrameReader::buffered() const { return std::span(inbox_).subspan(begin_, end_ - begin_); }

void FrameReader::take(size_t bytes) {
    begin_ += bytes;
    parsed_position_ += bytes;
}

bool FrameReader::fill_target() {
    const size_t n = std::min(target_.size() - filled_, end_ - begin_);
    if (n > 0) std::memcpy(target_.data() + filled_, inbox_.data() + begin_, n);
    filled_ += n;
    take(n);
    return filled_ == target_.size();
}

Expected<bool> FrameReader::read_header() {
    if (end_ - begin_ < wire::kFrameHeaderBytes) {
        // Garbage is noticed at its first byte, not when a header's worth of it has come.
        static constexpr std::array<char, 4> kMagic{'B', 'T', 'N', '1'};
        if (std::memcmp(inbox_.data() + begin_, kMagic.data(), std::min(end_ - begin_, kMagic.size())) != 0)
            return fail(ErrorCode::kCorrupt, "not a baton frame");
        return false;
    }
    frame_begin_ = parsed_position_;
    BATON_TRY_ASSIGN(header_, wire::decode_header(buffered().first(wire::kFrameHeaderBytes)));
    if (header_.body_bytes > body_bytes_max_)
        return fail(ErrorCode::kCorrupt, "frame of " + std::to_string(header_.body_bytes) + " bytes is over the limit of " +
                                             std::to_string(body_bytes_max_));
    take(wire::kFrameHeaderBytes);
    stage_ = Stage::kBody;
    target_.clear();
    filled_ = 0;
    return true;
}

Expected<bool> FrameReader::read_body() {
    if (target_.empty() && end_ - begin_ >= header_.body_bytes) {  // whole in the inbox: no copy
        BATON_TRY_ASSIGN(message_, wire::decode_body(header_.type, buffered().first(header_.body_bytes)));
        take(header_.body_bytes);
    } else {
        if (target_.empty()) target_.resize(header_.body_bytes);
        if (!fill_target()) return false;
        BATON_TRY_ASSIGN(message_, wire::decode_body(header_.type, target_));
    }
    if (target_.capacity() > kKeptBytes) target_ = {};
    target_.clear();
    filled_ = 0;
    stage_ = Stage::kPayload;
    if (const auto* extent = std::get_if<wire::ExtentHeader>(&message_)) {
        if (extent->bytes > payload_bytes_max_)
            return fail(ErrorCode::kCorrupt, "extent of " + std::to_string(extent->bytes) + " bytes is over the limit");
        target_.resize(extent->bytes);
    }
    return true;
}

Expected<Connection::Received> FrameReader::finish() {
    Connection::Received out;
    out.message = std::move(message_);
    out.payload = std::move(target_);
    target_ = {};
    filled_ = 0;
    stage_ = Stage::kHeader;
    while (!fds_.empty() && fds_.front().end <= parsed_position_) {
        FdBatch batch = std::move(fds_.front());
        fds_.pop_front();
        if (frame_begin_ < batch.begin || !out.fds.empty())
            return fail(ErrorCode::kCorrupt, "descriptors came in the middle of a frame");
        out.fds = std::move(batch.fds);
    }
    return out;
}

Expected<std::optional<Connection::Received>> FrameReader::next() {
    for (;;) {
        bool more = false;
        switch (stage_) {
            case Stage::kHeader: {
                BATON_TRY_ASSIGN(more, read_header());
                break;
            }
            case Stage::kBody: {
                BATON_TRY_ASSIGN(more, read_body());
                break;
            }
            case Stage::kPayload: {
                if (!fill_target()) return std::nullopt;
                BATON_TRY_ASSIGN(Connection::Received received, finish());
                return std::optional(std::move(received));
            }
        }
        if (!more) return std::nullopt;
    }
}

}  // namespace baton::net
