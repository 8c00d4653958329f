"""One request through the logs of supervisor, prefill and decode replica: a line an event, JSON, joined by the request's id."""

import json
import os
import signal
import subprocess

import harness
from harness import UID, wait_for


def unique(pairs):
    keys = [k for k, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key twice: {keys}"
    return dict(pairs)


def events(server, **fields):
    """Lines whose fields match; every line of the log must be JSON with a time, a level and an event."""
    found = []
    for line in server.log().splitlines():
        event = json.loads(line, object_pairs_hook=unique)
        assert {"time", "level", "event"} <= set(event), line
        assert " " not in event["event"] and "." in event["event"], line
        if all(event.get(k) == v for k, v in fields.items()):
            found.append(event)
    return found


def test_a_request_is_followed_by_its_id_through_all_processes():
    with harness.Server(extra=["--log-format", "json"]) as server:
        server.launch("1p1d")
        prompt = "Zebra-word-17 lived in a house and"
        server.complete(prompt, max_tokens=6, ignore_eos=True, request_id="follow-1")
        wait_for(lambda: events(server, event="request.done", req="follow-1"), 5, "the request's line")
        mine = events(server, req="follow-1")
        assert sorted(e["event"] for e in mine) == ["kv.loaded", "kv.staged", "request.done"]
        by_name = {e["event"]: e for e in mine}
        staged, loaded, done = by_name["kv.staged"], by_name["kv.loaded"], by_name["request.done"]
        assert (staged["role"], staged["replica"], staged["model_uid"]) == ("prefill", 0, UID)
        assert (loaded["role"], loaded["replica"], loaded["model_uid"]) == ("decode", 1, UID)
        assert staged["tokens"] == done["prompt_tokens"] and loaded["bytes"] > 0 and loaded["mover"] == "shm"
        assert done["outcome"] == "ok" and done["replicas"] == "0,1" and done["completion_tokens"] == 6
        for key in ("ttft_ms", "ms", "cached_tokens"):
            assert isinstance(done[key], (int, float)), key
        assert 0 <= done["ttft_ms"] <= done["ms"]
        assert staged["time"] <= done["time"] and loaded["time"] <= done["time"]
        # The header does the same as the field, and no text of the request is in the log.
        server.http.post("/v1/completions", headers={"X-Request-Id": "follow-2"}, json={"model": UID, "prompt": prompt, "max_tokens": 2, "ignore_eos": True})
        wait_for(lambda: events(server, event="request.done", req="follow-2"), 5, "the request's line")
        assert "Zebra-word-17" not in server.log()
        # Who refuses a request says why, with the id.
        assert server.http.post("/v1/models/m/requests/none/abort").status_code == 200


def test_what_goes_wrong_with_a_request_has_its_id():
    with harness.Server(extra=["--log-format", "json"]) as server:
        server.launch("2p2d")
        text = ""
        for i, chunk in enumerate(server.stream("Once", max_tokens=200, ignore_eos=True, request_id="follow-3")):
            text += chunk["choices"][0]["text"] if chunk["choices"] else ""
            if i == 5:
                taken = events(server, event="kv.loaded", req="follow-3")[-1]["replica"]
                os.kill(next(r["pid"] for r in server.replicas() if r["replica_id"] == taken), signal.SIGKILL)
        retried = wait_for(lambda: events(server, event="request.retried", req="follow-3"), 5, "that it was tried again")
        assert retried[0]["attempt"] == 2 and retried[0]["reason"] == "decode_lost" and retried[0]["level"] == "warning"
        done = wait_for(lambda: events(server, event="request.done", req="follow-3"), 5, "its end")[0]
        assert done["outcome"] == "ok" and done["completion_tokens"] == 200
        down = events(server, event="replica.down")
        assert down and down[0]["replica"] == taken


def test_a_start_that_fails_says_so_in_json_too(tmp_path):
    r = subprocess.run([harness.BINARY, "worker", "--supervisor-socket", str(tmp_path / "none.sock"), "--log-format", "json", "--supervisor-grace-ms", "100", "--run-dir", str(tmp_path)],
                       capture_output=True, text=True, timeout=60 * harness.PATIENCE)
    assert r.returncode != 0
    for line in r.stderr.splitlines():
        event = json.loads(line, object_pairs_hook=unique)
        assert event["process"] == "worker" and " " not in event["event"]
