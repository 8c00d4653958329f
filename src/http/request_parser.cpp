#include "http/request_parser.hpp"

#include <algorithm>
#include <array>

#include "baton/base/encoding.hpp"

namespace baton::http {
namespace {

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/// A field value may hold visible characters, spaces, tabs and bytes above 127: no control
/// characters.
bool is_field_value(std::string_view value) {
    return std::all_of(value.begin(), value.end(), [](char c) {
        const auto byte = static_cast<uint8_t>(c);
        return byte == '\t' || (byte >= 0x20 && byte != 0x7F);
    });
}

bool has_list_token(std::string_view list, std::string_view token) {
    while (!list.empty()) {
        const size_t comma = list.find(',');
        if (to_lower(trim(list.substr(0, comma))) == token) return true;
        if (comma == std::string_view::npos) break;
        list.remove_prefix(comma + 1);
    }
    return false;
}

/// Tokens between commas; empty elements count for nothing.
bool is_token_list(std::string_view list) {
    while (!list.empty()) {
        const size_t comma = std::min(list.find(','), list.size());
        const std::string_view element = trim(list.substr(0, comma));
        if (!element.empty() && !is_token(element)) return false;
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return true;
}

/// chunk-ext of RFC 9112 7.1.1, without the optional white space that it discourages:
/// *( ";" token [ "=" ( token / quoted-string ) ] ).
bool is_chunk_extension(std::string_view text) {
    const auto skip = [&text](size_t count) { text.remove_prefix(std::min(count, text.size())); };
    const auto skip_token = [&] {
        const size_t end = std::min(text.find_first_of(";=\""), text.size());
        const bool ok = is_token(text.substr(0, end));
        skip(end);
        return ok;
    };
    while (!text.empty()) {
        if (text.front() != ';') return false;
        skip(1);
        if (!skip_token()) return false;
        if (!text.starts_with('=')) continue;
        skip(1);
        if (!text.starts_with('"')) {
            if (!skip_token()) return false;
            continue;
        }
        size_t end = 1;
        while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
        if (end >= text.size()) return false;
        skip(end + 1);
    }
    return true;
}

constexpr std::array<std::string_view, 7> kMethods = {"GET",    "HEAD",  "POST",   "PUT",
                                                      "DELETE", "PATCH", "OPTIONS"};

/// Fields that must not come twice: two readers could each believe another one.
constexpr std::array<std::string_view, 9> kSingletons = {
    "host",         "content-length",   "transfer-encoding",
    "content-type", "content-encoding", "authorization",
    "x-api-key",    "expect",           "origin"};

}  // namespace

RequestParser::Event RequestParser::fail(int status, std::string_view message) {
    state_ = State::kError;
    error_status_ = status;
    error_message_ = message;
    line_.clear();
    return Event::kError;
}

void RequestParser::reset() {
    const ParserLimits limits = limits_;
    *this = RequestParser(limits);
}

RequestParser::Event RequestParser::feed(std::string_view in, size_t& consumed) {
    consumed = 0;
    for (;;) {
        const size_t before = consumed;
        const State state = state_;
        Event event = Event::kNeedMore;
        switch (state_) {
            case State::kHead:
                event = feed_head(in, consumed);
                break;
            case State::kLength:
                event = feed_length(in, consumed);
                break;
            case State::kChunkSize:
                event = feed_chunk_size(in, consumed);
                break;
            case State::kChunkData:
                event = feed_chunk_data(in, consumed);
                break;
            case State::kChunkEnd:
                event = feed_chunk_end(in, consumed);
                break;
            case State::kTrailer:
                event = feed_trailer(in, consumed);
                break;
            case State::kDone:
                return Event::kDone;
            case State::kError:
                return Event::kError;
        }
        if (event != Event::kNeedMore) return event;
        if (consumed == before && state_ == state) return Event::kNeedMore;
    }
}

// ---- head ----

RequestParser::Event RequestParser::feed_head(std::string_view in, size_t& consumed) {
    if (!started_) {
        // RFC 9112 2.2: a server should ignore an empty line before the request line.
        while (consumed < in.size() && (in[consumed] == '\r' || in[consumed] == '\n')) {
            if (++blank_bytes_ > 4) return fail(400, "malformed request line");
            ++consumed;
        }
        if (consumed == in.size()) return Event::kNeedMore;
        started_ = true;
    }
    const size_t search_from = line_.size() < 3 ? 0 : line_.size() - 3;
    const size_t room = limits_.header_bytes_max + 4 - line_.size();
    const size_t take = std::min(room, in.size() - consumed);
    const size_t had = line_.size();
    line_.append(in.substr(consumed, take));
    const size_t end = line_.find("\r\n\r\n", search_from);
    if (end == std::string::npos) {
        consumed += take;
        const size_t first_line = std::min(line_.find('\n'), line_.size());
        if (first_line > limits_.target_bytes_max + 64)
            return fail(414, "the request target is too long");
        if (line_.size() > limits_.header_bytes_max)
            return fail(431, "the request header is too large");
        // A bare LF or a control character will never become valid: say so at once instead of
        // waiting for the end.
        for (size_t i = had; i < line_.size(); ++i) {
            if (line_[i] == '\0' || (line_[i] == '\n' && (i == 0 || line_[i - 1] != '\r'))) {
                return fail(400, "malformed request header");
            }
        }
        return Event::kNeedMore;
    }
    consumed += end + 4 - had;
    line_.resize(end);
    if (line_.size() > limits_.header_bytes_max)
        return fail(431, "the request header is too large");
    if (!finish_head()) return Event::kError;
    line_.clear();
    return Event::kHead;
}

bool RequestParser::finish_head() {
    std::string_view rest = line_;
    const auto next_line = [&rest] {
        const size_t end = rest.find("\r\n");
        const std::string_view line = rest.substr(0, end);
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 2);
        return line;
    };
    if (!read_request_line(next_line())) return false;
    while (!rest.empty()) {
        if (request_.headers.size() >= limits_.header_fields_max) {
            fail(431, "too many header fields");
            return false;
        }
        if (!read_field(next_line())) return false;
    }
    return check_framing();
}

bool RequestParser::read_request_line(std::string_view line) {
    const size_t first = line.find(' ');
    const size_t last = line.rfind(' ');
    if (first == std::string_view::npos || first == last || !is_token(line.substr(0, first))) {
        fail(400, "malformed request line");
        return false;
    }
    const std::string_view method = line.substr(0, first);
    const std::string_view target = line.substr(first + 1, last - first - 1);
    const std::string_view version = line.substr(last + 1);
    const bool is_http = version.size() == 8 && version.starts_with("HTTP/") &&
                         is_digit(version[5]) && version[6] == '.' && is_digit(version[7]);
    if (!is_http) {
        fail(400, "malformed request line");
        return false;
    }
    if (version != "HTTP/1.1" && version != "HTTP/1.0") {
        fail(505, "this version of HTTP is not supported");
        return false;
    }
    if (target.size() > limits_.target_bytes_max) {
        fail(414, "the request target is too long");
        return false;
    }
    if (std::find(kMethods.begin(), kMethods.end(), method) == kMethods.end()) {
        fail(501, "this method is not supported");
        return false;
    }
    request_.http_1_0 = version == "HTTP/1.0";
    request_.method = method;
    request_.target = target;
    if (!parse_target(request_)) {
        fail(400, "malformed request target");
        return false;
    }
    return true;
}

bool RequestParser::read_field(std::string_view line) {
    const size_t colon = line.find(':');
    // is_token refuses the empty name, a space before the colon and the obsolete line folding
    // alike.
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
        fail(400, "malformed header field");
        return false;
    }
    const std::string_view value = trim(line.substr(colon + 1));
    if (!is_field_value(value)) {
        fail(400, "malformed header field");
        return false;
    }
    request_.headers.emplace_back(to_lower(line.substr(0, colon)), std::string(value));
    return true;
}

