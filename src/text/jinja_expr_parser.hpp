#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <map>

#include "baton/base/limits.hpp"
#include "text/jinja_ast.hpp"
#include "text/jinja_builtins.hpp"
#include "text/jinja_lexer.hpp"

namespace baton::text::jinja {

/// Reads expressions from tokens, with jinja2's grammar. The first error sticks and ends every
/// loop. Only the parser of statements (jinja_parser.cpp) includes this.
class ExprParser {
  protected:
    explicit ExprParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
        for (const char* name : {"loop", "varargs", "kwargs", "caller"}) intern(name);
    }
    static constexpr int kHeightMax = 512;  // a + b + c + …: chains the evaluator descends

    using Names = std::initializer_list<std::string_view>;

    // --- tokens ---
    [[nodiscard]] const Token& now() const { return tokens_[pos_]; }
    [[nodiscard]] const Token& ahead() const {
        return tokens_[std::min(pos_ + 1, tokens_.size() - 1)];
    }
    void next() {
        if (pos_ + 1 < tokens_.size()) ++pos_;
    }
    [[nodiscard]] bool is_op(std::string_view text) const {
        return now().kind == TokenKind::kOperator && now().text == text;
    }
    [[nodiscard]] bool is_name(std::string_view text) const {
        return now().kind == TokenKind::kName && now().text == text;
    }
    [[nodiscard]] bool is_any_name(Names names) const {
        return now().kind == TokenKind::kName &&
               std::find(names.begin(), names.end(), now().text) != names.end();
    }
    bool skip_op(std::string_view text) {
        if (!is_op(text)) return false;
        next();
        return true;
    }
    bool skip_name(std::string_view text) {
        if (!is_name(text)) return false;
        next();
        return true;
    }
    bool stop(const std::string& what) {
        if (!failed_) {
            failed_ = true;
            error_ = what;
            error_line_ = now().line;
        }
        return false;
    }
    [[nodiscard]] std::string describe() const {
        switch (now().kind) {
            case TokenKind::kBlockEnd:
                return "end of statement block";
            case TokenKind::kVariableEnd:
                return "end of print statement";
            case TokenKind::kEnd:
                return "end of template";
            case TokenKind::kString:
                return "string";
            default:
                return now().text.substr(0, 64);
        }
    }
    bool expect_op(std::string_view text) {
        return skip_op(text) ||
               stop("expected '" + std::string(text) + "', got '" + describe() + "'");
    }
    bool expect_name(std::string_view text) {
        return skip_name(text) ||
               stop("expected '" + std::string(text) + "', got '" + describe() + "'");
    }
    std::string any_name() {
        if (now().kind != TokenKind::kName) {
            stop("expected a name, got '" + describe() + "'");
            return {};
        }
        std::string text = now().text;
        next();
        return text;
    }
    bool expect_kind(TokenKind kind, const char* what) {
        if (now().kind != kind)
            return stop(std::string("expected ") + what + ", got '" + describe() + "'");
        next();
        return true;
    }
    NameId intern(const std::string& name) {
        const auto [it, fresh] = ids_.try_emplace(name, static_cast<NameId>(program_.names.size()));
        if (fresh) program_.names.push_back(name);
        return it->second;
    }

    /// Counts nesting while it lives; false when too deep.
    struct Depth {
        explicit Depth(ExprParser& p) : parser(p) {
            if (++parser.depth_ > limits::kTemplateDepthMax) parser.stop("nested too deeply");
        }
        Depth(const Depth&) = delete;
        Depth& operator=(const Depth&) = delete;
        ~Depth() { --parser.depth_; }
        ExprParser& parser;
    };

