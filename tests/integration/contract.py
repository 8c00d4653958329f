"""What the tests of the OpenAI surface share: requests, the checks that every error passes, streams read strictly."""

import json
import shutil
import socket
import time
from pathlib import Path

from harness import PATIENCE, UID, Server

SPEAKER = Path(__file__).resolve().parents[1] / "data/model/speaker"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
T0 = {"temperature": 0, "max_tokens": 32}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Get the weather", "parameters": {
    "type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def speaker_folder(folder, template):
    """The model that knows its sentences by heart (scripts/make_speaker_model.py), with one of its chat templates."""
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy(SPEAKER / name, folder / name)
    config = json.loads((SPEAKER / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": (SPEAKER / f"{template}.jinja").read_text()}))
    return folder


class Contract:
    """One server with a deployment of each model; the cases of one test."""

    def __init__(self, server, topology):
        self.server, self.topology, self.http = server, topology, server.http
        self.pids = sorted(server.tree())

    def post(self, route, **body):
        return self.http.post(route, json=body)

    def chat(self, content="Say hi", expect=200, **keys):
        r = self.post(CHAT, **{"model": UID, "messages": [{"role": "user", "content": content}], **keys})
        assert r.status_code == expect, f"{r.status_code} {r.text}"
        return r.json()

    def comp(self, prompt="Once upon a time", expect=200, **keys):
        r = self.post(COMPLETIONS, **{"model": UID, "prompt": prompt, **keys})
        assert r.status_code == expect, f"{r.status_code} {r.text}"
        return r.json()

    def text(self, prompt="Once upon a time", **keys):
        return self.comp(prompt, **{**T0, **keys})["choices"][0]["text"]

    def say(self, content, model="speaker", **keys):
        return self.chat(content, model=model, **{"temperature": 0, "max_tokens": 120, **keys})["choices"][0]

    def bad(self, param=None, route=CHAT, status=400, content=None, headers=None, seconds=1.0, **keys):
        """The error of a request that must be refused; both shapes, quickly."""
        base = {"model": UID, "messages": [{"role": "user", "content": "Say hi"}]} if route == CHAT else {"model": UID, "prompt": "Once upon a time"}
        begun = time.monotonic()
        if content is None:
            r = self.http.post(route, json={**base, **keys}) if not any(v != v or v in (float("inf"), float("-inf")) for v in keys.values() if isinstance(v, float)) \
                else self.http.post(route, content=json.dumps({**base, **keys}).replace("Infinity", "1e999"), headers={"Content-Type": "application/json"})
        else:
            r = self.http.post(route, content=content, headers=headers or {"Content-Type": "application/json"})
        assert time.monotonic() - begun < seconds * PATIENCE
        return self.check_error(r, status, param, keys)

    def check_error(self, r, status=400, param=None, what=None):
        assert r.status_code == status, f"{what}: {r.status_code} {r.text[:500]}"
        assert r.headers["content-type"].startswith("application/json")
        body = r.json()
        error = body["error"]
        assert error["message"] and isinstance(body["detail"], str), body
        assert error["type"] == "invalid_request_error" or status >= 401, body
        if param is not None:
            assert error["param"] == param, f"{what}: {error}"
        return error

    def events(self, route=CHAT, **body):
        """Objects of a stream that ended as it should."""
        base = {"model": UID, "stream": True}
        base |= {"messages": [{"role": "user", "content": "Say hi"}]} if route == CHAT else {"prompt": "Once upon a time"}
        out, done = [], False
        with self.http.stream("POST", route, json={**base, **body}) as r:
            assert r.status_code == 200, r.read()
            for line in r.iter_lines():
                if not line or line.startswith(":"):
                    continue
                assert line.startswith("data: ") and not done, line
                if line == "data: [DONE]":
                    done = True
                    continue
                out.append(json.loads(line[6:]))
                assert "error" not in out[-1], out[-1]
        assert done
        return out

    def alive(self):
        assert self.post(CHAT, model=UID, messages=[{"role": "user", "content": "Say hi"}], max_tokens=1).status_code == 200
        assert sorted(self.server.tree()) == self.pids, "a process has died"

    def idle(self, timeout=3):
        """Nothing runs and no block is held, on any replica."""
        for name, labels in (("baton_requests_running", {}), ("baton_requests_waiting", {}), ("baton_kv_blocks", {"state": "used"}), ("baton_kv_blocks", {"state": "offered"})):
            self.server.settled(name, 0, timeout=timeout, model_uid=UID, **labels)


def joined(events, key="content"):
    """Concatenated deltas of choice 0 (chat), or texts (completions)."""
    choices = [e["choices"][0] for e in events if e["choices"] and e["choices"][0]["index"] == 0]
    return "".join(c["text"] if "text" in c else c["delta"].get(key) or "" for c in choices)


def calls_of(events, index=0):
    """The calls that a stream's deltas add up to."""
    calls = []
    for e in events:
        for c in e["choices"]:
            for d in c["delta"].get("tool_calls", []) if c["index"] == index else []:
                if "id" in d:
                    assert d["index"] == len(calls) and d["type"] == "function" and d["function"]["arguments"] == ""
                    calls.append({"id": d["id"], "name": d["function"]["name"], "arguments": ""})
                else:
                    assert d["index"] == len(calls) - 1 and set(d) == {"index", "function"} and set(d["function"]) == {"arguments"}
                    calls[-1]["arguments"] += d["function"]["arguments"]
    return calls


def raw_post(port, route, body, **headers):
    """A socket with the request on it."""
    data = json.dumps(body).encode()
    s = socket.create_connection(("127.0.0.1", port))
    s.settimeout(30 * PATIENCE)
    extra = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    s.sendall(f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{extra}\r\n".encode() + data)
    return s


def serve(topology, folder):
    """A server with SmolLM2 as m and the speaker with each of its templates."""
    server = Server()
    try:
        server.launch(topology)
        for uid, template in (("speaker", "hermes"), ("speaker-llama3", "llama3"), ("speaker-mistral", "mistral")):
            server.launch(topology if uid == "speaker" else "hybrid", uid=uid, model_path=str(speaker_folder(folder / uid, template)), max_model_len=1024,
                          kv_cache_bytes=32 << 20, threads=1)
        return server
    except BaseException:
        server.close()
        raise
