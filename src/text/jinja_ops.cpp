// Python's operators, truth, equality, order and iteration.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "text/jinja_depth.hpp"
#include "text/jinja_vm.hpp"
#include "text/unicode.hpp"

namespace baton::text::jinja {
namespace {

std::string named(const Value& value) {
    return "'" + std::string(type_name(value.kind)) + "'";
}

std::string_view symbol(Op op) {
    switch (op) {
        case Op::kAdd:
            return "+";
        case Op::kSub:
            return "-";
        case Op::kMul:
            return "*";
        case Op::kDiv:
            return "/";
        case Op::kFloorDiv:
            return "//";
        case Op::kMod:
            return "%";
        case Op::kPow:
            return "** or pow()";
        default:
            return "?";
    }
}

double float_mod(double a, double b) {
    double rest = std::fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    if (rest == 0) rest = std::copysign(0.0, b);
    return rest;
}

/// Order of two numbers; 2 where one is not a number.
int order_numbers(const Value& a, const Value& b) {
    if (a.is_int() && b.is_int())
        return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
    const auto x = a.is(Kind::kFloat) ? static_cast<long double>(a.real)
                                      : static_cast<long double>(a.as_int());
    const auto y = b.is(Kind::kFloat) ? static_cast<long double>(b.real)
                                      : static_cast<long double>(b.as_int());
    if (std::isnan(x) || std::isnan(y)) return 2;
    return x < y ? -1 : x > y ? 1 : 0;
}

Value int_power(Vm& vm, int64_t base, int64_t exponent) {
    if (exponent < 0) {
        if (base == 0) return vm.error("0.0 cannot be raised to a negative power");
        return Value::of_float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    }
    int64_t result = 1;
    while (exponent > 0) {
        if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result))
            return vm.error("integer overflow");
        exponent >>= 1;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base))
            return vm.error("integer overflow");
    }
    return Value::of_int(result);
}

Value int_binary(Vm& vm, Op op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
        case Op::kAdd:
            overflow = __builtin_add_overflow(a, b, &result);
            break;
        case Op::kSub:
            overflow = __builtin_sub_overflow(a, b, &result);
            break;
        case Op::kMul:
            overflow = __builtin_mul_overflow(a, b, &result);
            break;
        case Op::kDiv:
            if (b == 0) return vm.error("division by zero");
            return Value::of_float(static_cast<double>(a) / static_cast<double>(b));
        case Op::kFloorDiv:
        case Op::kMod: {
            if (b == 0) return vm.error("integer division or modulo by zero");
            if (b == -1) {
                if (op == Op::kMod) return Value::of_int(0);
                overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
                break;
            }
            int64_t quotient = a / b;
            int64_t rest = a % b;
            if (rest != 0 && (rest < 0) != (b < 0)) {
                --quotient;
                rest += b;
            }
            result = op == Op::kMod ? rest : quotient;
            break;
        }
        case Op::kPow:
            return int_power(vm, a, b);
        default:
            break;
    }
    return overflow ? vm.error("integer overflow") : Value::of_int(result);
}

Value float_binary(Vm& vm, Op op, double a, double b) {
    switch (op) {
        case Op::kAdd:
            return Value::of_float(a + b);
        case Op::kSub:
            return Value::of_float(a - b);
        case Op::kMul:
            return Value::of_float(a * b);
        case Op::kDiv:
            return b == 0 ? vm.error("float division by zero") : Value::of_float(a / b);
        case Op::kFloorDiv: {
            if (b == 0) return vm.error("float floor division by zero");
            const double rest = float_mod(a, b);
            double quotient = (a - rest) / b;
            const double floor = std::floor(quotient);
            quotient = quotient - floor > 0.5 ? floor + 1 : floor;
            return Value::of_float(quotient);
        }
        case Op::kMod:
            return b == 0 ? vm.error("float modulo") : Value::of_float(float_mod(a, b));
        case Op::kPow: {
            const double result = std::pow(a, b);
            if (std::isnan(result) && !std::isnan(a) && !std::isnan(b))
                return vm.error("complex numbers are unsupported");
            if (std::isinf(result) && !std::isinf(a) && !std::isinf(b))
                return vm.error("numerical result out of range");
            return Value::of_float(result);
        }
        default:
            return {};
    }
}

/// `text * count` or `list * count`.
Value repeat(Vm& vm, const Value& value, int64_t count) {
    const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
    if (value.is_str()) {
        StrBuilder out(vm);
        const StrObject& text = value.str();
        if (!text.text.empty() && times > limits::kTemplateOutputBytesMax / text.text.size()) {
            return vm.error("a repeated string is too long");
        }
        for (size_t i = 0; i < times && !text.text.empty(); ++i) {
            if (!vm.spend()) return {};
            out.add(text);
        }
        return out.finish(text.markup);
    }
    const auto& items = value.get<SeqObject>().items;
    if (!items.empty() && times > limits::kTemplateLoopsMax / items.size()) {
        return vm.error("a repeated list is too long");
    }
    std::vector<Value> all;
    for (size_t i = 0; i < times && !items.empty(); ++i) {
        for (const Value& item : items) {
            if (!vm.push(all, item)) return {};
        }
    }
    return vm.make_list(std::move(all), value.kind);
}

