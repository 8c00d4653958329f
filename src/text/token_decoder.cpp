#include "text/token_decoder.hpp"

#include "baton/base/encoding.hpp"
#include "text/bpe.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

std::string replace(std::string_view text, std::string_view from, std::string_view to) {
    std::string out;
    size_t pos = 0;
    for (size_t at = 0; (at = text.find(from, pos)) != std::string_view::npos;
         pos = at + from.size()) {
        out.append(text.substr(pos, at - pos));
        out.append(to);
    }
    out.append(text.substr(pos));
    return out;
}

}  // namespace

int byte_of_token(std::string_view spelling) {
    if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return -1;
    const int high = hex_digit(spelling[3]);
    const int low = hex_digit(spelling[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

TokenDecoder TokenDecoder::sentencepiece(bool strip) {
    TokenDecoder decoder;
    decoder.byte_fallback_ = true;
    decoder.strip_ = strip;
    decoder.replacements_.emplace_back("\xE2\x96\x81", " ");  // U+2581
    return decoder;
}

TokenDecoder TokenDecoder::byte_level() {
    TokenDecoder decoder;
    decoder.byte_level_ = true;
    return decoder;
}

Expected<TokenDecoder> TokenDecoder::from_json(const JsonValue* config, bool byte_level_model) {
    TokenDecoder decoder;
    if (config == nullptr || config->is_null()) {
        decoder.byte_level_ = byte_level_model;
        return decoder;
    }
    BATON_TRY(decoder.add(*config, 0));
    return decoder;
}

Expected<void> TokenDecoder::add(const JsonValue& config, int depth) {
    const std::string_view type = config.string_or_empty("type");
    if (type == "Sequence") {
        const JsonValue* list = config.find("decoders");
        if (list == nullptr || !list->is_array() || depth > 4) {
            return fail(ErrorCode::kCorrupt, "tokenizer: malformed decoder Sequence");
        }
        for (const JsonValue& item : list->items) BATON_TRY(add(item, depth + 1));
        return {};
    }
    if (type == "ByteLevel") {
        byte_level_ = true;
    } else if (type == "ByteFallback") {
        byte_fallback_ = true;
    } else if (type == "Fuse") {
        // Joining is what every caller does.
    } else if (type == "Replace") {
        const JsonValue* pattern = config.find("pattern");
        const JsonValue* literal = pattern == nullptr ? nullptr : pattern->find("String");
        if (literal == nullptr || literal->text.empty()) {
            return fail(ErrorCode::kUnsupported,
                        "tokenizer: decoder Replace needs a String pattern");
        }
        replacements_.emplace_back(literal->text, config.string_or_empty("content"));
    } else if (type == "Metaspace") {
        const std::string_view replacement = config.string_or_empty("replacement");
        if (replacement.empty())
            return fail(ErrorCode::kCorrupt, "tokenizer: Metaspace without a replacement");
        replacements_.emplace_back(replacement, " ");
        const std::string_view scheme = config.string_or_empty("prepend_scheme");
        if (scheme.empty() ? config.bool_or("add_prefix_space", true) : scheme != "never")
            first_drops_ = replacement;
    } else if (type == "Strip") {
        const JsonValue* start = config.find("start");
        const JsonValue* stop = config.find("stop");
        const int64_t left = start == nullptr ? 0 : start->int_or(-1);
        const int64_t right = stop == nullptr ? 0 : stop->int_or(-1);
        if (config.string_or_empty("content") != " " || left < 0 || left > 1 || right != 0) {
            return fail(ErrorCode::kUnsupported,
                        "tokenizer: decoder Strip other than one leading space");
        }
        strip_ = strip_ || left == 1;
    } else {
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: unsupported decoder '" + std::string(type) + "'");
    }
    return {};
}

std::string TokenDecoder::bytes(std::string_view spelling, bool literal) const {
    if (byte_level_) {
        std::string out;
        out.reserve(spelling.size());
        for (size_t pos = 0; pos < spelling.size();) {
            const CodePoint cp = decode_utf8(spelling, pos);
            pos += cp.length;
            const int byte = char_to_byte(cp.code);
            if (byte < 0) return std::string(spelling);
            out += static_cast<char>(byte);
        }
        return literal && !is_valid_utf8(out) ? std::string(spelling) : out;
    }
    std::string out(spelling);
    for (const auto& [from, to] : replacements_) out = replace(out, from, to);
    if (byte_fallback_ && !literal) {
        if (const int byte = byte_of_token(out); byte >= 0)
            return std::string(1, static_cast<char>(byte));
    }
    return out;
}

std::string TokenDecoder::first_bytes(std::string_view spelling, bool literal) const {
    if (!first_drops_.empty()) return bytes(replace(spelling, first_drops_, ""), literal);
    std::string out = bytes(spelling, literal);
    if (strip_ && out.starts_with(' ')) out.erase(0, 1);
    return out;
}

}  // namespace baton::text