bool RequestParser::check_framing() {
    std::array<size_t, kSingletons.size()> counts{};
    std::array<std::string_view, kSingletons.size()> values{};
    for (const auto& [name, value] : request_.headers) {
        const auto it = std::find(kSingletons.begin(), kSingletons.end(), name);
        if (it == kSingletons.end()) continue;
        const auto index = static_cast<size_t>(it - kSingletons.begin());
        values[index] = value;
        if (++counts[index] > 1) {
            fail(400, "a header field that must be unique came twice");
            return false;
        }
    }
    if (counts[0] == 0 && !request_.http_1_0) {
        fail(400, "the Host header is missing");
        return false;
    }
    const std::string_view host = values[0];
    if (host.find_first_of(" \t,/@?#\\") != std::string_view::npos) {
        fail(400, "malformed Host header");
        return false;
    }
    if (counts[1] != 0 && counts[2] != 0) {
        fail(400, "Content-Length and Transfer-Encoding exclude each other");
        return false;
    }
    return check_transfer_encoding(values[2], counts[2]) &&
           check_content_length(values[1], counts[1]) && check_connection();
}

bool RequestParser::check_transfer_encoding(std::string_view value, size_t count) {
    if (count == 0) return true;
    if (request_.http_1_0) {
        fail(400, "HTTP/1.0 has no Transfer-Encoding");
        return false;
    }
    if (to_lower(value) != "chunked") {
        fail(501, "this Transfer-Encoding is not supported");
        return false;
    }
    chunked_ = true;
    request_.body_framed = true;
    state_ = State::kChunkSize;
    return true;
}

