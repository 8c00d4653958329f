#include "text/jinja_parser.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <map>

#include "baton/base/limits.hpp"
#include "text/jinja_builtins.hpp"
#include "text/jinja_lexer.hpp"

namespace baton::text::jinja {
namespace {

constexpr int kHeightMax = 512;  // a + b + c + …: chains the evaluator descends

class Parser {
  public:
    explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
        for (const char* name : {"loop", "varargs", "kwargs", "caller"}) intern(name);
    }

    Expected<Program> run() {
        program_.body = statements({});
        if (failed_) return template_error(error_line_, error_);
        return std::move(program_);
    }

  private:
    using Names = std::initializer_list<std::string_view>;

    // --- tokens ---
    [[nodiscard]] const Token& now() const { return tokens_[pos_]; }
    [[nodiscard]] const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
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
        return now().kind == TokenKind::kName && std::find(names.begin(), names.end(), now().text) != names.end();
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
            case TokenKind::kBlockEnd: return "end of statement block";
            case TokenKind::kVariableEnd: return "end of print statement";
            case TokenKind::kEnd: return "end of template";
            case TokenKind::kString: return "string";
            default: return now().text.substr(0, 64);
        }
    }
    bool expect_op(std::string_view text) {
        return skip_op(text) || stop("expected '" + std::string(text) + "', got '" + describe() + "'");
    }
    bool expect_name(std::string_view text) {
        return skip_name(text) || stop("expected '" + std::string(text) + "', got '" + describe() + "'");
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
        if (now().kind != kind) return stop(std::string("expected ") + what + ", got '" + describe() + "'");
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
        explicit Depth(Parser& p) : parser(p) {
            if (++parser.depth_ > limits::kTemplateDepthMax) parser.stop("nested too deeply");
        }
        Depth(const Depth&) = delete;
        Depth& operator=(const Depth&) = delete;
        ~Depth() { --parser.depth_; }
        Parser& parser;
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
            parent.height = std::max<uint16_t>(parent.height, static_cast<uint16_t>(child->height + 1));
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
            parent.height = std::max<uint16_t>(parent.height, static_cast<uint16_t>(child->height + 1));
        }
    }

    // --- statements ---
    /// Statements up to a block tag whose name is in `end` (left as the current token), or to the end of the template.
    Body statements(Names end) {
        Body body;
        const Depth guard(*this);
        while (!failed_) {
            switch (now().kind) {
                case TokenKind::kEnd:
                    if (end.size() != 0) stop("unexpected end of template; expected '" + std::string(*end.begin()) + "'");
                    return body;
                case TokenKind::kData: {
                    StmtPtr text = make_stmt(StmtKind::kText);
                    text->text = make_constant(now().text);
                    body.push_back(std::move(text));
                    next();
                    break;
                }
                case TokenKind::kVariableBegin: {
                    next();
                    StmtPtr output = make_stmt(StmtKind::kOutput);
                    output->expr = tuple(true, {});
                    body.push_back(std::move(output));
                    expect_kind(TokenKind::kVariableEnd, "end of print statement");
                    break;
                }
                case TokenKind::kBlockBegin: {
                    next();
                    if (is_any_name(end)) return body;
                    StmtPtr made = statement(body);
                    if (made != nullptr) body.push_back(std::move(made));
                    expect_kind(TokenKind::kBlockEnd, "end of statement block");
                    break;
                }
                default: stop("unexpected '" + describe() + "'");
            }
        }
        return body;
    }
    /// The body of a block statement: an optional colon, the end of its tag, statements up to `end`.
    Body block(Names end) {
        skip_op(":");
        expect_kind(TokenKind::kBlockEnd, "end of statement block");
        return statements(end);
    }
    Body block_dropping(std::string_view end) {
        Body body = block({end});
        next();
        return body;
    }
    static Value make_constant(const std::string& text) {
        return Value::of_object(Kind::kStr,
                                std::make_shared<StrObject>(nullptr, text, std::vector<TaintRange>{}, false));
    }
    [[nodiscard]] StmtPtr make_stmt(StmtKind kind) const {
        auto made = std::make_unique<Stmt>();
        made->kind = kind;
        made->line = now().line;
        return made;
    }

    StmtPtr statement(Body& body) {
        const std::string tag = any_name();
        if (failed_) return nullptr;
        if (tag == "if") return if_statement();
        if (tag == "for") return for_statement();
        if (tag == "set") return set_statement();
        if (tag == "macro") return macro_statement();
        if (tag == "call") return call_statement();
        if (tag == "filter") return filter_statement();
        if (tag == "with") return with_statement();
        if (tag == "print") return print_statement(body);
        if (tag == "break" || tag == "continue") {
            if (loops_ == 0) stop("'" + tag + "' outside a loop");
            return make_stmt(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue);
        }
        if (tag == "generation" || tag == "block") {
            StmtPtr made = make_stmt(StmtKind::kScope);
            if (tag == "block") {
                const std::string name = any_name();
                skip_name("scoped");
                made->body = block_dropping("endblock");
                skip_name(name);
            } else {
                const int outer = std::exchange(loops_, 0);
                made->body = block_dropping("endgeneration");
                loops_ = outer;
            }
            return made;
        }
        for (const char* refused : {"include", "import", "from", "extends", "autoescape", "trans", "do", "debug"}) {
            if (tag == refused) {
                stop("unsupported tag '" + tag + "'");
                return nullptr;
            }
        }
        stop("encountered unknown tag '" + tag.substr(0, 64) + "'");
        return nullptr;
    }

    StmtPtr if_statement() {
        StmtPtr made = make_stmt(StmtKind::kIf);
        ++conditions_;
        for (;;) {
            Branch branch;
            branch.test = tuple(false, {});
            branch.body = block({"elif", "else", "endif"});
            made->branches.push_back(std::move(branch));
            if (failed_) break;
            if (skip_name("elif")) continue;
            if (skip_name("else")) made->orelse = block({"endif"});
            next();
            break;
        }
        --conditions_;
        if (conditions_ == 0) unknown_.clear();
        return made;
    }

    StmtPtr for_statement() {
        StmtPtr made = make_stmt(StmtKind::kFor);
        made->target = target(true, true, "in");
        expect_name("in");
        made->expr = tuple(false, "recursive");
        if (skip_name("if")) made->test = expression(true);
        made->recursive = skip_name("recursive");
        ++loops_;
        made->body = block({"endfor", "else"});
        --loops_;
        if (!failed_ && skip_name("else")) made->orelse = block({"endfor"});
        next();
        return made;
    }

    StmtPtr set_statement() {
        StmtPtr made = make_stmt(StmtKind::kSet);
        made->target = target(true, false, {});
        if (skip_op("=")) {
            made->expr = tuple(true, {});
            return made;
        }
        made->kind = StmtKind::kSetBlock;
        made->expr = filter_chain(nullptr, false);
        made->body = block_dropping("endset");
        return made;
    }

    /// Parses a macro's or caller's parameters into `def`.
    void signature(MacroDef& def) {
        expect_op("(");
        while (!failed_ && !is_op(")")) {
            if (!def.params.empty()) expect_op(",");
            const std::string name = any_name();
            def.params.push_back(intern(name));
            def.param_names.push_back(name);
            if (skip_op("=")) {
                def.defaults.push_back(expression(true));
            } else if (!def.defaults.empty()) {
                stop("non-default argument follows default argument");
            }
        }
        expect_op(")");
    }
    void macro_body(MacroDef& def, std::string_view end) {
        macros_.push_back(&def);
        const int outer = std::exchange(loops_, 0);
        def.body = block_dropping(end);
        loops_ = outer;
        macros_.pop_back();
    }
    StmtPtr macro_statement() {
        StmtPtr made = make_stmt(StmtKind::kMacro);
        made->macro = std::make_unique<MacroDef>();
        made->macro->name = any_name();
        made->name = intern(made->macro->name);
        signature(*made->macro);
        macro_body(*made->macro, "endmacro");
        return made;
    }
    StmtPtr call_statement() {
        StmtPtr made = make_stmt(StmtKind::kCallBlock);
        made->macro = std::make_unique<MacroDef>();
        if (is_op("(")) signature(*made->macro);
        made->expr = expression(true);
        if (!failed_ && made->expr->kind != ExprKind::kCall) stop("expected call");
        macro_body(*made->macro, "endcall");
        return made;
    }
    StmtPtr filter_statement() {
        StmtPtr made = make_stmt(StmtKind::kFilterBlock);
        made->expr = filter_chain(nullptr, true);
        made->body = block_dropping("endfilter");
        return made;
    }
    StmtPtr with_statement() {
        StmtPtr made = make_stmt(StmtKind::kWith);
        while (!failed_ && now().kind != TokenKind::kBlockEnd) {
            if (!made->bindings.empty()) expect_op(",");
            ExprPtr name = target(false, true, {});
            expect_op("=");
            ExprPtr value = expression(true);
            made->bindings.emplace_back(std::move(name), std::move(value));
        }
        made->body = block_dropping("endwith");
        return made;
    }
    StmtPtr print_statement(Body& body) {
        StmtPtr last;
        while (!failed_ && now().kind != TokenKind::kBlockEnd) {
            if (last != nullptr) {
                expect_op(",");
                body.push_back(std::move(last));
            }
            last = make_stmt(StmtKind::kOutput);
            last->expr = expression(true);
        }
        return last;
    }

    /// An assignment target: a name, ns.attr (`plain` false) or a tuple of them.
    ExprPtr target(bool with_tuple, bool plain, std::string_view end) {
        const Depth guard(*this);
        ExprPtr first;
        std::vector<ExprPtr> items;
        bool is_tuple = false;
        while (!failed_) {
            if (!end.empty() && is_name(end)) break;
            if (is_tuple && (now().kind == TokenKind::kBlockEnd || is_op(")") || is_op("="))) break;
            items.push_back(target_item(plain));
            if (!with_tuple || !skip_op(",")) break;
            is_tuple = true;
        }
        if (items.empty()) stop("expected an assignment target");
        if (failed_) return nullptr;
        if (!is_tuple) return std::move(items[0]);
        ExprPtr made = make(ExprKind::kTuple);
        for (ExprPtr& item : items) adopt(*made, std::move(item));
        return made;
    }
    ExprPtr target_item(bool plain) {
        if (skip_op("(")) {
            ExprPtr inner = target(true, plain, {});
            expect_op(")");
            return inner;
        }
        if (is_any_name({"true", "false", "none", "True", "False", "None"})) stop("can't assign to a constant");
        ExprPtr made = make(ExprKind::kName);
        made->name = intern(any_name());
        if (!plain && skip_op(".")) {
            made->kind = ExprKind::kNsRef;
            made->text = any_name();
        }
        return made;
    }

    // --- expressions ---
    [[nodiscard]] bool tuple_end(std::string_view end) const {
        return now().kind == TokenKind::kVariableEnd || now().kind == TokenKind::kBlockEnd || is_op(")") ||
               (!end.empty() && is_name(end));
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
        while (!failed_ && skip_name("or")) left = node(ExprKind::kOr, std::move(left), conjunction());
        return left;
    }
    ExprPtr conjunction() {
        ExprPtr left = negation();
        while (!failed_ && skip_name("and")) left = node(ExprKind::kAnd, std::move(left), negation());
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
        static const std::map<std::string_view, Op> kOps{{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                                         {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
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
            case TokenKind::kName: return name_or_constant();
            case TokenKind::kString: {
                std::string text = token.text;
                next();
                while (now().kind == TokenKind::kString) {
                    text += now().text;
                    next();
                }
                return constant(make_constant(text));
            }
            case TokenKind::kInteger: return integer();
            case TokenKind::kFloat: {
                double value = 0;
                const auto parsed = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
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
            default: break;
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
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
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
        if (items.size() == 1) return node(ExprKind::kGetItem, std::move(left), std::move(items[0]));
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
            } else if (now().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
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
            if (find_filter(made->text) == nullptr) missing("no filter named '" + made->text.substr(0, 64) + "'");
            if (is_op("(")) arguments(*made);
            left = std::move(made);
        }
        return left;
    }
    ExprPtr test(ExprPtr left) {
        const bool negated = skip_name("not");
        ExprPtr made = node(ExprKind::kTest, std::move(left));
        made->text = dotted_name();
        if (find_test(made->text) == nullptr) missing("no test named '" + made->text.substr(0, 64) + "'");
        const TokenKind kind = now().kind;
        if (is_op("(")) {
            arguments(*made);
        } else if ((kind == TokenKind::kName || kind == TokenKind::kString || kind == TokenKind::kInteger ||
                    kind == TokenKind::kFloat || is_op("[") || is_op("{")) &&
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
    int loops_ = 0;
    int conditions_ = 0;
    std::string unknown_;
    bool failed_ = false;
    std::string error_;
    int error_line_ = 0;
};

}  // namespace

Expected<Program> parse(std::string_view source) {
    if (source.size() > limits::kTemplateBytesMax) {
        return fail(ErrorCode::kInvalidArgument, "chat template is larger than 256 KiB");
    }
    BATON_TRY_ASSIGN(std::vector<Token> tokens, tokenize(source));
    return Parser(std::move(tokens)).run();
}

}  // namespace baton::text::jinja
