#include "openai/json_text.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "baton/base/limits.hpp"
#include "baton/base/utf8.hpp"
#include "baton/openai/json.hpp"

namespace baton::openai {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

void append_json_escape(std::string& out, uint8_t byte) {
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

void append_json_string(std::string& out, std::string_view text) {
    out.push_back('"');
    size_t plain = 0;  // start of the run that needs no change
    for (size_t pos = 0; pos < text.size();) {
        const auto byte = static_cast<uint8_t>(text[pos]);
        if (byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\' && byte != 0x7F) {
            ++pos;
            continue;
        }
        const size_t length = valid_utf8_length(text, pos);
        if (byte >= 0x80 && length != 0) {
            pos += length;
            continue;
        }
        out.append(text.substr(plain, pos - plain));
        if (byte >= 0x80) {
            out.append(kReplacement);
        } else {
            append_json_escape(out, byte);
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
        size_t length = valid_utf8_length(text, pos);
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

size_t character_boundary(std::string_view text, size_t bytes_max) {
    if (text.size() <= bytes_max) return text.size();
    size_t end = bytes_max;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
    return end == 0 ? text.size() : end;
}

}  // namespace baton::openai
