#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_filters.hpp"
#include "text/jinja_strings.hpp"
#include "text/unicode.hpp"

namespace baton::text::jinja {
namespace {

/// str(value) of a filter's input; null on error.
const StrObject* as_str(Vm& vm, const Value& value, Value& keep) {
    keep = vm.to_str(value);
    return vm.failed() ? nullptr : &keep.str();
}

template <Case Wanted>
Value filter_case(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("case filter", args, {});
    Value keep;
    const StrObject* text = as_str(vm, self, keep);
    return text == nullptr ? Value() : map_case(vm, *text, Wanted);
}

Value filter_capitalize(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("capitalize", args, {});
    Value keep;
    const StrObject* text = as_str(vm, self, keep);
    return text == nullptr ? Value() : capitalize(vm, *text);
}

/// jinja2's own title: words are split at [-\s({\[<]+ only.
Value filter_title(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("title", args, {});
    Value keep;
    const StrObject* text = as_str(vm, self, keep);
    if (text == nullptr) return {};
    StrBuilder out(vm);
    const std::string_view view = text->text;
    const auto breaks = [&](size_t pos) {
        const uint32_t code = decode_utf8(view, pos).code;
        return is_python_space(code) ||
               (code < 0x80 &&
                std::string_view("-({[<").find(static_cast<char>(code)) != std::string_view::npos);
    };
    for (size_t pos = 0; pos < view.size() && vm.spend();) {
        const bool is_break = breaks(pos);
        const size_t begin = pos;
        while (pos < view.size() && breaks(pos) == is_break) pos += decode_utf8(view, pos).length;
        const size_t first = begin + decode_utf8(view, begin).length;
        const Value head = part_of(vm, *text, begin, first);
        const Value tail = part_of(vm, *text, first, pos);
        if (vm.failed()) return {};
        out.add(map_case(vm, head.str(), Case::kUpper).str());
        const Value low = map_case(vm, tail.str(), Case::kLower);
        if (vm.failed()) return {};
        out.add(low.str());
    }
    return out.finish();
}

Value filter_string(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("string", args, {});
    return vm.to_str(self);
}

Value filter_trim(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("trim", args, {"chars"});
    Value keep;
    const StrObject* text = as_str(vm, self, keep);
    if (text == nullptr) return {};
    const bool any = a[0].is_missing() || a[0].is(Kind::kNone);
    if (!any && !a[0].is_str()) return vm.error("strip arg must be None or str");
    return strip(vm, *text, any ? nullptr : &a[0].str(), true, true);
}

Value filter_replace(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("replace", args, {"old", "new", "count"}, 2);
    if (vm.failed()) return {};
    const Value text = vm.to_str(self);
    const Value from = vm.to_str(a[0]);
    const Value to = vm.to_str(a[1]);
    const int64_t count = a[2].is(Kind::kNone) ? -1 : vm.int_arg(a[2], -1, "count");
    return vm.failed() ? Value() : replace(vm, text.str(), from.str(), to.str(), count);
}

Value filter_escape(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("escape", args, {});
    if (self.is_str() && self.str().markup) return self;
    Value keep;
    const StrObject* text = as_str(vm, self, keep);
    return text == nullptr ? Value() : escape_html(vm, *text);
}
Value filter_forceescape(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("forceescape", args, {});
    Value keep;
    const StrObject* text = as_str(vm, self, keep);
    return text == nullptr ? Value() : escape_html(vm, *text);
}
Value filter_safe(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("safe", args, {});
    Value keep;
    const StrObject* text = as_str(vm, self, keep);
    if (text == nullptr) return {};
    StrBuilder out(vm);
    out.add(*text);
    return out.finish(true);
}

Value filter_indent(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("indent", args, {"width", "first", "blank"});
    if (vm.failed()) return {};
    if (!self.is_str())
        return self.is_undefined() ? vm.use_undefined(self) : vm.error("indent takes a string");
    Value indention = a[0];
    if (!indention.is_str()) {
        const int64_t width = vm.int_arg(a[0], 4, "width");
        indention = vm.binary(Op::kMul, vm.make_str(" "), Value::of_int(width));
    }
    const bool first = vm.bool_arg(a[1], false);
    const bool blank = vm.bool_arg(a[2], false);
    const Value text = vm.add(self, vm.make_str("\n"));
    if (vm.failed()) return {};
    const std::vector<Value> lines = split_lines(vm, text.str(), false);
    StrBuilder out(vm);
    for (size_t i = 0; i < lines.size() && !vm.failed(); ++i) {
        if (i > 0) out.add("\n");
        const bool wanted = i == 0 ? first : blank || !lines[i].text().empty();
        if (wanted) out.add(indention.str());
        out.add(lines[i].str());
    }
    return out.finish(self.str().markup);
}

Value filter_truncate(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("truncate", args, {"length", "killwords", "end", "leeway"});
    const int64_t length = vm.int_arg(a[0], 255, "length");
    const bool kill_words = vm.bool_arg(a[1], false);
    const Value end = a[2].is_missing() ? vm.make_str("...") : a[2];
    const int64_t leeway = a[3].is(Kind::kNone) ? 5 : vm.int_arg(a[3], 5, "leeway");
    if (vm.failed()) return {};
    if (!self.is_str() && end.is_str() &&
        vm.length(self).as_int() <= length + std::min<int64_t>(leeway, 1 << 20))
        return self;
    if (!self.is_str() || !end.is_str()) return vm.error("truncate takes a string");
    const auto tail = static_cast<int64_t>(end.str().chars);
    if (length < tail || leeway < 0) return vm.error("expected length >= " + std::to_string(tail));
    const auto size = static_cast<int64_t>(self.str().chars);
    if (size <= leeway || size - leeway <= length) return self;
    Value head = vm.slice(self, Value::none(), Value::of_int(length - tail), Value::none());
    if (!kill_words && !vm.failed()) {
        const size_t space = head.text().rfind(' ');
        if (space != std::string_view::npos) head = part_of(vm, head.str(), 0, space);
    }
    return vm.failed() ? Value() : vm.add(head, end);
}

Value filter_center(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("center", args, {"width"});
    const int64_t width = vm.int_arg(a[0], 80, "width");
    Value keep;
    const StrObject* text = as_str(vm, self, keep);
    return text == nullptr ? Value() : pad(vm, *text, width, " ", '^');
}

Value filter_wordcount(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("wordcount", args, {});
    Value keep;
    const StrObject* text = as_str(vm, self, keep);
    if (text == nullptr) return {};
    int64_t words = 0;
    bool inside = false;
    for (size_t pos = 0; pos < text->text.size() && vm.spend();) {
        const CodePoint cp = decode_utf8(text->text, pos);
        const bool word = cp.code == '_' || (char_class(cp.code) & (kLetter | kNumber)) != 0;
        words += word && !inside ? 1 : 0;
        inside = word;
        pos += cp.length;
    }
    return Value::of_int(words);
}

Value filter_format(Vm& vm, const Value& self, Args& args) {
    if (!args.positional.empty() && !args.named.empty()) {
        return vm.error("can't handle positional and keyword arguments at the same time");
    }
    const Value text = vm.to_str(self);
    Value given;
    if (!args.named.empty()) {
        std::vector<std::pair<Value, Value>> items;
        for (auto& [name, value] : args.named)
            items.emplace_back(vm.make_str(name), std::move(value));
        given = vm.make_dict(std::move(items));
    } else {
        given = vm.make_list(std::move(args.positional), Kind::kTuple);
    }
    return vm.failed() ? Value() : percent_format(vm, text.str(), given);
}

Value filter_default(Vm& vm, const Value& self, Args& args) {
    auto a = vm.bind("default", args, {"default_value", "boolean"});
    if (vm.failed()) return {};
    if (!self.is_undefined() && (!vm.bool_arg(a[1], false) || vm.truthy(self))) return self;
    return a[0].is_missing() ? vm.make_str("") : a[0];
}

/// int() of a string: blanks around, a sign, digits with single underscores.
bool parse_int(std::string_view text, int base, int64_t& out) {
    while (!text.empty() && is_python_space(static_cast<uint8_t>(text.front())))
        text.remove_prefix(1);
    while (!text.empty() && is_python_space(static_cast<uint8_t>(text.back())))
        text.remove_suffix(1);
    bool negative = false;
    if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
        negative = text[0] == '-';
        text.remove_prefix(1);
    }
    const char mark = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
    if (mark != '\0' && text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == mark)
        text.remove_prefix(2);
    std::string digits;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_') continue;
        digits += text[i];
    }
    if (digits.empty() || digits[0] == '-' || digits[0] == '+') return false;
    if (negative) digits.insert(0, 1, '-');
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, out, base);
    return error == std::errc() && stop == end;
}

