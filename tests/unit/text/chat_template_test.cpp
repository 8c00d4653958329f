#include "baton/text/chat_template.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "baton/base/limits.hpp"

namespace baton::text {
namespace {

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string joined(const std::vector<Segment>& segments) {
    std::string text;
    for (const Segment& segment : segments) text += segment.text;
    return text;
}

/// The text with user characters in brackets.
std::string marked(const std::vector<Segment>& segments) {
    std::string text;
    for (const Segment& segment : segments)
        text += segment.from_user ? "[" + segment.text + "]" : segment.text;
    return text;
}

Expected<std::vector<Segment>> render(std::string_view source, std::string_view context) {
    auto compiled = ChatTemplate::compile(source);
    if (!compiled) return fail(compiled.error());
    return (*compiled)->render(context);
}

std::string ok(std::string_view source, std::string_view context = "{}") {
    const auto result = render(source, context);
    return result ? joined(*result) : "ERROR " + result.error().message;
}

TEST(ChatTemplate, EqualsJinja2OnTheTruthFile) {
    const std::string text = read_file(std::string(BATON_TEST_DATA) + "/text/template_truth.json");
    ASSERT_FALSE(text.empty());
    // Contexts stay in their source form: integers of any size must pass through.
    const auto truth = nlohmann::ordered_json::parse(text);
    std::vector<std::string> contexts;
    for (const auto& context : truth["contexts"]) {
        std::string dumped = context.dump();
        // nlohmann reads the one integer past int64 as a double.
        const std::string rounded = "1.2345678901234568e+29";
        if (const size_t at = dumped.find(rounded); at != std::string::npos) {
            dumped.replace(at, rounded.size(), "123456789012345678901234567890");
        }
        contexts.push_back(dumped);
    }
    size_t good = 0;
    for (const auto& entry : truth["cases"]) {
        const std::string source = entry[1];
        const auto result = render(source, contexts[entry[0].get<size_t>()]);
        if (entry[2] == "err") {
            EXPECT_FALSE(result) << source << "\ngives " << (result ? joined(*result) : "");
            if (!result) {
                EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument) << source;
            }
            continue;
        }
        ASSERT_TRUE(result) << source << "\n" << result.error().message;
        EXPECT_EQ(joined(*result), entry[3].get<std::string>()) << source;
        ++good;
    }
    EXPECT_GT(good, 1000U);
}

TEST(ChatTemplate, HostileTemplatesFailFast) {
    const std::string path = std::string(BATON_SHARED_DATA) + "/templates/bombs.json";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no shared data: " << path;
    for (const auto& bomb : nlohmann::json::parse(read_file(path))) {
        const std::clock_t start = std::clock();
        const auto result = render(bomb["t"].get<std::string>(), bomb["ctx"].dump());
        const std::clock_t took = std::clock() - start;
        EXPECT_FALSE(result) << bomb["id"];
        EXPECT_LT(took / CLOCKS_PER_SEC, 10) << bomb["id"];
    }
}

/// Own forms of the bombs, and others: each must be an error, soon.
TEST(ChatTemplate, EveryResourceIsBounded) {
    const auto repeat = [](std::string_view text, size_t times) {
        std::string out;
        for (size_t i = 0; i < times; ++i) out += text;
        return out;
    };
    const std::vector<std::string> bombs{
        "{{ " + repeat("(", 40000) + "1" + repeat(")", 40000) + " }}",
        repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000),
        "{{ 'a' * 100000000 }}",
        "{{ 100000000 * [1] }}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% "
        "endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
        "endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
        "endfor %}{{ ns.l|tojson }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
        "endfor %}{{ ns.l == ns.l + [] }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(90000) %}{% set ns.l = [ns.l] %}{% "
        "endfor %}",
        "{% set ns = namespace(l={}) %}{% for i in range(90000) %}{% set ns.l = {'a': ns.l} %}{% "
        "endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% for i in [1] %}{{ f([n|upper|trim|upper]) }}{% endfor %}{% endmacro "
        "%}{{ f('x') }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% "
        "endcall %}{% endmacro %}{{ g() }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(9) %}{{ 'x' * 10000 }}{% endfor %}{% endfor "
        "%}",
        "{{ 1" + repeat("+1", 50000) + " }}",
        "{{ 'x'" + repeat("|upper", 30000) + " }}",
        "{{ " + repeat("not ", 50000) + "1 }}",
        "{{ " + repeat("-", 50000) + "1 }}",
        "{{ a" + repeat("[0]", 50000) + " }}",
        "{{ " + repeat("[", 50000) + " }}",
        "{{ " + repeat("{", 50000) + " }}",
        "{{ a" + repeat(" if 1 else a", 20000) + " }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ range(10 ** 18) }}",
        "{{ [1, 2]|slice(10 ** 12)|list }}",
        "{{ [1, 2]|batch(10 ** 12, 0)|list }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ 10 ** 1000 }}",
        "{{ [[1]]|tojson(indent=1000000000) }}",
        "{% set s = 'ab' * 1000000 %}{% set ns = namespace(n=0) %}{% for i in range(100000) %}{% "
        "set ns.n = ns.n + s.count('b') %}{% endfor %}",
        "{% set s = 'a' * 4000000 %}{% set t = 'a' * 2000000 ~ 'b' %}{% for i in range(100000) "
        "%}{{ t in s }}{{ s.rfind(t) }}{% endfor %}",
        "{% set s = 'a' * 30000000 %}{% set l = s|list %}",
        "{% set s = 'é' * 9000000 %}{{ s[::-1]|length }}{% for i in range(1000) %}{{ s[::-1][::-1] "
        "== s }}{% endfor %}",
        "{% set ns = namespace() %}{% for i in range(100000) %}{% for j in range(100000) %}{% set "
        "ns.x = namespace(y=ns) %}{% endfor %}{% endfor %}",
    };
    for (const std::string& bomb : bombs) {
        const std::clock_t start = std::clock();
        const auto result = render(bomb, R"({"a": [1]})");
        EXPECT_FALSE(result) << bomb.substr(0, 200);
        EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 10) << bomb.substr(0, 200);
    }
}

