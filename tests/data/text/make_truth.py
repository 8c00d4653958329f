"""Writes template_truth.json: what Python jinja2, set up as Hugging Face sets it up, makes of many templates.

Needs Jinja2 3.1 (python3-jinja2) and nothing else; the unit tests only read the file. Usage:
    python3 make_truth.py [CASES_JSON]
CASES_JSON, a list of {"id", "t", "ctx"}, is taken in too where given.
"""
import datetime
import json
import random
import re
import sys

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: datetime.datetime(2024, 1, 2).strftime(fmt)
    return env


ENV = environment()


def render(template, context):
    try:
        return "ok", ENV.from_string(template).render(**context)
    except Exception as e:  # the kind of error is not compared, only that there is one
        return "err", type(e).__name__


CTX = {
    "messages": [
        {"role": "system", "content": "Be <kind> & \"brief\""},
        {"role": "user", "content": "  Hé😀 there\nfriend  "},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": [1.5, True, None]}}}]},
        {"role": "tool", "content": "42", "name": "f"},
    ],
    "n": 7, "f": 2.5, "s": "abc def", "e": "", "u": "ǆß\u2028İΣ", "t": True, "x": None,
    "l": [3, 1, 2], "ll": [[1, 2], [3]], "d": {"b": 1, "a": {"z": [1]}, "items": 5}, "big": 123456789012345678901234567890,
    "words": ["b", "A", "c", "a", "B"], "rows": [{"k": 2, "v": "x"}, {"k": 1, "v": "Y"}, {"k": 2, "v": "z"}],
    "add_generation_prompt": True, "bos_token": "<s>",
}