bool parse_float(std::string_view text, double& out) {
    while (!text.empty() && is_python_space(static_cast<uint8_t>(text.front())))
        text.remove_prefix(1);
    while (!text.empty() && is_python_space(static_cast<uint8_t>(text.back())))
        text.remove_suffix(1);
    if (text.starts_with('+')) {
        text.remove_prefix(1);
        if (text.starts_with('-') || text.starts_with('+')) return false;
    }
    if (text.empty()) return false;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (stop != text.data() + text.size() || error == std::errc::invalid_argument) return false;
    if (error == std::errc::result_out_of_range) {
        // Python: too large is infinity, too small is zero.
        out = text.find("e-") != std::string_view::npos || text.find("E-") != std::string_view::npos
                  ? 0.0
                  : HUGE_VAL;
        if (text[0] == '-') out = -out;
    }
    return true;
}

Value filter_int(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("int", args, {"default", "base"});
    const int64_t base = vm.int_arg(a[1], 10, "base");
    if (vm.failed()) return {};
    if (base < 2 || base > 36) return vm.error("int() base must be >= 2 and <= 36");
    if (self.is_undefined()) return vm.use_undefined(self);
    if (self.is_int() || self.is(Kind::kBigInt))
        return self.is(Kind::kBool) ? Value::of_int(self.as_int()) : self;
    double real = 0;
    int64_t whole = 0;
    if (self.is(Kind::kFloat)) {
        real = self.real;
    } else if (self.is_str() && parse_int(self.text(), static_cast<int>(base), whole)) {
        return Value::of_int(whole);
    } else if (!self.is_str() || !parse_float(self.text(), real)) {
        return a[0].is_missing() ? Value::of_int(0) : a[0];
    }
    if (!(std::fabs(real) < 9.2e18)) return a[0].is_missing() ? Value::of_int(0) : a[0];
    return Value::of_int(static_cast<int64_t>(real));
}

