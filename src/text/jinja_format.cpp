// Python's two string formatters.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "text/jinja_strings.hpp"
#include "text/jinja_vm.hpp"
#include "text/unicode.hpp"

namespace baton::text::jinja {
namespace {

constexpr int64_t kWidthMax = 1'000'000;
constexpr int kPrecisionMax = 1000;

/// One conversion of either formatter.
struct Spec {
    std::string fill = " ";
    char align = '\0';
    char sign = '-';
    bool alternate = false;
    bool zero = false;
    char group = '\0';
    int64_t width = 0;
    int precision = -1;
    char type = '\0';
};

std::string group_digits(const std::string& digits, char mark, size_t every) {
    std::string out;
    for (size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % every == 0) out += mark;
        out += digits[i];
    }
    return out;
}

std::string sign_of(bool negative, char sign) {
    if (negative) return "-";
    return sign == '-' ? std::string() : std::string(1, sign);
}

std::string int_digits(uint64_t magnitude, char type, bool alternate) {
    std::array<char, 72> buffer{};
    const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    const auto made = std::to_chars(buffer.data(), buffer.data() + buffer.size(), magnitude, base);
    std::string text(buffer.data(), made.ptr);
    if (type == 'X')
        std::transform(text.begin(), text.end(), text.begin(),
                       [](char c) { return c >= 'a' ? static_cast<char>(c - 32) : c; });
    if (alternate && base != 10) text = std::string("0") + type + text;
    return text;
}

std::string float_digits(double magnitude, const Spec& spec) {
    if (std::isnan(magnitude)) return "nan";
    if (std::isinf(magnitude)) return "inf";
    const char type = spec.type == '\0' || spec.type == '%' ? 'f'
                      : spec.type == 'n'                    ? 'g'
                                                            : spec.type;
    const int precision = std::clamp(spec.precision < 0 ? 6 : spec.precision, 0, kPrecisionMax);
    const std::string format = std::string("%") + (spec.alternate ? "#" : "") + ".*" + type;
    std::array<char, 1400> buffer{};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const int length =
        std::snprintf(buffer.data(), buffer.size(), format.c_str(), precision, magnitude);
#pragma GCC diagnostic pop
    return std::string(buffer.data(), static_cast<size_t>(std::clamp(
                                          length, 0, static_cast<int>(buffer.size()) - 1)));
}

/// Adds sign, grouping and padding to the digits of a number.
Value finish_number(Vm& vm, bool negative, std::string digits, const Spec& spec,
                    char default_align) {
    if (spec.group != '\0') {
        const size_t point = digits.find_first_not_of("0123456789");
        const std::string whole = digits.substr(0, point);
        digits = group_digits(whole, spec.group, 3) +
                 (point == std::string::npos ? "" : digits.substr(point));
    }
    const std::string sign = sign_of(negative, spec.sign);
    const auto have = static_cast<int64_t>(sign.size() + digits.size());
    if (spec.zero && spec.align == '\0' && spec.width > have) {
        digits.insert(digits.starts_with("0x") || digits.starts_with("0X") ? 2 : 0,
                      static_cast<size_t>(spec.width - have), '0');
    }
    const Value text = vm.make_str(sign + digits);
    if (vm.failed()) return {};
    return pad(vm, text.str(), spec.width, spec.fill,
               spec.align == '\0' || spec.align == '=' ? default_align : spec.align);
}

Value format_int(Vm& vm, int64_t value, const Spec& spec, char align) {
    const bool negative = value < 0;
    const uint64_t magnitude =
        negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    return finish_number(vm, negative, int_digits(magnitude, spec.type, spec.alternate), spec,
                         align);
}

Value format_float(Vm& vm, double value, const Spec& spec, char align) {
    const bool negative = std::signbit(value) && !std::isnan(value);
    const double magnitude = std::fabs(value) * (spec.type == '%' ? 100 : 1);
    std::string digits;
    if (spec.type == '\0' && spec.precision < 0) {
        digits = float_repr(magnitude);
    } else if (spec.type == '\0') {
        Spec general = spec;
        general.type = 'g';
        general.precision = std::max(spec.precision, 1);
        digits = float_digits(magnitude, general);
        if (digits.find_first_not_of("0123456789") == std::string::npos &&
            spec.precision > static_cast<int>(digits.size()))
            digits += ".0";
    } else {
        digits = float_digits(magnitude, spec);
    }
    if (spec.type == '%') digits += '%';
    return finish_number(vm, negative, digits, spec, align);
}

Value format_str(Vm& vm, const Value& text, const Spec& spec) {
    Value cut = text;
    if (spec.precision >= 0 && static_cast<size_t>(spec.precision) < text.str().chars) {
        cut = vm.slice(text, Value::none(), Value::of_int(spec.precision), Value::none());
        if (vm.failed()) return {};
    }
    return pad(vm, cut.str(), spec.width, spec.fill, spec.align == '\0' ? '<' : spec.align);
}

/// Reads a format specification of str.format.
bool parse_spec(Vm& vm, std::string_view text, Spec& spec) {
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    size_t pos = 0;
    const auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
    if (!text.empty()) {
        const size_t first = decode_utf8(text, 0).length;
        if (is_align(at(first))) {
            spec.fill = text.substr(0, first);
            spec.align = text[first];
            pos = first + 1;
        } else if (is_align(text[0])) {
            spec.align = text[0];
            pos = 1;
        }
    }
    if (at(pos) == '+' || at(pos) == '-' || at(pos) == ' ') spec.sign = text[pos++];
    if (at(pos) == '#') {
        spec.alternate = true;
        ++pos;
    }
    if (at(pos) == '0') {
        spec.zero = true;
        ++pos;
    }
    const auto number = [&](int64_t most) -> int64_t {
        int64_t value = 0;
        for (; at(pos) >= '0' && at(pos) <= '9'; ++pos)
            value = std::min<int64_t>(value * 10 + (text[pos] - '0'), most + 1);
        if (value > most) vm.error("a format width is too large");
        return value;
    };
    spec.width = number(kWidthMax);
    if (at(pos) == ',' || at(pos) == '_') spec.group = text[pos++];
    if (at(pos) == '.') {
        ++pos;
        spec.precision = static_cast<int>(number(kPrecisionMax));
    }
    if (pos < text.size()) spec.type = text[pos++];
    if (pos != text.size()) vm.error("invalid format specifier");
    return !vm.failed();
}

Value apply_spec(Vm& vm, const Value& value, std::string_view text) {
    Spec spec;
    if (!parse_spec(vm, text, spec)) return {};
    const bool int_type =
        std::string_view("dxXobn").find(spec.type) != std::string_view::npos && spec.type != '\0';
    const bool float_type =
        std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != '\0';
    if (value.is_int() && (int_type || (spec.type == '\0' && !value.is(Kind::kBool)))) {
        return format_int(vm, value.as_int(), spec, '>');
    }
    if (value.is_number() && (float_type || (value.is(Kind::kFloat) && spec.type == '\0'))) {
        return format_float(vm, value.as_float(), spec, '>');
    }
    if (text.empty()) return vm.to_str(value);
    if (value.is_str() && (spec.type == '\0' || spec.type == 's') && spec.align != '=')
        return format_str(vm, value, spec);
    return vm.error("unsupported format string for " + std::string(type_name(value.kind)));
}

/// Walks the pieces of str.format.
class BraceFormatter {
  public:
    BraceFormatter(Vm& vm, const StrObject& format, Args& args)
        : vm_(vm), format_(format), args_(args), out_(vm) {}