EXPRESSIONS = r"""
n + 1|n - 0.5|n * f|n / 2|n // 2|n % 4|-n // 2|-n % 4|n ** 2|2 ** -1|f // 1|f % 1|-f // 1|1e16|1e15|1.5e-5|0.0001|1e22|123456789.125|1/3|-0.0|1e300*1e10
t + 1|t * 3|true == 1|none == false|1 == 1.0|"1" == 1|[1] == [1.0]|{"a":1} == d|n < f|n > "a"|"a" < "b"|[1,2] < [1,3]|(1,2) < (1,)|none < 1|nope < 1|n is divisibleby 7
s[0]|s[-1]|s[1:3]|s[::-1]|s[::2]|s[-3:]|s[:-4]|s[10]|s[10:]|s[5:1]|s[5:1:-1]|u[1]|u[::-1]|u|length|l[0]|l[-1]|l[5] is defined|l[1:]|l[::-1]|l[:100]|l[-100:2]|l[::0]|(1,2,3)[1:]|range(5)[1:3]|list|range(10)[::3]|list
d.b|d["b"]|d.a.z|d.a["z"][0]|d.nope|d.nope.x|d["nope"] is defined|d.items() | list|d["items"]|d.get("b")|d.get("q")|d.get("q", 3)|d.keys()|list|d.values()|list|d.keys()|d.items()|d.values()|"b" in d|"q" not in d|d|length
1 in l|"b" in s|"" in s|1 in s|l in ll|[1,2] in ll|x in [none]|nope in [1]|1 in nope|1 in 5|"a" in ("a",)
s.upper()|s.title()|s.capitalize()|u.upper()|u.lower()|u.title()|u.swapcase()|u.capitalize()|"ΑΣ ΑΣΑ".lower()|"ﬁx".upper()|"ﬁx".title()|"i̇stanbul".upper()
" a b ".strip()|"xxaxx".strip("x")|"xxaxx".lstrip("x")|"xxaxx".rstrip("xa")|" a".lstrip()|"a\u00a0\u2003".rstrip()|"a\u200b".strip()|"\x1ca\x1f".strip()
"a,b,c".split(",")|"a,b,c".split(",",1)|"a,b,c".rsplit(",",1)|" a  b ".split()|" a  b ".split(none,1)|" a  b  c ".rsplit(none,1)|"abc".split("")|"".split()|"".split(",")|"a\nb\r\nc\x0bd\u2028e".splitlines()|"a\n\nb\n".splitlines()|"a\nb".splitlines(true)|"a-b-c".partition("-")|"a-b-c".rpartition("-")|"abc".partition("-")|"abc".rpartition("-")
"abcabc".replace("b","X")|"abcabc".replace("b","X",1)|"abc".replace("","-")|"abc".replace("","-",2)|"é".replace("","-")|"aaa".replace("aa","b")|"abcabc".find("c")|"abcabc".rfind("c")|"abcabc".find("z")|"abcabc".index("z")|"abcabc".count("bc")|"aaa".count("aa")|"abc".count("")|"éab".find("a")|"abcabc".find("c",3)|"abcabc".count("c",0,3)|"abc".startswith("ab")|"abc".startswith(("x","a"))|"abc".endswith("bc")|"abc".endswith("")|"abc".startswith("b",1)|"abc".endswith("b",0,2)
"ab".center(6)|"ab".center(7,"*")|"abc".center(6)|"ab".ljust(5,".")|"ab".rjust(5)|"-5".zfill(4)|"5".zfill(3)|"abc".removeprefix("a")|"abc".removesuffix("c")|",".join(["a","b"])|",".join([1])|",".join("abc")|"".isdigit()|"12".isdigit()|"ab".isalpha()|"a1".isalnum()|" ".isspace()|"AB".isupper()|"aB".islower()|"1".isupper()
"%s-%d-%5.2f|%x" % ("a", 3, 2.5, 255)|"%5s|%-5s|%05d|%+d" % ("a","b",3,4)|"%(a)s %(b)d" % {"a":1,"b":2}|"%s" % none|"%s" % [1]|"%r" % "a"|"%d" % "a"|"%s %s" % "a"|"%%" % ()|"100%" % ()|"%c" % 65|"%e" % 12345.678|"%g" % 0.00001|"%.3s" % "abcdef"|"%i" % 3.9
"{} {}".format(1, "a")|"{1} {0}".format(1, 2)|"{a}".format(a=3)|"{0[b]}".format(d)|"{:>5}|{:<5}|{:^5}".format("a","b","c")|"{:05d} {:,} {:.2f} {:%} {:x} {:#x} {:b}".format(42, 1234567, 3.14159, 0.25, 255, 255, 5)|"{{}} {}".format(1)|"{".format()|"{!r}".format("a")|"{:.3}".format("abcdef")|"{:e}".format(1234.5)|"{}".format(none)|"{:5}".format(3)|"{:*^9}".format("mid")|"{:+}".format(3)|"{}".format()
l|sort|l|sort(reverse=true)|words|sort|words|sort(case_sensitive=true)|rows|sort(attribute="k")|rows|sort(attribute="k,v")|rows|map(attribute="v")|list|rows|map(attribute="q", default="-")|list|words|map("upper")|list|words|map("replace","a","z")|list|rows|selectattr("k","equalto",2)|list|rows|selectattr("k","gt",1)|map(attribute="v")|list|rows|rejectattr("k","eq",2)|list|rows|selectattr("q")|list|rows|selectattr("q","defined")|list|[0,1,"",none,2]|select|list|[0,1,2,3]|select("odd")|list|[0,1,2,3]|reject("even")|list|[1,"a",none]|select("string")|list|none|map("upper")|list|5|map("upper")|list|none|select|list
words|unique|list|words|unique(case_sensitive=true)|list|[1,1.0,true,2]|unique|list|rows|unique(attribute="k")|list|rows|groupby("k")|rows|groupby("v")|words|min|words|max|[]|min|l|sum|rows|sum(attribute="k")|[1.5,2]|sum|[[1],[2]]|sum(start=[])|l|first|l|last|[]|first|""|last|d|first|s|first|s|last|l|reverse|list|s|reverse|d|list|l|length|5|length|none|length|nope|length
d|dictsort|{"b":1,"A":2,"a":0}|dictsort|{"b":1,"A":2}|dictsort(true)|{"b":1,"a":2}|dictsort(by="value")|{"b":1,"a":2}|dictsort(reverse=true)|d|items|list|nope|items|list|5|items|list|[1,2,3,4,5]|batch(2)|list|[1,2,3]|batch(2,"-")|list|[1,2,3,4,5]|slice(3)|list|[1,2,3,4]|slice(3,"x")|list
l|join|l|join(", ")|rows|join(",", attribute="v")|none|join|"abc"|join("-")|nope|join(",")|l|join(1)|s|default("z")|nope|default("z")|nope|d|e|default("z", true)|x|default("z")|x|default("z", true)|0|default(5, true)|nope|default
s|upper|s|lower|s|title|"hello wOrld-foo (bar) it's"|title|u|title|s|capitalize|none|upper|5|upper|nope|upper|"  a "|trim|"xax"|trim("x")|s|trim(none)|s|replace("a","b")|"aaa"|replace("a","b",2)|5|replace(5,6)|s|wordcount|"a-b c_d é"|wordcount|s|center(11)|"a\nb\n\nc"|indent|"a\nb\n\nc"|indent(2,true)|"a\n\nb"|indent(2,blank=true)|"a\nb"|indent("> ")|""|indent|"a\n"|indent|5|indent|"abcdefghijk"|truncate(5)|"abc def ghi"|truncate(8)|"abc def ghi"|truncate(8,true)|"abc def ghi jkl"|truncate(9,false,"..",0)
"12"|int|"12.7"|int|"x"|int|"x"|int(3)|"0x1F"|int(base=16)|"1f"|int(0,16)|"1_000"|int|" 5 "|int|"-5"|int|3.99|int|-3.99|int|none|int|true|int|nope|int|[]|int|"1e3"|int|"inf"|int|"1.5"|float|"x"|float|"x"|float(2.0)|3|float|none|float|"1e400"|float|"nan"|float|-3|abs|-2.5|abs|true|abs|"a"|abs|2.5|round|3.5|round|2.675|round(2)|1234.567|round(-2)|2.1|round(0,"ceil")|2.9|round(method="floor")|7|round|1.005|round(2)
"<a>&\"'"|e|"<a>"|e|e|"<a>"|safe|"<a>"|safe|e|("<a>"|e) + "<b>"|"<b>" + ("<a>"|safe)|("<a>"|e) ~ "<b>"|["<a>"|e]|("<a>"|safe) is escaped|"<a>"|forceescape|"a b/é?&"|urlencode
d|tojson|messages|tojson|u|tojson|u|tojson(ensure_ascii=true)|"😀\x7f\x01\b\f"|tojson|"😀\x7f"|tojson(ensure_ascii=true)|d|tojson(indent=2)|[]|tojson(indent=2)|{}|tojson(indent=2)|[[],{}]|tojson(indent=1)|d|tojson(separators=(",",":"))|d|tojson(sort_keys=true)|{1:2,none:3,true:4,1.5:6}|tojson|(1,2)|tojson|nope|tojson|range(3)|tojson|big|tojson|[1e16,1e-7,-0.0,100.0]|tojson|d|tojson(indent="\t")|[1,[2]]|tojson(indent=0)|1e999|tojson
big|-big|big == big|[big]|12345678901234567890|{"a": big}|string|big ~ ""
l ~ s|1 ~ none ~ true ~ 2.0|[1] + [2]|(1,) + (2,)|[1] + (2,)|"a" + 1|1 + "a"|"ab" * 3|3 * "ab"|[1] * 2|"a" * -1|"a" * 1.5|s - 1|-s|+5|not s|not e|none + 1|[] + nope
n if t else 0|n if e|(n if e) is defined|1 if nope else 2|n if x is none else s if t else 0|e or n|n and s|x or e or 0|not not 1|1 < 2 < 3|1 < 3 < 2|1 == 1 == 1|n in l or t|t and not x|not n in l|n not in l and t
n is number|n is integer|f is float|t is boolean|t is number|t is integer|s is string|d is mapping|l is iterable|l is sequence|d is sequence|s is iterable|n is iterable|nope is iterable|nope is sequence|nope is defined|nope is undefined|nope is none|x is none|x is defined|nope is callable|d.get is callable|range is callable|s is callable|n is odd|n is even|n is eq 7|n is equalto(7)|n is ne 7|n is gt 3|n is lt 3|n is ge 7|n is le 6|n is in [7]|"a" is in "abc"|s is lower|"A" is upper|t is true|t is false|x is false|1 is true|n is sameas 7|x is sameas none|"upper" is filter|"foo" is filter|"odd" is test|n is not odd|s is not string|n is divisibleby(2)|"a" is odd|none is number|n is foo|s|foo|n is not number and t
[1, 'a', "it's", '"', 'a\nb', '\\', 'é', '\x7f\u200b\U0001F600', none, true, 1.0, (), (1,), [], {}, {'k': (1,2)}]|{"a": "x'y\"z"}|('a',)|[nope]|{1: 2, "1": 3}|{"a":1,"a":2}|{(1,2): 3}|{[1]: 2}
dict(a=1, b=2)|dict({"a": 1}, b=2)|dict([("a",1)])|dict()|range(3)|list|range(2,5)|list|range(5,0,-2)|list|range(0)|list|range(3)|range(1,10,3)|range(3)|length|2 in range(3)|range("a")|range(100001)|length|range(0,10,0)|range(3)[1]|range(3) == range(0,3)
namespace(a=1).a|namespace(a=1)|namespace().b is defined|namespace({"a":2}).a|namespace(a=1)["a"]|namespace(a=1).b
messages[0].content|messages[-1]["role"]|messages|length|messages[1].content|trim|messages[1]["content"].split()|messages[0]["role"] == "system"|messages|map(attribute="role")|join(",")|messages|selectattr("role","equalto","user")|list|length|messages[2].tool_calls[0].function.arguments|tojson|messages[2].content is none|messages[2].content + "x"|messages[::-1][0].role|(messages|last).name|messages[1:]|map(attribute="role")|list|messages[2].tool_calls[0]["function"]["arguments"]["a"][0]|messages.0.role
"a" "b" 'c'|"\u00e9\x41\t\101\0"|"\q"|'it\'s'|"multi
line"|0x1F + 0b11 + 0o17|1_000_000|1.5e3|1E2|.5|5.|"\N{BULLET}"|"{{ x }}"|"%}"
s.nope|s.nope()|s.__class__|s.__class__.x|l.append|l.append(1)|d.update({})|d.pop("b")|l.sort()|s.format|d.__len__|messages.__class__|x.y|n.real|n.foo|cycler(1,2).next()|cycler()|joiner()()|lipsum is defined|loop is defined|nope()|s()|n()|none()
s|attr("upper")|d|attr("b") is defined|d|attr("get") is callable
raise_exception("x")|raise_exception("a" ~ n)|strftime_now("a-b")
1 if 1 else 1/0|1/0|1//0|1%0|1.0/0|0**-1|2**0.5|10**18|7.0//2|-7.5%2|5 % -3|5.5 % -2|0.1+0.2|1e308*10|3.0|100000000000000000000.0|1e-5|12345.678e10|2**62
l|map("string")|join("-")|l|map("float")|list|[" a "]|map("trim")|list|[[1,2],[3]]|map("sum")|list|[[1,2],[3]]|map("length")|list|[{"a":{"b":1}}]|map(attribute="a.b")|list|[[5]]|map(attribute=0)|list|["a"]|map("nofilter")|list|[1]|select("notest")|list|l|map|list|[("a",1)]|map(attribute="0")|list|[1]|map(attribute="x")|list|l|sort|first|l|sort(attribute="x")|[1,"a"]|sort|[none,1]|sort|["a",none]|max
""|first is defined|[]|last is defined|s|list|length|s|string|length|"é"|list|"a\tb"|wordcount|{}|length|()|length|"abc"|sort|join|"hello"|unique|join|(s|map("upper")|list)[0]|l|list|length
"""