TEST(ChatTemplate, CyclesAndChainsAreFreed) {
    // Under the address sanitizer a leak or an overflow of the stack would show.
    EXPECT_EQ(ok("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns.self.self is defined }}"),
              "True");
    EXPECT_EQ(ok("{% macro m() %}{{ m is defined }}{% endmacro %}{% set ns = namespace(m=m) %}{{ "
                 "ns.m() }}"),
              "True");
    EXPECT_EQ(ok("{% set ns = namespace(p=none) %}{% for i in range(50000) %}{% set ns.p = "
                 "namespace(p=ns.p) %}"
                 "{% endfor %}{{ ns.p.p.p is defined }}"),
              "True");
    EXPECT_NE(ok("{% set ns = namespace() %}{% set ns.l = [ns] %}{{ ns }}").find("ERROR"),
              std::string::npos);
}

TEST(ChatTemplate, RecursionAsDeepAsJsonIsLegal) {
    std::string context = "1";
    for (int i = 0; i < 64; ++i) context = "{\"a\": [" + context + "]}";
    context = "{\"x\": " + context + "}";
    const std::string source =
        "{% macro f(v) %}{% if v is mapping %}{% for k, w in v|dictsort %}{{ k }}{{ f(w) }}{% "
        "endfor %}"
        "{% elif v is iterable %}{% for w in v %}{{ f(w) }}{% endfor %}{% else %}{{ v }}{% endif "
        "%}{% endmacro %}{{ f(x) }}";
    auto compiled = ChatTemplate::compile(source);
    ASSERT_TRUE(compiled);
    const auto shallow = (*compiled)->render(R"({"x": {"a": [{"a": [1]}]}})");
    ASSERT_TRUE(shallow);
    EXPECT_EQ(joined(*shallow), "aa1");
    // 64 levels of the document's depth, the least a template may need.
    std::string deep = "1";
    for (int i = 0; i < 64; ++i) deep = "[" + deep + "]";
    const auto result = (*compiled)->render("{\"x\": " + deep + "}");
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(joined(*result), "1");
}

TEST(ChatTemplate, RaiseExceptionGivesItsTextAlone) {
    const auto result = render("{{ raise_exception('roles must alternate') }}", "{}");
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(result.error().message, "roles must alternate");
}

TEST(ChatTemplate, ErrorsNameTheLineAndConstruct) {
    const auto compiled = ChatTemplate::compile("a\nb {% include 'x' %}");
    ASSERT_FALSE(compiled);
    EXPECT_NE(compiled.error().message.find("line 2"), std::string::npos);
    EXPECT_NE(compiled.error().message.find("include"), std::string::npos);
    const auto rendered = render("a\n\n{{ nope.x }}", "{}");
    ASSERT_FALSE(rendered);
    EXPECT_NE(rendered.error().message.find("line 3"), std::string::npos);
    EXPECT_NE(rendered.error().message.find("'nope' is undefined"), std::string::npos);
}

TEST(ChatTemplate, BadContextsAreRefused) {
    for (const char* context : {"", "[]", "1", "{", "{\"a\": }", "{\"a\": NaN}",
                                "{\"a\": \"\\ud800\"}", "{\"a\": \"\xff\"}"}) {
        EXPECT_FALSE(render("x", context)) << context;
    }
    std::string deep(100000, '[');
    EXPECT_FALSE(render("x", "{\"a\": " + deep + "}"));
    std::string closed(129, '[');
    closed += std::string(129, ']');
    EXPECT_FALSE(render("x", "{\"a\": " + closed + "}"));
}