bool is_list_or_tuple(const Value& value) {
    return value.is(Kind::kList) || value.is(Kind::kTuple);
}

}  // namespace

bool Vm::truthy(const Value& value) {
    switch (value.kind) {
        case Kind::kMissing:
        case Kind::kUndefined:
        case Kind::kNone:
            return false;
        case Kind::kBool:
            return value.boolean;
        case Kind::kInt:
            return value.integer != 0;
        case Kind::kFloat:
            return value.real != 0;
        case Kind::kStr:
            return !value.text().empty();
        case Kind::kList:
        case Kind::kTuple:
        case Kind::kDictKeys:
        case Kind::kDictValues:
        case Kind::kDictItems:
            return !value.get<SeqObject>().items.empty();
        case Kind::kDict:
            return !value.get<DictObject>().items.empty();
        case Kind::kRange:
            return value.get<RangeObject>().size() != 0;
        default:
            return true;
    }
}

bool Vm::equal(const Value& a, const Value& b) {
    const Depth guard(*this);
    if (!spend()) return false;
    if (a.is_number() && b.is_number()) return order_numbers(a, b) == 0;
    if (a.kind != b.kind) return false;
    switch (a.kind) {
        case Kind::kUndefined:
        case Kind::kNone:
            return true;
        case Kind::kBigInt:
            return a.get<BigIntObject>().digits == b.get<BigIntObject>().digits;
        case Kind::kStr:
            return spend(a.text().size() / 64) && a.text() == b.text();
        case Kind::kList:
        case Kind::kTuple:
        case Kind::kDictKeys:
        case Kind::kDictItems: {
            const auto& x = a.get<SeqObject>().items;
            const auto& y = b.get<SeqObject>().items;
            if (x.size() != y.size()) return false;
            for (size_t i = 0; i < x.size(); ++i) {
                if (failed_ || !equal(x[i], y[i])) return false;
            }
            return true;
        }
        case Kind::kDict: {
            const auto& x = a.get<DictObject>();
            const auto& y = b.get<DictObject>();
            if (x.items.size() != y.items.size()) return false;
            for (const auto& [key, value] : x.items) {
                const Value* other = y.find(key);
                if (failed_ || other == nullptr || !equal(value, *other)) return false;
            }
            return true;
        }
        case Kind::kRange: {
            const auto& x = a.get<RangeObject>();
            const auto& y = b.get<RangeObject>();
            if (x.size() != y.size()) return false;
            return x.size() == 0 || (x.start == y.start && (x.size() == 1 || x.step == y.step));
        }
        case Kind::kMethod: {
            const auto& x = a.get<MethodObject>();
            const auto& y = b.get<MethodObject>();
            return x.name == y.name && x.self.object == y.self.object;
        }
        case Kind::kFunction:
            return a.get<FunctionObject>().call == b.get<FunctionObject>().call;
        default:
            return a.object == b.object;
    }
}

int Vm::compare(const Value& a, const Value& b, const char* op) {
    const Depth guard(*this);
    if (!spend()) return 2;
    if (a.is_undefined() || b.is_undefined()) {
        use_undefined(a.is_undefined() ? a : b);
        return 2;
    }
    if (a.is_number() && b.is_number()) return order_numbers(a, b);
    if (a.is_str() && b.is_str()) {
        (void)spend(std::min(a.text().size(), b.text().size()) / 64);
        const int order = a.text().compare(b.text());
        return order < 0 ? -1 : order > 0 ? 1 : 0;
    }
    if (a.kind == b.kind && is_list_or_tuple(a)) {
        const auto& x = a.get<SeqObject>().items;
        const auto& y = b.get<SeqObject>().items;
        for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
            if (failed_) return 2;
            if (!equal(x[i], y[i])) return compare(x[i], y[i], op);
        }
        return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
    }
    error(std::string("'") + op + "' not supported between instances of " + named(a) + " and " +
          named(b));
    return 2;
}

bool Vm::contains(const Value& container, const Value& item) {
    switch (container.kind) {
        case Kind::kStr: {
            if (!item.is_str()) {
                error("'in <string>' requires string as left operand, not " +
                      std::string(type_name(item.kind)));
                return false;
            }
            const std::string_view text = container.text();
            const std::string_view wanted = item.text();
            (void)spend(text.size() / 64);
            // memmem is linear; string_view::find may be quadratic.
            return wanted.empty() ||
                   memmem(text.data(), text.size(), wanted.data(), wanted.size()) != nullptr;
        }
        case Kind::kDict: {
            std::string key;
            if (!dict_key(item, key)) {
                error("unhashable type: " + named(item));
                return false;
            }
            return container.get<DictObject>().find(item) != nullptr;
        }
        case Kind::kNone:
        case Kind::kBool:
        case Kind::kInt:
        case Kind::kFloat:
        case Kind::kBigInt:
        case Kind::kMacro:
        case Kind::kMethod:
        case Kind::kFunction:
        case Kind::kNamespace:
            error("argument of type " + named(container) + " is not iterable");
            return false;
        default:
            break;
    }
    const auto items = iterate(container);
    if (items == nullptr) return false;
    return std::any_of(items->items.begin(), items->items.end(),
                       [&](const Value& v) { return equal(v, item); });
}

