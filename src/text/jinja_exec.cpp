// Statements.
#include <algorithm>

#include "text/jinja_depth.hpp"
#include "text/jinja_vm.hpp"

namespace baton::text::jinja {
namespace {

constexpr int kMacroDepthMax = limits::kTemplateDepthMax;
constexpr size_t kOneArgument = 1;

}  // namespace

void Vm::run(std::shared_ptr<Scope> root, StrBuilder& out) {
    (void)exec_body(program_.body, root, out);
}

std::shared_ptr<Scope> Vm::make_scope(std::shared_ptr<Scope> parent) {
    auto scope = std::make_shared<Scope>();
    scope->parent = std::move(parent);
    return scope;
}

Vm::Flow Vm::exec_body(const Body& body, const std::shared_ptr<Scope>& scope, StrBuilder& out) {
    for (const StmtPtr& stmt : body) {
        const Flow flow = exec(*stmt, scope, out);
        if (failed_) return Flow::kBreak;
        if (flow != Flow::kNormal) return flow;
    }
    return Flow::kNormal;
}

Vm::Flow Vm::exec(const Stmt& stmt, const std::shared_ptr<Scope>& scope, StrBuilder& out) {
    const Depth guard(*this);
    line_ = stmt.line;
    if (!spend()) return Flow::kBreak;
    switch (stmt.kind) {
        case StmtKind::kText:
            out.add(stmt.text.text());
            break;
        case StmtKind::kOutput:
            append_str(out, eval(*stmt.expr, scope));
            break;
        case StmtKind::kIf:
            return exec_if(stmt, scope, out);
        case StmtKind::kFor:
            return exec_for(stmt, eval(*stmt.expr, scope), 0, scope, out);
        case StmtKind::kSet:
            assign(*stmt.target, eval(*stmt.expr, scope), scope);
            break;
        case StmtKind::kSetBlock:
            exec_set_block(stmt, scope);
            break;
        case StmtKind::kMacro:
            scope->set(stmt.name, make_macro(*stmt.macro, scope));
            break;
        case StmtKind::kCallBlock:
            exec_call_block(stmt, scope, out);
            break;
        case StmtKind::kFilterBlock: {
            StrBuilder inner(*this);
            (void)exec_body(stmt.body, make_scope(scope), inner);
            const Value text = inner.finish();
            append_str(out, eval_filter(*stmt.expr, &text, scope));
            break;
        }
        case StmtKind::kWith:
            exec_with(stmt, scope, out);
            break;
        case StmtKind::kScope:
            return exec_body(stmt.body, make_scope(scope), out);
        case StmtKind::kBreak:
            return Flow::kBreak;
        case StmtKind::kContinue:
            return Flow::kContinue;
    }
    return Flow::kNormal;
}

Vm::Flow Vm::exec_if(const Stmt& stmt, const std::shared_ptr<Scope>& scope, StrBuilder& out) {
    for (const Branch& branch : stmt.branches) {
        const bool taken = truthy(eval(*branch.test, scope));
        if (failed_) return Flow::kBreak;
        if (taken) return exec_body(branch.body, scope, out);
    }
    return exec_body(stmt.orelse, scope, out);
}

std::shared_ptr<const SeqObject> Vm::filtered(const Stmt& stmt,
                                              std::shared_ptr<const SeqObject> seq,
                                              const std::shared_ptr<Scope>& scope) {
    std::vector<Value> kept;
    const std::shared_ptr<Scope> inner = make_scope(scope);
    for (const Value& item : seq->items) {
        if (!spend()) return nullptr;
        assign(*stmt.target, item, inner);
        const bool keep = truthy(eval(*stmt.test, inner));
        if (failed_ || (keep && !push(kept, item))) return nullptr;
    }
    return std::make_shared<SeqObject>(&budget_, std::move(kept));
}

/// The else part runs when no iteration reached the end of the body, as in jinja2; its break or
/// continue is for the loop outside.
Vm::Flow Vm::exec_for(const Stmt& stmt, const Value& items, int64_t depth0,
                      const std::shared_ptr<Scope>& scope, StrBuilder& out) {
    std::shared_ptr<const SeqObject> seq = iterate(items);
    if (seq != nullptr && stmt.test != nullptr) seq = filtered(stmt, std::move(seq), scope);
    if (failed_ || seq == nullptr) return Flow::kBreak;
    auto loop = std::make_shared<LoopObject>(&budget_);
    loop->seq = seq;
    loop->depth = seq->depth + 1;
    loop->depth0 = depth0;
    if (stmt.recursive) loop->recursive = &stmt;
    loop->scope = scope;
    const Value loop_value = Value::of_object(Kind::kLoop, loop);
    std::shared_ptr<Scope> inner;
    bool completed = false;
    for (size_t i = 0; i < seq->items.size(); ++i) {
        if (++loops_ > limits::kTemplateLoopsMax) {
            error("more than " + std::to_string(limits::kTemplateLoopsMax) + " loop iterations");
        }
        if (!spend()) break;
        if (inner == nullptr || inner.use_count() > 1) {
            inner = make_scope(scope);
        } else {
            inner->names.clear();
        }
        loop->index0 = static_cast<int64_t>(i);
        inner->set(kNameLoop, loop_value);
        assign(*stmt.target, seq->items[i], inner);
        const Flow flow = failed_ ? Flow::kBreak : exec_body(stmt.body, inner, out);
        if (flow == Flow::kBreak) break;
        completed = completed || flow == Flow::kNormal;
    }
    loop->scope = nullptr;
    if (failed_) return Flow::kBreak;
    return completed ? Flow::kNormal : exec_body(stmt.orelse, make_scope(scope), out);
}

void Vm::exec_set_block(const Stmt& stmt, const std::shared_ptr<Scope>& scope) {
    StrBuilder inner(*this);
    (void)exec_body(stmt.body, make_scope(scope), inner);
    Value text = inner.finish();
    if (stmt.expr != nullptr) text = eval_filter(*stmt.expr, &text, scope);
    if (!failed_) assign(*stmt.target, text, scope);
}

void Vm::exec_call_block(const Stmt& stmt, const std::shared_ptr<Scope>& scope, StrBuilder& out) {
    Args args;
    const Value callee = eval(*stmt.expr->kids[0], scope);
    if (failed_ || !eval_args(*stmt.expr, args, scope)) return;
    args.named.emplace_back("caller", make_macro(*stmt.macro, scope));
    append_str(out, call(callee, args));
}

void Vm::exec_with(const Stmt& stmt, const std::shared_ptr<Scope>& scope, StrBuilder& out) {
    const std::shared_ptr<Scope> inner = make_scope(scope);
    std::vector<Value> values;
    for (const auto& [target, value] : stmt.bindings) values.push_back(eval(*value, scope));
    for (size_t i = 0; i < values.size() && !failed_; ++i)
        assign(*stmt.bindings[i].first, values[i], inner);
    if (!failed_) (void)exec_body(stmt.body, inner, out);
}

void Vm::assign(const Expr& target, const Value& value, const std::shared_ptr<Scope>& scope) {
    if (failed_) return;
    if (target.kind == ExprKind::kName) {
        scope->set(target.name, value);
        return;
    }
    if (target.kind == ExprKind::kNsRef) {
        const Value* object = scope->find(target.name);
        if (object == nullptr || !object->is(Kind::kNamespace)) {
            error("cannot assign attribute on non-namespace object");
            return;
        }
        auto& attrs = object->get<NamespaceObject>().attrs;
        for (auto& [name, old] : attrs) {
            if (name != target.text) continue;
            const Value keep = std::exchange(old, value);  // freed after the list is whole again
            return;
        }
        attrs.emplace_back(target.text, value);
        return;
    }
    const std::shared_ptr<const SeqObject> items = iterate(value);
    if (items == nullptr) return;
    if (items->items.size() != target.kids.size()) {
        error(items->items.size() < target.kids.size()
                  ? "not enough values to unpack (expected " + std::to_string(target.kids.size()) +
                        ", got " + std::to_string(items->items.size()) + ")"
                  : "too many values to unpack (expected " + std::to_string(target.kids.size()) +
                        ")");
        return;
    }
    const Depth guard(*this);
    for (size_t i = 0; i < target.kids.size(); ++i) assign(*target.kids[i], items->items[i], scope);
}

Value Vm::make_macro(const MacroDef& def, const std::shared_ptr<Scope>& scope) {
    if (!room(sizeof(MacroObject))) return {};
    if (captured_.empty() || captured_.back() != scope) captured_.push_back(scope);
    return Value::of_object(Kind::kMacro, std::make_shared<MacroObject>(&budget_, &def, scope));
}

Value Vm::call_macro(const MacroObject& macro, Args& args) {
    if (macro_depth_ >= kMacroDepthMax) return error("macros call each other too deeply");
    ++macro_depth_;
    const std::shared_ptr<Scope> scope = make_scope(macro.scope);
    StrBuilder out(*this);
    const int line = line_;
    if (bind_macro(macro, args, scope)) (void)exec_body(macro.def->body, scope, out);
    if (!failed_) line_ = line;
    --macro_depth_;
    return out.finish();
}

/// Puts a macro's arguments into its scope, as jinja2's Macro.__call__ does.
bool Vm::bind_macro(const MacroObject& macro, Args& args, const std::shared_ptr<Scope>& scope) {
    const MacroDef& def = *macro.def;
    const std::string name = def.name.empty() ? "caller" : def.name;
    const size_t count = def.params.size();
    const auto take = [&args](std::string_view key) {
        for (auto it = args.named.begin(); it != args.named.end(); ++it) {
            if (it->first != key) continue;
            Value value = std::move(it->second);
            args.named.erase(it);
            return value;
        }
        return Value::missing();
    };
    for (size_t i = 0; i < count && !failed_; ++i) {
        Value value = i < args.positional.size() ? args.positional[i] : take(def.param_names[i]);
        if (value.is_missing()) {
            const size_t first_default = count - def.defaults.size();
            value = i >= first_default
                        ? eval(*def.defaults[i - first_default], scope)
                        : make_undefined("parameter '" + def.param_names[i] + "' was not provided");
        }
        scope->set(def.params[i], std::move(value));
    }
    const bool explicit_caller =
        std::find(def.params.begin(), def.params.end(), kNameCaller) != def.params.end();
    if (def.uses_caller && !explicit_caller) {
        Value caller = take("caller");
        if (caller.is_missing()) caller = make_undefined("No caller defined");
        scope->set(kNameCaller, std::move(caller));
    }
    if (def.uses_kwargs) {
        std::vector<std::pair<Value, Value>> rest;
        for (auto& [key, value] : args.named) rest.emplace_back(make_str(key), std::move(value));
        scope->set(kNameKwargs, make_dict(std::move(rest)));
    } else if (!args.named.empty()) {
        error("macro '" + name + "' takes no keyword argument '" +
              args.named[0].first.substr(0, 64) + "'");
    }
    if (def.uses_varargs) {
        std::vector<Value> rest;
        for (size_t i = count; i < args.positional.size(); ++i)
            rest.push_back(std::move(args.positional[i]));
        scope->set(kNameVarargs, make_list(std::move(rest), Kind::kTuple));
    } else if (args.positional.size() > count) {
        error("macro '" + name + "' takes not more than " + std::to_string(count) + " argument(s)");
    }
    return !failed_;
}

Value Vm::call_loop(const LoopObject& loop, Args& args) {
    if (loop.recursive == nullptr || loop.scope == nullptr) {
        return error("the loop must have the 'recursive' marker to be called recursively");
    }
    if (args.positional.size() != kOneArgument || !args.named.empty())
        return error("loop() takes one argument");
    if (macro_depth_ >= kMacroDepthMax) return error("loops call each other too deeply");
    ++macro_depth_;
    StrBuilder out(*this);
    const std::shared_ptr<Scope> scope = loop.scope;
    (void)exec_for(*loop.recursive, args.positional[0], loop.depth0 + 1, scope, out);
    --macro_depth_;
    return out.finish();
}

}  // namespace baton::text::jinja
