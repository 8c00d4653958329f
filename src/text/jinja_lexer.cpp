#include "text/jinja_lexer.hpp"

#include <algorithm>
#include <array>

#include "text/unicode.hpp"

namespace baton::text::jinja {
namespace {

bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F);
}
bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool is_alpha(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return 99;
}

std::string normalize_newlines(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r') {
            out += '\n';
            if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        } else {
            out += source[i];
        }
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

    Expected<std::vector<Token>> run() {
        while (pos_ < source_.size() && error_.empty()) root();
        if (!error_.empty()) return template_error(line_, error_);
        add(TokenKind::kEnd, {});
        return std::move(tokens_);
    }

  private:
    bool stop(std::string what) {
        if (error_.empty()) error_ = std::move(what);
        return false;
    }
    [[nodiscard]] char at(size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
    [[nodiscard]] bool starts(size_t i, std::string_view what) const {
        return source_.compare(i, what.size(), what) == 0;
    }
    void add(TokenKind kind, std::string text) {
        tokens_.push_back({kind, line_, std::move(text)});
    }
    void advance_to(size_t end) {
        line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                             source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
        pos_ = end;
    }
    [[nodiscard]] size_t skip_space(size_t i) const {
        while (i < source_.size()) {
            if (is_space(source_[i])) {
                ++i;
                continue;
            }
            if (static_cast<uint8_t>(source_[i]) < 0x80) break;
            const CodePoint cp = decode_utf8(source_, i);
            if ((char_class(cp.code) & kSpace) == 0) break;
            i += cp.length;
        }
        return i;
    }

    /// Template text up to the next tag, then the tag.
    void root() {
        const size_t begin = pos_;
        size_t tag = begin;
        for (;; ++tag) {
            tag = source_.find('{', tag);
            if (tag == std::string::npos || tag + 1 >= source_.size()) {
                data(source_.size(), source_.size());
                return;
            }
            const char next = source_[tag + 1];
            if (next == '%' || next == '{' || next == '#') break;
        }
        const char kind = source_[tag + 1];
        const char sign = at(tag + 2) == '-' || at(tag + 2) == '+' ? at(tag + 2) : '\0';
        data(strip_before(begin, tag, sign, kind != '{'), tag);
        size_t inner = tag + 2 + (sign != '\0' ? 1 : 0);
        if (kind == '#') {
            comment(inner);
        } else if (kind == '%') {
            if (size_t body = raw_begin(inner); body != 0) {
                raw(body);
            } else {
                add(TokenKind::kBlockBegin, {});
                advance_to(inner);
                expression(true);
            }
        } else {
            add(TokenKind::kVariableBegin, {});
            advance_to(inner);
            expression(false);
        }
    }

    /// Emits text [pos_, end) and moves to `next`.
    void data(size_t end, size_t next) {
        if (end > pos_) add(TokenKind::kData, source_.substr(pos_, end - pos_));
        line_starting_ = next > pos_ ? at(next - 1) == '\n' : line_starting_;
        advance_to(next);
    }

    /// Where the text before a tag ends, after '-' or lstrip_blocks.
    size_t strip_before(size_t begin, size_t tag, char sign, bool is_block) {
        if (sign == '-') {
            size_t end = tag;
            while (end > begin) {
                const size_t last = previous_utf8(source_, end);
                const CodePoint cp = decode_utf8(source_, last);
                const bool space = cp.code < 0x80 ? is_space(static_cast<char>(cp.code))
                                                  : (char_class(cp.code) & kSpace) != 0;
                if (!space) break;
                end = last;
            }
            return end;
        }
        if (sign == '+' || !is_block || tag == begin) return tag;
        const size_t newline = std::string_view(source_).substr(begin, tag - begin).rfind('\n');
        if (newline == std::string_view::npos && !line_starting_) return tag;
        const size_t line = newline == std::string_view::npos ? begin : begin + newline + 1;
        return skip_space(line) >= tag ? line : tag;
    }

    /// The end of a block or comment tag at `i`: sets `end` past it with its white-space rule.
    bool tag_end(size_t i, std::string_view close, size_t& end) {
        if (at(i) == '+' && starts(i + 1, close)) {
            end = i + 1 + close.size();
            return true;
        }
        if (at(i) == '-' && starts(i + 1, close)) {
            end = skip_space(i + 1 + close.size());
            return true;
        }
        if (!starts(i, close)) return false;
        end = i + close.size();
        if (at(end) == '\n') ++end;
        return true;
    }
    void leave(size_t end) {
        line_starting_ = end > 0 && source_[end - 1] == '\n';
        advance_to(end);
    }

    void comment(size_t inner) {
        for (size_t i = inner; (i = source_.find("#}", i)) != std::string::npos; ++i) {
            size_t end = 0;
            const size_t mark =
                i > inner && (source_[i - 1] == '-' || source_[i - 1] == '+') ? i - 1 : i;
            if (tag_end(mark, "#}", end)) {
                leave(end);
                return;
            }
        }
        stop("missing end of comment tag");
    }

    /// Past `raw %}` when a raw block begins at `i`, else 0.
    size_t raw_begin(size_t i) {
        i = skip_space(i);
        if (!starts(i, "raw")) return 0;
        i = skip_space(i + 3);
        if (starts(i, "-%}")) return skip_space(i + 3);
        return starts(i, "%}") ? i + 2 : 0;
    }

    void raw(size_t body) {
        line_starting_ = at(body - 1) == '\n';
        advance_to(body);
        for (size_t tag = body; (tag = source_.find("{%", tag)) != std::string::npos; ++tag) {
            const char sign = at(tag + 2) == '-' || at(tag + 2) == '+' ? at(tag + 2) : '\0';
            size_t i = skip_space(tag + 2 + (sign != '\0' ? 1 : 0));
            if (!starts(i, "endraw")) continue;
            i = skip_space(i + 6);
            size_t end = 0;
            if (!tag_end(i, "%}", end)) continue;
            data(strip_before(body, tag, sign, true), tag);
            leave(end);
            return;
        }
        stop("missing end of raw directive");
    }

    /// Tokens up to the end of a block or variable tag.
    void expression(bool block) {
        std::string closers;
        while (error_.empty()) {
            if (closers.empty()) {
                size_t end = 0;
                if (block && tag_end(pos_, "%}", end)) {
                    add(TokenKind::kBlockEnd, {});
                    leave(end);
                    return;
                }
                if (!block && (starts(pos_, "}}") || starts(pos_, "-}}"))) {
                    add(TokenKind::kVariableEnd, {});
                    leave(at(pos_) == '-' ? skip_space(pos_ + 3) : pos_ + 2);
                    return;
                }
            }
            if (pos_ >= source_.size()) {
                stop("unexpected end of template inside a tag");
                return;
            }
            if (const size_t space = skip_space(pos_); space != pos_) {
                advance_to(space);
                continue;
            }
            const char c = source_[pos_];
            if (is_digit(c)) {
                number();
            } else if (is_alpha(c) || static_cast<uint8_t>(c) >= 0x80) {
                name();
            } else if (c == '"' || c == '\'') {
                string(c);
            } else {
                op(closers);
            }
        }
    }

    void name() {
        size_t end = pos_;
        while (end < source_.size()) {
            const char c = source_[end];
            if (is_alpha(c) || is_digit(c)) {
                ++end;
                continue;
            }
            if (static_cast<uint8_t>(c) < 0x80) break;
            const CodePoint cp = decode_utf8(source_, end);
            if ((char_class(cp.code) & (kLetter | kNumber | kMark)) == 0) break;
            end += cp.length;
        }
        if (end == pos_) {
            stop("unexpected character");
            return;
        }
        add(TokenKind::kName, source_.substr(pos_, end - pos_));
        pos_ = end;
    }

    /// Digits with single underscores between them, in `base`, into `digits`; the end.
    size_t digit_run(size_t i, int base, std::string& digits) const {
        while (hex_value(at(i)) < base || (at(i) == '_' && hex_value(at(i + 1)) < base)) {
            if (at(i) == '_') ++i;
            digits += source_[i++];
        }
        return i;
    }

    void number() {
        std::string digits;
        size_t end = digit_run(pos_, 10, digits);
        bool real = false;
        if (at(pos_) == '0' && end == pos_ + 1) {
            const char mark = static_cast<char>(at(end) | 0x20);
            const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
            std::string other;
            size_t from = end + 1;
            if (base != 0 && at(from) == '_') ++from;
            if (base != 0 && digit_run(from, base, other) != from) {
                const size_t stop_at = digit_run(from, base, digits = {});
                add(TokenKind::kInteger, std::string("0") + mark + digits);
                pos_ = stop_at;
                return;
            }
        }
        const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
        if (!after_dot) {
            if (at(end) == '.' && is_digit(at(end + 1))) {
                real = true;
                digits += '.';
                end = digit_run(end + 1, 10, digits);
            }
            if ((at(end) | 0x20) == 'e') {
                const size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0;
                if (is_digit(at(end + 1 + sign))) {
                    real = true;
                    digits += 'e';
                    if (sign != 0) digits += at(end + 1);
                    end = digit_run(end + 1 + sign, 10, digits);
                }
            }
        }
        if (!real && digits.size() > 1 && digits[0] == '0' &&
            digits.find_first_not_of('0') != std::string::npos) {
            stop("an integer must not start with 0");
            return;
        }
        if (!real && digits.find_first_not_of('0') == std::string::npos) digits = "0";
        add(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits));
        pos_ = end;
    }

    void string(char quote) {
        std::string out;
        size_t i = pos_ + 1;
        while (i < source_.size() && source_[i] != quote) {
            if (source_[i] != '\\') {
                out += source_[i++];
                continue;
            }
            if (!escape(i, out)) return;
        }
        if (i >= source_.size()) {
            stop("unterminated string literal");
            return;
        }
        add(TokenKind::kString, std::move(out));
        advance_to(i + 1);
    }

    /// One backslash escape at `i`, as Python's unicode-escape codec reads it.
    bool escape(size_t& i, std::string& out) {
        const char c = at(i + 1);
        if (i + 1 >= source_.size()) return stop("unterminated string literal");
        static constexpr std::string_view kFrom = "\\'\"abfnrtv";
        static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
        i += 2;
        if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
            out += kTo[simple];
            return true;
        }
        if (c == '\n') return true;
        if (c >= '0' && c <= '7') {
            uint32_t code = static_cast<uint32_t>(c - '0');
            for (int n = 0; n < 2 && at(i) >= '0' && at(i) <= '7'; ++n) {
                code = code * 8 + static_cast<uint32_t>(source_[i++] - '0');
            }
            append_utf8(out, code);
            return true;
        }
        if (c == 'x' || c == 'u' || c == 'U')
            return hex_escape(c == 'x' ? 2 : c == 'u' ? 4 : 8, i, out);
        if (c == 'N') return stop("unsupported \\N escape");
        out += '\\';
        out += c;
        return true;
    }

    bool hex_escape(int digits, size_t& i, std::string& out) {
        const auto read = [&](size_t from, uint32_t& code) {
            code = 0;
            for (int n = 0; n < digits; ++n) {
                const int value = hex_value(at(from + static_cast<size_t>(n)));
                if (value > 15) return false;
                code = code * 16 + static_cast<uint32_t>(value);
            }
            return true;
        };
        uint32_t code = 0;
        if (!read(i, code)) return stop("truncated escape in a string literal");
        i += static_cast<size_t>(digits);
        uint32_t low = 0;
        if (code >= 0xD800 && code <= 0xDBFF && digits == 4 && starts(i, "\\u") &&
            read(i + 2, low) && low >= 0xDC00 && low <= 0xDFFF) {
            return stop("surrogate pair in a string literal; write the character itself");
        }
        if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
            return stop("illegal character in a string literal");
        append_utf8(out, code);
        return true;
    }

    void op(std::string& closers) {
        static constexpr std::array<std::string_view, 26> kOps{
            "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
        for (const std::string_view text : kOps) {
            if (!starts(pos_, text)) continue;
            const char c = text[0];
            if (c == '(' || c == '[' || c == '{') {
                closers += c == '(' ? ')' : c == '[' ? ']' : '}';
            } else if (c == ')' || c == ']' || c == '}') {
                if (closers.empty() || closers.back() != c) {
                    stop(std::string("unexpected '") + c + "'");
                    return;
                }
                closers.pop_back();
            }
            add(TokenKind::kOperator, std::string(text));
            pos_ += text.size();
            return;
        }
        stop("unexpected character");
    }

    std::string source_;
    size_t pos_ = 0;
    int line_ = 1;
    bool line_starting_ = true;
    std::string error_;
    std::vector<Token> tokens_;
};

}  // namespace

tl::unexpected<Error> template_error(int line, const std::string& what) {
    return fail(ErrorCode::kInvalidArgument,
                "chat template, line " + std::to_string(line) + ": " + what);
}

Expected<std::vector<Token>> tokenize(std::string_view source) {
    if (!is_valid_utf8(source)) return template_error(1, "not valid UTF-8");
    return Lexer(source).run();
}

}  // namespace baton::text::jinja
