"""Chat templates equal jinja2 as Hugging Face sets it up: shared cases, and every template that llama.cpp and Xinference carry."""
import datetime
import itertools
import json
import os
import resource

import pytest
from conversations import conversations
from text_tool import SHARED, TIMES, Tool, llama_templates, xinference_templates

jinja2 = pytest.importorskip("jinja2", reason="the package jinja2 is what templates are compared with")
import jinja2.ext  # noqa: E402
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402

SEED = int(os.environ.get("BATON_TEXT_SEED", "8"))
# What no conversation can be rendered with, and the construct that is missing.
UNRENDERED = {}


class Generation(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %} is its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def hugging_face():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals.update(raise_exception=raise_exception, strftime_now=lambda form: datetime.datetime.now().strftime(form))
    return env


ENV = hugging_face()


def truth(template, context):
    """("ok", text), ("raised", the template's own message) or ("err", what Python says)."""
    try:
        made = template if isinstance(template, jinja2.Template) else ENV.from_string(template)
        return "ok", made.render(**context)
    except Exception as e:
        if type(e) is jinja2.exceptions.TemplateError:
            return "raised", str(e)
        return "err", f"{type(e).__name__}: {e}"


def ours(tool, context):
    answer = tool.ask("render", context=json.dumps(context))
    if "error" in answer:
        return ("err", answer["error"]), []
    return ("ok", "".join(t for t, _ in answer["segments"])), answer["segments"]


def same(a, b):
    """Of errors only the template's own message is the same text."""
    if a[0] == "err":
        return b[0] == "err"
    return (a[0] == "raised" and b == ("err", a[1])) or a == b


def difference(expected, got):
    if expected[0] == got[0] == "ok":
        at = next((i for i, (a, b) in enumerate(zip(expected[1], got[1])) if a != b), min(len(expected[1]), len(got[1])))
        return f"at {at}: expected {expected[1][max(0, at - 60):at + 80]!r}, got {got[1][max(0, at - 60):at + 80]!r}"
    return f"expected {expected[0]} {expected[1][:300]!r}, got {got[0]} {got[1][:300]!r}"


@pytest.fixture(scope="module")
def tool():
    with Tool() as t:
        yield t


def test_shared_cases(tool):
    path = SHARED / "templates/cases.json"
    if not path.exists():
        pytest.skip(f"no shared data: {path}")
    bad = []
    for case in json.loads(path.read_text()):
        expected = truth(case["t"], case["ctx"])
        compiled = tool.ask("template", source=case["t"])
        got = ("err", compiled["error"]) if "error" in compiled else ours(tool, case["ctx"])[0]
        if not same(expected, got):
            bad.append(f"{case['id']}: {difference(expected, got)}")
    assert not bad, "\n".join(bad)


def mark_user(value):
    """`value` with every character of the users' texts made recognisable (see test_real_templates)."""
    if isinstance(value, str):
        return value.replace("<", "\ue000")
    if isinstance(value, list):
        return [mark_user(v) for v in value]
    return {k: mark_user(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("source", ["llama.cpp", "xinference"])
def test_real_templates(tool, source):
    templates = llama_templates() if source == "llama.cpp" else xinference_templates()
    assert len(templates) > 60
    count = max(1, round(16 * TIMES))
    kinds = dict.fromkeys(("ok", "raised", "err"), 0)
    silent = []  # templates that no conversation could be rendered with
    bad = []
    for name, template in templates.items():
        compiled = ENV.from_string(template)
        answer = tool.ask("template", source=template)
        if "error" in answer:
            bad.append(f"{name}: {answer['error']}")
            continue
        before = kinds["ok"]
        # Some want what few conversations have: more are made until one can be rendered.
        for i, context in enumerate(itertools.islice(conversations(f"{SEED} {name}"), 500)):
            if i >= count and kinds["ok"] > before:
                break
            for attempt in range(2):  # midnight may pass between two clocks
                expected = truth(compiled, context)
                got, _ = ours(tool, context)
                if same(expected, got):
                    break
            else:
                bad.append(f"{name} #{i}: {difference(expected, got)}")
            kinds[expected[0]] += 1
            # Whatever a template does with users' texts, their characters stay theirs.
            answer = tool.ask("render", context=json.dumps({**context, "messages": mark_user(context["messages"])}))
            if any("\ue000" in text and not user for text, user in answer.get("segments", [])):
                bad.append(f"{name} #{i}: a user's character became the template's")
        if kinds["ok"] == before:
            silent.append(name)
    print(f"{source}: {len(templates)} templates, seed {SEED}, {count} conversations each, compared: {kinds['ok']} texts, {kinds['raised']} refusals, "
          f"{kinds['err']} errors; without one text: {silent}")
    bad = [b for b in bad if b.split(":")[0].split(" #")[0] not in UNRENDERED]
    assert not bad, f"{len(bad)} differences\n" + "\n".join(bad[:200])
    assert kinds["ok"] >= sum(kinds.values()) / 2, "most conversations are to be rendered"
    assert not silent


def limited():
    """Runs in the child: what one rendering may need, and nothing else is there."""
    resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))


