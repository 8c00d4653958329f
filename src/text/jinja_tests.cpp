// The tests after `is`.
#include <algorithm>

#include "text/jinja_strings.hpp"
#include "text/jinja_vm.hpp"

namespace baton::text::jinja {
namespace {

Value yes_if(bool value) {
    return Value::of_bool(value);
}

/// No arguments but the value itself.
bool alone(Vm& vm, Args& args) {
    if (!args.empty()) vm.error("this test takes no argument");
    return !vm.failed();
}

template <Kind Wanted>
Value test_kind(Vm& vm, const Value& self, Args& args) {
    return yes_if(alone(vm, args) && self.is(Wanted));
}
Value test_defined(Vm& vm, const Value& self, Args& args) {
    return yes_if(alone(vm, args) && !self.is_undefined());
}
Value test_integer(Vm& vm, const Value& self, Args& args) {
    return yes_if(alone(vm, args) && (self.is(Kind::kInt) || self.is(Kind::kBigInt)));
}
Value test_number(Vm& vm, const Value& self, Args& args) {
    return yes_if(alone(vm, args) && (self.is_number() || self.is(Kind::kBigInt)));
}
template <bool Wanted>
Value test_bool(Vm& vm, const Value& self, Args& args) {
    return yes_if(alone(vm, args) && self.is(Kind::kBool) && self.boolean == Wanted);
}
Value test_sequence(Vm& vm, const Value& self, Args& args) {
    const bool indexable = self.is_str() || self.is(Kind::kList) || self.is(Kind::kTuple) ||
                           self.is(Kind::kDict) || self.is(Kind::kRange) || self.is_undefined();
    return yes_if(alone(vm, args) && indexable);
}
Value test_iterable(Vm& vm, const Value& self, Args& args) {
    const bool walkable = self.is_seq() || self.is_str() || self.is(Kind::kDict) ||
                          self.is(Kind::kRange) || self.is(Kind::kLoop) || self.is_undefined();
    return yes_if(alone(vm, args) && walkable);
}
Value test_callable(Vm& vm, const Value& self, Args& args) {
    const bool callable = self.is(Kind::kMacro) || self.is(Kind::kMethod) ||
                          self.is(Kind::kFunction) || self.is(Kind::kLoop) ||
                          self.is(Kind::kJoiner) || self.is_undefined();
    return yes_if(alone(vm, args) && callable);
}
Value test_escaped(Vm& vm, const Value& self, Args& args) {
    return yes_if(alone(vm, args) && self.is_str() && self.str().markup);
}

template <Op Wanted>
Value test_order(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("test", args, {"other"}, 1);
    if (vm.failed()) return {};
    switch (Wanted) {
        case Op::kEq:
            return yes_if(vm.equal(self, a[0]));
        case Op::kNe:
            return yes_if(!vm.equal(self, a[0]));
        case Op::kLt:
            return yes_if(vm.compare(self, a[0], "<") == -1);
        case Op::kGt:
            return yes_if(vm.compare(self, a[0], ">") == 1);
        case Op::kLe: {
            const int order = vm.compare(self, a[0], "<=");
            return yes_if(order == -1 || order == 0);
        }
        default: {
            const int order = vm.compare(self, a[0], ">=");
            return yes_if(order == 1 || order == 0);
        }
    }
}
Value test_in(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("in", args, {"seq"}, 1);
    return yes_if(!vm.failed() && vm.contains(a[0], self));
}
Value test_sameas(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("sameas", args, {"other"}, 1);
    if (vm.failed() || self.kind != a[0].kind) return yes_if(false);
    if (self.object != nullptr || a[0].object != nullptr) {
        return yes_if(self.object == a[0].object || (self.is_str() && self.text() == a[0].text()));
    }
    return yes_if(vm.equal(self, a[0]));
}

Value remainder(Vm& vm, const Value& self, const Value& by) {
    return vm.binary(Op::kMod, self, by);
}
template <int Rest>
Value test_parity(Vm& vm, const Value& self, Args& args) {
    if (!alone(vm, args)) return {};
    if (self.is_str()) return vm.error("not all arguments converted during string formatting");
    return yes_if(vm.equal(remainder(vm, self, Value::of_int(2)), Value::of_int(Rest)) &&
                  !vm.failed());
}
Value test_divisible(Vm& vm, const Value& self, Args& args) {
    const auto a = vm.bind("divisibleby", args, {"num"}, 1);
    if (vm.failed()) return {};
    return yes_if(vm.equal(remainder(vm, self, a[0]), Value::of_int(0)) && !vm.failed());
}
template <bool Upper>
Value test_case(Vm& vm, const Value& self, Args& args) {
    if (!alone(vm, args)) return {};
    const Value text = vm.to_str(self);
    return vm.failed() ? Value() : call_method(vm, text, Upper ? "isupper" : "islower", args);
}
Value test_filter(Vm& vm, const Value& self, Args& args) {
    return yes_if(alone(vm, args) && self.is_str() && find_filter(self.text()) != nullptr);
}
Value test_test(Vm& vm, const Value& self, Args& args) {
    return yes_if(alone(vm, args) && self.is_str() && find_test(self.text()) != nullptr);
}

struct Entry {
    std::string_view name;
    Builtin call;
};
constexpr Entry kTests[] = {
    {"!=", test_order<Op::kNe>},
    {"<", test_order<Op::kLt>},
    {"<=", test_order<Op::kLe>},
    {"==", test_order<Op::kEq>},
    {">", test_order<Op::kGt>},
    {">=", test_order<Op::kGe>},
    {"boolean", test_kind<Kind::kBool>},
    {"callable", test_callable},
    {"defined", test_defined},
    {"divisibleby", test_divisible},
    {"eq", test_order<Op::kEq>},
    {"equalto", test_order<Op::kEq>},
    {"escaped", test_escaped},
    {"even", test_parity<0>},
    {"false", test_bool<false>},
    {"filter", test_filter},
    {"float", test_kind<Kind::kFloat>},
    {"ge", test_order<Op::kGe>},
    {"greaterthan", test_order<Op::kGt>},
    {"gt", test_order<Op::kGt>},
    {"in", test_in},
    {"integer", test_integer},
    {"iterable", test_iterable},
    {"le", test_order<Op::kLe>},
    {"lessthan", test_order<Op::kLt>},
    {"lower", test_case<false>},
    {"lt", test_order<Op::kLt>},
    {"mapping", test_kind<Kind::kDict>},
    {"ne", test_order<Op::kNe>},
    {"none", test_kind<Kind::kNone>},
    {"number", test_number},
    {"odd", test_parity<1>},
    {"sameas", test_sameas},
    {"sequence", test_sequence},
    {"string", test_kind<Kind::kStr>},
    {"test", test_test},
    {"true", test_bool<true>},
    {"undefined", test_kind<Kind::kUndefined>},
    {"upper", test_case<true>},
};

}  // namespace

Builtin find_test(std::string_view name) {
    const auto* it =
        std::lower_bound(std::begin(kTests), std::end(kTests), name,
                         [](const Entry& entry, std::string_view n) { return entry.name < n; });
    return it != std::end(kTests) && it->name == name ? it->call : nullptr;
}

}  // namespace baton::text::jinja
