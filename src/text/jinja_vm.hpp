#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/limits.hpp"
#include "text/jinja_ast.hpp"
#include "text/jinja_builtins.hpp"
#include "text/jinja_value.hpp"

namespace baton::text::jinja {

/// Arguments of a call.
struct Args {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> named;
    [[nodiscard]] bool empty() const { return positional.empty() && named.empty(); }
};

/// Variables of one scope; the parent is where the scope was written, not where it runs.
struct Scope {
    std::shared_ptr<Scope> parent;
    std::vector<std::pair<NameId, Value>> names;
    void set(NameId name, Value value);
    [[nodiscard]] const Value* find(NameId name) const;  ///< here and in the parents
};

struct NamespaceObject final : Object {
    explicit NamespaceObject(Budget* b) : Object(b, sizeof(NamespaceObject)) {}
    mutable std::vector<std::pair<std::string, Value>> attrs;
    [[nodiscard]] const Value* find(std::string_view name) const;
};
struct MacroObject final : Object {
    MacroObject(Budget* b, const MacroDef* d, std::shared_ptr<Scope> s)
        : Object(b, sizeof(MacroObject)), def(d), scope(std::move(s)) {}
    const MacroDef* def;
    std::shared_ptr<Scope> scope;
};
struct MethodObject final : Object {
    MethodObject(Budget* b, Value s, std::string n)
        : Object(b, sizeof(MethodObject)), self(std::move(s)), name(std::move(n)) {
        depth = self.depth() + 1;
    }
    Value self;
    std::string name;
};
struct FunctionObject final : Object {
    FunctionObject(Budget* b, std::string n, Builtin c)
        : Object(b, sizeof(FunctionObject)), name(std::move(n)), call(c) {}
    std::string name;
    Builtin call;
};
struct LoopObject final : Object {
    explicit LoopObject(Budget* b) : Object(b, sizeof(LoopObject)) {}
    std::shared_ptr<const SeqObject> seq;
    mutable int64_t index0 = 0;
    int64_t depth0 = 0;
    const Stmt* recursive = nullptr;  ///< the loop to run again, or null
    std::shared_ptr<Scope> scope;     ///< its scope; emptied when the loop ends
    mutable bool changed_before = false;
    mutable Value last_changed;
};
/// cycler(): items and the next position; joiner(): the separator and whether it was used.
struct CyclerObject final : Object {
    CyclerObject(Budget* b, std::vector<Value> v)
        : Object(b, sizeof(CyclerObject)), items(std::move(v)) {
        for (const Value& item : items) depth = std::max(depth, item.depth() + 1);
    }
    std::vector<Value> items;
    mutable size_t next = 0;
};

class Vm;

/// Builds a string and keeps which bytes came from a user. Its bytes count against the budget.
class StrBuilder {
  public:
    explicit StrBuilder(Vm& vm) : vm_(vm) {}
    StrBuilder(const StrBuilder&) = delete;
    StrBuilder& operator=(const StrBuilder&) = delete;
    ~StrBuilder();
    void add(std::string_view text, bool from_user = false);
    void add_code(uint32_t code, bool from_user);
    /// Bytes [begin, end) of a string with their ranges.
    void add_part(const StrObject& text, size_t begin, size_t end);
    void add(const StrObject& text) { add_part(text, 0, text.text.size()); }
    [[nodiscard]] size_t size() const { return text_.size(); }
    /// The string; the builder is empty afterwards.
    Value finish(bool markup = false);
    [[nodiscard]] const std::string& text() const { return text_; }
    [[nodiscard]] const std::vector<TaintRange>& taint() const { return taint_; }

  private:
    bool room(size_t bytes);
    void mark(size_t begin, size_t end);
    Vm& vm_;
    std::string text_;
    std::vector<TaintRange> taint_;
    size_t charged_ = 0;
};

/// Renders one program once. The first error sticks: every operation then returns quickly with a
/// harmless value, so callers test failed() where they loop. Not thread-safe; the program is only
/// read.
class Vm {
  public:
    explicit Vm(const Program& program);
    ~Vm();
    Vm(const Vm&) = delete;
    Vm& operator=(const Vm&) = delete;

    /// Runs the program with `root` as its variables, into `out`.
    void run(std::shared_ptr<Scope> root, StrBuilder& out);

    // --- errors and limits ---
    [[nodiscard]] bool failed() const { return failed_; }
    [[nodiscard]] const std::string& error() const { return error_; }
    [[nodiscard]] int error_line() const { return error_line_; }
    Value error(std::string what);  ///< keeps the first; returns undefined
    /// raise_exception(): the error is the text alone.
    Value raise(std::string what);
    [[nodiscard]] bool raised() const { return raised_; }
    Value use_undefined(const Value& value);  ///< the error of using an undefined value
    /// Spends `work` units of the time budget; false when it is used up.
    bool spend(size_t work = 1);
    /// True when `bytes` more fit the memory budget; otherwise an error.
    bool room(size_t bytes);
    Budget& budget() { return budget_; }

    // --- making values ---
    Value make_str(std::string_view text, bool from_user = false);
    Value make_list(std::vector<Value> items, Kind kind = Kind::kList);
    Value make_dict(std::vector<std::pair<Value, Value>> items);
    Value make_undefined(std::string why);
    Value make_namespace(std::vector<std::pair<std::string, Value>> attrs);
    /// Appends to a list that is being made, within the budget.
    bool push(std::vector<Value>& items, Value value);

