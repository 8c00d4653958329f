// str(), repr() and json.dumps().
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/jinja_depth.hpp"
#include "text/jinja_vm.hpp"
#include "text/unicode.hpp"

namespace baton::text::jinja {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

void add_hex(std::string& out, uint32_t code, int digits) {
    for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4)
        out += kHexDigits[(code >> shift) & 15];
}

/// repr() of a string; escapes keep the mark of the character they stand for.
void repr_str(Vm& vm, StrBuilder& out, const StrObject& text) {
    const bool has_single = text.text.find('\'') != std::string::npos;
    const char quote = has_single && text.text.find('"') == std::string::npos ? '"' : '\'';
    const std::string_view quoted(&quote, 1);
    out.add(quoted);
    size_t clean = 0;  // start of what is copied as it is
    auto range = text.taint.begin();
    for (size_t pos = 0; pos < text.text.size();) {
        const CodePoint cp = decode_utf8(text.text, pos);
        const size_t next = pos + cp.length;
        std::string escaped;
        if (cp.code == '\n') {
            escaped = "\\n";
        } else if (cp.code == '\r') {
            escaped = "\\r";
        } else if (cp.code == '\t') {
            escaped = "\\t";
        } else if (cp.code == '\\' || cp.code == static_cast<uint8_t>(quote)) {
            escaped = {'\\', static_cast<char>(cp.code)};
        } else if (!is_printable(cp.code)) {
            const int digits = cp.code < 0x100 ? 2 : cp.code < 0x10000 ? 4 : 8;
            escaped = digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
            add_hex(escaped, cp.code, digits);
        }
        if (!escaped.empty()) {
            if (!vm.spend()) return;
            out.add_part(text, clean, pos);
            while (range != text.taint.end() && range->end <= pos) ++range;
            out.add(escaped, range != text.taint.end() && range->begin <= pos);
            clean = next;
        }
        pos = next;
    }
    out.add_part(text, clean, text.text.size());
    out.add(quoted);
}

void repr_items(Vm& vm, StrBuilder& out, const Value& value, std::string_view open,
                std::string_view close) {
    out.add(open);
    bool first = true;
    for (const Value& item : value.get<SeqObject>().items) {
        if (!vm.spend()) return;
        if (!first) out.add(", ");
        first = false;
        vm.append_repr(out, item);
    }
    if (value.is(Kind::kTuple) && value.get<SeqObject>().items.size() == 1) out.add(",");
    out.add(close);
}

template <class Items, class KeyOf>
void repr_pairs(Vm& vm, StrBuilder& out, const Items& items, KeyOf&& add_key) {
    out.add("{");
    bool first = true;
    for (const auto& [key, value] : items) {
        if (!vm.spend()) return;
        if (!first) out.add(", ");
        first = false;
        add_key(key);
        out.add(": ");
        vm.append_repr(out, value);
    }
    out.add("}");
}

void json_str(Vm& vm, StrBuilder& out, const StrObject& text, bool ensure_ascii) {
    out.add("\"");
    size_t clean = 0;
    auto range = text.taint.begin();
    for (size_t pos = 0; pos < text.text.size();) {
        const auto byte = static_cast<uint8_t>(text.text[pos]);
        const bool plain =
            byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x7F || !ensure_ascii);
        if (plain) {
            ++pos;
            continue;
        }
        const CodePoint cp = decode_utf8(text.text, pos);
        std::string escaped = "\\";
        static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f";
        static constexpr std::string_view kTo = "\"\\nrtbf";
        const size_t simple =
            cp.code < 0x80 ? kFrom.find(static_cast<char>(cp.code)) : std::string_view::npos;
        if (simple != std::string_view::npos) {
            escaped += kTo[simple];
        } else if (cp.code >= 0x10000) {
            escaped += 'u';
            add_hex(escaped, 0xD800 + ((cp.code - 0x10000) >> 10), 4);
            escaped += "\\u";
            add_hex(escaped, 0xDC00 + ((cp.code - 0x10000) & 0x3FF), 4);
        } else {
            escaped += 'u';
            add_hex(escaped, cp.code, 4);
        }
        if (!vm.spend()) return;
        out.add_part(text, clean, pos);
        while (range != text.taint.end() && range->end <= pos) ++range;
        out.add(escaped, range != text.taint.end() && range->begin <= pos);
        pos += cp.length;
        clean = pos;
    }
    out.add_part(text, clean, text.text.size());
    out.add("\"");
}