bool RequestParser::check_content_length(std::string_view value, size_t count) {
    if (count == 0) {
        if (!chunked_) state_ = State::kDone;
        return true;
    }
    // Digits only ("3, 3", "+3", "0x3" are how two readers come to disagree), and few enough not to
    // overflow.
    if (value.empty() || value.size() > 18 || !std::all_of(value.begin(), value.end(), is_digit)) {
        fail(400, "malformed Content-Length");
        return false;
    }
    for (const char c : value)
        content_length_ = content_length_ * 10 + static_cast<uint64_t>(c - '0');
    if (content_length_ > limits_.body_bytes_max) {
        fail(413, "the request body is too large: " + std::to_string(content_length_) + " bytes, at most " + std::to_string(limits_.body_bytes_max));
        return false;
    }
    request_.body_framed = true;
    remaining_ = content_length_;
    state_ = remaining_ == 0 ? State::kDone : State::kLength;
    return true;
}

bool RequestParser::check_connection() {
    bool close = false;
    bool keep = false;
    for (const auto& [name, value] : request_.headers) {
        if (name != "connection") continue;
        if (!is_token_list(value)) {
            fail(400, "malformed Connection header");
            return false;
        }
        close = close || has_list_token(value, "close");
        keep = keep || has_list_token(value, "keep-alive");
    }
    keep_alive_ = !close && (!request_.http_1_0 || keep);
    const std::string_view expect = request_.header("expect");
    if (!expect.empty()) {
        if (to_lower(expect) != "100-continue") {
            fail(417, "this expectation is not supported");
            return false;
        }
        expects_continue_ = !request_.http_1_0;
    }
    return true;
}

// ---- body ----

RequestParser::Event RequestParser::feed_length(std::string_view in, size_t& consumed) {
    const size_t take = std::min<uint64_t>(remaining_, in.size() - consumed);
    // Grows with what arrives, not with what was announced: an announcement costs a client nothing.
    request_.body.append(in.substr(consumed, take));
    consumed += take;
    remaining_ -= take;
    if (remaining_ == 0) {
        state_ = State::kDone;
        return Event::kDone;
    }
    return Event::kNeedMore;
}

