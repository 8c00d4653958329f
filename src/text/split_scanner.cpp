#include "text/split_scanner.hpp"

#include <algorithm>
#include <array>

#include "text/unicode.hpp"

namespace baton::text {
namespace {

/// A position in text with the class of the character there.
struct Cursor {
    std::string_view text;
    size_t pos = 0;
    uint32_t code = 0;
    uint32_t length = 0;
    uint8_t bits = 0;

    Cursor(std::string_view t, size_t p) : text(t), pos(p) { load(); }
    void load() {
        if (pos >= text.size()) {
            code = length = 0;
            bits = 0;
            return;
        }
        const auto byte = static_cast<uint8_t>(text[pos]);
        if (byte < kAsciiClasses.size()) {
            code = byte;
            length = 1;
            bits = kAsciiClasses[byte];
            return;
        }
        const CodePoint cp = decode_utf8(text, pos);
        code = cp.code;
        length = cp.length;
        bits = char_class(code);
    }
    [[nodiscard]] bool done() const { return length == 0; }
    void next() {
        pos += length;
        load();
    }
    [[nodiscard]] bool is(uint8_t mask) const { return (bits & mask) != 0; }
    [[nodiscard]] bool is_newline() const { return code == '\n' || code == '\r'; }
    void skip(uint8_t mask) {
        while (!done() && is(mask)) next();
    }
    void skip_not(uint8_t mask) {
        while (!done() && !is(mask)) next();
    }
};

/// End of 's 't 're 've 'm 'll 'd at `pos` (which holds an apostrophe), or `pos` where there is
/// none.
size_t contraction_end(std::string_view text, size_t pos, bool ignore_case) {
    const auto lower = [&](size_t i) -> char {
        if (i >= text.size()) return '\0';
        const char c = text[i];
        return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char first = lower(pos + 1);
    const char second = lower(pos + 2);
    switch (first) {
        case 's':
        case 't':
        case 'm':
        case 'd':
            return pos + 2;
        case 'r':
        case 'v':
            return second == 'e' ? pos + 3 : pos;
        case 'l':
            return second == 'l' ? pos + 3 : pos;
        default:
            break;
    }
    // U+017F (long s) folds to s.
    if (ignore_case && text.substr(pos + 1, 2) == "\xC5\xBF") return pos + 3;
    return pos;
}

/// `\s+(?!\S)|\s+` from a cursor on white space.
size_t space_end(Cursor at) {
    const size_t begin = at.pos;
    at.skip(kSpace);
    if (at.done()) return at.pos;
    const size_t last = previous_utf8(at.text, at.pos);
    return last > begin ? last : at.pos;
}

class Gpt2Scanner final : public SplitScanner {
  public:
    void find_all(std::string_view text, std::vector<Span>& out) const override {
        for (size_t pos = 0; pos < text.size();) {
            const size_t end = match(text, pos);
            out.push_back({pos, end});
            pos = end;
        }
    }

  private:
    static size_t match(std::string_view text, size_t pos) {
        Cursor at(text, pos);
        if (at.code == '\'') {
            const size_t end = contraction_end(text, pos, false);
            if (end != pos) return end;
        }
        if (at.code == ' ') {
            at.next();
            if (at.done() || at.is(kSpace)) return space_end(Cursor(text, pos));
        }
        if (at.is(kSpace)) return space_end(at);
        if (at.is(kLetter)) {
            at.skip(kLetter);
        } else if (at.is(kNumber)) {
            at.skip(kNumber);
        } else {
            at.skip_not(kSpace | kLetter | kNumber);
        }
        return at.pos;
    }
};

class ModernScanner final : public SplitScanner {
  public:
    explicit ModernScanner(ModernPattern pattern)
        : digits_max_(pattern.digits_max),
          letters_(static_cast<uint8_t>(pattern.marks_are_letters ? kLetter | kMark : kLetter)) {}

    void find_all(std::string_view text, std::vector<Span>& out) const override {
        for (size_t pos = 0; pos < text.size();) {
            const size_t end = match(text, pos);
            out.push_back({pos, end});
            pos = end;
        }
    }

  private:
    [[nodiscard]] size_t match(std::string_view text, size_t pos) const {
        Cursor at(text, pos);
        if (at.code == '\'') {
            const size_t end = contraction_end(text, pos, true);
            if (end != pos) return end;
        }
        if (at.is(letters_)) {  // [^\r\n\p{L}\p{N}]?letters+ ; a mark may also be the optional
                                // first character
            at.skip(letters_);
            return at.pos;
        }
        if (at.is(kNumber)) {
            for (size_t i = 0; i < digits_max_ && at.is(kNumber); ++i) at.next();
            return at.pos;
        }
        if (!at.is_newline()) {
            Cursor second = at;
            second.next();
            if (second.is(letters_)) {
                second.skip(letters_);
                return second.pos;
            }
            if (at.code == ' ' && !second.done() && !second.is(symbol_stop())) at = second;
        }
        if (!at.is(symbol_stop())) {  //  ?[^\s\p{L}\p{N}]+[\r\n]*
            at.skip_not(symbol_stop());
            while (at.is_newline()) at.next();
            return at.pos;
        }
        return white_space(text, pos);
    }
    [[nodiscard]] uint8_t symbol_stop() const {
        return static_cast<uint8_t>(kSpace | letters_ | kNumber);
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`
    static size_t white_space(std::string_view text, size_t pos) {
        size_t after_newline = 0;
        for (Cursor at(text, pos); at.is(kSpace); at.next()) {
            if (at.is_newline()) after_newline = at.pos + at.length;
        }
        return after_newline != 0 ? after_newline : space_end(Cursor(text, pos));
    }

    size_t digits_max_;
    uint8_t letters_;
};

/// Each run, or each single character, whose class has one of `mask`.
class ClassScanner final : public SplitScanner {
  public:
    ClassScanner(uint8_t mask, bool ascii_symbols, bool runs)
        : mask_(mask), symbols_(ascii_symbols), runs_(runs) {
        for (uint32_t code = 0; code < ascii_.size(); ++code) ascii_[code] = wanted(code);
    }
    void find_all(std::string_view text, std::vector<Span>& out) const override {
        for (size_t pos = 0; pos < text.size();) {
            const auto byte = static_cast<uint8_t>(text[pos]);
            if (byte < ascii_.size() && !ascii_[byte]) {
                ++pos;
                continue;
            }
            const CodePoint cp = decode_utf8(text, pos);
            const size_t end = pos + cp.length;
            if (wanted(cp.code)) {
                if (runs_ && !out.empty() && out.back().end == pos) {
                    out.back().end = end;
                } else {
                    out.push_back({pos, end});
                }
            }
            pos = end;
        }
    }

  private:
    [[nodiscard]] bool wanted(uint32_t code) const {
        if ((char_class(code) & mask_) != 0) return true;
        return symbols_ && code > ' ' && code < 0x7F &&
               (char_class(code) & (kLetter | kNumber)) == 0;
    }
    uint8_t mask_;
    bool symbols_;
    bool runs_;
    std::array<bool, 128> ascii_{};  ///< wanted() of ASCII
};

class LiteralScanner final : public SplitScanner {
  public:
    explicit LiteralScanner(std::string literal) : literal_(std::move(literal)) {}
    void find_all(std::string_view text, std::vector<Span>& out) const override {
        if (literal_.empty()) return;
        for (size_t pos = 0; (pos = text.find(literal_, pos)) != std::string_view::npos;
             pos += literal_.size()) {
            out.push_back({pos, pos + literal_.size()});
        }
    }

  private:
    std::string literal_;
};

/// `\s+$`: a backtracking engine is quadratic in spaces that do not end the text.
class TrailingSpaceScanner final : public SplitScanner {
  public:
    explicit TrailingSpaceScanner(std::shared_ptr<const SplitScanner> lines)
        : lines_(std::move(lines)) {}
    void find_all(std::string_view text, std::vector<Span>& out) const override {
        if (text.find('\n') != std::string_view::npos) return lines_->find_all(text, out);
        size_t begin = text.size();
        while (begin > 0) {
            const size_t previous = previous_utf8(text, begin);
            if ((char_class(decode_utf8(text, previous).code) & kSpace) == 0) break;
            begin = previous;
        }
        if (begin < text.size()) out.push_back({begin, text.size()});
    }

  private:
    std::shared_ptr<const SplitScanner> lines_;  ///< for texts of several lines, each of which ends
};

}  // namespace

std::shared_ptr<const SplitScanner> gpt2_scanner() {
    return std::make_shared<Gpt2Scanner>();
}

std::shared_ptr<const SplitScanner> modern_scanner(ModernPattern pattern) {
    return std::make_shared<ModernScanner>(pattern);
}

std::shared_ptr<const SplitScanner> class_scanner(uint8_t mask, bool runs) {
    return std::make_shared<ClassScanner>(mask, false, runs);
}

std::shared_ptr<const SplitScanner> punctuation_scanner() {
    return std::make_shared<ClassScanner>(kPunctuation, true, false);
}

std::shared_ptr<const SplitScanner> literal_scanner(std::string literal) {
    return std::make_shared<LiteralScanner>(std::move(literal));
}

Expected<std::shared_ptr<const SplitScanner>> regex_scanner(const std::string& pattern) {
    struct Known {
        std::string_view pattern;
        ModernPattern modern;
    };
    static constexpr std::array<Known, 3> kKnown{{
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
         {1, false}},
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
         {3, false}},
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
         {1, true}},
    }};
    for (const Known& known : kKnown) {
        if (known.pattern == pattern) return modern_scanner(known.modern);
    }
    if (pattern ==
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)") {
        return gpt2_scanner();
    }
    if (pattern == R"(\p{N})") return class_scanner(kNumber);
    BATON_TRY_ASSIGN(std::shared_ptr<const SplitScanner> scanner, pcre_scanner(pattern));
    if (pattern == R"(\s+$)") return std::make_shared<TrailingSpaceScanner>(std::move(scanner));
    return scanner;
}

}  // namespace baton::text
