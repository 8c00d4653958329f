#include "response_parser.hpp"

#include <algorithm>
#include <charconv>

#include "names.hpp"

namespace baton::hub {
namespace {

tl::unexpected<Error> malformed(const std::string& why) {
    return fail(ErrorCode::kCorrupt, "the server's answer is not valid HTTP: " + why);
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

bool parse_number(std::string_view text, int base, uint64_t& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
    return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string_view ResponseHead::field(std::string_view name) const {
    const auto it = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.first == name; });
    return it == fields.end() ? std::string_view() : std::string_view(it->second);
}

Expected<size_t> ResponseParser::take(std::string_view bytes, std::string& body) {
    size_t taken = 0;
    while (taken < bytes.size() && state_ != State::kDone) {
        const std::string_view rest = bytes.substr(taken);
        switch (state_) {
            case State::kHead: {
                BATON_TRY_ASSIGN(const size_t n, take_line(rest));
                taken += n;
                if (head_done()) return taken;
                break;
            }
            case State::kLength:
            case State::kChunkData: {
                const auto n = static_cast<size_t>(std::min<uint64_t>(left_, rest.size()));
                body.append(rest.substr(0, n));
                taken += n;
                left_ -= n;
                if (left_ == 0) state_ = state_ == State::kLength ? State::kDone : State::kChunkEnd;
                break;
            }
            case State::kUntilClose:
                body.append(rest);
                taken += rest.size();
                break;
            case State::kChunkSize:
            case State::kChunkEnd:
            case State::kTrailer: {
                BATON_TRY_ASSIGN(const size_t n, take_line(rest));
                taken += n;
                break;
            }
            case State::kDone: break;
        }
    }
    return taken;
}

/// Takes bytes up to the end of a line, and acts on it when it is whole.
Expected<size_t> ResponseParser::take_line(std::string_view bytes) {
    const size_t newline = bytes.find('\n');
    const size_t n = newline == std::string_view::npos ? bytes.size() : newline + 1;
    const size_t most = state_ == State::kHead ? kHeadBytesMax : kChunkLineBytesMax;
    if (line_.size() + n > most) return malformed(state_ == State::kHead ? "the head is too long" : "a chunk's size is too long");
    line_.append(bytes.substr(0, n));
    if (newline == std::string_view::npos) return n;
    if (state_ == State::kHead) {
        if (line_.ends_with("\r\n\r\n") || line_.ends_with("\n\n")) BATON_TRY(finish_head());
        return n;
    }
    BATON_TRY(finish_line());
    line_.clear();
    return n;
}

Expected<void> ResponseParser::finish_line() {
    std::string_view line = line_;
    line.remove_suffix(line.ends_with("\r\n") ? 2 : 1);
    if (state_ == State::kChunkEnd) {
        if (!line.empty()) return malformed("a chunk is longer than its size");
        state_ = State::kChunkSize;
        return {};
    }
    if (state_ == State::kTrailer) {
        trailer_bytes_ += line.size();
        if (trailer_bytes_ > kTrailerBytesMax) return malformed("the trailer is too long");
        if (line.empty()) state_ = State::kDone;
        return {};
    }
    line = trimmed(line.substr(0, line.find(';')));
    if (line.size() > 15 || !parse_number(line, 16, left_)) return malformed("a chunk has no valid size");
    state_ = left_ == 0 ? State::kTrailer : State::kChunkData;
    return {};
}

Expected<void> ResponseParser::finish_head() {
    std::string_view rest = line_;
    bool first = true;
    while (!rest.empty()) {
        const size_t newline = rest.find('\n');
        std::string_view line = rest.substr(0, newline);
        rest.remove_prefix(newline + 1);
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty()) {
            if (first) return malformed("it begins with an empty line");
            break;
        }
        if (first) BATON_TRY(parse_status_line(line));
        else BATON_TRY(parse_field(line));
        first = false;
    }
    line_.clear();
    if (head_.status >= 100 && head_.status < 200) {
        if (++interim_ > 8 || head_.status == 101) return malformed("unexpected interim answers");
        head_ = {};
        return {};
    }
    return choose_framing();
}

Expected<void> ResponseParser::parse_status_line(std::string_view line) {
    uint64_t status = 0;
    const bool known = line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.0 ");
    if (!known || line.size() < 12 || !parse_number(line.substr(9, 3), 10, status) || status < 100 || (line.size() > 12 && line[12] != ' '))
        return malformed("no status line");
    http_1_0_ = line[7] == '0';
    head_.status = static_cast<int>(status);
    return {};
}

Expected<void> ResponseParser::parse_field(std::string_view line) {
    const size_t colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos) return malformed("a header without a name");
    const std::string_view name = line.substr(0, colon);
    const auto odd = [](char c) { return static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f; };
    if (std::any_of(name.begin(), name.end(), odd)) return malformed("a header with an odd name");
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (std::any_of(value.begin(), value.end(), [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }))
        return malformed("a header with control characters");
    if (head_.fields.size() == kHeadFieldsMax) return malformed("too many headers");
    head_.fields.emplace_back(lower(name), std::string(value));
    return {};
}

Expected<void> ResponseParser::choose_framing() {
    std::optional<uint64_t> length;
    bool chunked = false;
    for (const auto& [name, value] : head_.fields) {
        if (name == "content-length") {
            uint64_t n = 0;
            if (!parse_number(value, 10, n) || (length && *length != n)) return malformed("no single Content-Length");
            length = n;
        } else if (name == "transfer-encoding") {
            if (chunked || http_1_0_ || lower(value) != "chunked") return malformed("an unknown transfer encoding");
            chunked = true;
        }
    }
    if (chunked && length) return malformed("both a length and chunks");
    head_.length = length;
    keep_alive_ = !http_1_0_ && lower(head_.field("connection")) != "close";
    if (no_body_ || head_.status == 204 || head_.status == 304) {
        state_ = State::kDone;
    } else if (chunked) {
        state_ = State::kChunkSize;
    } else if (length) {
        left_ = *length;
        state_ = left_ == 0 ? State::kDone : State::kLength;
    } else {
        state_ = State::kUntilClose;
        keep_alive_ = false;
    }
    return {};
}

Expected<void> ResponseParser::close() {
    if (state_ == State::kDone) return {};
    if (state_ == State::kUntilClose) {
        state_ = State::kDone;
        return {};
    }
    return fail(ErrorCode::kPeerLost, "the server closed the connection in the middle of its answer");
}

}  // namespace baton::hub
