#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.hpp"

namespace baton::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
/// Index of an identifier in Program::names.
using NameId = uint32_t;

enum class ExprKind : uint8_t {
    kConst,    // value
    kName,     // name
    kNsRef,    // name . text: only an assignment target
    kList,     // kids
    kTuple,    // kids
    kDict,     // kids: key, value, key, value…
    kGetAttr,  // kids[0] . text
    kGetItem,  // kids[0] [kids[1]]
    kSlice,    // kids[0..2], null where absent
    kCall,     // kids[0](args)
    kFilter,   // kids[0] | text(args); kids[0] null in filter blocks
    kTest,     // kids[0] is text(args)
    kNot,
    kNeg,
    kPos,
    kAnd,
    kOr,
    kCond,     // kids: test, then, else or null
    kBinary,   // op
    kConcat,   // kids
    kCompare,  // kids[0] ops[i] kids[i+1]
};

enum class Op : uint8_t {
    kAdd,
    kSub,
    kMul,
    kDiv,
    kFloorDiv,
    kMod,
    kPow,
    kEq,
    kNe,
    kLt,
    kLe,
    kGt,
    kGe,
    kIn,
    kNotIn
};

struct Expr {
    ExprKind kind = ExprKind::kConst;
    Op op = Op::kAdd;
    uint16_t height = 1;
    int line = 0;
    NameId name = 0;
    std::string text;
    Value value;
    std::vector<ExprPtr> kids;
    std::vector<Op> ops;
    // Arguments of calls, filters and tests.
    std::vector<ExprPtr> args;
    std::vector<std::pair<std::string, ExprPtr>> named;
    ExprPtr star;
    ExprPtr star_star;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

/// Parameters and body of a macro or a call block.
struct MacroDef {
    std::string name;  // empty: a caller
    std::vector<NameId> params;
    std::vector<std::string> param_names;
    std::vector<ExprPtr> defaults;  // of the last params
    bool uses_varargs = false;
    bool uses_kwargs = false;
    bool uses_caller = false;
    Body body;
};

enum class StmtKind : uint8_t {
    kText,         // text
    kOutput,       // expr
    kIf,           // branches, orelse
    kFor,          // target, expr, test, body, orelse, recursive
    kSet,          // target, expr
    kSetBlock,     // target, expr (a filter chain) or null, body
    kMacro,        // name, macro
    kCallBlock,    // expr (the call), macro
    kFilterBlock,  // expr (a filter chain), body
    kWith,         // targets/values in branches' places: target list, value list
    kScope,        // body in a scope of its own
    kBreak,
    kContinue,
};

struct Branch {
    ExprPtr test;
    Body body;
};

struct Stmt {
    StmtKind kind = StmtKind::kText;
    int line = 0;
    bool recursive = false;
    NameId name = 0;
    Value text;  // kText: a constant string
    ExprPtr target;
    ExprPtr expr;
    ExprPtr test;
    Body body;
    Body orelse;
    std::vector<Branch> branches;
    std::vector<std::pair<ExprPtr, ExprPtr>> bindings;  // kWith
    std::unique_ptr<MacroDef> macro;
};

/// Identifiers with a meaning of their own; the parser gives them these ids.
enum WellKnown : NameId { kNameLoop, kNameVarargs, kNameKwargs, kNameCaller, kWellKnownCount };

/// A parsed template.
struct Program {
    Body body;
    std::vector<std::string> names;
};

}  // namespace baton::text::jinja
