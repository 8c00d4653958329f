"""Constrained answers through real processes, on every topology: what ends by itself is valid."""

import concurrent.futures
import json
import os
import re
import signal

import httpx
import jsonschema
import pytest
from harness import Server
from schemas import schemas

SCHEMAS = int(os.environ.get("BATON_SCHEMAS", "16"))
SAMPLES = int(os.environ.get("BATON_SCHEMA_SAMPLES", "2"))
TOKENS = int(os.environ.get("BATON_SCHEMA_TOKENS", "160"))
CALL = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}, "unit": {"enum": ["C", "F"]}}, "required": ["city", "days", "unit"], "additionalProperties": False}


@pytest.fixture(scope="module", params=["hybrid", "1p1d"])
def server(request):
    with Server() as s:
        s.launch(request.param)
        yield s


def finish(r):
    return r["choices"][0]["finish_reason"]


def text(r):
    return r["choices"][0]["text"]


def test_schemas_at_temperature_1(server):
    many = schemas(SCHEMAS, seed=int(os.environ.get("BATON_SCHEMAS_SEED", "1")))

    def one(job):
        i, k = job
        r = server.complete("A JSON value of the schema " + json.dumps(many[i])[:400] + " :\n", max_tokens=TOKENS, temperature=1.0, seed=100 * i + k, guided_json=many[i])
        return i, text(r), finish(r)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = list(pool.map(one, [(i, k) for i in range(SCHEMAS) for k in range(SAMPLES)]))
    ended = 0
    for i, answer, reason in done:
        assert reason in ("stop", "length")
        if reason == "length":
            continue
        ended += 1
        try:
            jsonschema.Draft202012Validator(many[i]).validate(json.loads(answer))
        except (ValueError, jsonschema.ValidationError) as e:
            raise AssertionError(f"{answer!r} for {json.dumps(many[i])}") from e
    print(f"{ended} of {len(done)} ended by themselves")
    assert ended * 3 > len(done)


def test_kinds(server):
    r = server.complete("Weather? ", max_tokens=60, temperature=1.0, seed=1, guided_json=CALL)
    assert finish(r) == "stop"
    jsonschema.validate(json.loads(text(r)), CALL)
    r = server.complete("Sure? ", max_tokens=20, temperature=1.0, seed=2, guided_choice=["yes", "no", "not now"])
    assert text(r) in ("yes", "no", "not now") and finish(r) == "stop"
    r = server.complete("Date: ", max_tokens=20, temperature=1.0, seed=3, guided_regex="\\d{4}-\\d{2}-\\d{2}")
    assert re.fullmatch("\\d{4}-\\d{2}-\\d{2}", text(r)) and finish(r) == "stop"
    r = server.complete("Sum: ", max_tokens=60, temperature=1.0, seed=4, guided_grammar='root ::= n ("+" n){1,3}\nn ::= [1-9] [0-9]{0,2}')
    assert re.fullmatch("[1-9]\\d{0,2}(\\+[1-9]\\d{0,2}){1,3}", text(r))


def test_response_format_of_chat(server):
    def chat(**fields):
        body = {"model": "m", "messages": [{"role": "user", "content": "Describe a cat as JSON."}], "temperature": 1.0, "seed": 5, **fields}
        return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json()

    r = chat(max_tokens=80, response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": CALL, "strict": True}})
    jsonschema.validate(json.loads(r["choices"][0]["message"]["content"]), CALL)
    r = chat(max_tokens=200, response_format={"type": "json_object"})
    content = r["choices"][0]["message"]["content"]
    assert content.startswith("{")
    if finish(r) == "stop":
        assert isinstance(json.loads(content), dict)
    r = chat(max_tokens=3, response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": CALL}})
    assert finish(r) == "length"


def test_stream_equals_whole(server):
    fields = {"max_tokens": 60, "temperature": 1.0, "seed": 11, "guided_json": CALL}
    want = text(server.complete("Weather? ", **fields))
    body = {"model": "m", "prompt": "Weather? ", "stream": True, **fields}
    got = ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as r:
        for line in r.iter_lines():
            if line.startswith("data: {"):
                got += json.loads(line[6:])["choices"][0]["text"]
    assert got == want


def test_logprobs_are_of_all_tokens(server):
    r = server.complete("The answer is ", max_tokens=4, temperature=0, guided_choice=["zebra"], logprobs=2)
    probs = r["choices"][0]["logprobs"]
    assert text(r) == "zebra"
    assert any(p < -0.5 for p in probs["token_logprobs"]), "not those among the allowed alone"


@pytest.mark.parametrize(
    "fields,param",
    [
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "(?=a)"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "root ::= root"}, "guided_grammar"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}}, "response_format"),
        ({"guided_choice": ["a"], "guided_regex": "b"}, "guided_choice"),
        ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos"),
        ({"guided_choice": ["a"], "min_tokens": 3}, "min_tokens"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_cannot_be_kept_is_refused(server, fields, param):
    r = httpx.post(f"{server.url}/v1/completions", json={"model": "m", "prompt": "x", "max_tokens": 4, **fields}, timeout=30)
    assert r.status_code == 400, r.text
    assert r.json()["error"]["param"] == param or param in r.json()["error"]["message"]
    assert server.complete("x", max_tokens=1)["choices"]


def test_constraints_beside_free_answers(server):
    """Free rows beside constrained ones give what they give alone."""
    def free(i):
        return text(server.complete(f"Story {i}: ", max_tokens=24, temperature=0, ignore_eos=True))

    alone = [free(i) for i in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        bound = [pool.submit(server.complete, "Weather? ", max_tokens=60, temperature=1.0, seed=i, guided_json=CALL) for i in range(4)]
        beside = list(pool.map(free, range(4)))
        for f in bound:
            jsonschema.validate(json.loads(text(f.result())), CALL)
    assert beside == alone


def test_a_decode_replica_killed_in_the_middle_changes_nothing():
    """Another replica takes the sequence over and stands where the emitted ids say."""
    schema = {"type": "object", "properties": {"words": {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 9, "pattern": "^[a-z]{3,9}$"}, "minItems": 24, "maxItems": 30}, "ok": {"type": "boolean"}}, "required": ["words", "ok"], "additionalProperties": False}
    fields = {"max_tokens": 400, "temperature": 1.0, "seed": 3, "guided_json": schema}
    with Server() as s:
        s.launch("1p2d")
        want = text(s.complete("Words: ", **fields))
        jsonschema.validate(json.loads(want), schema)
        killed, got = [], ""
        for i, chunk in enumerate(s.stream("Words: ", **fields)):
            if chunk["choices"]:
                got += chunk["choices"][0]["text"]
            if i == 12:
                # The one that took this hand-off; what replicas report of themselves is up to a second old.
                taken = s.awaited("kv.loaded")[-1]
                number = int(re.search(r" replica=(\d+)", taken)[1])
                pid = next(row["pid"] for row in s.replicas() if row["replica_id"] == number)
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        assert killed
        assert got == want


def test_preempted_sequences_go_on_where_they_were():
    """So little room for KV that sequences lose theirs again and again."""
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99999}, "minItems": 40, "maxItems": 50}
    with Server() as s:
        s.launch("hybrid", max_model_len=512, kv_cache_bytes=24 << 20, max_num_seqs=12)

        def one(i):
            return text(s.complete(f"Numbers {i}: ", max_tokens=400, temperature=1.0, seed=i, guided_json=schema))

        alone = [one(i) for i in range(6)]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            beside = list(pool.map(one, range(6)))
        assert beside == alone
        for answer in alone:
            jsonschema.validate(json.loads(answer), schema)