Value Vm::add(const Value& a, const Value& b) {
    return binary(Op::kAdd, a, b);
}

Value Vm::binary(Op op, const Value& a, const Value& b) {
    if (failed_) return {};
    if (op == Op::kMod && a.is_str()) return percent_format(*this, a.str(), b);
    if (a.is_undefined() || b.is_undefined()) return use_undefined(a.is_undefined() ? a : b);
    if (a.is_int() && b.is_int()) return int_binary(*this, op, a.as_int(), b.as_int());
    if (a.is_number() && b.is_number()) return float_binary(*this, op, a.as_float(), b.as_float());
    if (op == Op::kAdd && a.is_str() && b.is_str()) {
        const bool markup = a.str().markup || b.str().markup;
        StrBuilder out(*this);
        for (const Value* part : {&a, &b}) {
            if (markup && !part->str().markup) {
                Args none;
                out.add(call_filter("e", *part, none).str());
            } else {
                out.add(part->str());
            }
            if (failed_) return {};
        }
        return out.finish(markup);
    }
    if (op == Op::kAdd && a.kind == b.kind && is_list_or_tuple(a)) {
        std::vector<Value> items = a.get<SeqObject>().items;
        const auto& more = b.get<SeqObject>().items;
        if (!room((items.size() + more.size()) * sizeof(Value)) ||
            !spend(items.size() + more.size()))
            return {};
        items.insert(items.end(), more.begin(), more.end());
        return make_list(std::move(items), a.kind);
    }
    if (op == Op::kMul) {
        if ((a.is_str() || is_list_or_tuple(a)) && b.is_int()) return repeat(*this, a, b.as_int());
        if ((b.is_str() || is_list_or_tuple(b)) && a.is_int()) return repeat(*this, b, a.as_int());
    }
    if (a.is(Kind::kBigInt) || b.is(Kind::kBigInt))
        return error("integer too large to calculate with");
    if (op == Op::kAdd && a.is_str()) {
        return error("can only concatenate str (not \"" + std::string(type_name(b.kind)) +
                     "\") to str");
    }
    return error("unsupported operand type(s) for " + std::string(symbol(op)) + ": " + named(a) +
                 " and " + named(b));
}

Value Vm::length(const Value& value) {
    const auto of = [](size_t n) { return Value::of_int(static_cast<int64_t>(n)); };
    switch (value.kind) {
        case Kind::kUndefined:
            return of(0);
        case Kind::kStr:
            return of(value.str().chars);
        case Kind::kList:
        case Kind::kTuple:
        case Kind::kDictKeys:
        case Kind::kDictValues:
        case Kind::kDictItems:
            return of(value.get<SeqObject>().items.size());
        case Kind::kDict:
            return of(value.get<DictObject>().items.size());
        case Kind::kRange:
            return Value::of_int(value.get<RangeObject>().size());
        case Kind::kLoop:
            return of(value.get<LoopObject>().seq->items.size());
        default:
            return error("object of type " + named(value) + " has no len()");
    }
}

std::shared_ptr<const SeqObject> Vm::iterate(const Value& value) {
    if (failed_) return nullptr;
    std::vector<Value> items;
    switch (value.kind) {
        case Kind::kList:
        case Kind::kTuple:
        case Kind::kDictKeys:
        case Kind::kDictValues:
        case Kind::kDictItems:
            return std::static_pointer_cast<const SeqObject>(value.object);
        case Kind::kGenerator: {
            const auto& source = value.get<SeqObject>();
            const size_t from = std::exchange(source.next, source.items.size());
            if (from == 0) return std::static_pointer_cast<const SeqObject>(value.object);
            for (size_t i = from; i < source.items.size(); ++i) {
                if (!push(items, source.items[i])) return nullptr;
            }
            break;
        }
        case Kind::kUndefined:
            break;
        case Kind::kStr: {
            const StrObject& text = value.str();
            for (size_t pos = 0; pos < text.text.size();) {
                const size_t next = pos + decode_utf8(text.text, pos).length;
                StrBuilder one(*this);
                one.add_part(text, pos, next);
                if (!push(items, one.finish())) return nullptr;
                pos = next;
            }
            break;
        }
        case Kind::kDict:
            for (const auto& [key, entry] : value.get<DictObject>().items) {
                if (!push(items, key)) return nullptr;
            }
            break;
        case Kind::kRange: {
            const auto& range = value.get<RangeObject>();
            for (int64_t i = 0; i < range.size(); ++i) {
                if (!push(items, Value::of_int(range.start + i * range.step))) return nullptr;
            }
            break;
        }
        default:
            error(named(value) + " object is not iterable");
            return nullptr;
    }
    return std::make_shared<SeqObject>(&budget_, std::move(items));
}

}  // namespace baton::text::jinja
