// Expressions.
#include "text/jinja_depth.hpp"
#include "text/jinja_vm.hpp"

namespace baton::text::jinja {

Value Vm::eval(const Expr& expr, const std::shared_ptr<Scope>& scope) {
    const Depth guard(*this);
    if (!spend()) return {};
    switch (expr.kind) {
        case ExprKind::kConst:
            return expr.value;
        case ExprKind::kName:
        case ExprKind::kNsRef:
            return eval_name(expr, scope);
        case ExprKind::kList:
        case ExprKind::kTuple:
            return eval_list(expr, scope);
        case ExprKind::kDict:
            return eval_dict(expr, scope);
        case ExprKind::kGetAttr:
            return get_attr(eval(*expr.kids[0], scope), expr.text);
        case ExprKind::kGetItem:
            return eval_item(expr, scope);
        case ExprKind::kSlice:
            return error("a slice outside a subscript");
        case ExprKind::kCall: {
            const Value callee = eval(*expr.kids[0], scope);
            Args args;
            if (failed_ || !eval_args(expr, args, scope)) return {};
            return call(callee, args);
        }
        case ExprKind::kFilter:
            return eval_filter(expr, nullptr, scope);
        case ExprKind::kTest: {
            const Value self = eval(*expr.kids[0], scope);
            Args args;
            if (failed_ || !eval_args(expr, args, scope)) return {};
            return Value::of_bool(call_test(expr.text, self, args));
        }
        case ExprKind::kNot:
            return Value::of_bool(!truthy(eval(*expr.kids[0], scope)));
        case ExprKind::kNeg:
        case ExprKind::kPos:
            return eval_sign(expr, scope);
        case ExprKind::kAnd: {
            Value left = eval(*expr.kids[0], scope);
            return truthy(left) && !failed_ ? eval(*expr.kids[1], scope) : left;
        }
        case ExprKind::kOr: {
            Value left = eval(*expr.kids[0], scope);
            return truthy(left) || failed_ ? left : eval(*expr.kids[1], scope);
        }
        case ExprKind::kCond:
            return eval_cond(expr, scope);
        case ExprKind::kBinary: {
            const Value left = eval(*expr.kids[0], scope);
            if (failed_) return {};
            const Value right = eval(*expr.kids[1], scope);
            return failed_ ? Value() : binary(expr.op, left, right);
        }
        case ExprKind::kConcat:
            return eval_concat(expr, scope);
        case ExprKind::kCompare:
            return eval_compare(expr, scope);
    }
    return {};
}

Value Vm::eval_name(const Expr& expr, const std::shared_ptr<Scope>& scope) {
    if (const Value* found = scope->find(expr.name)) return *found;
    const std::string& name = program_.names[expr.name];
    if (const Builtin function = find_function(name)) {
        return Value::of_object(Kind::kFunction,
                                std::make_shared<FunctionObject>(&budget_, name, function));
    }
    return make_undefined("'" + name + "' is undefined");
}

Value Vm::eval_list(const Expr& expr, const std::shared_ptr<Scope>& scope) {
    std::vector<Value> items;
    for (const ExprPtr& kid : expr.kids) {
        if (!push(items, eval(*kid, scope))) return {};
    }
    return make_list(std::move(items), expr.kind == ExprKind::kTuple ? Kind::kTuple : Kind::kList);
}

Value Vm::eval_dict(const Expr& expr, const std::shared_ptr<Scope>& scope) {
    std::vector<std::pair<Value, Value>> items;
    std::string key;
    for (size_t i = 0; i + 1 < expr.kids.size() && !failed_; i += 2) {
        Value name = eval(*expr.kids[i], scope);
        Value value = eval(*expr.kids[i + 1], scope);
        if (failed_) return {};
        key.clear();
        if (!dict_key(name, key))
            return error("unhashable type: '" + std::string(type_name(name.kind)) + "'");
        items.emplace_back(std::move(name), std::move(value));
    }
    return make_dict(std::move(items));
}

Value Vm::eval_item(const Expr& expr, const std::shared_ptr<Scope>& scope) {
    const Value object = eval(*expr.kids[0], scope);
    if (failed_) return {};
    const Expr& index = *expr.kids[1];
    if (index.kind != ExprKind::kSlice) {
        const Value key = eval(index, scope);
        return failed_ ? Value() : get_item(object, key);
    }
    Value parts[3] = {Value::none(), Value::none(), Value::none()};
    for (size_t i = 0; i < 3; ++i) {
        if (index.kids[i] != nullptr) parts[i] = eval(*index.kids[i], scope);
    }
    return failed_ ? Value() : slice(object, parts[0], parts[1], parts[2]);
}

Value Vm::eval_cond(const Expr& expr, const std::shared_ptr<Scope>& scope) {
    const bool taken = truthy(eval(*expr.kids[0], scope));
    if (failed_) return {};
    if (taken) return eval(*expr.kids[1], scope);
    if (expr.kids[2] != nullptr) return eval(*expr.kids[2], scope);
    return make_undefined("the inline if-expression on line " + std::to_string(expr.line) +
                          " evaluated to false and no else section was defined.");
}

Value Vm::eval_concat(const Expr& expr, const std::shared_ptr<Scope>& scope) {
    std::vector<Value> values;
    for (const ExprPtr& kid : expr.kids) {
        values.push_back(eval(*kid, scope));
        if (failed_) return {};
    }
    StrBuilder out(*this);
    for (const Value& value : values) append_str(out, value);
    return out.finish();
}

Value Vm::eval_sign(const Expr& expr, const std::shared_ptr<Scope>& scope) {
    const Value value = eval(*expr.kids[0], scope);
    if (failed_) return {};
    const bool negative = expr.kind == ExprKind::kNeg;
    if (value.is(Kind::kFloat)) return Value::of_float(negative ? -value.real : value.real);
    if (value.is_int()) {
        int64_t result = value.as_int();
        if (negative && __builtin_sub_overflow(int64_t{0}, result, &result))
            return error("integer overflow");
        return Value::of_int(result);
    }
    if (value.is(Kind::kBigInt) && negative) {
        const std::string& digits = value.get<BigIntObject>().digits;
        std::string flipped = digits[0] == '-' ? digits.substr(1) : "-" + digits;
        return Value::of_object(Kind::kBigInt,
                                std::make_shared<BigIntObject>(&budget_, std::move(flipped)));
    }
    if (value.is_undefined()) return use_undefined(value);
    return error("bad operand type for unary " + std::string(negative ? "-" : "+") + ": '" +
                 std::string(type_name(value.kind)) + "'");
}

Value Vm::eval_compare(const Expr& expr, const std::shared_ptr<Scope>& scope) {
    Value left = eval(*expr.kids[0], scope);
    for (size_t i = 0; i < expr.ops.size(); ++i) {
        if (failed_) return {};
        Value right = eval(*expr.kids[i + 1], scope);
        if (failed_) return {};
        bool holds = false;
        switch (expr.ops[i]) {
            case Op::kEq:
                holds = equal(left, right);
                break;
            case Op::kNe:
                holds = !equal(left, right);
                break;
            case Op::kLt:
                holds = compare(left, right, "<") == -1;
                break;
            case Op::kLe: {
                const int order = compare(left, right, "<=");
                holds = order == -1 || order == 0;
                break;
            }
            case Op::kGt:
                holds = compare(left, right, ">") == 1;
                break;
            case Op::kGe: {
                const int order = compare(left, right, ">=");
                holds = order == 1 || order == 0;
                break;
            }
            case Op::kIn:
                holds = contains(right, left);
                break;
            case Op::kNotIn:
                holds = !contains(right, left);
                break;
            default:
                break;
        }
        if (!holds) return Value::of_bool(false);
        left = std::move(right);
    }
    return Value::of_bool(true);
}

Value Vm::eval_filter(const Expr& expr, const Value* inner, const std::shared_ptr<Scope>& scope) {
    const Depth guard(*this);
    if (!spend()) return {};
    Value self;
    if (expr.kids[0] != nullptr) {
        self = expr.kids[0]->kind == ExprKind::kFilter ? eval_filter(*expr.kids[0], inner, scope)
                                                       : eval(*expr.kids[0], scope);
    } else if (inner != nullptr) {
        self = *inner;
    }
    if (failed_) return {};
    Args args;
    if (!eval_args(expr, args, scope)) return {};
    return call_filter(expr.text, self, args);
}

bool Vm::eval_args(const Expr& expr, Args& args, const std::shared_ptr<Scope>& scope) {
    for (const ExprPtr& arg : expr.args) {
        args.positional.push_back(eval(*arg, scope));
        if (failed_) return false;
    }
    for (const auto& [name, value] : expr.named) {
        args.named.emplace_back(name, eval(*value, scope));
        if (failed_) return false;
    }
    if (expr.star != nullptr) {
        const auto items = iterate(eval(*expr.star, scope));
        if (failed_ || items == nullptr) return false;
        for (const Value& item : items->items) {
            if (!push(args.positional, item)) return false;
        }
    }
    if (expr.star_star != nullptr) {
        const Value dict = eval(*expr.star_star, scope);
        if (failed_) return false;
        if (!dict.is(Kind::kDict)) {
            error("argument after ** must be a mapping");
            return false;
        }
        for (const auto& [key, value] : dict.get<DictObject>().items) {
            if (!key.is_str()) {
                error("keywords must be strings");
                return false;
            }
            for (const auto& [name, other] : args.named) {
                if (name == key.text()) error("got multiple values for keyword argument");
            }
            args.named.emplace_back(key.text(), value);
            if (!spend(args.named.size())) return false;
        }
    }
    return true;
}

Value Vm::call_filter(std::string_view name, const Value& self, Args& args) {
    const Builtin filter = find_filter(name);
    if (filter == nullptr)
        return error("no filter named '" + std::string(name.substr(0, 64)) + "'");
    return filter(*this, self, args);
}

bool Vm::call_test(std::string_view name, const Value& self, Args& args) {
    const Builtin test = find_test(name);
    if (test == nullptr) {
        error("no test named '" + std::string(name.substr(0, 64)) + "'");
        return false;
    }
    return truthy(test(*this, self, args));
}

Value Vm::call(const Value& callee, Args& args) {
    if (failed_) return {};
    switch (callee.kind) {
        case Kind::kMacro:
            return call_macro(callee.get<MacroObject>(), args);
        case Kind::kLoop:
            return call_loop(callee.get<LoopObject>(), args);
        case Kind::kFunction:
            return callee.get<FunctionObject>().call(*this, {}, args);
        case Kind::kMethod: {
            const auto& method = callee.get<MethodObject>();
            return call_method(*this, method.self, method.name, args);
        }
        case Kind::kJoiner: {
            const auto& joiner = callee.get<CyclerObject>();
            if (joiner.next++ == 0) return make_str("");
            return joiner.items[0];
        }
        case Kind::kUndefined:
            return use_undefined(callee);
        default:
            return error("'" + std::string(type_name(callee.kind)) + "' object is not callable");
    }
}

}  // namespace baton::text::jinja
