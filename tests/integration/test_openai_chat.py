"""Acceptance cases of the OpenAI surface, part 1: answers, streams, limits of fields. Each runs against hybrid and against 1P1D."""

import json
import time
from pathlib import Path

import pytest
from contract import CHAT, COMPLETIONS, T0, joined
from harness import UID, PATIENCE

INF = float("inf")


def test_a01_a_chat_completion(api):
    r = api.chat(**T0)
    assert r["id"].startswith("chatcmpl-") and r["object"] == "chat.completion" and r["model"] == UID
    assert abs(r["created"] - time.time()) < 60
    choice = r["choices"][0]
    assert choice["message"]["role"] == "assistant" and isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] in ("stop", "length")
    u = r["usage"]
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] and isinstance(u["prompt_tokens_details"]["cached_tokens"], int)


def test_a02_a_stream_says_the_same(api):
    whole = api.chat(**T0)
    events = api.events(**T0)
    assert joined(events) == whole["choices"][0]["message"]["content"]
    deltas = [e["choices"][0] for e in events]
    assert deltas[0]["delta"]["role"] == "assistant" and all("role" not in d["delta"] for d in deltas[1:])
    assert [d["finish_reason"] for d in deltas[:-1]] == [None] * (len(deltas) - 1) and deltas[-1]["finish_reason"]
    assert len({(e["id"], e["created"], e["model"]) for e in events}) == 1
    assert all("finish_reason" in d for d in deltas)
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all(e["usage"] is None for e in events[:-1]), "as Xinference has it, also without include_usage"