    Value run() {
        const std::string_view text = format_.text;
        size_t clean = 0;
        for (size_t pos = 0; pos < text.size() && vm_.spend();) {
            const char c = text[pos];
            if (c != '{' && c != '}') {
                ++pos;
                continue;
            }
            out_.add_part(format_, clean, pos);
            if (pos + 1 < text.size() && text[pos + 1] == c) {
                out_.add_part(format_, pos, pos + 1);
                pos += 2;
            } else if (c == '}') {
                return vm_.error("Single '}' encountered in format string");
            } else {
                const size_t end = text.find('}', pos);
                if (end == std::string_view::npos)
                    return vm_.error("Single '{' encountered in format string");
                const std::string_view field = text.substr(pos + 1, end - pos - 1);
                if (field.find('{') != std::string_view::npos)
                    return vm_.error("nested replacement fields are unsupported");
                replace(field);
                pos = end + 1;
            }
            clean = pos;
        }
        out_.add_part(format_, clean, text.size());
        return out_.finish(format_.markup);
    }

  private:
    void replace(std::string_view field) {
        std::string_view spec;
        std::string_view conversion;
        if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
            spec = field.substr(colon + 1);
            field = field.substr(0, colon);
        }
        if (const size_t bang = field.find('!'); bang != std::string_view::npos) {
            conversion = field.substr(bang + 1);
            field = field.substr(0, bang);
        }
        Value value = look_up(field);
        if (conversion == "r") {
            StrBuilder text(vm_);
            vm_.append_repr(text, value);
            value = text.finish();
        } else if (conversion == "s") {
            value = vm_.to_str(value);
        } else if (!conversion.empty()) {
            vm_.error("unknown conversion specifier");
        }
        if (vm_.failed()) return;
        const Value text = apply_spec(vm_, value, spec);
        if (!vm_.failed()) out_.add(text.str());
    }

