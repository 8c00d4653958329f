#include "baton/text/tokenizer.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// How many bytes of `text` from `pos` (not a valid character there) form one maximal subpart: 1
/// to 3. Sets `open` when the subpart reaches the end of the text and more bytes could complete it.
size_t subpart_length(std::string_view text, size_t pos, bool& open) {
    const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t lead = at(pos);
    open = false;
    size_t need = 0;
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
        need = 1;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        need = 2;
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        need = 3;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F;
    } else {
        return 1;
    }
    size_t length = 1;
    for (; length <= need; ++length) {
        if (pos + length >= text.size()) {
            open = true;
            return length;
        }
        if (at(pos + length) < low || at(pos + length) > high) return length;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

void append_replacements(std::string& out, size_t bad_bytes, bool single_bytes) {
    for (size_t i = 0; i < (single_bytes ? bad_bytes : 1); ++i) out.append(kReplacement);
}

/// Appends the valid text of `bytes` to `out`; returns where an incomplete tail starts
/// (bytes.size() if none). `single_bytes`: one U+FFFD for each invalid byte.
size_t assemble(std::string_view bytes, bool single_bytes, std::string& out) {
    size_t begin = 0;
    for (size_t pos = 0; pos < bytes.size();) {
        if (static_cast<uint8_t>(bytes[pos]) < 0x80) {
            ++pos;
            continue;
        }
        const size_t length = valid_utf8_length(bytes, pos);
        if (length != 0) {
            pos += length;
            continue;
        }
        out.append(bytes, begin, pos - begin);
        bool open = false;
        const size_t bad = subpart_length(bytes, pos, open);
        if (open) return pos;
        append_replacements(out, bad, single_bytes);
        pos += bad;
        begin = pos;
    }
    out.append(bytes, begin, bytes.size() - begin);
    return bytes.size();
}

}  // namespace

std::string replace_invalid_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    if (assemble(text, false, out) < text.size()) out.append(kReplacement);
    return out;
}

std::string Utf8Assembler::push(std::string_view bytes) {
    std::string out;
    if (tail_.empty()) {
        tail_.assign(bytes.substr(assemble(bytes, single_bytes_, out)));
        return out;
    }
    std::string joined = std::move(tail_);
    joined.append(bytes);
    tail_ = joined.substr(assemble(joined, single_bytes_, out));
    return out;
}

std::string Utf8Assembler::finish() {
    std::string out;
    if (!tail_.empty()) append_replacements(out, tail_.size(), single_bytes_);
    tail_.clear();
    return out;
}

std::string StreamDecoder::push(TokenId id) {
    const std::string bytes =
        at_start_ ? tokenizer_.first_token_bytes(id) : tokenizer_.token_bytes(id);
    if (at_start_ && !tokenizer_.token_bytes(id).empty()) at_start_ = false;
    return assembler_.push(bytes);
}

}  // namespace baton::text