    // --- nodes ---
    [[nodiscard]] ExprPtr make(ExprKind kind) const {
        auto node = std::make_unique<Expr>();
        node->kind = kind;
        node->line = now().line;
        return node;
    }
    ExprPtr constant(Value value) {
        ExprPtr node = make(ExprKind::kConst);
        node->value = std::move(value);
        return node;
    }
    /// Adds a child and keeps the height; stops where a chain grows too high.
    void adopt(Expr& parent, ExprPtr child) {
        if (child != nullptr) {
            parent.height =
                std::max<uint16_t>(parent.height, static_cast<uint16_t>(child->height + 1));
            if (parent.height > kHeightMax) stop("expression too long");
        }
        parent.kids.push_back(std::move(child));
    }
    ExprPtr node(ExprKind kind, ExprPtr a) {
        ExprPtr made = make(kind);
        adopt(*made, std::move(a));
        return made;
    }
    ExprPtr node(ExprKind kind, ExprPtr a, ExprPtr b) {
        ExprPtr made = node(kind, std::move(a));
        adopt(*made, std::move(b));
        return made;
    }
    static void grow(Expr& parent, const Expr* child) {
        if (child != nullptr) {
            parent.height =
                std::max<uint16_t>(parent.height, static_cast<uint16_t>(child->height + 1));
        }
    }

    static Value make_constant(const std::string& text) {
        return Value::of_object(Kind::kStr, std::make_shared<StrObject>(
                                                nullptr, text, std::vector<TaintRange>{}, false));
    }
    // --- expressions ---
    [[nodiscard]] bool tuple_end(std::string_view end) const {
        return now().kind == TokenKind::kVariableEnd || now().kind == TokenKind::kBlockEnd ||
               is_op(")") || (!end.empty() && is_name(end));
    }
    ExprPtr tuple(bool with_condition, std::string_view end, bool parenthesised = false) {
        std::vector<ExprPtr> items;
        bool is_tuple = false;
        while (!failed_ && !tuple_end(end)) {
            items.push_back(expression(with_condition));
            if (!skip_op(",")) break;
            is_tuple = true;
        }
        if (failed_) return nullptr;
        if (!is_tuple && items.size() == 1) return std::move(items[0]);
        if (!is_tuple && !parenthesised) {
            stop("expected an expression, got '" + describe() + "'");
            return nullptr;
        }
        ExprPtr made = make(ExprKind::kTuple);
        for (ExprPtr& item : items) adopt(*made, std::move(item));
        return made;
    }