Value filter_float(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("float", args, {"default"});
    if (vm.failed()) return {};
    if (self.is_undefined()) return vm.use_undefined(self);
    if (self.is_number()) return Value::of_float(self.as_float());
    double real = 0;
    if (self.is_str() && parse_float(self.text(), real)) return Value::of_float(real);
    return a[0].is_missing() ? Value::of_float(0) : a[0];
}

Value filter_abs(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("abs", args, {});
    if (self.is(Kind::kFloat)) return Value::of_float(std::fabs(self.real));
    if (self.is_int() && self.as_int() != INT64_MIN) return Value::of_int(std::abs(self.as_int()));
    if (self.is_undefined()) return vm.use_undefined(self);
    return vm.error("bad operand type for abs(): '" + std::string(type_name(self.kind)) + "'");
}

/// round() of a float as Python does it: the decimal nearest to the exact value, ties to even.
double round_digits(double value, int64_t digits) {
    if (!std::isfinite(value) || digits > 22) return value;
    if (digits < -308) return 0;
    if (digits <= 0) {
        const double power = std::pow(10.0, static_cast<double>(-digits));
        return std::nearbyint(value / power) * power;
    }
    char buffer[400];
    std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(digits), value);
    double out = value;
    std::from_chars(buffer, buffer + std::char_traits<char>::length(buffer), out);
    return out;
}