TEST(ChatTemplate, MarksUserTextThroughEveryOperation) {
    const char* context =
        R"({"messages": [{"role": "user", "content": " Hi <x> "}, {"role": "b", "content": "q\"é"}],
                              "bos_token": "<s>"})";
    const auto mark = [&](const std::string& source) {
        const auto result = render(source, context);
        return result ? marked(*result) : "ERROR " + result.error().message;
    };
    const std::string m = "{% set c = messages[0].content %}{% set d = messages[1].content %}";
    EXPECT_EQ(mark("{{ bos_token }}<u>{{ messages[0].content }}</u>"), "<s><u>[ Hi <x> ]</u>");
    EXPECT_EQ(mark(m + "{{ 'a' + c + 'b' }}"), "a[ Hi <x> ]b");
    EXPECT_EQ(mark(m + "{{ 'a' ~ c|trim ~ 'b' }}"), "a[Hi <x>]b");
    EXPECT_EQ(mark(m + "{{ ('a' + c + 'b')[:3] }}"), "a[ H]");
    EXPECT_EQ(mark(m + "{{ ('a' + c.strip() + 'b')[::-1] }}"), "b[>x< iH]a");
    EXPECT_EQ(mark(m + "{{ c.replace('Hi', 'Yo') }}"), "[ ]Yo[ <x> ]");
    EXPECT_EQ(mark(m + "{{ 'aXb'.replace('X', d) }}"), "a[q\"é]b");
    EXPECT_EQ(mark(m + "{{ c.split()|join('+') }}"), "[Hi]+[<x>]");
    EXPECT_EQ(mark(m + "{{ '-'.join(['a', d]) }}"), "a-[q\"é]");
    EXPECT_EQ(mark(m + "{{ d|tojson }}"), "\"[q\\\"é]\"");
    EXPECT_EQ(mark(m + "{{ {'k': d}|tojson }}"), "{\"k\": \"[q\\\"é]\"}");
    EXPECT_EQ(mark(m + "{{ [d] }}"), "['[q\"é]']");
    EXPECT_EQ(mark(m + "{{ d|upper }}{{ d.title() }}{{ d|capitalize }}"), "[Q\"ÉQ\"ÉQ\"é]");
    EXPECT_EQ(mark(m + "{{ '%s!' % d }}{{ '<{}>'.format(d) }}"), "[q\"é]!<[q\"é]>");
    EXPECT_EQ(mark(m + "{{ d|indent(2, true) }}"), "  [q\"é]");
    EXPECT_EQ(mark(m + "{{ d[0] }}{{ d|first }}{{ d|list|last }}"), "[qqé]");
    EXPECT_EQ(mark(m + "{% set s %}x{{ d }}{% endset %}{{ s }}"), "x[q\"é]");
    EXPECT_EQ(mark(m + "{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(d) }}"), "<[q\"é]>");
    EXPECT_EQ(mark(m + "{% filter upper %}a{{ d }}{% endfilter %}"), "A[Q\"É]");
    EXPECT_EQ(mark(m + "{{ c|e }}"), "[ Hi &lt;x&gt; ]");
    EXPECT_EQ(mark(m + "{{ d.center(6, '*') }}{{ d|truncate(2, true, '', 0) }}"), "*[q\"é]**[q\"]");
    EXPECT_EQ(mark("{% for k in messages[0] %}{{ k }},{% endfor %}"), "[role],[content],");
    EXPECT_EQ(mark(m + "{{ d * 2 }}{{ (d ~ 'z') * 2 }}"), "[q\"éq\"éq\"é]z[q\"é]z");
}

TEST(ChatTemplate, RendersFromManyCopiesOfOneTemplateAlike) {
    const auto compiled =
        ChatTemplate::compile("{% for m in messages %}{{ m.content|upper }}{% endfor %}");
    ASSERT_TRUE(compiled);
    for (int i = 0; i < 3; ++i) {
        const auto result =
            (*compiled)->render(R"({"messages": [{"content": "a"}, {"content": "b"}]})");
        ASSERT_TRUE(result);
        EXPECT_EQ(joined(*result), "AB");
    }
}

TEST(ChatTemplate, Qwen3RendersAsDocumented) {
    const std::string path =
        std::string(BATON_SHARED_DATA) + "/tokenizers/qwen3/tokenizer_config.json";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no shared data: " << path;
    const std::string source = nlohmann::json::parse(read_file(path))["chat_template"];
    const std::string prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    EXPECT_EQ(
        ok(source,
           R"({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true})"),
        prompt);
    EXPECT_EQ(ok(source,
                 R"({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true,
                             "enable_thinking": false})"),
              prompt + "<think>\n\n</think>\n\n");
    EXPECT_EQ(
        ok(source,
           R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                             {"role": "assistant", "content": "<think>\nt\n</think>\n\nb"},
                             {"role": "user", "content": "c"}]})"),
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|"
        "im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n");
    const auto list_content =
        render(source, R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})");
    EXPECT_FALSE(list_content);
}

}  // namespace
}  // namespace baton::text
