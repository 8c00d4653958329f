#include "baton/base/utf8.hpp"

#include <cstring>

namespace baton {
namespace {

uint8_t byte_at(std::string_view text, size_t pos) { return static_cast<uint8_t>(text[pos]); }

}  // namespace

size_t valid_utf8_length(std::string_view text, size_t pos) {
    if (pos >= text.size()) return 0;
    const uint8_t lead = byte_at(text, pos);
    if (lead < 0x80) return 1;
    const size_t left = text.size() - pos;
    const auto continues = [&](size_t i, uint8_t low, uint8_t high) {
        return i < left && byte_at(text, pos + i) >= low && byte_at(text, pos + i) <= high;
    };
    if (lead >= 0xC2 && lead <= 0xDF) return continues(1, 0x80, 0xBF) ? 2 : 0;
    if (lead >= 0xE0 && lead <= 0xEF) {
        const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80;
        const uint8_t high = lead == 0xED ? 0x9F : 0xBF;
        return continues(1, low, high) && continues(2, 0x80, 0xBF) ? 3 : 0;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        const uint8_t low = lead == 0xF0 ? 0x90 : 0x80;
        const uint8_t high = lead == 0xF4 ? 0x8F : 0xBF;
        return continues(1, low, high) && continues(2, 0x80, 0xBF) && continues(3, 0x80, 0xBF) ? 4
                                                                                               : 0;
    }
    return 0;
}

bool is_valid_utf8(std::string_view text) {
    for (size_t pos = 0; pos < text.size();) {
        uint64_t eight = 0;
        if (pos + sizeof eight <= text.size()) {  // a run of ASCII
            std::memcpy(&eight, text.data() + pos, sizeof eight);
            if ((eight & 0x8080808080808080) == 0) {
                pos += sizeof eight;
                continue;
            }
        }
        const size_t length = valid_utf8_length(text, pos);
        if (length == 0) return false;
        pos += length;
    }
    return true;
}

size_t count_utf8(std::string_view text) {
    size_t count = 0;
    for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
    return count;
}

void append_utf8(std::string& out, uint32_t code) {
    const auto put = [&out](uint32_t byte) { out += static_cast<char>(byte); };
    if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xC0 | (code >> 6));
        put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        put(0xE0 | (code >> 12));
        put(0x80 | ((code >> 6) & 0x3F));
        put(0x80 | (code & 0x3F));
    } else {
        put(0xF0 | (code >> 18));
        put(0x80 | ((code >> 12) & 0x3F));
        put(0x80 | ((code >> 6) & 0x3F));
        put(0x80 | (code & 0x3F));
    }
}

CodePoint decode_utf8(std::string_view text, size_t pos) {
    const uint32_t lead = byte_at(text, pos);
    const auto tail = [&](size_t i) {
        return pos + i < text.size() ? static_cast<uint32_t>(byte_at(text, pos + i) & 0x3F) : 0U;
    };
    if (lead < 0x80) return {lead, 1};
    if (lead < 0xE0) return {((lead & 0x1F) << 6) | tail(1), 2};
    if (lead < 0xF0) return {((lead & 0x0F) << 12) | (tail(1) << 6) | tail(2), 3};
    return {((lead & 0x07) << 18) | (tail(1) << 12) | (tail(2) << 6) | tail(3), 4};
}

size_t previous_utf8(std::string_view text, size_t pos) {
    do {
        --pos;
    } while (pos > 0 && (byte_at(text, pos) & 0xC0) == 0x80);
    return pos;
}

}  // namespace baton
