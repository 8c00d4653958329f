"""Random texts that a constraint allows are valid: no model takes part. Wide; tests with a model are in test_constrained.py."""

import json
import os
import re
import subprocess

import jsonschema
import pytest
from harness import BINARY
from schemas import schemas

TOOL = os.environ.get("BATON_GRAMMAR_TOOL") or (os.path.join(os.path.dirname(BINARY or ""), "tests/baton-grammar-tool"))
COUNT = int(os.environ.get("BATON_SCHEMAS_TEXTS", "400"))

pytestmark = pytest.mark.skipif(not os.path.exists(TOOL), reason="baton-grammar-tool is not built (BATON_GRAMMAR_TOOL)")


def ask(requests):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    out = subprocess.run([TOOL], input=lines, capture_output=True, text=True, timeout=600, check=True).stdout
    answers = [json.loads(line) for line in out.split("\n") if line]
    assert len(answers) == len(requests)
    return answers


def test_schemas_allow_valid_values_only():
    many = schemas(COUNT, seed=int(os.environ.get("BATON_SCHEMAS_SEED", "3")))
    answers = ask([{"kind": 2, "text": json.dumps(s), "samples": 5, "seed": i, "tokens": 3000} for i, s in enumerate(many)])
    ended = 0
    for s, a in zip(many, answers):
        assert "error" not in a, (a["error"], json.dumps(s))
        for text, end in a["texts"]:
            assert "nothing may follow" not in text, (text[-200:], json.dumps(s))
            if not end:
                continue
            ended += 1
            value = json.loads(text)
            jsonschema.Draft202012Validator(s).validate(value)
    assert ended > 4 * COUNT


def test_any_json_object():
    for text, end in ask([{"kind": 1, "samples": 200, "seed": 5, "tokens": 2000}])[0]["texts"]:
        if end:
            assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("regex", ["(ab|c)*d{2,4}", "[^\\W\\d]+(\\.x?)?", "a.{3,9}z", "(\\+?\\d{1,3}-){2}\\d+", "(foo|fo|o)+x"])
def test_regexes_as_python_reads_them(regex):
    for text, end in ask([{"kind": 3, "text": regex, "samples": 100, "seed": 9, "tokens": 200}])[0]["texts"]:
        if end:
            assert re.fullmatch(regex, text, re.ASCII), (regex, text)


REFUSED = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, "#/properties/a: not"),
    ({"type": "integer", "multipleOf": 7}, "multipleOf"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"type": "string", "format": "iri"}, "format"),
    ({"if": {"type": "string"}, "then": {"minLength": 3}}, "if"),
    ({"$ref": "http://example.com/x"}, "$ref"),
    ({"$ref": "#/$defs/none"}, "points to nothing"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, "pattern"),
    ({"type": "object", "properties": {"a": {"type": "array", "contains": {"type": "null"}}}}, "contains"),
    ({"type": "wrong"}, "type"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "no text"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no text"),
    ({"enum": []}, "no text"),
]


@pytest.mark.parametrize("schema,name", REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_refused_is_named(schema, name):
    answer = ask([{"kind": 2, "text": json.dumps(schema)}])[0]
    assert name in answer.get("error", ""), answer