def test_a03_include_usage(api):
    whole = api.chat(**T0)
    events = api.events(**T0, stream_options={"include_usage": True})
    assert all(e["usage"] is None for e in events[:-1])
    assert events[-1]["choices"] == []
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [events[-1]["usage"][k] for k in keys] == [whole["usage"][k] for k in keys]
    growing = api.events(**T0, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [e["usage"]["completion_tokens"] for e in growing]
    assert counts == sorted(counts) and counts[-1] == whole["usage"]["completion_tokens"]


def test_a04_stream_options_belong_to_streams(api):
    for value in (True, None):
        api.bad("stream_options", stream=False, stream_options={"include_usage": value})
    assert all(e["choices"] for e in api.events(**T0, stream_options={}))


@pytest.mark.parametrize("stream", [False, True])
def test_a05_an_unknown_model(api, stream):
    e = api.bad(status=404, model="no-such", stream=stream)
    assert e["code"] == "model_not_found"


def test_a06_messages(api):
    user = {"role": "user", "content": "a"}
    for messages in (None, "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], [user, {}], []):
        api.bad("messages", messages=messages)


def test_a07_a_prompt_that_does_not_fit(api):
    for stream in (False, True):
        e = api.bad(messages=[{"role": "user", "content": "hello " * 3 * 2048}], stream=stream)
        assert e["code"] == "context_length_exceeded" and e["n_prompt_tokens"] > e["n_ctx"] == 2048


def test_a08_max_tokens(api):
    for value in (0, -1, 1.5, "5", True, INF):
        api.bad("max_tokens" if value != INF else None, max_tokens=value)
    assert api.chat(temperature=0, max_tokens=5, max_completion_tokens=2)["usage"]["completion_tokens"] <= 2


def test_a09_temperature(api):
    for value in (-0.1, 2.01, "hot", True, INF, -INF):
        e = api.bad("temperature" if abs(value if isinstance(value, float) else 0) != INF else None, temperature=value)
        if value == 2.01:
            assert "0..2" in e["message"] and "2.01" in e["message"], "the message names the value and what is allowed"
    for value in (0, 2, None):
        api.chat(temperature=value, max_tokens=2)


def test_a10_ranges(api):
    for field, values in {"top_p": (1.1, -0.1), "top_k": (-2, 1.5), "min_p": (1.1,), "presence_penalty": (2.1,), "frequency_penalty": (-2.1,),
                          "repetition_penalty": (0, -1)}.items():
        for value in values:
            assert field in api.bad(field, **{field: value})["message"]
    assert api.text(top_p=0, temperature=1) == api.text(temperature=0), "top_p 0 is greedy"


def test_a11_several_choices(api):
    keys = {"n": 2, "temperature": 1, "seed": 1, "max_tokens": 12}
    r = api.chat(**keys)
    assert [c["index"] for c in r["choices"]] == [0, 1]
    events = api.events(**keys)
    for index, choice in enumerate(r["choices"]):
        own = [c for e in events for c in e["choices"] if c["index"] == index]
        assert sum("role" in c["delta"] for c in own) == 1 and sum(c["finish_reason"] is not None for c in own) == 1
        assert "".join(c["delta"].get("content") or "" for c in own) == choice["message"]["content"]
    assert r["usage"]["prompt_tokens"] == api.chat(max_tokens=1)["usage"]["prompt_tokens"], "a prompt counts once"
    api.bad("n", n=0, seconds=0.1)
    status = Path(f"/proc/{api.server.process.pid}/status")

    def rss():
        return int(status.read_text().split("VmRSS:")[1].split()[0])
    before = rss()
    api.bad("n", n=1_000_000_000, seconds=0.1)
    assert rss() - before < 10 * 1024
    assert len(api.comp(n=2, best_of=2, max_tokens=1)["choices"]) == 2
    api.bad("best_of", route=COMPLETIONS, n=1, best_of=2)


def test_a12_stop_strings(api):
    whole = api.text()
    stop = whole[5:9]
    r = api.comp(**T0, stop=stop)["choices"][0]
    assert r["text"] == whole[:whole.index(stop)] and r["finish_reason"] == "stop"
    assert api.text(stop=[stop, "zzzz", "yyyy", "xxxx"]) == r["text"]
    for value in (["a"] * 5, "", [""], 5, [5], "x" * 257):
        api.bad("stop", route=COMPLETIONS, stop=value)
    assert api.text(stop=None) == whole


def windows(api):
    """Every 7-character window of a text that crosses the end of a token."""
    whole = api.comp(**T0, logprobs=0)["choices"][0]
    ends = whole["logprobs"]["text_offset"][1:]
    text = whole["text"]
    return text, [text[i:i + 7] for i in range(len(text) - 7) if any(i < end < i + 7 for end in ends)]


def test_a13_nothing_of_a_stop_string_is_seen(api):
    text, found = windows(api)
    assert len(found) > 20
    for stop in found[::7]:
        events = api.events(COMPLETIONS, **T0, stop=stop)
        assert joined(events) == text[:text.index(stop)]
        pieces = [e["choices"][0]["text"] for e in events if e["choices"]]
        assert all(pieces[:-1]), "no empty chunks while text is held back"
    # A start of the stop string that leads nowhere comes out after all.
    assert joined(api.events(COMPLETIONS, **T0, stop=text[-3:] + "zzz")) == text


def test_a14_the_stop_string_may_be_shown(api):
    text, found = windows(api)
    for stop in found[3::9]:
        want = text[:text.index(stop)] + stop
        assert api.text(stop=stop, include_stop_str_in_output=True) == want
        assert joined(api.events(COMPLETIONS, **T0, stop=stop, include_stop_str_in_output=True)) == want


def test_a22_seeds(api):
    def one(seed, **keys):
        return api.chat("Tell me a story", temperature=0.8, seed=seed, max_tokens=16, **keys)["choices"][0]["message"]["content"]
    assert one(42) == one(42)
    assert len({one(s) for s in range(4)}) > 1
    one(2**63 - 1)
    api.bad("seed", seed=2**63)
    api.bad("seed", seed="1")


def test_a47_counts_of_random_requests(api):
    import random
    rng = random.Random(5)
    for i in range(200):
        most = rng.randint(1, 12)
        keys = {"max_tokens": most, "temperature": rng.choice([0, 0.7, 1.5]), "seed": i, "stop": rng.choice([None, "e", ["a", "the"]])}
        r = api.chat("Word " * rng.randint(1, 40), **keys) if i % 2 else api.comp("word " * rng.randint(1, 40), **keys)
        u, finish = r["usage"], r["choices"][0]["finish_reason"]
        assert 0 < u["completion_tokens"] <= most and u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
        if finish == "length":
            assert u["completion_tokens"] == most
        if u["completion_tokens"] < most:
            assert finish == "stop"


def test_a48_fingerprint_and_ids(api):
    a, b = api.chat(max_tokens=1), api.chat(max_tokens=1)
    assert a["system_fingerprint"] == b["system_fingerprint"] and a["system_fingerprint"].startswith("fp_")
    assert a["id"] != b["id"]
    other = api.chat(model="speaker", max_tokens=1)
    assert other["system_fingerprint"] != a["system_fingerprint"]


def test_a53_fields_that_mean_nothing_here(api):
    keys = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "verbosity": "low", "safety_identifier": "x", "prompt_cache_key": "y", "foo": 1}
    assert api.chat(**T0, **keys)["choices"][0]["message"] == api.chat(**T0)["choices"][0]["message"]


def test_a54_roles(api):
    user = {"role": "user", "content": "Say hi"}
    system = {"role": "system", "content": "Be kind."}
    assert api.post(CHAT, model=UID, max_tokens=2, messages=[{**system, "role": "developer"}, user]).status_code == 200
    for messages in ([user, system, user], [user, user]):
        r = api.post(CHAT, model=UID, max_tokens=2, messages=messages)
        assert r.status_code == 200 or r.status_code == 400 and r.json()["error"]["message"]
    api.bad("messages", messages=[{"role": "boss", "content": "x"}])


def test_timings(api):
    """Where the time of a request went: on both routes, streamed or not."""
    keys = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "timings": True}

    def check(answer):
        t = answer["timings"]
        handed_over = api.topology == "1p1d"
        wanted = {"prefill_replica", "decode_replica", "queue_ms", "prefill_ms", "ttft_ms", "decode_ms", "tokens_per_second"} | ({"handoff_ms"} if handed_over else set())
        assert set(t) == wanted, t
        assert all(isinstance(t[k], (int, float)) and t[k] >= 0 for k in t)
        assert t["prefill_ms"] > 0 and t["queue_ms"] + t["prefill_ms"] <= t["ttft_ms"], "both are parts of the time to the first token"
        assert (t["prefill_replica"] != t["decode_replica"]) == handed_over
        if handed_over:
            assert t["handoff_ms"] <= t["decode_ms"], "and the hand-off lies between the first token and the second"

    check(api.chat("A prompt of its own for timings", **keys))
    check(api.comp("A prompt of its own for timings", **keys))
    for route in (CHAT, COMPLETIONS):
        events = api.events(route, **keys)
        assert all("timings" not in e for e in events[:-1])
        check(events[-1])
        events = api.events(route, **keys, stream_options={"include_usage": True})
        check(events[-1])
    stop = api.comp(**{**T0, "ignore_eos": True})["choices"][0]["text"][12:15]
    check(api.comp(**{**T0, "ignore_eos": True}, stop=stop, timings=True))  # it was ended here
    one = api.comp(**{**keys, "max_tokens": 1})["timings"]
    assert {"queue_ms", "prefill_ms", "ttft_ms"} <= set(one) and "decode_ms" not in one and "handoff_ms" not in one
    assert "timings" not in api.chat(max_tokens=1) and "timings" not in api.chat(max_tokens=1, timings=False)
    api.bad("timings", timings=1)