def loops(body, times=60, start="'a'"):
    return "{% set ns = namespace(s=" + start + ") %}{% for i in range(" + str(times) + ") %}" + body + "{% endfor %}"


BOMBS = {
    "parentheses": "{{ " + "(" * 40000 + "1" + ")" * 40000 + " }}", "ifs": "{% if 1 %}" * 5000 + "{% endif %}" * 5000, "long text": "{{ 'a' * 100000000 }}",
    "long list": "{{ 100000000 * [1] }}", "doubled text": loops("{% set ns.s = ns.s + ns.s %}") + "{{ ns.s|length }}", "doubled list": loops("{% set ns.s = ns.s + ns.s %}", start="[1]"),
    "doubled by ~": loops("{% set ns.s = ns.s ~ ns.s %}"), "doubled by join": loops("{% set ns.s = [ns.s, ns.s]|join %}"), "doubled by format": loops("{% set ns.s = '%s%s' % (ns.s, ns.s) %}"),
    "doubled by replace": loops("{% set ns.s = ns.s|replace('a', 'aa') %}"), "nested list printed": loops("{% set ns.s = [ns.s, ns.s] %}") + "{{ ns.s }}",
    "nested list as JSON": loops("{% set ns.s = [ns.s, ns.s] %}") + "{{ ns.s|tojson }}", "nested deep": loops("{% set ns.s = [ns.s] %}", 90000) + "{{ ns.s }}",
    "set blocks": loops("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"), "macro": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "two macros": "{% macro f() %}{{ g() }}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for i in [1, 1] recursive %}{{ loop([1, 1]) }}{% endfor %}", "loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "loops that print": "{% for i in range(90000) %}{% for j in range(9) %}{{ 'x' * 10000 }}{% endfor %}{% endfor %}", "sums": "{{ 1" + "+1" * 50000 + " }}",
    "filters": "{{ 'x'" + "|upper" * 30000 + " }}", "nots": "{{ " + "not " * 50000 + "1 }}", "brackets": "{{ " + "[" * 50000 + " }}", "items": "{{ a" + "[0]" * 50000 + " }}",
    "wide format": "{{ '%1000000000d' % 1 }}", "wide field": "{{ '{:1000000000}'.format(1) }}", "centred": "{{ 'a'.center(1000000000) }}", "range": "{{ range(10 ** 18) }}",
    "power": "{{ 10 ** 100000000 }}", "batch": "{{ [1, 2]|batch(10 ** 12, 0)|list }}", "slice": "{{ [1, 2]|slice(10 ** 12)|list }}", "indent": "{{ [[1]]|tojson(indent=1000000000) }}",
    "search": "{% set s = 'a' * 4000000 %}{% set t = 'a' * 2000000 ~ 'b' %}{% for i in range(100000) %}{{ t in s }}{% endfor %}",
    "count": "{% set s = 'ab' * 1000000 %}{% for i in range(100000) %}{{ s.count('b') }}{% endfor %}", "split": "{% set s = 'a ' * 4000000 %}{% for i in range(1000) %}{{ s.split()|length }}{% endfor %}",
    "sort": "{% set s = range(90000)|list %}{% for i in range(10000) %}{{ (s|reverse|sort)|length }}{% endfor %}", "unique": "{% for i in range(100000) %}{{ range(90000)|unique|list|length }}{% endfor %}",
    "compared": loops("{% set ns.s = [ns.s, ns.s] %}") + "{{ ns.s == ns.s + [] }}", "namespaces": "{% for i in range(100000) %}{% for j in range(100000) %}{% set x = namespace(y=1) %}{% endfor %}{% endfor %}",
    "long": "x" * (256 * 1024 + 1), "groups": "{% for i in range(100000) %}{{ range(90000)|list|groupby(0) }}{% endfor %}", "urlize": "{{ ('http://a.b ' * 1000000)|urlize }}",
    "wordwrap": "{% for i in range(1000) %}{{ ('a ' * 1000000)|wordwrap(1) }}{% endfor %}"}


def bombs():
    path = SHARED / "templates/bombs.json"
    shared = [(b["id"], b["t"], b["ctx"]) for b in json.loads(path.read_text())] if path.exists() else []
    return shared + [(name, template, {"a": [1]}) for name, template in BOMBS.items()]


@pytest.mark.parametrize("name,template,context", [pytest.param(*b, id=b[0]) for b in bombs()])
def test_bombs(name, template, context):
    """An error within 2 s of processor time and 256 MB of address space, and the process lives on."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Tool(preexec_fn=limited) as tool:
        answer = tool.ask("template", source=template)
        if "error" not in answer:
            answer = tool.ask("render", context=json.dumps(context))
        assert answer.get("code") == "invalid_argument", answer
        assert tool.ask("template", source="{{ 1 }}") == {"ok": True}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name}: {used_s:.2f} s: {answer['error'][:100]}")
    assert used_s < 2