    Value look_up(std::string_view field) {
        size_t end = field.find_first_of(".[");
        if (end == std::string_view::npos) end = field.size();
        const std::string_view first = field.substr(0, end);
        Value value = Value::missing();
        size_t index = 0;
        const auto [stop, error] =
            std::from_chars(first.data(), first.data() + first.size(), index);
        if (first.empty()) {
            index = next_++;
        } else if (error != std::errc() || stop != first.data() + first.size()) {
            for (const auto& [name, given] : args_.named) {
                if (name == first) value = given;
            }
            if (value.is_missing())
                return vm_.error("format() misses the key '" + std::string(first.substr(0, 64)) +
                                 "'");
        }
        if (value.is_missing()) {
            if (index >= args_.positional.size())
                return vm_.error("replacement index out of range");
            value = args_.positional[index];
        }
        field = field.substr(end);
        while (!field.empty() && !vm_.failed()) {
            const bool item = field[0] == '[';
            end = field.find_first_of(item ? "]" : ".[", 1);
            if (item && end == std::string_view::npos)
                return vm_.error("expected ']' before end of string");
            if (end == std::string_view::npos) end = field.size();
            const std::string_view name = field.substr(1, end - 1);
            int64_t number = 0;
            const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
            const bool numeric =
                item && parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
            value = numeric ? vm_.get_item(value, Value::of_int(number))
                    : item  ? vm_.get_item(value, vm_.make_str(name))
                            : vm_.get_attr(value, name);
            field = field.substr(item ? end + 1 : end);
        }
        return value;
    }

    Vm& vm_;
    const StrObject& format_;
    Args& args_;
    StrBuilder out_;
    size_t next_ = 0;
};

/// Walks the conversions of the % operator.
class PercentFormatter {
  public:
    PercentFormatter(Vm& vm, const StrObject& format, const Value& args)
        : vm_(vm), format_(format), args_(args), out_(vm) {}

    Value run() {
        const std::string_view text = format_.text;
        for (size_t pos = 0; vm_.spend();) {
            const size_t mark = text.find('%', pos);
            if (mark == std::string_view::npos) {
                out_.add_part(format_, pos, text.size());
                break;
            }
            out_.add_part(format_, pos, mark);
            pos = conversion(mark + 1);
        }
        if (vm_.failed()) return {};
        const bool tuple_left =
            args_.is(Kind::kTuple) && next_ < args_.get<SeqObject>().items.size();
        // Anything with items may be left over, as it could have been a mapping.
        const bool has_items = args_.is(Kind::kTuple) || args_.is(Kind::kDict) ||
                               args_.is(Kind::kList) || args_.is(Kind::kRange) ||
                               args_.is_undefined();
        const bool one_left = !has_items && next_ == 0;
        if (tuple_left || one_left)
            return vm_.error("not all arguments converted during string formatting");
        return out_.finish(format_.markup);
    }

  private:
    [[nodiscard]] char at(size_t i) const {
        return i < format_.text.size() ? format_.text[i] : '\0';
    }

    Value next_argument() {
        if (args_.is(Kind::kTuple)) {
            const auto& items = args_.get<SeqObject>().items;
            if (next_ < items.size()) return items[next_++];
        } else if (next_ == 0) {
            ++next_;
            return args_;
        }
        return vm_.error("not enough arguments for format string");
    }

    int64_t number(size_t& pos, int64_t most) {
        if (at(pos) == '*') {
            ++pos;
            return std::clamp<int64_t>(vm_.int_arg(next_argument(), 0, "* "), 0, most);
        }
        int64_t value = 0;
        for (; at(pos) >= '0' && at(pos) <= '9'; ++pos)
            value = std::min<int64_t>(value * 10 + (at(pos) - '0'), most + 1);
        if (value > most) vm_.error("a format width is too large");
        return value;
    }