class JsonPrinter {
  public:
    JsonPrinter(Vm& vm, StrBuilder& out, const JsonStyle& style)
        : vm_(vm), out_(out), style_(style) {}

    void print(const Value& value, int level) {
        if (level > static_cast<int>(limits::kJsonDepthMax) * 2)
            vm_.error("value nested too deeply for tojson");
        if (!vm_.spend()) return;
        switch (value.kind) {
            case Kind::kNone:
                out_.add("null");
                break;
            case Kind::kBool:
                out_.add(value.boolean ? "true" : "false");
                break;
            case Kind::kInt:
                out_.add(std::to_string(value.integer));
                break;
            case Kind::kBigInt:
                out_.add(value.get<BigIntObject>().digits);
                break;
            case Kind::kFloat:
                out_.add(json_float(value.real));
                break;
            case Kind::kStr:
                json_str(vm_, out_, value.str(), style_.ensure_ascii);
                break;
            case Kind::kList:
            case Kind::kTuple:
                list(value.get<SeqObject>().items, level);
                break;
            case Kind::kDict:
                dict(value.get<DictObject>(), level);
                break;
            default:
                vm_.error("Object of type " + std::string(type_name(value.kind)) +
                          " is not JSON serializable");
        }
    }

  private:
    static std::string json_float(double value) {
        if (std::isnan(value)) return "NaN";
        if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
        return float_repr(value);
    }
    void line(int level) {
        if (!style_.pretty) return;
        out_.add("\n");
        for (int i = 0; i < level; ++i) out_.add(style_.indent);
    }
    void list(const std::vector<Value>& items, int level) {
        if (items.empty()) {
            out_.add("[]");
            return;
        }
        out_.add("[");
        for (size_t i = 0; i < items.size() && !vm_.failed(); ++i) {
            if (i > 0) out_.add(style_.item_separator);
            line(level + 1);
            print(items[i], level + 1);
        }
        line(level);
        out_.add("]");
    }
    void key(const Value& name) {
        switch (name.kind) {
            case Kind::kStr:
                json_str(vm_, out_, name.str(), style_.ensure_ascii);
                break;
            case Kind::kNone:
            case Kind::kBool:
            case Kind::kInt:
            case Kind::kBigInt:
            case Kind::kFloat:
                out_.add("\"");
                print(name, 0);
                out_.add("\"");
                break;
            default:
                vm_.error("keys must be str, int, float, bool or None, not " +
                          std::string(type_name(name.kind)));
        }
    }
    void dict(const DictObject& dict, int level) {
        if (dict.items.empty()) {
            out_.add("{}");
            return;
        }
        std::vector<const std::pair<Value, Value>*> order;
        order.reserve(dict.items.size());
        for (const auto& item : dict.items) order.push_back(&item);
        if (style_.sort_keys) {
            std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
                return vm_.compare(a->first, b->first, "<") == -1;
            });
        }
        out_.add("{");
        for (size_t i = 0; i < order.size() && !vm_.failed(); ++i) {
            if (i > 0) out_.add(style_.item_separator);
            line(level + 1);
            key(order[i]->first);
            out_.add(style_.key_separator);
            print(order[i]->second, level + 1);
        }
        line(level);
        out_.add("}");
    }

    Vm& vm_;
    StrBuilder& out_;
    const JsonStyle& style_;
};

}  // namespace

std::string_view type_name(Kind kind) {
    switch (kind) {
        case Kind::kMissing:
        case Kind::kUndefined:
            return "Undefined";
        case Kind::kNone:
            return "NoneType";
        case Kind::kBool:
            return "bool";
        case Kind::kInt:
        case Kind::kBigInt:
            return "int";
        case Kind::kFloat:
            return "float";
        case Kind::kStr:
            return "str";
        case Kind::kList:
            return "list";
        case Kind::kTuple:
            return "tuple";
        case Kind::kDict:
            return "dict";
        case Kind::kRange:
            return "range";
        case Kind::kGenerator:
            return "generator";
        case Kind::kDictKeys:
            return "dict_keys";
        case Kind::kDictValues:
            return "dict_values";
        case Kind::kDictItems:
            return "dict_items";
        case Kind::kNamespace:
            return "Namespace";
        case Kind::kMacro:
            return "Macro";
        case Kind::kMethod:
            return "builtin_function_or_method";
        case Kind::kFunction:
            return "function";
        case Kind::kLoop:
            return "LoopContext";
        case Kind::kCycler:
            return "Cycler";
        case Kind::kJoiner:
            return "Joiner";
    }
    return "object";
}

