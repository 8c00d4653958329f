#include "openai/json_text.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "baton/base/limits.hpp"
#include "baton/openai/json.hpp"

namespace baton::openai {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

void append_escape(std::string& out, uint8_t byte) {
    switch (byte) {
        case '"':
            out.append("\\\"");
            break;
        case '\\':
            out.append("\\\\");
            break;
        case '\n':
            out.append("\\n");
            break;
        case '\r':
            out.append("\\r");
            break;
        case '\t':
            out.append("\\t");
            break;
        case '\b':
            out.append("\\b");
            break;
        case '\f':
            out.append("\\f");
            break;
        default:
            out.append("\\u00");
            out.push_back(kHex[byte >> 4]);
            out.push_back(kHex[byte & 15]);
    }
}

}  // namespace

size_t utf8_length(std::string_view text, size_t pos) {
    const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t lead = at(pos);
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (pos + length > text.size()) return 0;
    for (size_t i = 1; i < length; ++i) {
        if ((at(pos + i) & 0xC0) != 0x80) return 0;
    }
    const uint8_t second = at(pos + 1);
    const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
    const bool beyond = (lead == 0xED && second > 0x9F) || (lead == 0xF4 && second > 0x8F);
    return overlong || beyond ? 0 : length;
}

void append_json_string(std::string& out, std::string_view text) {
    out.push_back('"');
    size_t plain = 0;  // start of the run that needs no change
    for (size_t pos = 0; pos < text.size();) {
        const auto byte = static_cast<uint8_t>(text[pos]);
        if (byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\' && byte != 0x7F) {
            ++pos;
            continue;
        }
        const size_t length = utf8_length(text, pos);
        if (byte >= 0x80 && length != 0) {
            pos += length;
            continue;
        }
        out.append(text.substr(plain, pos - plain));
        if (byte >= 0x80) {
            out.append(kReplacement);
        } else {
            append_escape(out, byte);
        }
        plain = ++pos;
    }
    out.append(text.substr(plain)).push_back('"');
}

std::string json_string(std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
}

std::string echo_input(std::string_view text) {
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
        std::string piece;
        const auto byte = static_cast<uint8_t>(text[pos]);
        size_t length = utf8_length(text, pos);
        if (length == 0 || byte < 0x20 || byte == 0x7F) {
            piece = {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
            length = 1;
        } else {
            piece = text.substr(pos, length);
        }
        if (out.size() + piece.size() > limits::kErrorEchoBytesMax - 3) return out + "...";
        out += piece;
        pos += length;
    }
    return out;
}

void append_json_float(std::string& out, float value) {
    if (!std::isfinite(value)) {
        out.append("-9999.0");
        return;
    }
    std::array<char, 48> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
    const std::string_view digits(text.data(), static_cast<size_t>(end - text.data()));
    out.append(digits);
    if (digits.find_first_of(".e") == std::string_view::npos) out.append(".0");
}

size_t count_characters(std::string_view text) {
    size_t count = 0;
    for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
    return count;
}

size_t character_boundary(std::string_view text, size_t bytes_max) {
    if (text.size() <= bytes_max) return text.size();
    size_t end = bytes_max;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
    return end == 0 ? text.size() : end;
}

}  // namespace baton::openai