    ExprPtr expression(bool with_condition) {
        const Depth guard(*this);
        if (failed_) return nullptr;
        return with_condition ? condition() : disjunction();
    }
    ExprPtr condition() {
        ++conditions_;  // a filter in any part of it may be missing until it is reached
        ExprPtr value = disjunction();
        --conditions_;
        if (!is_name("if")) {
            require_known();
            return value;
        }
        unknown_.clear();
        ++conditions_;
        while (!failed_ && skip_name("if")) {
            ExprPtr made = node(ExprKind::kCond, disjunction(), std::move(value));
            ExprPtr other;
            if (skip_name("else")) {
                const Depth guard(*this);
                other = failed_ ? nullptr : condition();
            }
            adopt(*made, std::move(other));
            value = std::move(made);
        }
        --conditions_;
        return value;
    }
    /// Unknown filters and tests found outside conditions are errors when the template is compiled.
    void require_known() {
        if (conditions_ == 0 && !unknown_.empty()) stop(unknown_);
        if (conditions_ == 0) unknown_.clear();
    }
    ExprPtr disjunction() {
        ExprPtr left = conjunction();
        while (!failed_ && skip_name("or"))
            left = node(ExprKind::kOr, std::move(left), conjunction());
        return left;
    }
    ExprPtr conjunction() {
        ExprPtr left = negation();
        while (!failed_ && skip_name("and"))
            left = node(ExprKind::kAnd, std::move(left), negation());
        return left;
    }
    ExprPtr negation() {
        if (!is_name("not")) return comparison();
        const Depth guard(*this);
        next();
        if (failed_) return nullptr;
        return node(ExprKind::kNot, negation());
    }
    bool comparison_op(Op& op) {
        static const std::map<std::string_view, Op> kOps{{"==", Op::kEq}, {"!=", Op::kNe},
                                                         {"<", Op::kLt},  {"<=", Op::kLe},
                                                         {">", Op::kGt},  {">=", Op::kGe}};
        if (now().kind == TokenKind::kOperator) {
            const auto it = kOps.find(now().text);
            if (it == kOps.end()) return false;
            op = it->second;
            next();
            return true;
        }
        if (skip_name("in")) {
            op = Op::kIn;
            return true;
        }
        if (is_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
            next();
            next();
            op = Op::kNotIn;
            return true;
        }
        return false;
    }
    ExprPtr comparison() {
        ExprPtr left = sum();
        Op op{};
        if (failed_ || !comparison_op(op)) return left;
        ExprPtr made = node(ExprKind::kCompare, std::move(left));
        do {
            made->ops.push_back(op);
            adopt(*made, sum());
        } while (!failed_ && comparison_op(op));
        return made;
    }
    ExprPtr binary(Op op, ExprPtr left, ExprPtr right) {
        ExprPtr made = node(ExprKind::kBinary, std::move(left), std::move(right));
        made->op = op;
        return made;
    }
    ExprPtr sum() {
        ExprPtr left = concat();
        while (!failed_) {
            if (skip_op("+")) {
                left = binary(Op::kAdd, std::move(left), concat());
            } else if (skip_op("-")) {
                left = binary(Op::kSub, std::move(left), concat());
            } else {
                break;
            }
        }
        return left;
    }
    ExprPtr concat() {
        ExprPtr first = product();
        if (failed_ || !is_op("~")) return first;
        ExprPtr made = node(ExprKind::kConcat, std::move(first));
        while (!failed_ && skip_op("~")) adopt(*made, product());
        return made;
    }
    ExprPtr product() {
        ExprPtr left = power();
        while (!failed_) {
            if (skip_op("*")) {
                left = binary(Op::kMul, std::move(left), power());
            } else if (skip_op("/")) {
                left = binary(Op::kDiv, std::move(left), power());
            } else if (skip_op("//")) {
                left = binary(Op::kFloorDiv, std::move(left), power());
            } else if (skip_op("%")) {
                left = binary(Op::kMod, std::move(left), power());
            } else {
                break;
            }
        }
        return left;
    }
    ExprPtr power() {
        ExprPtr left = unary(true);
        while (!failed_ && skip_op("**")) left = binary(Op::kPow, std::move(left), unary(true));
        return left;
    }
    ExprPtr unary(bool with_filter) {
        ExprPtr made;
        if (is_op("-") || is_op("+")) {
            const Depth guard(*this);
            const ExprKind kind = is_op("-") ? ExprKind::kNeg : ExprKind::kPos;
            next();
            if (!failed_) made = node(kind, unary(false));
        } else {
            made = primary();
        }
        made = postfix(std::move(made));
        return with_filter ? filters(std::move(made)) : std::move(made);
    }