std::string float_repr(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    std::array<char, 64> buffer{};
    const auto made = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                    std::chars_format::scientific);
    const std::string_view text(buffer.data(), static_cast<size_t>(made.ptr - buffer.data()));
    const size_t mark = text.find('e');
    int exponent = 0;
    const char* digits_end = text.data() + text.size();
    std::from_chars(text.data() + mark + (text[mark + 1] == '+' ? 2 : 1), digits_end, exponent);
    std::string out;
    std::string digits;
    for (const char c : text.substr(0, mark)) {
        if (c == '-') out += '-';
        if (c >= '0' && c <= '9') digits += c;
    }
    const auto count = static_cast<int>(digits.size());
    if (exponent < -4 || exponent >= 16) {
        out += digits[0];
        if (count > 1) out.append(".").append(digits, 1);
        const std::string power = std::to_string(std::abs(exponent));
        return out + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
    }
    if (exponent < 0)
        return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    if (count <= exponent + 1)
        return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
    return out + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
           digits.substr(static_cast<size_t>(exponent) + 1);
}

Value Vm::to_str(const Value& value) {
    if (value.is_str()) return value;
    StrBuilder out(*this);
    append_str(out, value);
    return out.finish();
}

void Vm::append_str(StrBuilder& out, const Value& value) {
    if (failed_ || value.is_undefined()) return;
    if (value.is_str()) {
        out.add(value.str());
    } else {
        append_repr(out, value);
    }
}

void Vm::append_repr(StrBuilder& out, const Value& value) {
    const Depth guard(*this);
    if (!spend()) return;
    switch (value.kind) {
        case Kind::kMissing:
        case Kind::kUndefined:
            out.add("Undefined");
            break;
        case Kind::kNone:
            out.add("None");
            break;
        case Kind::kBool:
            out.add(value.boolean ? "True" : "False");
            break;
        case Kind::kInt:
            out.add(std::to_string(value.integer));
            break;
        case Kind::kBigInt:
            out.add(value.get<BigIntObject>().digits);
            break;
        case Kind::kFloat:
            out.add(float_repr(value.real));
            break;
        case Kind::kStr:
            if (value.str().markup) out.add("Markup(");
            repr_str(*this, out, value.str());
            if (value.str().markup) out.add(")");
            break;
        case Kind::kList:
            repr_items(*this, out, value, "[", "]");
            break;
        case Kind::kTuple:
            repr_items(*this, out, value, "(", ")");
            break;
        case Kind::kDictKeys:
            repr_items(*this, out, value, "dict_keys([", "])");
            break;
        case Kind::kDictValues:
            repr_items(*this, out, value, "dict_values([", "])");
            break;
        case Kind::kDictItems:
            repr_items(*this, out, value, "dict_items([", "])");
            break;
        case Kind::kDict:
            repr_pairs(*this, out, value.get<DictObject>().items,
                       [&](const Value& key) { append_repr(out, key); });
            break;
        case Kind::kNamespace:
            out.add("<Namespace ");
            repr_pairs(*this, out, value.get<NamespaceObject>().attrs,
                       [&](const std::string& key) { out.add("'" + key + "'"); });
            out.add(">");
            break;
        case Kind::kRange: {
            const auto& range = value.get<RangeObject>();
            out.add("range(" + std::to_string(range.start) + ", " + std::to_string(range.stop) +
                    (range.step == 1 ? "" : ", " + std::to_string(range.step)) + ")");
            break;
        }
        case Kind::kMacro: {
            const std::string& name = value.get<MacroObject>().def->name;
            out.add(name.empty() ? "<Macro anonymous>" : "<Macro '" + name + "'>");
            break;
        }
        case Kind::kLoop: {
            const auto& loop = value.get<LoopObject>();
            out.add("<LoopContext " + std::to_string(loop.index0 + 1) + "/" +
                    std::to_string(loop.seq->items.size()) + ">");
            break;
        }
        default:
            out.add("<" + std::string(type_name(value.kind)) + " object>");
            break;
    }
}

void append_json(Vm& vm, StrBuilder& out, const Value& value, const JsonStyle& style) {
    JsonPrinter(vm, out, style).print(value, 0);
}

}  // namespace baton::text::jinja
