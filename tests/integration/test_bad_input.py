"""Bad input gets a clear error with the field; no process dies of it."""

import random
import shutil

import pytest
from harness import MODEL, UID, Server


@pytest.fixture(autouse=True)
def still_alive(pd):
    pids = pd.pids()
    yield
    assert pd.complete("alive?", max_tokens=1)["choices"]
    assert pd.pids() == pids


def error_of(pd, route, status, **kw):
    r = pd.http.post(route, **kw)
    assert r.status_code == status, f"{r.status_code} {r.text}"
    body = r.json()
    assert body["error"]["message"] and isinstance(body["detail"], str)
    return body["error"]


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"null", b"{", b"{} x", b"\xef\xbb\xbf{}", b'{"a":NaN}', b'{"a":1e999}',
                                  b'{"model":"m","model":"m"}', b'{"x":' + b"[" * 10000 + b"]" * 10000 + b"}", b'{"x":"\xff\xfe"}', b'{"x":"\\ud800"}'])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/v1/models"])
def test_malformed_json(pd, route, body):
    error_of(pd, route, 400, content=body, headers={"Content-Type": "application/json"})


CHAT = {"model": UID, "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": UID, "prompt": "hi"}


@pytest.mark.parametrize("change,param", [
    ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": [{"role": "boss", "content": "x"}]}, "messages"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": "5"}, "max_tokens"), ({"temperature": 2.1}, "temperature"), ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"), ({"min_p": 2}, "min_p"), ({"n": 0}, "n"), ({"n": 10**9}, "n"), ({"stop": ""}, "stop"), ({"stop": ["a"] * 5}, "stop"),
    ({"stop_token_ids": [99999999]}, "stop_token_ids"), ({"logit_bias": {"99999999": 1}}, "logit_bias"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"seed": 2**63}, "seed"), ({"stream_options": {"include_usage": True}}, "stream_options"), ({"response_format": {"type": "sound"}}, "response_format"),
    ({"prompt_embeds": "AAAA"}, None), ({"cache_salt": "x"}, "cache_salt"), ({"kv_transfer_params": {}}, None), ({"min_tokens": 50, "max_tokens": 10}, "min_tokens")])
def test_bad_chat_fields(pd, change, param):
    e = error_of(pd, "/v1/chat/completions", 400, json={**CHAT, **change})
    if param:
        assert e["param"] == param, e


@pytest.mark.parametrize("prompt", [[], "", [[]], [-1], [[-1]], [999999999], ["a", 1], None, {"a": 1}])
def test_bad_prompts(pd, prompt):
    assert error_of(pd, "/v1/completions", 400, json={**COMPLETION, "prompt": prompt})["param"] == "prompt"


def test_prompt_embeds_says_why(pd):
    assert "prompt embeddings are not supported" in error_of(pd, "/v1/completions", 400, json={**COMPLETION, "prompt_embeds": "AA=="})["message"]


def test_unknown_model_and_route(pd):
    assert error_of(pd, "/v1/chat/completions", 404, json={**CHAT, "model": "no-such"})["code"] == "model_not_found"
    assert pd.http.post("/nope", json={}).status_code == 404
    assert pd.http.get("/v1/chat/completions").status_code == 405


@pytest.mark.parametrize("stream", [True, False])
def test_over_long_prompt_is_refused_before_any_replica_sees_it(pd, stream):
    before = pd.steady("baton_prefill_tokens_total")
    e = error_of(pd, "/v1/completions", 400, json={**COMPLETION, "prompt": "hello " * 6000, "stream": stream})
    assert e["code"] == "context_length_exceeded" and e["n_prompt_tokens"] > e["n_ctx"] == 2048
    assert pd.steady("baton_prefill_tokens_total") == before


@pytest.mark.parametrize("rows,message", [
    ([{"role": "prefill"}], "requires both prefill and decode"), ([{"role": "prefill"}, {"role": "hybrid"}], "without hybrid replicas"),
    ([{"role": "prefill"}, {"role": "decode"}, {"role": "hybrid"}], "without hybrid replicas"), ([{"role": "decode"}, {"role": "decode"}], "both prefill and decode"),
    ([{"role": "boss"}, {"role": "decode"}], "Invalid replica_config"), ([{"role": "prefill", "x": 1}, {"role": "decode"}], "Invalid replica_config")])
def test_invalid_topology_has_no_side_effects(pd, rows, message):
    worker = pd.http.get("/v1/workers").json()[0]["work-ip"]
    tree = len(pd.tree())
    config = [{**r, "devices": [{"worker_ip": worker, "n_gpu": 0}]} for r in rows]
    body = {"model_name": "x", "model_uid": "bad", "model_engine": "baton", "model_path": MODEL, "replica": len(rows), "replica_config": config}
    assert message in error_of(pd, "/v1/models", 400, json=body)["message"]
    assert pd.http.get("/v1/models/instances?model_uid=bad").json() == []
    assert len(pd.tree()) == tree


def launch_path(pd, path):
    body = {"model_name": "x", "model_uid": "broken", "model_engine": "baton", "model_path": str(path), "kv_cache_bytes": 32 << 20, "max_model_len": 256}
    r = pd.http.post("/v1/models", json=body)
    if r.status_code == 200:  # a flipped byte that means nothing
        pd.terminate("broken")
    else:
        assert 400 <= r.status_code < 500, f"{r.status_code} {r.text}"
        assert r.json()["error"]["message"]


def test_truncated_and_corrupt_model_files(pd, tmp_path):
    rng = random.Random(1)
    size = 98_362_432
    path = tmp_path / "cut.gguf"
    shutil.copy(MODEL, path)
    cuts = sorted((rng.randrange(0, size) for _ in range(25)), reverse=True) + sorted((rng.randrange(0, 4_000_000) for _ in range(25)), reverse=True)
    for cut in cuts:
        if path.stat().st_size > cut:
            with open(path, "r+b") as f:
                f.truncate(cut)
        launch_path(pd, path)
    shutil.copy(MODEL, path)
    header = 1_700_000
    for _ in range(50):
        at = rng.randrange(0, header)
        with open(path, "r+b") as f:
            f.seek(at)
            old = f.read(1)
            f.seek(at)
            f.write(bytes([old[0] ^ (1 + rng.randrange(255))]))
        launch_path(pd, path)
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(old)


def test_an_error_of_a_model_file_names_it(pd, tmp_path):
    path = tmp_path / "cut.gguf"
    with open(MODEL, "rb") as f:
        path.write_bytes(f.read(1000))
    e = error_of(pd, "/v1/models", 400, json={"model_name": "x", "model_engine": "baton", "model_path": str(path)})
    assert e["message"].startswith("cut.gguf: "), e


def test_missing_model_file(pd):
    e = error_of(pd, "/v1/models", 400, json={"model_name": "x", "model_engine": "baton", "model_path": "/nonexistent/model.gguf"})
    assert "does not exist" in e["message"]