    ExprPtr primary() {
        const Token& token = now();
        switch (token.kind) {
            case TokenKind::kName:
                return name_or_constant();
            case TokenKind::kString: {
                std::string text = token.text;
                next();
                while (now().kind == TokenKind::kString) {
                    text += now().text;
                    next();
                }
                return constant(make_constant(text));
            }
            case TokenKind::kInteger:
                return integer();
            case TokenKind::kFloat: {
                double value = 0;
                const auto parsed = std::from_chars(token.text.data(),
                                                    token.text.data() + token.text.size(), value);
                if (parsed.ec == std::errc::result_out_of_range) {
                    value = token.text.find('-') != std::string::npos ? 0.0 : HUGE_VAL;
                }
                ExprPtr made = constant(Value::of_float(value));
                next();
                return made;
            }
            case TokenKind::kOperator:
                if (skip_op("(")) {
                    ExprPtr made = tuple(true, {}, true);
                    expect_op(")");
                    return made;
                }
                if (is_op("[")) return list();
                if (is_op("{")) return dict();
                break;
            default:
                break;
        }
        stop("unexpected '" + describe() + "'");
        return nullptr;
    }
    ExprPtr name_or_constant() {
        const std::string text = any_name();
        if (text == "true" || text == "True") return constant(Value::of_bool(true));
        if (text == "false" || text == "False") return constant(Value::of_bool(false));
        if (text == "none" || text == "None") return constant(Value::none());
        ExprPtr made = make(ExprKind::kName);
        made->name = intern(text);
        for (MacroDef* macro : macros_) {
            macro->uses_varargs |= made->name == kNameVarargs;
            macro->uses_kwargs |= made->name == kNameKwargs;
            macro->uses_caller |= made->name == kNameCaller;
        }
        return made;
    }
    ExprPtr integer() {
        std::string text = now().text;
        int base = 10;
        if (text.size() > 2 && text[0] == '0') {
            base = text[1] == 'x' ? 16 : text[1] == 'o' ? 8 : 2;
            text.erase(0, 2);
        }
        int64_t value = 0;
        const auto [end, error] =
            std::from_chars(text.data(), text.data() + text.size(), value, base);
        Value made = Value::of_int(value);
        if (error == std::errc::result_out_of_range) {
            if (base != 10 || text.size() > 4300) stop("integer literal too large");
            made = Value::of_object(Kind::kBigInt, std::make_shared<BigIntObject>(nullptr, text));
        }
        next();
        return constant(std::move(made));
    }
    ExprPtr list() {
        ExprPtr made = make(ExprKind::kList);
        next();
        while (!failed_ && !is_op("]")) {
            adopt(*made, expression(true));
            if (!skip_op(",")) break;
        }
        expect_op("]");
        return made;
    }
    ExprPtr dict() {
        ExprPtr made = make(ExprKind::kDict);
        next();
        while (!failed_ && !is_op("}")) {
            adopt(*made, expression(true));
            expect_op(":");
            adopt(*made, expression(true));
            if (!skip_op(",")) break;
        }
        expect_op("}");
        return made;
    }

    ExprPtr postfix(ExprPtr left) {
        while (!failed_) {
            if (skip_op(".")) {
                left = attribute(std::move(left));
            } else if (is_op("[")) {
                left = subscript(std::move(left));
            } else if (is_op("(")) {
                left = call(std::move(left));
            } else {
                break;
            }
        }
        return left;
    }
    ExprPtr attribute(ExprPtr left) {
        if (now().kind == TokenKind::kInteger) {
            return node(ExprKind::kGetItem, std::move(left), integer());
        }
        ExprPtr made = node(ExprKind::kGetAttr, std::move(left));
        made->text = any_name();
        return made;
    }
    ExprPtr subscript(ExprPtr left) {
        next();
        std::vector<ExprPtr> items;
        while (!failed_ && !is_op("]")) {
            if (!items.empty()) expect_op(",");
            items.push_back(slice());
        }
        expect_op("]");
        if (failed_) return nullptr;
        if (items.size() == 1)
            return node(ExprKind::kGetItem, std::move(left), std::move(items[0]));
        ExprPtr index = make(ExprKind::kTuple);
        for (ExprPtr& item : items) adopt(*index, std::move(item));
        return node(ExprKind::kGetItem, std::move(left), std::move(index));
    }
    ExprPtr slice() {
        ExprPtr parts[3];
        if (!is_op(":")) {
            parts[0] = expression(true);
            if (!is_op(":")) return std::move(parts[0]);
        }
        next();
        if (!is_op(":") && !is_op("]") && !is_op(",")) parts[1] = expression(true);
        if (skip_op(":") && !is_op("]") && !is_op(",")) parts[2] = expression(true);
        ExprPtr made = make(ExprKind::kSlice);
        for (ExprPtr& part : parts) adopt(*made, std::move(part));
        return made;
    }
    ExprPtr call(ExprPtr left) {
        ExprPtr made = node(ExprKind::kCall, std::move(left));
        arguments(*made);
        return made;
    }
    void arguments(Expr& into) {
        expect_op("(");
        const auto ensure = [this](bool ok) {
            if (!ok) stop("invalid syntax for function call expression");
        };
        while (!failed_ && !is_op(")")) {
            if (skip_op("*")) {
                ensure(into.star == nullptr && into.star_star == nullptr);
                into.star = expression(true);
                grow(into, into.star.get());
            } else if (skip_op("**")) {
                ensure(into.star_star == nullptr);
                into.star_star = expression(true);
                grow(into, into.star_star.get());
            } else if (now().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator &&
                       ahead().text == "=") {
                ensure(into.star_star == nullptr);
                std::string key = any_name();
                next();
                for (const auto& [other, value] : into.named) ensure(other != key);
                into.named.emplace_back(std::move(key), expression(true));
                grow(into, into.named.back().second.get());
            } else {
                ensure(into.star == nullptr && into.star_star == nullptr && into.named.empty());
                into.args.push_back(expression(true));
                grow(into, into.args.back().get());
            }
            if (!skip_op(",")) break;
        }
        expect_op(")");
    }