    /// One conversion after its '%'; returns where it ends.
    size_t conversion(size_t pos) {
        Spec spec;
        std::optional<Value> keyed;
        if (at(pos) == '(') {
            const size_t end = format_.text.find(')', pos);
            if (end == std::string::npos || !args_.is(Kind::kDict)) {
                vm_.error("format requires a mapping");
                return pos;
            }
            const Value* found = args_.get<DictObject>().find(
                std::string_view(format_.text).substr(pos + 1, end - pos - 1));
            if (found == nullptr) {
                vm_.error("format string names a missing key");
                return pos;
            }
            keyed = *found;
            pos = end + 1;
        }
        for (;; ++pos) {
            const char c = at(pos);
            if (c == '-')
                spec.align = '<';
            else if (c == '+')
                spec.sign = '+';
            else if (c == ' ')
                spec.sign = spec.sign == '+' ? '+' : ' ';
            else if (c == '#')
                spec.alternate = true;
            else if (c == '0')
                spec.zero = true;
            else
                break;
        }
        spec.width = number(pos, kWidthMax);
        if (at(pos) == '.') spec.precision = static_cast<int>(number(++pos, kPrecisionMax));
        while (at(pos) == 'l' || at(pos) == 'h' || at(pos) == 'L') ++pos;
        spec.type = at(pos);
        if (spec.type == '%') {
            out_.add("%");
            return pos + 1;
        }
        if (vm_.failed()) return pos;
        const Value value = keyed ? *keyed : next_argument();
        if (!vm_.failed()) convert(value, spec);
        return pos + 1;
    }

    void convert(const Value& value, Spec& spec) {
        Value text;
        switch (spec.type) {
            case 's':
            case 'r':
            case 'a': {
                if (spec.type == 's') {
                    text = vm_.to_str(value);
                } else {
                    StrBuilder repr(vm_);
                    vm_.append_repr(repr, value);
                    text = repr.finish();
                }
                if (spec.align == '\0') spec.align = '>';
                if (!vm_.failed()) text = format_str(vm_, text, spec);
                break;
            }
            case 'd':
            case 'i':
            case 'u':
                if (value.is(Kind::kBigInt)) {
                    text = vm_.to_str(value);
                } else if (value.is_number()) {
                    spec.type = 'd';
                    if (!(std::fabs(value.as_float()) < 9e18) && value.is(Kind::kFloat))
                        vm_.error("integer overflow");
                    if (!vm_.failed()) {
                        text = format_int(vm_,
                                          value.is(Kind::kFloat) ? static_cast<int64_t>(value.real)
                                                                 : value.as_int(),
                                          spec, '>');
                    }
                } else {
                    vm_.error("%d format: a real number is required, not " +
                              std::string(type_name(value.kind)));
                }
                break;
            case 'x':
            case 'X':
            case 'o':
                if (!value.is_int())
                    vm_.error("%x format: an integer is required, not " +
                              std::string(type_name(value.kind)));
                if (!vm_.failed()) text = format_int(vm_, value.as_int(), spec, '>');
                break;
            case 'e':
            case 'E':
            case 'f':
            case 'F':
            case 'g':
            case 'G':
                if (!value.is_number())
                    vm_.error("must be real number, not " + std::string(type_name(value.kind)));
                if (!vm_.failed()) text = format_float(vm_, value.as_float(), spec, '>');
                break;
            case 'c': {
                if (value.is_str() && value.str().chars == 1) {
                    text = value;
                } else if (value.is_int() && value.as_int() >= 0 && value.as_int() < 0xD800) {
                    std::string one;
                    append_utf8(one, static_cast<uint32_t>(value.as_int()));
                    text = vm_.make_str(one);
                } else {
                    vm_.error("%c requires int or char");
                }
                break;
            }
            default:
                vm_.error("unsupported format character");
                break;
        }
        if (!vm_.failed()) out_.add(text.str());
    }

    Vm& vm_;
    const StrObject& format_;
    const Value& args_;
    StrBuilder out_;
    size_t next_ = 0;
};

}  // namespace

Value percent_format(Vm& vm, const StrObject& format, const Value& args) {
    return PercentFormatter(vm, format, args).run();
}

Value brace_format(Vm& vm, const StrObject& format, Args& args) {
    return BraceFormatter(vm, format, args).run();
}

}  // namespace baton::text::jinja