/// Collects one CRLF-terminated line in line_ (without the CRLF). True when it is complete.
bool RequestParser::take_line(std::string_view in, size_t& consumed, size_t bytes_max,
                              bool& too_long) {
    too_long = false;
    const std::string_view rest = in.substr(consumed);
    const size_t newline = rest.find('\n');
    const size_t take = newline == std::string_view::npos ? rest.size() : newline + 1;
    if (line_.size() + take > bytes_max) {
        too_long = true;
        return false;
    }
    line_.append(rest.substr(0, take));
    consumed += take;
    return newline != std::string_view::npos;
}

RequestParser::Event RequestParser::feed_chunk_size(std::string_view in, size_t& consumed) {
    bool too_long = false;
    if (!take_line(in, consumed, limits_.header_bytes_max, too_long)) {
        return too_long ? fail(400, "a chunk header is too long") : Event::kNeedMore;
    }
    if (!line_.ends_with("\r\n")) return fail(400, "malformed chunk header");
    const std::string_view line = std::string_view(line_).substr(0, line_.size() - 2);
    uint64_t size = 0;
    size_t digits = 0;
    for (; digits < line.size() && hex_digit(line[digits]) >= 0; ++digits) {
        if (digits >= 15) return fail(400, "malformed chunk header");
        size = size * 16 + static_cast<uint64_t>(hex_digit(line[digits]));
    }
    const std::string_view extension = line.substr(digits);
    if (digits == 0 || !is_field_value(extension) || !is_chunk_extension(extension)) {
        return fail(400, "malformed chunk header");
    }
    overhead_ += extension.size();
    if (overhead_ > limits_.header_bytes_max)
        return fail(400, "too many bytes of chunk extensions");
    if (size > limits_.body_bytes_max - request_.body.size())
        return fail(413, "the request body is too large: more than " + std::to_string(limits_.body_bytes_max) + " bytes");
    line_.clear();
    remaining_ = size;
    state_ = size == 0 ? State::kTrailer : State::kChunkData;
    return Event::kNeedMore;
}

RequestParser::Event RequestParser::feed_chunk_data(std::string_view in, size_t& consumed) {
    const size_t take = std::min<uint64_t>(remaining_, in.size() - consumed);
    request_.body.append(in.substr(consumed, take));
    consumed += take;
    remaining_ -= take;
    if (remaining_ == 0) state_ = State::kChunkEnd;
    return Event::kNeedMore;
}

RequestParser::Event RequestParser::feed_chunk_end(std::string_view in, size_t& consumed) {
    bool too_long = false;
    if (!take_line(in, consumed, 2, too_long)) {
        return too_long ? fail(400, "malformed chunk") : Event::kNeedMore;
    }
    if (line_ != "\r\n") return fail(400, "malformed chunk");
    line_.clear();
    state_ = State::kChunkSize;
    return Event::kNeedMore;
}

/// Trailers are checked and thrown away: a field that arrives after the key was checked must not
/// count.
RequestParser::Event RequestParser::feed_trailer(std::string_view in, size_t& consumed) {
    bool too_long = false;
    if (!take_line(in, consumed, limits_.header_bytes_max, too_long)) {
        return too_long ? fail(400, "the trailer is too large") : Event::kNeedMore;
    }
    if (!line_.ends_with("\r\n")) return fail(400, "malformed trailer");
    const std::string_view line = std::string_view(line_).substr(0, line_.size() - 2);
    if (line.empty()) {
        line_.clear();
        state_ = State::kDone;
        return Event::kDone;
    }
    overhead_ += line_.size();
    if (overhead_ > limits_.header_bytes_max || ++trailer_fields_ > limits_.header_fields_max) {
        return fail(400, "the trailer is too large");
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon)) ||
        !is_field_value(line.substr(colon + 1))) {
        return fail(400, "malformed trailer");
    }
    line_.clear();
    return Event::kNeedMore;
}

}  // namespace baton::http