    ExprPtr filters(ExprPtr left) {
        while (!failed_) {
            if (is_op("|")) {
                left = filter_chain(std::move(left), false);
            } else if (skip_name("is")) {
                left = test(std::move(left));
            } else if (is_op("(")) {
                left = call(std::move(left));
            } else {
                break;
            }
        }
        return left;
    }
    std::string dotted_name() {
        std::string name = any_name();
        while (!failed_ && skip_op(".")) name += "." + any_name();
        return name;
    }
    ExprPtr filter_chain(ExprPtr left, bool start_inline) {
        while (!failed_ && (start_inline || is_op("|"))) {
            if (!start_inline) next();
            start_inline = false;
            ExprPtr made = node(ExprKind::kFilter, std::move(left));
            made->text = dotted_name();
            if (find_filter(made->text) == nullptr)
                missing("no filter named '" + made->text.substr(0, 64) + "'");
            if (is_op("(")) arguments(*made);
            left = std::move(made);
        }
        return left;
    }
    ExprPtr test(ExprPtr left) {
        const bool negated = skip_name("not");
        ExprPtr made = node(ExprKind::kTest, std::move(left));
        made->text = dotted_name();
        if (find_test(made->text) == nullptr)
            missing("no test named '" + made->text.substr(0, 64) + "'");
        const TokenKind kind = now().kind;
        if (is_op("(")) {
            arguments(*made);
        } else if ((kind == TokenKind::kName || kind == TokenKind::kString ||
                    kind == TokenKind::kInteger || kind == TokenKind::kFloat || is_op("[") ||
                    is_op("{")) &&
                   !is_any_name({"else", "or", "and"})) {
            if (is_name("is")) stop("you cannot chain multiple tests with is");
            made->args.push_back(postfix(primary()));
            if (!failed_) grow(*made, made->args[0].get());
        }
        return negated ? node(ExprKind::kNot, std::move(made)) : std::move(made);
    }
    void missing(std::string what) {
        if (unknown_.empty()) unknown_ = std::move(what);
        require_known();
    }

    std::vector<Token> tokens_;
    size_t pos_ = 0;
    Program program_;
    std::map<std::string, NameId, std::less<>> ids_;
    std::vector<MacroDef*> macros_;
    int depth_ = 0;
    int conditions_ = 0;
    std::string unknown_;
    bool failed_ = false;
    std::string error_;
    int error_line_ = 0;
};

}  // namespace baton::text::jinja
