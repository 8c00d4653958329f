#include "text/json.hpp"

#include <charconv>
#include <cstdint>

#include "text/unicode.hpp"

namespace baton::text {
namespace {

class Reader {
  public:
    Reader(std::string_view source, size_t depth_max, JsonHandler& handler)
        : source_(source), depth_max_(depth_max), handler_(handler) {}

    Expected<void> run() {
        if (value(0)) {
            skip_space();
            if (pos_ != source_.size()) stop("text after the end of the JSON value");
        }
        if (why_ == nullptr) return {};
        return fail(ErrorCode::kInvalidArgument,
                    std::string("invalid JSON at byte ") + std::to_string(pos_) + ": " + why_);
    }

  private:
    bool stop(const char* why) {
        if (why_ == nullptr) why_ = why;
        return false;
    }
    bool told(bool wanted) { return wanted || stop("refused by the reader (too large)"); }
    void skip_space() {
        while (pos_ < source_.size()) {
            const char c = source_[pos_];
            if (c != ' ' && c != '\n' && c != '\r' && c != '\t') break;
            ++pos_;
        }
    }
    [[nodiscard]] char peek() const { return pos_ < source_.size() ? source_[pos_] : '\0'; }
    bool literal(std::string_view word) {
        if (source_.substr(pos_, word.size()) != word) return stop("unknown literal");
        pos_ += word.size();
        return true;
    }

    bool value(size_t depth) {
        skip_space();
        switch (peek()) {
            case 'n':
                return literal("null") && told(handler_.on_null());
            case 't':
                return literal("true") && told(handler_.on_bool(true));
            case 'f':
                return literal("false") && told(handler_.on_bool(false));
            case '"': {
                std::string text;
                return string(text) && told(handler_.on_string(std::move(text)));
            }
            case '[':
                if (depth >= depth_max_) return stop("nested too deeply");
                return array(depth + 1);
            case '{':
                if (depth >= depth_max_) return stop("nested too deeply");
                return object(depth + 1);
            default:
                return number();
        }
    }

    bool array(size_t depth) {
        ++pos_;
        if (!told(handler_.begin_array())) return false;
        skip_space();
        if (peek() == ']') {
            ++pos_;
            return told(handler_.end_array());
        }
        for (;;) {
            if (!value(depth)) return false;
            skip_space();
            const char c = peek();
            if (c != ',' && c != ']') return stop("expected ',' or ']'");
            ++pos_;
            if (c == ']') return told(handler_.end_array());
        }
    }

    bool object(size_t depth) {
        ++pos_;
        if (!told(handler_.begin_object())) return false;
        skip_space();
        if (peek() == '}') {
            ++pos_;
            return told(handler_.end_object());
        }
        for (;;) {
            skip_space();
            if (peek() != '"') return stop("expected a key");
            std::string key;
            if (!string(key) || !told(handler_.on_key(std::move(key)))) return false;
            skip_space();
            if (peek() != ':') return stop("expected ':'");
            ++pos_;
            if (!value(depth)) return false;
            skip_space();
            const char c = peek();
            if (c != ',' && c != '}') return stop("expected ',' or '}'");
            ++pos_;
            if (c == '}') return told(handler_.end_object());
        }
    }

    bool number() {
        const size_t begin = pos_;
        if (peek() == '-') ++pos_;
        if (peek() == '0') {
            ++pos_;
        } else if (!digits()) {
            return stop("expected a value");
        }
        if (peek() == '.') {
            ++pos_;
            if (!digits()) return stop("expected digits after '.'");
        }
        if (peek() == 'e' || peek() == 'E') {
            ++pos_;
            if (peek() == '+' || peek() == '-') ++pos_;
            if (!digits()) return stop("expected digits in the exponent");
        }
        return told(handler_.on_number(source_.substr(begin, pos_ - begin)));
    }
    bool digits() {
        const size_t begin = pos_;
        while (peek() >= '0' && peek() <= '9') ++pos_;
        return pos_ > begin;
    }

    bool string(std::string& out) {
        ++pos_;
        for (;;) {
            const size_t begin = pos_;
            while (pos_ < source_.size()) {
                const auto c = static_cast<unsigned char>(source_[pos_]);
                if (c == '"' || c == '\\' || c < 0x20 || c >= 0x80) break;
                ++pos_;
            }
            out.append(source_, begin, pos_ - begin);
            if (pos_ >= source_.size()) return stop("unterminated string");
            const auto c = static_cast<unsigned char>(source_[pos_]);
            if (c == '"') {
                ++pos_;
                return true;
            }
            if (c < 0x20) return stop("raw control character in a string");
            if (c == '\\') {
                if (!escape(out)) return false;
                continue;
            }
            const size_t length = valid_utf8_length(source_, pos_);
            if (length == 0) return stop("invalid UTF-8");
            out.append(source_, pos_, length);
            pos_ += length;
        }
    }

