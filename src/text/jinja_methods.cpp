// Methods of strings, lists, dicts and the rest: a fixed table, nothing else is reachable.
#include <algorithm>
#include <array>

#include "text/jinja_strings.hpp"
#include "text/jinja_vm.hpp"
#include "text/unicode.hpp"

namespace baton::text::jinja {
namespace {

using Method = Value (*)(Vm& vm, const Value& self, Args& args);

const StrObject* optional_str(Vm& vm, const Value& value, const char* what) {
    if (value.is_missing() || value.is(Kind::kNone)) return nullptr;
    if (value.is_str()) return &value.str();
    if (value.is_undefined()) {
        vm.use_undefined(value);
    } else {
        vm.error(std::string(what) + " must be str, not " + std::string(type_name(value.kind)));
    }
    return nullptr;
}
const StrObject* need_str(Vm& vm, const Value& value, const char* what) {
    const StrObject* text = optional_str(vm, value, what);
    if (text == nullptr && !vm.failed()) vm.error(std::string(what) + " must be str");
    return text;
}

template <bool Left, bool Right>
Value str_strip(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("strip", args, {"chars"});
    const StrObject* chars = optional_str(vm, a[0], "strip argument");
    return vm.failed() ? Value() : strip(vm, self.str(), chars, Left, Right);
}

template <bool FromRight>
Value str_split(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("split", args, {"sep", "maxsplit"});
    const StrObject* separator = optional_str(vm, a[0], "separator");
    const int64_t count = vm.int_arg(a[1], -1, "maxsplit");
    return vm.failed() ? Value() : split(vm, self.str(), separator, count, FromRight);
}

Value str_splitlines(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("splitlines", args, {"keepends"});
    return vm.make_list(split_lines(vm, self.str(), vm.bool_arg(a[0], false)));
}

/// Start and end arguments in characters, as byte offsets.
bool byte_range(Vm& vm, const StrObject& text, const Value& from, const Value& to, size_t& begin,
                size_t& end) {
    const auto size = static_cast<int64_t>(text.chars);
    const auto place = [&](const Value& value, int64_t fallback) {
        int64_t index = value.is(Kind::kNone) ? fallback : vm.int_arg(value, fallback, "index");
        if (index < 0) index = std::max<int64_t>(index < -size ? 0 : index + size, 0);
        return index;
    };
    const int64_t first = place(from, 0);
    const int64_t last = std::min(place(to, size), size);
    if (vm.failed() || first > size || first > last) return false;
    const auto offset = [&](int64_t index) {
        if (text.ascii()) return static_cast<size_t>(index);
        (void)vm.spend(static_cast<size_t>(index) / 16);
        size_t pos = 0;
        while (index-- > 0) pos += decode_utf8(text.text, pos).length;
        return pos;
    };
    begin = offset(first);
    end = offset(last);
    return true;
}

template <bool Start>
Value str_affix(Vm& vm, const Value& self, Args& args) {
    const char* name = Start ? "startswith" : "endswith";
    const auto a = vm.bind(name, args, {"prefix", "start", "end"}, 1);
    std::vector<Value> wanted{a[0]};
    if (a[0].is(Kind::kTuple)) wanted = a[0].get<SeqObject>().items;
    size_t begin = 0;
    size_t end = 0;
    if (vm.failed()) return {};
    const bool inside = byte_range(vm, self.str(), a[1], a[2], begin, end);
    bool found = false;
    for (const Value& value : wanted) {
        const StrObject* text =
            need_str(vm, value, Start ? "startswith first arg" : "endswith first arg");
        if (text == nullptr) return {};
        const std::string_view area = std::string_view(self.text()).substr(begin, end - begin);
        found = found ||
                (inside && (Start ? area.starts_with(text->text) : area.ends_with(text->text)));
    }
    return Value::of_bool(found);
}

template <bool Last, bool Raise>
Value str_find(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("find", args, {"sub", "start", "end"}, 1);
    const StrObject* wanted = need_str(vm, a[0], "find argument");
    size_t begin = 0;
    size_t end = 0;
    if (wanted == nullptr) return {};
    const StrObject& text = self.str();
    (void)vm.spend(text.text.size() / 64);
    size_t at = std::string_view::npos;
    if (byte_range(vm, text, a[1], a[2], begin, end))
        at = find_in(text.text, wanted->text, begin, end, Last);
    if (at == std::string_view::npos)
        return Raise ? vm.error("substring not found") : Value::of_int(-1);
    if (text.ascii()) return Value::of_int(static_cast<int64_t>(at));
    return Value::of_int(
        static_cast<int64_t>(count_utf8(std::string_view(text.text).substr(0, at))));
}

Value str_count(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("count", args, {"sub", "start", "end"}, 1);
    const StrObject* wanted = need_str(vm, a[0], "count argument");
    size_t begin = 0;
    size_t end = 0;
    if (wanted == nullptr) return {};
    if (!byte_range(vm, self.str(), a[1], a[2], begin, end)) return Value::of_int(0);
    const std::string_view area = std::string_view(self.text()).substr(begin, end - begin);
    if (wanted->text.empty()) {
        return Value::of_int(1 + static_cast<int64_t>(count_utf8(area)));
    }
    int64_t count = 0;
    for (size_t pos = 0; vm.spend(); ++count) {
        const size_t at = find_in(area, wanted->text, pos, area.size(), false);
        if (at == std::string_view::npos) break;
        pos = at + wanted->text.size();
    }
    return Value::of_int(count);
}

template <Case Wanted>
Value str_case(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("case", args, {});
    return vm.failed() ? Value() : map_case(vm, self.str(), Wanted);
}
Value str_capitalize(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("capitalize", args, {});
    return vm.failed() ? Value() : capitalize(vm, self.str());
}
Value str_swapcase(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("swapcase", args, {});
    return vm.failed() ? Value() : swap_case(vm, self.str());
}

Value str_replace(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("replace", args, {"old", "new", "count"}, 2);
    const StrObject* from = need_str(vm, a[0], "replace() argument 1");
    const StrObject* to = vm.failed() ? nullptr : need_str(vm, a[1], "replace() argument 2");
    const int64_t count = vm.int_arg(a[2], -1, "count");
    return vm.failed() ? Value() : replace(vm, self.str(), *from, *to, count);
}

Value str_join(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("join", args, {"iterable"}, 1);
    const auto items = vm.iterate(a[0]);
    return items == nullptr ? Value() : join(vm, self.str(), items->items);
}

template <bool FromRight>
Value str_partition(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("partition", args, {"sep"}, 1);
    const StrObject* separator = need_str(vm, a[0], "separator");
    if (separator == nullptr) return {};
    if (separator->text.empty()) return vm.error("empty separator");
    const StrObject& text = self.str();
    const size_t size = text.text.size();
    const size_t at = find_in(text.text, separator->text, 0, size, FromRight);
    std::vector<Value> parts;
    if (at == std::string_view::npos) {
        parts = {vm.make_str(""), vm.make_str(""), vm.make_str("")};
        parts[FromRight ? 2 : 0] = self;
    } else {
        parts = {part_of(vm, text, 0, at), a[0],
                 part_of(vm, text, at + separator->text.size(), size)};
    }
    return vm.make_list(std::move(parts), Kind::kTuple);
}

template <bool Prefix>
Value str_remove(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind(Prefix ? "removeprefix" : "removesuffix", args, {"affix"}, 1);
    const StrObject* affix = need_str(vm, a[0], "removeprefix() argument");
    if (affix == nullptr) return {};
    const std::string_view text = self.text();
    if (Prefix && text.starts_with(affix->text))
        return part_of(vm, self.str(), affix->text.size(), text.size());
    if (!Prefix && text.ends_with(affix->text))
        return part_of(vm, self.str(), 0, text.size() - affix->text.size());
    return self;
}

template <char Align>
Value str_pad(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("pad", args, {"width", "fillchar"}, 1);
    const int64_t width = vm.int_arg(a[0], 0, "width");
    const StrObject* fill = optional_str(vm, a[1], "fillchar");
    if (fill != nullptr && fill->chars != 1)
        return vm.error("the fill character must be exactly one character long");
    return vm.failed() ? Value()
                       : pad(vm, self.str(), width,
                             fill == nullptr ? std::string_view(" ") : fill->text, Align);
}

Value str_zfill(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("zfill", args, {"width"}, 1);
    const int64_t width = vm.int_arg(a[0], 0, "width");
    if (vm.failed()) return {};
    const StrObject& text = self.str();
    const bool sign = text.text.starts_with('-') || text.text.starts_with('+');
    if (!sign) return pad(vm, text, width, "0", '>');
    const Value rest = part_of(vm, text, 1, text.text.size());
    const Value padded = vm.failed() ? Value() : pad(vm, rest.str(), width - 1, "0", '>');
    if (vm.failed()) return {};
    return vm.add(part_of(vm, text, 0, 1), padded);
}

/// All characters satisfy the class and there is one.
template <class Wanted>
Value all_chars(Vm& vm, const Value& self, Args& args, Wanted&& wanted) {
    (void)vm.bind("str method", args, {});
    const std::string_view text = self.text();
    for (size_t pos = 0; pos < text.size() && vm.spend();) {
        const CodePoint cp = decode_utf8(text, pos);
        if (!wanted(cp.code)) return Value::of_bool(false);
        pos += cp.length;
    }
    return Value::of_bool(!text.empty());
}
bool is_decimal_like(uint32_t code) {
    return (char_class(code) & kNumber) != 0;
}
Value str_isspace(Vm& vm, const Value& self, Args& args) {
    return all_chars(vm, self, args, is_python_space);
}
Value str_isalpha(Vm& vm, const Value& self, Args& args) {
    return all_chars(vm, self, args, [](uint32_t c) { return (char_class(c) & kLetter) != 0; });
}
Value str_isdigit(Vm& vm, const Value& self, Args& args) {
    return all_chars(vm, self, args, is_decimal_like);
}
Value str_isalnum(Vm& vm, const Value& self, Args& args) {
    return all_chars(vm, self, args,
                     [](uint32_t c) { return (char_class(c) & (kLetter | kNumber)) != 0; });
}
Value str_isascii(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("isascii", args, {});
    return Value::of_bool(self.str().ascii());
}
template <bool Upper>
Value str_iscase(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("islower", args, {});
    bool cased = false;
    const std::string_view text = self.text();
    for (size_t pos = 0; pos < text.size() && vm.spend();) {
        const CodePoint cp = decode_utf8(text, pos);
        if ((Upper ? is_lower(cp.code) : is_upper(cp.code)) || is_title(cp.code))
            return Value::of_bool(false);
        cased = cased || is_cased(cp.code);
        pos += cp.length;
    }
    return Value::of_bool(cased);
}
Value str_format(Vm& vm, const Value& self, Args& args) {
    return brace_format(vm, self.str(), args);
}

Value seq_index(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("index", args, {"value"}, 1);
    const auto& items = self.get<SeqObject>().items;
    for (size_t i = 0; i < items.size() && !vm.failed(); ++i) {
        if (vm.equal(items[i], a[0])) return Value::of_int(static_cast<int64_t>(i));
    }
    return vm.error("value is not in list");
}
Value seq_count(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("count", args, {"value"}, 1);
    const auto& items = self.get<SeqObject>().items;
    return Value::of_int(std::count_if(items.begin(), items.end(),
                                       [&](const Value& v) { return vm.equal(v, a[0]); }));
}
Value copy(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("copy", args, {});
    return self;  // values do not change, so a copy is the same
}

Value dict_get(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("get", args, {"key", "default"}, 1);
    std::string key;
    if (vm.failed()) return {};
    if (!dict_key(a[0], key))
        return vm.error("unhashable type: '" + std::string(type_name(a[0].kind)) + "'");
    if (const Value* found = self.get<DictObject>().find(a[0])) return *found;
    return a[1].is_missing() ? Value::none() : a[1];
}
template <Kind View>
Value dict_view(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("view", args, {});
    std::vector<Value> items;
    for (const auto& [key, value] : self.get<DictObject>().items) {
        Value item = View == Kind::kDictKeys     ? key
                     : View == Kind::kDictValues ? value
                                                 : vm.make_list({key, value}, Kind::kTuple);
        if (!vm.push(items, std::move(item))) return {};
    }
    return vm.make_list(std::move(items), View);
}

Value loop_cycle(Vm& vm, const Value& self, Args& args) {
    if (args.positional.empty() || !args.named.empty())
        return vm.error("no items for cycling given");
    const auto index = static_cast<size_t>(self.get<LoopObject>().index0);
    return args.positional[index % args.positional.size()];
}
Value loop_changed(Vm& vm, const Value& self, Args& args) {
    const auto& loop = self.get<LoopObject>();
    const Value now = vm.make_list(std::move(args.positional), Kind::kTuple);
    if (vm.failed() || (loop.changed_before && vm.equal(loop.last_changed, now)))
        return Value::of_bool(false);
    loop.changed_before = true;
    loop.last_changed = now;
    return Value::of_bool(true);
}
Value cycler_next(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("next", args, {});
    const auto& cycler = self.get<CyclerObject>();
    return cycler.items[cycler.next++ % cycler.items.size()];
}
Value cycler_reset(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("reset", args, {});
    self.get<CyclerObject>().next = 0;
    return Value::none();
}
Value float_is_integer(Vm& vm, const Value& self, Args& args) {
    (void)vm.bind("is_integer", args, {});
    return Value::of_bool(self.real == static_cast<double>(static_cast<int64_t>(self.real)));
}

struct Entry {
    Kind kind;
    std::string_view name;
    Method method;  // null: forbidden
};

constexpr Entry kMethods[] = {
    {Kind::kStr, "strip", str_strip<true, true>},
    {Kind::kStr, "lstrip", str_strip<true, false>},
    {Kind::kStr, "rstrip", str_strip<false, true>},
    {Kind::kStr, "split", str_split<false>},
    {Kind::kStr, "rsplit", str_split<true>},
    {Kind::kStr, "splitlines", str_splitlines},
    {Kind::kStr, "startswith", str_affix<true>},
    {Kind::kStr, "endswith", str_affix<false>},
    {Kind::kStr, "upper", str_case<Case::kUpper>},
    {Kind::kStr, "lower", str_case<Case::kLower>},
    {Kind::kStr, "title", str_case<Case::kTitle>},
    {Kind::kStr, "capitalize", str_capitalize},
    {Kind::kStr, "swapcase", str_swapcase},
    {Kind::kStr, "replace", str_replace},
    {Kind::kStr, "join", str_join},
    {Kind::kStr, "find", str_find<false, false>},
    {Kind::kStr, "rfind", str_find<true, false>},
    {Kind::kStr, "index", str_find<false, true>},
    {Kind::kStr, "rindex", str_find<true, true>},
    {Kind::kStr, "count", str_count},
    {Kind::kStr, "partition", str_partition<false>},
    {Kind::kStr, "rpartition", str_partition<true>},
    {Kind::kStr, "removeprefix", str_remove<true>},
    {Kind::kStr, "removesuffix", str_remove<false>},
    {Kind::kStr, "center", str_pad<'^'>},
    {Kind::kStr, "ljust", str_pad<'<'>},
    {Kind::kStr, "rjust", str_pad<'>'>},
    {Kind::kStr, "zfill", str_zfill},
    {Kind::kStr, "isspace", str_isspace},
    {Kind::kStr, "isalpha", str_isalpha},
    {Kind::kStr, "isdigit", str_isdigit},
    {Kind::kStr, "isnumeric", str_isdigit},
    {Kind::kStr, "isdecimal", str_isdigit},
    {Kind::kStr, "isalnum", str_isalnum},
    {Kind::kStr, "isascii", str_isascii},
    {Kind::kStr, "isupper", str_iscase<true>},
    {Kind::kStr, "islower", str_iscase<false>},
    {Kind::kStr, "format", str_format},
    {Kind::kList, "index", seq_index},
    {Kind::kList, "count", seq_count},
    {Kind::kList, "copy", copy},
    {Kind::kList, "append", nullptr},
    {Kind::kList, "clear", nullptr},
    {Kind::kList, "pop", nullptr},
    {Kind::kList, "reverse", nullptr},
    {Kind::kList, "insert", nullptr},
    {Kind::kList, "sort", nullptr},
    {Kind::kList, "extend", nullptr},
    {Kind::kList, "remove", nullptr},
    {Kind::kTuple, "index", seq_index},
    {Kind::kTuple, "count", seq_count},
    {Kind::kDict, "get", dict_get},
    {Kind::kDict, "items", dict_view<Kind::kDictItems>},
    {Kind::kDict, "keys", dict_view<Kind::kDictKeys>},
    {Kind::kDict, "values", dict_view<Kind::kDictValues>},
    {Kind::kDict, "copy", copy},
    {Kind::kDict, "clear", nullptr},
    {Kind::kDict, "pop", nullptr},
    {Kind::kDict, "popitem", nullptr},
    {Kind::kDict, "setdefault", nullptr},
    {Kind::kDict, "update", nullptr},
    {Kind::kDict, "fromkeys", nullptr},
    {Kind::kLoop, "cycle", loop_cycle},
    {Kind::kLoop, "changed", loop_changed},
    {Kind::kCycler, "next", cycler_next},
    {Kind::kCycler, "reset", cycler_reset},
    {Kind::kFloat, "is_integer", float_is_integer},
};

const Entry* find_entry(Kind kind, std::string_view name) {
    for (const Entry& entry : kMethods) {
        if (entry.kind == kind && entry.name == name) return &entry;
    }
    return nullptr;
}

}  // namespace

MethodUse find_method(Kind kind, std::string_view name) {
    const Entry* entry = find_entry(kind, name);
    if (entry == nullptr) return MethodUse::kNone;
    return entry->method == nullptr ? MethodUse::kForbidden : MethodUse::kCallable;
}

Value call_method(Vm& vm, const Value& object, std::string_view name, Args& args) {
    const Entry* entry = find_entry(object.kind, name);
    if (entry == nullptr || entry->method == nullptr) return vm.error("no such method");
    return vm.failed() ? Value() : entry->method(vm, object, args);
}

}  // namespace baton::text::jinja