STATEMENTS = [
    "{% for a in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('o','e') }},{% endfor %}",
    "{% for a in [] %}x{% else %}none{% endfor %}",
    "{% for a in nope %}x{% else %}none{% endfor %}",
    "{% for a in 5 %}x{% endfor %}",
    "{% for a in l if a > 1 %}{{ loop.index }}/{{ loop.length }}:{{ a }} {% else %}no{% endfor %}",
    "{% for a in l if a > 9 %}x{% else %}no{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}{% endfor %}",
    "{% for a, b in [(1,2),(3,)] %}x{% endfor %}",
    "{% for c in 'hé' %}[{{ c }}]{% endfor %}",
    "{% for r in rows|groupby('k') %}{{ r.grouper }}:{{ r.list|length }}{{ r[0] }};{% endfor %}",
    "{% for a in l %}{% for b in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for a in l %}{% if loop.changed(a > 1) %}c{% endif %}{% endfor %}",
    "{% for a in l %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% endfor %}",
    "{% for a in l %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% endfor %}",
    "{% break %}",
    "{% for a in l %}x{% break %}{% else %}e{% endfor %}",
    "{% for a in l %}x{% continue %}{% else %}e{% endfor %}",
    "{% for a in l %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% else %}e{% endfor %}",
    "{% for a in [1, 2] %}{{ a }}{% for b in [] %}{% else %}{% break %}{% endfor %}{{ a }}{% endfor %}",
    "{% set g = l|map('string') %}{{ g|join }}{{ g|join }}|",
    "{% set g = l|select('odd') %}{{ g|first }}{{ g|list }}",
    "{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }}",
    "{% set a = 1 %}{% for i in l %}{{ a }}{% set a = i %}{{ a }}{% endfor %}{{ a }}",
    "{% set a, b = [1, 2] %}{{ a }}{{ b }}",
    "{% set a, b = [1] %}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns }}",
    "{% set d.x = 1 %}",
    "{% set q.x = 1 %}",
    "{% set a %}x{{ n }}{% endset %}{{ a }}{{ a is string }}",
    "{% set a | upper | replace('X','y') %}x{{ n }}x{% endset %}{{ a }}",
    "{% set a %}{% set inner = 1 %}{{ inner }}{% endset %}{{ a }}{{ inner is defined }}",
    "{% macro m(a, b=2, *c) %}{% endmacro %}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }} {{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}",
    "{% macro m(a) %}{{ a is defined }}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}",
    "{% macro m(a='x') %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}{{ m.name }}{{ m.arguments }}",
    "{% macro fact(i) %}{% if i > 1 %}{{ i * fact(i - 1)|int }}{% else %}1{% endif %}{% endmacro %}{{ fact(10) }}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m() %}{{ v }}{% endmacro %}{% set v = 1 %}{{ m() }}{% set v = 2 %}{{ m() }}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro w(x) %}<{{ caller() }}|{{ x }}>{% endmacro %}{% call w(1) %}body{{ n }}{% endcall %}",
    "{% macro w() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b=5) w() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro w() %}no{% endmacro %}{% call w() %}x{% endcall %}",
    "{% macro m() %}{{ m }}{% endmacro %}{{ m }}{{ m() }}",
    "{% set m = 1 %}{% macro m() %}x{% endmacro %}{{ m() }}",
    "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% macro m(*a) %}{% endmacro %}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}{{ [3]|map('string')|join }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z is defined }}",
    "{% filter upper|replace('A','b') %}a{{ s }}{% endfilter %}",
    "{% filter indent(2) %}a\nb{% endfilter %}",
    "{% if n == 1 %}a{% elif n == 7 %}b{% elif 1/0 %}c{% else %}d{% endif %}",
    "{% if nope %}a{% else %}b{% endif %}{% if nope.x %}{% endif %}",
    "{% if false %}{{ 'x'|nofilter }}{% endif %}ok",
    "{% if true %}{{ 'x'|nofilter }}{% endif %}ok",
    "{{ 'x'|nofilter if false else 'y' }}",
    "{% if false %}{{ 1 is notest }}{% endif %}ok",
    "{% raw %}{{ a }}{% if %}{% endraw %}b",
    "  {% raw %}\n x {% endraw %}\n y",
    "a {%- raw -%} x {%- endraw -%} b",
    "{# comment {{ #}a{#- b -#} c",
    "{# open",
    "{{ 1",
    "{% if %}{% endif %}",
    "{% if 1 %}",
    "{% endif %}",
    "{% unknown %}",
    "{{ }}",
    "{{ 1 2 }}",
    "{{ 'a' 1 }}",
    "{{ (1 }}",
    "{{ 1) }}",
    "{{ [1,2 }}",
    "{{ {'a' 1} }}",
    "{{ a.b. }}",
    "{{ f(a=1, 2) }}",
    "{{ f(a=1, a=2) }}",
    "{{ x is y is z }}",
    "{{ ! }}",
    "{% for %}{% endfor %}",
    "{% for x in %}{% endfor %}",
    "{% set 1 = 2 %}",
    "{% set true = 2 %}",
    "{% extends 'a' %}",
    "{% import 'a' as b %}",
    "{% block a %}x{{ n }}{% endblock %}y",
    "{% generation %}a{{ n }}{% set zz = 1 %}{% endgeneration %}{{ zz is defined }}",
    "{% print n, s %}",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if true %}\n  b\n  {%- endif %}\nc\n",
    "a\n  {%+ if true +%}\n  b\n  {% endif +%}\nc\n\n",
    "  {{ n }}  \n  {{- n }}\n {{ n -}}  \n x",
    "{% if true %} \n x{% endif %}",
    "x {% if true %}y{% endif %} z",
    "\t {% set a = 1 %}\t\n{{ a }}",
    "{{ n }}\n{% set b = 2 %}\n{{ b }}\n",
    "  {# c #}\n  x {# d #} y\n",
    "\r\na\r{% if true %}\r\nb{% endif %}\r\n",
    "{{ '\r\n' }}|{{ 'a\rb' }}",
    "{%- for m in messages -%}\n  {{- m.role }}\n{%- endfor %}\n",
    "{%for m in messages%}{{m.role}}{%endfor%}",
    "{%-if t-%} a {%-endif-%} b",
    "{% for m in messages recursive %}{{ m.role }}{% endfor %}",
    "{% for i in [1,[2,[3]]] recursive %}{% if i is iterable %}<{{ loop(i) }}>{% else %}{{ i }}:{{ loop.depth0 }}{% endif %}{% endfor %}",
    "{% for i in l %}{{ loop(i) }}{% endfor %}",
    "{% set l2 = l %}{% for i in l2 %}{% set outer = loop %}{% for j in l2 %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% set c = cycler('a','b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}",
    "{{ loop is defined }}{% for i in [1] %}{{ loop is defined }}{% endfor %}{{ loop is defined }}",
    "{% set x = 1 if false %}{{ x is defined }}[{{ x }}]",
    "{% set a = namespace(l=[]) %}{% for m in messages %}{% set a.l = a.l + [m.role] %}{% endfor %}{{ a.l|join(',') }}",
    "{{ messages|map(attribute='content')|select('string')|map('trim')|join('|') }}",
    "{{ messages|selectattr('tool_calls','defined')|map(attribute='role')|list }}",
    "{% for m in messages %}{{ '<' ~ m['role'] ~ '>' }}{{ m.content if m.content is string else m.content|tojson }}{% if not loop.last %}\n{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
    "{{ bos_token }}{{ eos_token }}{% if eos_token is defined %}x{% endif %}",
    "{% set content = 'a</think>\\n\\nb' %}{% if '</think>' in content %}{{ content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}|{{ content.split('</think>')[-1].lstrip('\\n') }}{% endif %}",
    "{% autoescape true %}{{ '<' }}{% endautoescape %}x{% do 1 %}",
    "{{ {'a': 1, **d} }}",
    "{% for x in l: %}{{ x }}{% endfor %}",
    "{{ [1,2,] }}{{ (1,) }}{{ {'a':1,} }}{{ range(2,)|list }}",
    "{{ l|map(attribute='x')|list }}{{ (1).x is defined }}",
]