Value filter_round(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("round", args, {"precision", "method"});
    const int64_t digits = vm.int_arg(a[0], 0, "precision");
    if (vm.failed()) return {};
    const std::string_view method = a[1].is_str() ? a[1].text() : std::string_view("common");
    if (method != "common" && method != "ceil" && method != "floor") {
        return vm.error("method must be common, ceil or floor");
    }
    if (self.is_undefined()) return vm.use_undefined(self);
    if (!self.is_number()) return vm.error("round takes a number");
    if (method == "common") {
        if (self.is_int())
            return digits >= 0 ? Value::of_int(self.as_int())
                               : vm.error("negative precision is unsupported");
        return Value::of_float(round_digits(self.real, digits));
    }
    if (std::abs(digits) > 300) return vm.error("precision out of range");
    const double power = std::pow(10.0, static_cast<double>(digits));
    const double scaled = self.as_float() * power;
    return Value::of_float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power);
}

/// The separators and indent of json.dumps.
bool json_style(Vm& vm, const std::vector<Value>& a, JsonStyle& style) {
    style.ensure_ascii = vm.bool_arg(a[0], false);
    style.sort_keys = vm.bool_arg(a[3], false);
    if (!a[1].is_missing() && !a[1].is(Kind::kNone)) {
        style.pretty = true;
        style.item_separator = ",";
        if (a[1].is_str()) {
            style.indent = a[1].text();
        } else {
            const int64_t width = vm.int_arg(a[1], 0, "indent");
            if (width > 1024) vm.error("indent is too large");
            if (!vm.failed())
                style.indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
        }
    }
    if (!a[2].is_missing() && !a[2].is(Kind::kNone)) {
        const auto parts = vm.iterate(a[2]);
        if (parts == nullptr) return false;
        if (parts->items.size() != 2 || !parts->items[0].is_str() || !parts->items[1].is_str()) {
            vm.error("separators must be two strings");
            return false;
        }
        style.item_separator = parts->items[0].text();
        style.key_separator = parts->items[1].text();
    }
    return !vm.failed();
}

Value filter_tojson(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
    JsonStyle style;
    if (vm.failed() || !json_style(vm, a, style)) return {};
    StrBuilder out(vm);
    append_json(vm, out, self, style);
    return out.finish();
}

Value filter_urlencode(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("urlencode", args, {});
    Value keep;
    if (self.is_seq() || self.is(Kind::kDict)) return vm.error("urlencode takes a string");
    const StrObject* text = as_str(vm, self, keep);
    if (text == nullptr) return {};
    static constexpr std::string_view kHex = "0123456789ABCDEF";
    StrBuilder out(vm);
    for (const char c : text->text) {
        if (!vm.spend()) return {};
        const auto byte = static_cast<uint8_t>(c);
        const bool plain = (byte < 0x80 && (char_class(byte) & (kLetter | kNumber)) != 0) ||
                           std::string_view("_.-~/").find(c) != std::string_view::npos;
        const char escaped[3] = {'%', kHex[byte >> 4], kHex[byte & 15]};
        out.add(plain ? std::string_view(&c, 1) : std::string_view(escaped, 3),
                !text->taint.empty());
    }
    return out.finish();
}

constexpr FilterEntry kFilters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_case<Case::kLower>},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_case<Case::kUpper>},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
};

}  // namespace

Builtin find_text_filter(std::string_view name) {
    const auto* it = std::lower_bound(
        std::begin(kFilters), std::end(kFilters), name,
        [](const FilterEntry& entry, std::string_view n) { return entry.name < n; });
    return it != std::end(kFilters) && it->name == name ? it->call : nullptr;
}

Builtin find_filter(std::string_view name) {
    const Builtin found = find_text_filter(name);
    return found != nullptr ? found : find_sequence_filter(name);
}

}  // namespace baton::text::jinja
