#include "text/jinja_parser.hpp"

#include "text/jinja_expr_parser.hpp"

namespace baton::text::jinja {
namespace {

class Parser final : private ExprParser {
  public:
    explicit Parser(std::vector<Token> tokens) : ExprParser(std::move(tokens)) {}

    Expected<Program> run() {
        program_.body = statements({});
        if (failed_) return template_error(error_line_, error_);
        return std::move(program_);
    }

  private:
    // --- statements ---
    /// Statements up to a block tag whose name is in `end` (left as the current token), or to the
    /// end of the template.
    Body statements(Names end) {
        Body body;
        const Depth guard(*this);
        while (!failed_) {
            switch (now().kind) {
                case TokenKind::kEnd:
                    if (end.size() != 0)
                        stop("unexpected end of template; expected '" + std::string(*end.begin()) +
                             "'");
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
                default:
                    stop("unexpected '" + describe() + "'");
            }
        }
        return body;
    }
    /// The body of a block statement: an optional colon, the end of its tag, statements up to
    /// `end`.
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
        for (const char* refused :
             {"include", "import", "from", "extends", "autoescape", "trans", "do", "debug"}) {
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
        if (is_any_name({"true", "false", "none", "True", "False", "None"}))
            stop("can't assign to a constant");
        ExprPtr made = make(ExprKind::kName);
        made->name = intern(any_name());
        if (!plain && skip_op(".")) {
            made->kind = ExprKind::kNsRef;
            made->text = any_name();
        }
        return made;
    }

    int loops_ = 0;  // loops around the current statement, within its macro
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
