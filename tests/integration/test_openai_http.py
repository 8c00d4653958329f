"""Acceptance cases of the OpenAI surface, part 4: framing, hostile bodies, clients that leave, many at once, keys, states. Each runs against
hybrid and against 1P1D."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import time

import httpx
import openai
import pytest
import xinference_client
from contract import CHAT, COMPLETIONS, T0, Contract, joined, raw_post
from harness import MODEL, PATIENCE, UID, Server, wait_for

ROUTES = (CHAT, COMPLETIONS, "/v1/responses", "/tokenize", "/v1/chat/completions/render")


def read_answer(sock):
    """Status line, headers and the chunks of one answer on a raw socket."""
    file = sock.makefile("rb")
    status = file.readline()
    headers = {}
    while (line := file.readline()) not in (b"\r\n", b""):
        name, value = line.decode().split(":", 1)
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") != "chunked":
        return status, headers, [file.read(int(headers["content-length"]))]
    chunks = []
    while size := int(file.readline(), 16):
        chunks.append(file.read(size))
        assert file.read(2) == b"\r\n"
    assert file.readline() == b"\r\n"
    return status, headers, chunks


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_a34_the_bytes_of_a_stream(api, route):
    body = {"model": UID, "stream": True, **T0, **({"messages": [{"role": "user", "content": "Say hi"}]} if route == CHAT else {"prompt": "Once"})}
    with contextlib.closing(raw_post(api.server.port, route, body)) as sock:
        for _ in range(2):  # the connection serves a second request
            status, headers, chunks = read_answer(sock)
            assert status == b"HTTP/1.1 200 OK\r\n"
            assert headers["content-type"] == "text/event-stream; charset=utf-8" and headers["cache-control"] == "no-cache" and headers["x-accel-buffering"] == "no"
            raw = b"".join(chunks)
            frames = raw.split(b"\r\n\r\n")
            assert frames[-1] == b"" and frames[-2] == b"data: [DONE]"
            for frame in frames[:-2]:
                assert frame.startswith(b"data: ") and len(frame) < 65536 and b"\n" not in frame
                json.loads(frame[6:])
            data = json.dumps(body).encode()
            sock.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (route.encode(), len(data)) + data)
        read_answer(sock)


def test_a35_models(api):
    rows = api.http.get("/v1/models").json()
    row = next(m for m in rows["data"] if m["id"] == UID)
    assert row["object"] == "model" and isinstance(row["created"], int) and row["owned_by"]
    one = api.http.get(f"/v1/models/{UID}").json()
    assert one["id"] == UID and one["object"] == "model" and "model_name" in one and one["context_length"] == 2048
    assert UID in [m.id for m in openai.OpenAI(base_url=api.server.url + "/v1", api_key="x").models.list()]
    assert UID in xinference_client.RESTfulClient(api.server.url).list_models()
    api.check_error(api.http.get("/v1/models/missing"), 400)


def test_a37_routes(api):
    r = api.http.get(CHAT)
    assert r.status_code == 405 and "POST" in r.headers["allow"]
    api.check_error(api.http.post("/nope", json={}), 404)
    with contextlib.closing(raw_post(api.server.port, "/v1/../v1/models", {})) as sock:
        assert read_answer(sock)[0].split()[1] in (b"404", b"400")
    assert api.http.get("/v1/models/%00").status_code in (400, 404)
    assert api.http.get("/v1//models").status_code == 404


@pytest.mark.parametrize("route", ROUTES)
def test_a38_bodies_that_are_no_objects(api, route):
    for body in (b"", b"[]", b"5", b"null", b"{", b"{} x", b"{}{}", b"\xef\xbb\xbf{}", b"a=1&b=2"):
        api.bad(route=route, content=body)
    api.check_error(api.http.post(route, content=b"a=1", headers={"Content-Type": "application/x-www-form-urlencoded"}), 415)


def test_a39_hostile_json(api):
    for field in (b'"temperature": NaN', b'"model": "m", "model": "m"', b'"metadata": ' + b"[" * 10_000 + b"]" * 10_000, b'"seed": ' + b"9" * 1_000_000):
        api.bad(content=b'{"messages": [{"role": "user", "content": "x"}], ' + field + b"}", seconds=0.2)


def test_a40_bytes_that_are_no_text(api):
    for text in (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800"):
        api.bad(content=b'{"model": "m", "messages": [{"role": "user", "content": "' + text + b'"}]}')
    benign = api.chat("ab", max_tokens=1)["usage"]["prompt_tokens"]
    assert api.chat("a\0b", max_tokens=1)["usage"]["prompt_tokens"] > benign


LONG = {"model": UID, "messages": [{"role": "user", "content": "Tell me a very long story"}], "max_tokens": 4000, "ignore_eos": True}


def test_a41_a_client_leaves_its_stream(api):
    with api.http.stream("POST", CHAT, json={**LONG, "stream": True}) as r:
        lines = r.iter_lines()
        for _ in range(10):
            next(lines)
    api.idle(2)


def test_a42_a_client_leaves_before_its_answer(api):
    sock = raw_post(api.server.port, CHAT, LONG)
    wait_for(lambda: api.server.metric("baton_requests_running", model_uid=UID) == 1, 10, "it runs")
    sock.close()
    api.idle(2)


def test_a43_abort(api):
    url = f"/v1/models/{UID}/requests"
    with api.http.stream("POST", CHAT, json={**LONG, "stream": True, "request_id": "a43"}) as r:
        lines = (line for line in r.iter_lines() if line)
        next(lines)
        begun = time.monotonic()
        assert httpx.post(f"{api.server.url}{url}/a43/abort", json={"block_duration": 0}).json() == {"msg": "DONE"}
        rest = []
        with contextlib.suppress(httpx.RemoteProtocolError):  # the connection ends without the end mark
            rest.extend(lines)
        assert time.monotonic() - begun < 1 * PATIENCE and "error" in json.loads(rest[-1][6:]) and "data: [DONE]" not in rest
    for path, answer in ((f"{url}/a43/abort", "NOT_FOUND"), (f"{url}/never/abort", "NOT_FOUND"), ("/v1/models/none/requests/x/abort", "NO_OP")):
        assert api.http.post(path).json() == {"msg": answer}
    api.idle()


def test_a44_one_id_twice(api):
    with api.http.stream("POST", CHAT, json={**LONG, "max_tokens": 40, "stream": True, "request_id": "twice"}) as r:
        lines = (line for line in r.iter_lines() if line)
        next(lines)
        with httpx.Client(base_url=api.server.url) as other:
            e = api.check_error(other.post(CHAT, json={**LONG, "request_id": "twice"}))
            assert "Duplicate request id" in e["message"] and "already running" in e["message"]
        assert list(lines)[-1] == "data: [DONE]"
    api.bad("request_id", request_id="")
    api.bad("request_id", request_id="x" * 129)
    assert api.http.post(CHAT, json={**LONG, "max_tokens": 1}, headers={"X-Request-Id": "by-header"}).json()["id"] == "chatcmpl-by-header"


def test_a45_many_at_once(api):
    words = [f"W{i}" for i in range(64)]

    def ask(i, stream):
        keys = {"temperature": 0, "max_tokens": 8}
        content = f"Repeat the word {words[i]}"
        if stream:
            with httpx.Client(base_url=api.server.url, timeout=120 * PATIENCE) as client:
                return joined(Contract.events(_Other(api, client), messages=[{"role": "user", "content": content}], **keys))
        r = httpx.post(api.server.url + CHAT, json={"model": UID, "messages": [{"role": "user", "content": content}], **keys}, timeout=120 * PATIENCE)
        assert r.status_code == 200, r.text
        return r.json()["choices"][0]["message"]["content"]

    alone = [ask(i, False) for i in range(64)]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        assert list(pool.map(lambda i: ask(i, i % 2 == 0), range(64))) == alone


class _Other:
    """The surface over a connection of its own."""

    def __init__(self, api, client):
        self.server, self.http = api.server, client


def test_a46_a_prompt_again(api):
    prompt = " ".join(f"word{i}" for i in range(180))
    answers = [api.comp(prompt, **T0) for _ in range(3)]
    assert len({a["choices"][0]["text"] for a in answers}) == 1 and len({a["usage"]["prompt_tokens"] for a in answers}) == 1
    assert answers[0]["usage"]["prompt_tokens"] > 500
    for a in answers[1:]:
        cached = a["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0 and cached % 16 == 0


def test_a48_another_quantization_has_another_fingerprint(tiny_model, tmp_path):
    seen = []
    for path in (MODEL, str(tiny_model), MODEL):
        with Server(state_dir=str(tmp_path / str(len(seen)))) as server:
            server.launch("hybrid", model_path=path, max_model_len=512, kv_cache_bytes=32 << 20)
            seen.append(server.complete("x", max_tokens=1)["system_fingerprint"])
    assert seen[0] == seen[2] != seen[1]


@pytest.mark.parametrize("topology", ["hybrid", "1p1d"])
def test_a49_keys(topology, tiny_model):
    with Server(extra=["--api-key", "secret"], headers={"Authorization": "Bearer secret"}) as server:
        server.launch(topology, model_path=str(tiny_model), max_model_len=512, kv_cache_bytes=16 << 20, threads=1)
        bare = httpx.Client(base_url=server.url)
        for method, path in (("GET", "/v1/models"), ("POST", CHAT), ("POST", COMPLETIONS), ("POST", "/v1/responses"), ("POST", "/tokenize"), ("POST", "/detokenize"),
                             ("POST", "/apply-template"), ("POST", "/v1/chat/completions/render"), ("POST", "/v1/messages"), ("GET", "/metrics"), ("POST", "/v1/embeddings"),
                             ("GET", f"/v1/models/{UID}"), ("GET", "/v1/workers"), ("DELETE", f"/v1/models/{UID}"), ("POST", "/v1/models"), ("GET", "/nope")):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "wrong"}):
                r = bare.request(method, path, headers=headers, **({"json": {}} if method == "POST" else {}))
                assert r.status_code == 401 and r.headers["www-authenticate"] == "Bearer" and r.json()["error"]["type"] == "authentication_error", (method, path)
        for path in ("/health", "/ready"):
            assert bare.get(path).status_code == 200
        for headers in ({"Authorization": "Bearer secret"}, {"X-Api-Key": "secret"}):
            assert bare.post(COMPLETIONS, headers=headers, json={"model": UID, "prompt": "a", "max_tokens": 1}).status_code == 200
        bare.close()


def test_a50_no_cross_origin_access_unless_configured(api):
    for method in ("OPTIONS", "GET"):
        r = api.http.request(method, "/v1/models", headers={"Origin": "http://evil", "Access-Control-Request-Method": "POST"})
        assert not [h for h in r.headers if h.startswith("access-control")]
    with Server(env={"BATON_CORS_ORIGINS": "http://good"}) as server:
        for origin in ("http://good", "http://evil"):
            r = server.http.options("/v1/models", headers={"Origin": origin, "Access-Control-Request-Method": "GET"})
            assert r.headers.get("access-control-allow-origin") == ("http://good" if origin == "http://good" else None)
            assert not (r.headers.get("access-control-allow-origin") == "*" and r.headers.get("access-control-allow-credentials"))


@pytest.mark.parametrize("topology", ["hybrid", "1p1d"])
def test_a51_health_and_readiness(topology):
    with Server(env={"BATON_SHUTDOWN_TIMEOUT_MS": "120000"}) as server:
        server.launch(topology, wait=False)
        while (r := server.http.get("/ready")).status_code == 503:  # loading
            assert server.http.get("/health").status_code == 200 and r.text
        server.wait_ready()
        os.kill(server.pids()[0], signal.SIGKILL)
        wait_for(lambda: server.http.get("/ready").status_code == 503, 5, "a dead replica shows", 0.005)
        assert server.http.get("/health").status_code == 200
        server.wait_ready()
        text = server.http.get("/metrics").text
        for line in text.splitlines():
            assert re.fullmatch(r"# (HELP|TYPE) .+|[a-zA-Z_:][\w:]*(\{.*\})? [-+0-9.eEinfaN]+", line), line
        server.complete("my private prompt", max_tokens=200, ignore_eos=True)
        assert "private" not in server.http.get("/metrics").text
        with server.http.stream("POST", COMPLETIONS, json={"model": UID, "prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}) as r:
            lines = r.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: httpx.get(server.url + "/ready").status_code == 503, 5, "draining", 0.005)
            assert httpx.get(server.url + "/health").status_code == 200
            assert [line for line in lines if line][-1] == "data: [DONE]"