    bool escape(std::string& out) {
        ++pos_;
        const char c = peek();
        ++pos_;
        switch (c) {
            case '"':
                out += '"';
                return true;
            case '\\':
                out += '\\';
                return true;
            case '/':
                out += '/';
                return true;
            case 'b':
                out += '\b';
                return true;
            case 'f':
                out += '\f';
                return true;
            case 'n':
                out += '\n';
                return true;
            case 'r':
                out += '\r';
                return true;
            case 't':
                out += '\t';
                return true;
            case 'u':
                break;
            default:
                return stop("unknown escape");
        }
        uint32_t code = 0;
        if (!hex4(code)) return false;
        if (code >= 0xDC00 && code <= 0xDFFF) return stop("lone surrogate");
        if (code >= 0xD800 && code <= 0xDBFF) {
            uint32_t low = 0;
            if (source_.substr(pos_, 2) != "\\u") return stop("lone surrogate");
            pos_ += 2;
            if (!hex4(low)) return false;
            if (low < 0xDC00 || low > 0xDFFF) return stop("lone surrogate");
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        append_utf8(out, code);
        return true;
    }

    bool hex4(uint32_t& code) {
        if (source_.size() - pos_ < 4 || pos_ > source_.size()) return stop("short \\u escape");
        const char* begin = source_.data() + pos_;
        const auto [end, error] = std::from_chars(begin, begin + 4, code, 16);
        if (error != std::errc() || end != begin + 4) return stop("bad \\u escape");
        pos_ += 4;
        return true;
    }

    std::string_view source_;
    size_t depth_max_;
    JsonHandler& handler_;
    size_t pos_ = 0;
    const char* why_ = nullptr;
};

/// Builds a JsonValue tree.
class TreeBuilder final : public JsonHandler {
  public:
    explicit TreeBuilder(size_t nodes_max) : left_(nodes_max) {}
    bool on_null() override { return add({}) != nullptr; }
    bool on_bool(bool value) override {
        JsonValue node;
        node.kind = value ? JsonValue::Kind::kTrue : JsonValue::Kind::kFalse;
        return add(std::move(node)) != nullptr;
    }
    bool on_number(std::string_view source) override {
        JsonValue node;
        node.kind = JsonValue::Kind::kNumber;
        node.text = source;
        return add(std::move(node)) != nullptr;
    }
    bool on_string(std::string&& value) override {
        JsonValue node;
        node.kind = JsonValue::Kind::kString;
        node.text = std::move(value);
        return add(std::move(node)) != nullptr;
    }
    bool on_key(std::string&& key) override {
        key_ = std::move(key);
        return true;
    }
    bool begin_array() override { return open(JsonValue::Kind::kArray); }
    bool end_array() override { return close(); }
    bool begin_object() override { return open(JsonValue::Kind::kObject); }
    bool end_object() override { return close(); }
    JsonValue take() { return std::move(root_); }

  private:
    JsonValue* add(JsonValue&& node) {
        if (left_ == 0) return nullptr;
        --left_;
        if (open_.empty()) {
            root_ = std::move(node);
            return &root_;
        }
        JsonValue& parent = *open_.back();
        if (parent.kind == JsonValue::Kind::kArray)
            return &parent.items.emplace_back(std::move(node));
        return &parent.members.emplace_back(std::move(key_), std::move(node)).second;
    }
    bool open(JsonValue::Kind kind) {
        JsonValue node;
        node.kind = kind;
        JsonValue* added = add(std::move(node));
        if (added == nullptr) return false;
        open_.push_back(added);  // stays valid: its parent gets no other child before it is closed
        return true;
    }
    bool close() {
        open_.pop_back();
        return true;
    }

    size_t left_;
    JsonValue root_;
    std::string key_;
    std::vector<JsonValue*> open_;
};

}  // namespace

Expected<void> parse_json(std::string_view source, size_t depth_max, JsonHandler& handler) {
    return Reader(source, depth_max, handler).run();
}

Expected<JsonValue> read_json(std::string_view source, size_t depth_max, size_t nodes_max) {
    TreeBuilder builder(nodes_max);
    BATON_TRY(parse_json(source, depth_max, builder));
    return builder.take();
}

const JsonValue* JsonValue::find(std::string_view key) const {
    for (auto it = members.rbegin(); it != members.rend(); ++it) {
        if (it->first == key) return &it->second;
    }
    return nullptr;
}

std::string_view JsonValue::string_or_empty(std::string_view key) const {
    const JsonValue* member = find(key);
    return member != nullptr && member->is_string() ? std::string_view(member->text)
                                                    : std::string_view();
}

bool JsonValue::bool_or(std::string_view key, bool fallback) const {
    const JsonValue* member = find(key);
    if (member == nullptr) return fallback;
    if (member->kind == Kind::kTrue) return true;
    if (member->kind == Kind::kFalse) return false;
    return fallback;
}

int64_t JsonValue::int_or(int64_t fallback) const {
    if (kind != Kind::kNumber) return fallback;
    int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && stop == end ? value : fallback;
}

}  // namespace baton::text