def random_templates(count):
    rng = random.Random(7)
    pieces = ["a", " ", "\n", "\n\n", "  ", "\t", "{{ n }}", "{{- n }}", "{{ n -}}", "{% if t %}", "{%- if t %}",
              "{% if t -%}", "{%+ if t %}", "{% if t +%}", "{% endif %}", "{%- endif %}", "{% endif -%}", "{# c #}",
              "{#- c -#}", "{#+ c +#}", "{% raw %} {{ {% endraw %}", "{% for i in l %}", "{% endfor %}", "{%- endfor -%}",
              "{% set a = 1 %}", "{{ a }}", "\r\n", "é"]
    for _ in range(count):
        yield "".join(rng.choice(pieces) for _ in range(rng.randint(1, 12)))


def expressions():
    for line in EXPRESSIONS.strip("\n").split("\n"):
        yield from split_bars(line)


def split_bars(line):
    """Splits at the bars that separate expressions: those with a complete expression on both sides do not tell, so
    filters are recognised by the names after the bar."""
    names = set(ENV.filters) | {"foo"}
    parts = re.split(r"\|", line)
    current = parts[0]
    for part in parts[1:]:
        word = re.match(r"\s*([A-Za-z_]+)", part)
        quoted = current.count('"') % 2 == 1 or current.count("'") % 2 == 1
        if quoted or (word and word.group(1) in names):
            current += "|" + part
        else:
            yield current
            current = part
    yield current