def test_timings_on_the_translated_routes(api):
    """The Responses API and Anthropic's Messages have them where the answer ends."""
    parts = {"queue_ms", "prefill_ms", "ttft_ms"}

    def last_event(route, wanted, **body):
        with api.http.stream("POST", route, json={**body, "stream": True}, headers={"anthropic-version": "2023-06-01"}) as r:
            assert r.status_code == 200, r.read()
            events = [json.loads(line[6:]) for line in r.read().decode().split("\n") if line.startswith("data: {")]
        assert all("timings" not in e and "timings" not in e.get("response", {}) for e in events if e["type"] not in wanted)
        return next(e for e in events if e["type"] in wanted)

    responses = {"model": UID, "input": "Say hi", "max_output_tokens": 6, "ignore_eos": True}
    messages = {"model": UID, "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 6}
    for timings in (True, False):
        r, m = {**responses, "timings": timings}, {**messages, "timings": timings}
        answers = [api.post("/v1/responses", **r).json(), api.http.post("/v1/messages", json=m, headers={"anthropic-version": "2023-06-01"}).json(),
                   last_event("/v1/responses", ("response.incomplete", "response.completed"), **r)["response"], last_event("/v1/messages", ("message_delta",), **m)]
        for answer in answers:
            assert parts <= set(answer["timings"]) if timings else "timings" not in answer, answer
    api.check_error(api.post("/v1/responses", **{**responses, "timings": 1}), 400, "timings")


def test_internal_and_refused_fields(api):
    for field, value in {"kv_transfer_params": {}, "bootstrap_host": "x", "cache_salt": "s", "suffix": "x", "chat_template": "{{ 1 }}", "prompt_embeds": "AA=="}.items():
        e = api.bad(route=COMPLETIONS if field == "suffix" else CHAT, **{field: value})
        assert field in json.dumps(e)
    assert PATIENCE > 0