    // --- Python's operations ---
    bool truthy(const Value& value);
    bool equal(const Value& a, const Value& b);
    /// -1, 0, 1; an error where Python cannot order them. `op` is for the message.
    int compare(const Value& a, const Value& b, const char* op);
    bool contains(const Value& container, const Value& item);
    Value binary(Op op, const Value& a, const Value& b);
    Value add(const Value& a, const Value& b);
    Value length(const Value& value);
    /// str(value); strings are returned as they are.
    Value to_str(const Value& value);
    void append_str(StrBuilder& out, const Value& value);
    void append_repr(StrBuilder& out, const Value& value);
    /// The items `for` would see; consumes iterators.
    std::shared_ptr<const SeqObject> iterate(const Value& value);
    Value get_attr(const Value& object, const Value& name);
    Value get_attr(const Value& object, std::string_view name);
    Value get_item(const Value& object, const Value& key);
    Value slice(const Value& object, const Value& from, const Value& to, const Value& step);
    Value call(const Value& callee, Args& args);
    Value call_filter(std::string_view name, const Value& self, Args& args);
    bool call_test(std::string_view name, const Value& self, Args& args);

    /// Puts arguments into parameter order; absent ones are kMissing. Errors as Python's for
    /// unknown or surplus ones.
    std::vector<Value> bind(const char* function, Args& args,
                            std::initializer_list<std::string_view> params, size_t required = 0);
    /// Argument conversions with an error for the wrong type; `fallback` where it is missing.
    int64_t int_arg(const Value& value, int64_t fallback, const char* what);
    bool bool_arg(const Value& value, bool fallback);

    [[nodiscard]] const Program& program() const { return program_; }

  private:
    enum class Flow : uint8_t { kNormal, kBreak, kContinue };
    /// Counts evaluation depth while it lives.
    struct Depth;

    // statements (jinja_exec.cpp)
    Flow exec_body(const Body& body, const std::shared_ptr<Scope>& scope, StrBuilder& out);
    Flow exec(const Stmt& stmt, const std::shared_ptr<Scope>& scope, StrBuilder& out);
    Flow exec_if(const Stmt& stmt, const std::shared_ptr<Scope>& scope, StrBuilder& out);
    Flow exec_for(const Stmt& stmt, const Value& items, int64_t depth0,
                  const std::shared_ptr<Scope>& scope, StrBuilder& out);
    std::shared_ptr<const SeqObject> filtered(const Stmt& stmt,
                                              std::shared_ptr<const SeqObject> seq,
                                              const std::shared_ptr<Scope>& scope);
    void exec_set_block(const Stmt& stmt, const std::shared_ptr<Scope>& scope);
    void exec_call_block(const Stmt& stmt, const std::shared_ptr<Scope>& scope, StrBuilder& out);
    void exec_with(const Stmt& stmt, const std::shared_ptr<Scope>& scope, StrBuilder& out);
    void assign(const Expr& target, const Value& value, const std::shared_ptr<Scope>& scope);
    Value make_macro(const MacroDef& def, const std::shared_ptr<Scope>& scope);
    Value call_macro(const MacroObject& macro, Args& args);
    bool bind_macro(const MacroObject& macro, Args& args, const std::shared_ptr<Scope>& scope);
    Value call_loop(const LoopObject& loop, Args& args);
    std::shared_ptr<Scope> make_scope(std::shared_ptr<Scope> parent);

    // expressions (jinja_eval.cpp)
    Value eval(const Expr& expr, const std::shared_ptr<Scope>& scope);
    Value eval_name(const Expr& expr, const std::shared_ptr<Scope>& scope);
    Value eval_list(const Expr& expr, const std::shared_ptr<Scope>& scope);
    Value eval_dict(const Expr& expr, const std::shared_ptr<Scope>& scope);
    Value eval_item(const Expr& expr, const std::shared_ptr<Scope>& scope);
    Value eval_compare(const Expr& expr, const std::shared_ptr<Scope>& scope);
    Value eval_cond(const Expr& expr, const std::shared_ptr<Scope>& scope);
    Value eval_concat(const Expr& expr, const std::shared_ptr<Scope>& scope);
    Value eval_sign(const Expr& expr, const std::shared_ptr<Scope>& scope);
    /// A filter or a chain whose innermost value is `inner` where the chain starts with none
    /// (filter blocks).
    Value eval_filter(const Expr& expr, const Value* inner, const std::shared_ptr<Scope>& scope);
    bool eval_args(const Expr& expr, Args& args, const std::shared_ptr<Scope>& scope);

    const Program& program_;
    Budget budget_;
    bool failed_ = false;
    bool raised_ = false;
    std::string error_;
    int error_line_ = 0;
    int line_ = 0;
    int depth_ = 0;
    int macro_depth_ = 0;
    size_t loops_ = 0;
    size_t work_ = 0;
    int64_t cpu_ms_end_;  ///< CPU time of this thread at which rendering has taken too long
    // Namespaces and scopes that values may point back to, so that cycles are cut at the end.
    std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
    std::vector<std::shared_ptr<Scope>> captured_;
};

/// Python's type name, e.g. "str".
[[nodiscard]] std::string_view type_name(Kind kind);
/// repr() of a float.
[[nodiscard]] std::string float_repr(double value);
/// json.dumps of `value` into `out`; see the tojson filter.
struct JsonStyle {
    bool ensure_ascii = false;
    bool sort_keys = false;
    bool pretty = false;
    std::string indent;
    std::string item_separator = ", ";
    std::string key_separator = ": ";
};
void append_json(Vm& vm, StrBuilder& out, const Value& value, const JsonStyle& style);
/// `format % args`.
[[nodiscard]] Value percent_format(Vm& vm, const StrObject& format, const Value& args);
/// format.format(args).
[[nodiscard]] Value brace_format(Vm& vm, const StrObject& format, Args& args);

}  // namespace baton::text::jinja
