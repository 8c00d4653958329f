#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "baton/base/encoding.hpp"
#include "baton/base/utf8.hpp"

namespace baton::openai {

/// Reads JSON texts that are right, several times as fast as the library's parser, into the same
/// events. It tells nothing of what is wrong: where it gives up (a fault, a number that needs care)
/// the library's parser reads the text again and decides.
template <class Events>
class JsonReader {
  public:
    JsonReader(std::string_view text, Events& events) : text_(text), events_(events) {}

    /// True: the text is valid and all of it was told. False: nothing is known, and some events may
    /// have been told.
    [[nodiscard]] bool run() {
        if (!value()) return false;
        space();
        return at_ == text_.size();
    }

  private:
    [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
    void space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' ||
                                      text_[at_] == '\r' || text_[at_] == '\t'))
            ++at_;
    }
    bool take(char c) {
        if (peek() != c) return false;
        ++at_;
        return true;
    }
    bool word(std::string_view wanted) {
        if (text_.substr(at_, wanted.size()) != wanted) return false;
        at_ += wanted.size();
        return true;
    }

    /// The events' bound on nesting ends the recursion.
    bool value() {
        space();
        switch (peek()) {
            case 'n':
                return word("null") && events_.null();
            case 't':
                return word("true") && events_.boolean(true);
            case 'f':
                return word("false") && events_.boolean(false);
            case '"': {
                std::string out;
                return string(out) && events_.string(out);
            }
            case '[':
                return array();
            case '{':
                return object();
            default:
                return number();
        }
    }

    bool array() {
        ++at_;
        if (!events_.start_array(0)) return false;
        space();
        if (take(']')) return events_.end_array();
        do {
            if (!value()) return false;
            space();
        } while (take(','));
        return take(']') && events_.end_array();
    }

    bool object() {
        ++at_;
        if (!events_.start_object(0)) return false;
        space();
        if (take('}')) return events_.end_object();
        do {
            space();
            std::string name;
            if (peek() != '"' || !string(name) || !events_.key(name)) return false;
            space();
            if (!take(':') || !value()) return false;
            space();
        } while (take(','));
        return take('}') && events_.end_object();
    }

    /// From the opening quote to behind the closing one.
    bool string(std::string& out) {
        ++at_;
        for (;;) {
            const size_t begin = at_;
            while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
            out.append(text_.substr(begin, at_ - begin));
            if (at_ == text_.size()) return false;
            const auto byte = static_cast<uint8_t>(text_[at_]);
            if (byte == '"') {
                ++at_;
                return true;
            }
            if (byte == '\\') {
                if (!escape(out)) return false;
                continue;
            }
            const size_t length = byte < 0x20 ? 0 : valid_utf8_length(text_, at_);
            if (length == 0) return false;
            out.append(text_.substr(at_, length));
            at_ += length;
        }
    }
    static bool is_plain(char c) {
        const auto byte = static_cast<uint8_t>(c);
        return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
    }

    bool escape(std::string& out) {
        constexpr std::string_view kNames = "\"\\/bfnrt";
        constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
        ++at_;
        if (take('u')) return unicode_escape(out);
        const size_t name = kNames.find(peek());
        if (at_ == text_.size() || name == std::string_view::npos) return false;
        out.push_back(kValues[name]);
        ++at_;
        return true;
    }

    bool unicode_escape(std::string& out) {
        uint32_t code = 0;
        if (!hex4(code)) return false;
        if (code >= 0xD800 && code < 0xE000) {
            uint32_t low = 0;
            if (code >= 0xDC00 || !word("\\u") || !hex4(low) || low < 0xDC00 || low >= 0xE000)
                return false;
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        append_utf8(out, code);
        return true;
    }
    bool hex4(uint32_t& code) {
        for (int i = 0; i < 4; ++i, ++at_) {
            const int digit = hex_digit(peek());
            if (digit < 0) return false;
            code = code * 16 + static_cast<uint32_t>(digit);
        }
        return true;
    }

    bool number() {
        const size_t begin = at_;
        const bool negative = take('-');
        const size_t first = at_;
        while (is_digit()) ++at_;
        const size_t digits = at_ - first;
        if (digits == 0 || digits > 18 || (digits > 1 && text_[first] == '0')) return false;
        const char* const from = text_.data() + begin;
        if (peek() != '.' && peek() != 'e' && peek() != 'E') {
            int64_t number = 0;
            std::from_chars(from, text_.data() + at_, number);
            if (negative) return events_.number_integer(number);
            return events_.number_unsigned(static_cast<uint64_t>(number));
        }
        if (take('.')) {
            if (!is_digit()) return false;
            while (is_digit()) ++at_;
        }
        if (take('e') || take('E')) {
            if (!take('-')) take('+');
            if (!is_digit()) return false;
            while (is_digit()) ++at_;
        }
        double number = 0;
        const auto [end, error] = std::from_chars(from, text_.data() + at_, number);
        return error == std::errc() && end == text_.data() + at_ &&
               events_.number_float(number, {});
    }
    [[nodiscard]] bool is_digit() const { return peek() >= '0' && peek() <= '9'; }

    std::string_view text_;
    Events& events_;
    size_t at_ = 0;
};

}  // namespace baton::openai
