// Attributes, items and slices.
#include <algorithm>

#include "text/jinja_vm.hpp"
#include "text/unicode.hpp"

namespace baton::text::jinja {
namespace {

/// As jinja2's object_type_repr.
std::string described(const Value& value) {
    if (value.is(Kind::kNone)) return "None";
    return std::string(type_name(value.kind)) + " object";
}

bool is_dunder(std::string_view name) {
    return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

Value missing_attr(Vm& vm, const Value& object, std::string_view name) {
    return vm.make_undefined("'" + described(object) + "' has no attribute '" +
                             std::string(name.substr(0, 256)) + "'");
}

Value unsafe(Vm& vm, const Value& object, std::string_view name) {
    return vm.make_undefined("access to attribute '" + std::string(name.substr(0, 256)) + "' of '" +
                             std::string(type_name(object.kind)) + "' object is unsafe.");
}

/// Byte offset of the character `index` of a string.
size_t offset_of(const StrObject& text, size_t index) {
    if (text.ascii()) return index;
    size_t pos = 0;
    while (index-- > 0) pos += decode_utf8(text.text, pos).length;
    return pos;
}

/// Python's slice.indices for a length: start, stop and step in range.
struct Bounds {
    int64_t start = 0;
    int64_t stop = 0;
    int64_t step = 1;
    [[nodiscard]] int64_t count() const {
        if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
        return start > stop ? (start - stop - 1) / -step + 1 : 0;
    }
};

bool slice_bounds(Vm& vm, const Value& from, const Value& to, const Value& by, int64_t length,
                  Bounds& out) {
    for (const Value* part : {&from, &to, &by}) {
        if (part->is(Kind::kNone) || part->is_int()) continue;
        if (part->is_undefined()) {
            vm.use_undefined(*part);
        } else {
            vm.error("slice indices must be integers or None or have an __index__ method");
        }
        return false;
    }
    // A step past the length is as good as any longer one.
    out.step = by.is_int() ? std::clamp<int64_t>(by.as_int(), -length - 1, length + 1) : 1;
    if (out.step == 0) {
        vm.error("slice step cannot be zero");
        return false;
    }
    const int64_t low = out.step < 0 ? -1 : 0;
    const int64_t high = out.step < 0 ? length - 1 : length;
    const auto place = [&](const Value& part, int64_t fallback) {
        if (!part.is_int()) return fallback;
        int64_t index = part.as_int();
        if (index < 0) {
            index = index < -length ? low : index + length;
        }
        return std::clamp(index, low, high);
    };
    out.start = place(from, out.step < 0 ? high : low);
    out.stop = place(to, out.step < 0 ? low : high);
    return true;
}

Value slice_str(Vm& vm, const StrObject& text, const Bounds& bounds) {
    StrBuilder out(vm);
    const int64_t count = bounds.count();
    if (count == 0) return out.finish(text.markup);
    if (bounds.step == 1) {
        const size_t begin = offset_of(text, static_cast<size_t>(bounds.start));
        size_t end = begin;
        if (text.ascii()) {
            end = begin + static_cast<size_t>(count);
        } else {
            for (int64_t i = 0; i < count; ++i) end += decode_utf8(text.text, end).length;
        }
        (void)vm.spend(text.text.size() / 64);
        out.add_part(text, begin, end);
        return out.finish(text.markup);
    }
    std::vector<uint32_t> starts;  // of every character; 4 bytes each
    if (!vm.room(text.chars * sizeof(uint32_t)) || !vm.spend(text.chars / 8)) return {};
    starts.reserve(text.chars + 1);
    for (size_t pos = 0; pos < text.text.size(); pos += decode_utf8(text.text, pos).length) {
        starts.push_back(static_cast<uint32_t>(pos));
    }
    starts.push_back(static_cast<uint32_t>(text.text.size()));
    for (int64_t i = 0; i < count && vm.spend(); ++i) {
        const auto at = static_cast<size_t>(bounds.start + i * bounds.step);
        out.add_part(text, starts[at], starts[at + 1]);
    }
    return out.finish(text.markup);
}

/// object[index] of a sequence; missing where out of range.
Value item_at(Vm& vm, const Value& object, int64_t index) {
    const Value size = vm.length(object);
    if (index < 0) index += size.as_int();
    if (index < 0 || index >= size.as_int()) return Value::missing();
    const auto at = static_cast<size_t>(index);
    if (object.is(Kind::kRange)) {
        const auto& range = object.get<RangeObject>();
        return Value::of_int(range.start + index * range.step);
    }
    if (!object.is_str()) return object.get<SeqObject>().items[at];
    const StrObject& text = object.str();
    (void)vm.spend(text.ascii() ? 0 : at / 16);
    const size_t begin = offset_of(text, at);
    StrBuilder one(vm);
    one.add_part(text, begin, begin + decode_utf8(text.text, begin).length);
    return one.finish(text.markup);
}

Value loop_attr(Vm& vm, const Value& object, std::string_view name) {
    const auto& loop = object.get<LoopObject>();
    const auto size = static_cast<int64_t>(loop.seq->items.size());
    const auto item = [&](int64_t index, const char* none) {
        if (index < 0 || index >= size) return vm.make_undefined(none);
        return loop.seq->items[static_cast<size_t>(index)];
    };
    if (name == "index") return Value::of_int(loop.index0 + 1);
    if (name == "index0") return Value::of_int(loop.index0);
    if (name == "first") return Value::of_bool(loop.index0 == 0);
    if (name == "last") return Value::of_bool(loop.index0 == size - 1);
    if (name == "length") return Value::of_int(size);
    if (name == "revindex") return Value::of_int(size - loop.index0);
    if (name == "revindex0") return Value::of_int(size - loop.index0 - 1);
    if (name == "depth") return Value::of_int(loop.depth0 + 1);
    if (name == "depth0") return Value::of_int(loop.depth0);
    if (name == "previtem") return item(loop.index0 - 1, "there is no previous item");
    if (name == "nextitem") return item(loop.index0 + 1, "there is no next item");
    return Value::missing();
}

Value macro_attr(Vm& vm, const Value& object, std::string_view name) {
    const MacroDef& def = *object.get<MacroObject>().def;
    if (name == "name") return def.name.empty() ? Value::none() : vm.make_str(def.name);
    if (name == "catch_kwargs") return Value::of_bool(def.uses_kwargs);
    if (name == "catch_varargs") return Value::of_bool(def.uses_varargs);
    if (name == "caller") return Value::of_bool(def.uses_caller);
    if (name != "arguments") return Value::missing();
    std::vector<Value> names;
    for (const std::string& param : def.param_names) names.push_back(vm.make_str(param));
    return vm.make_list(std::move(names), Kind::kTuple);
}

/// The real attribute of an object (not an item), or missing.
Value plain_attr(Vm& vm, const Value& object, std::string_view name) {
    switch (find_method(object.kind, name)) {
        case MethodUse::kForbidden:
            return unsafe(vm, object, name);
        case MethodUse::kCallable: {
            if (!vm.room(sizeof(MethodObject))) return {};
            return Value::of_object(Kind::kMethod, std::make_shared<MethodObject>(
                                                       &vm.budget(), object, std::string(name)));
        }
        case MethodUse::kNone:
            break;
    }
    if (is_dunder(name)) return unsafe(vm, object, name);
    switch (object.kind) {
        case Kind::kNamespace: {
            const Value* found = object.get<NamespaceObject>().find(name);
            return found == nullptr ? Value::missing() : *found;
        }
        case Kind::kLoop:
            return loop_attr(vm, object, name);
        case Kind::kMacro:
            return macro_attr(vm, object, name);
        case Kind::kTuple: {
            const auto& tuple = object.get<SeqObject>();
            if (tuple.group && name == "grouper") return tuple.items[0];
            if (tuple.group && name == "list") return tuple.items[1];
            return Value::missing();
        }
        case Kind::kBool:
        case Kind::kInt:
            if (name == "real" || name == "numerator") return Value::of_int(object.as_int());
            if (name == "imag") return Value::of_int(0);
            return name == "denominator" ? Value::of_int(1) : Value::missing();
        case Kind::kCycler: {
            const auto& cycler = object.get<CyclerObject>();
            return name == "current" ? cycler.items[cycler.next % cycler.items.size()]
                                     : Value::missing();
        }
        case Kind::kRange: {
            const auto& range = object.get<RangeObject>();
            if (name == "start") return Value::of_int(range.start);
            if (name == "stop") return Value::of_int(range.stop);
            return name == "step" ? Value::of_int(range.step) : Value::missing();
        }
        default:
            return Value::missing();
    }
}

/// object[key] as Python has it, or missing where Python raises a lookup or type error.
Value plain_item(Vm& vm, const Value& object, const Value& key) {
    switch (object.kind) {
        case Kind::kDict: {
            const Value* found = object.get<DictObject>().find(key);
            return found == nullptr ? Value::missing() : *found;
        }
        case Kind::kStr:
        case Kind::kList:
        case Kind::kTuple:
        case Kind::kRange:
            return key.is_int() ? item_at(vm, object, key.as_int()) : Value::missing();
        default:
            return Value::missing();
    }
}

}  // namespace

Value Vm::get_attr(const Value& object, const Value& name) {
    return get_attr(object, name.text());
}

Value Vm::get_attr(const Value& object, std::string_view name) {
    if (failed_) return {};
    if (object.is_undefined()) return use_undefined(object);
    Value found = plain_attr(*this, object, name);
    if (!found.is_missing()) return found;
    if (object.is(Kind::kDict)) {
        if (const Value* item = object.get<DictObject>().find(name)) return *item;
    }
    return missing_attr(*this, object, name);
}

Value Vm::get_item(const Value& object, const Value& key) {
    if (failed_) return {};
    if (object.is_undefined()) return use_undefined(object);
    Value found = plain_item(*this, object, key);
    if (!found.is_missing()) return found;
    if (key.is_str()) {
        found = plain_attr(*this, object, key.text());
        if (!found.is_missing()) return found;
        return missing_attr(*this, object, key.text());
    }
    StrBuilder why(*this);
    why.add(described(object) + " has no element ");
    append_repr(why, key);
    return failed_ ? Value() : make_undefined(why.text().substr(0, 512));
}

Value Vm::slice(const Value& object, const Value& from, const Value& to, const Value& step) {
    if (failed_) return {};
    if (object.is_undefined()) return use_undefined(object);
    const bool sliceable = object.is_str() || object.is(Kind::kList) || object.is(Kind::kTuple) ||
                           object.is(Kind::kRange);
    if (object.is(Kind::kDict)) return error("unhashable type: 'slice'");
    if (!sliceable)
        return error("'" + std::string(type_name(object.kind)) + "' object is not subscriptable");
    Bounds bounds;
    const int64_t size = length(object).as_int();
    if (!slice_bounds(*this, from, to, step, size, bounds)) return {};
    if (object.is_str()) return slice_str(*this, object.str(), bounds);
    const int64_t count = bounds.count();
    if (object.is(Kind::kRange)) {
        const auto& range = object.get<RangeObject>();
        const int64_t start = range.start + bounds.start * range.step;
        const int64_t by = range.step * bounds.step;
        const int64_t stop = range.start + bounds.stop * range.step;
        return Value::of_object(Kind::kRange,
                                std::make_shared<RangeObject>(&budget_, start, stop, by));
    }
    std::vector<Value> items;
    const auto& all = object.get<SeqObject>().items;
    for (int64_t i = 0; i < count; ++i) {
        if (!push(items, all[static_cast<size_t>(bounds.start + i * bounds.step)])) return {};
    }
    return make_list(std::move(items), object.kind);
}

}  // namespace baton::text::jinja