def cases():
    for expression in expressions():
        yield "{{ " + expression + " }}", CTX
        yield "{% if " + expression + " %}y{% else %}n{% endif %}", CTX
    for statement in STATEMENTS:
        yield statement, CTX
    for template in random_templates(400):
        yield template, {"n": 7, "t": True, "l": [1, 2]}
    if len(sys.argv) > 1:
        for case in json.load(open(sys.argv[1], encoding="utf-8")):
            yield case["t"], case["ctx"]


def main():
    contexts, out, seen = [], [], set()
    for template, context in cases():
        if context not in contexts:
            contexts.append(context)
        key = (template, contexts.index(context))
        if key in seen:
            continue
        seen.add(key)
        kind, text = render(template, context)
        if text == "NameError":
            continue  # jinja2 folds a constant into the name inf or nan
        if kind == "ok" and re.search(r"0x[0-9a-f]{6,}|<generator|<bound|<built-in|<list_rev|<function|<method", text):
            continue  # Python prints an address or a name of its own
        out.append([key[1], template, kind, text])
    with open("template_truth.json", "w", encoding="utf-8") as f:
        f.write('{"contexts": ' + json.dumps(contexts) + ',\n"cases": [\n')
        f.write(",\n".join(json.dumps(case) for case in out))
        f.write("\n]}\n")
    print(len(out), "cases")


if __name__ == "__main__":
    main()
