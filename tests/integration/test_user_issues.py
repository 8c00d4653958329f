"""What users of Xinference and other engines met, each as a behaviour that must hold here; the numbers are those of docs/API.md."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import httpx
import openai
import pytest
from harness import BINARY, MODEL, PATIENCE, UID, Server, StreamError, alive, free_port, wait_for

FAKE = os.environ.get("BATON_FAKE_GPU_BINARY") or str(Path(BINARY).parent / "tests" / "baton-fake-gpu")
SMALL = {"max_model_len": 512, "kv_cache_bytes": 16 << 20, "threads": 1}
LONG = {"ignore_eos": True, "max_tokens": 1500}


@pytest.fixture(scope="module")
def tiny(tiny_model):
    """A server without models, with fault hooks, and a launch of the tiny model."""
    with Server(env={"BATON_ALLOW_FAULT_HOOKS": "true"}) as server:
        server.tiny = lambda topology="hybrid", uid="t", **keys: server.launch(topology, uid=uid, model_path=str(tiny_model), **{**SMALL, **keys})
        server.post = lambda **keys: server.http.post("/v1/models", json={"model_name": "tiny", "model_engine": "vLLM", "model_path": str(tiny_model), "n_gpu": None, **SMALL, **keys})
        yield server


def aborts(server):
    return server.metric("baton_aborts_total", model_uid=UID)


def free(server, uid=UID):
    for name, labels in (("baton_requests_running", {}), ("baton_kv_blocks", {"state": "used"}), ("baton_kv_blocks", {"state": "offered"})):
        server.settled(name, 0, timeout=4, model_uid=uid, **labels)


def test_01_a_client_that_leaves_and_an_abort_stop_the_work(pd):
    before = aborts(pd)
    pd.complete("A normal end", max_tokens=4)
    assert aborts(pd) == before, "a normal end aborts nothing"
    with pd.http.stream("POST", "/v1/completions", json={"model": UID, "prompt": "Leave", "stream": True, **LONG}) as r:
        next(r.iter_lines())
    pd.settled("baton_aborts_total", before + 1, model_uid=UID)
    free(pd)
    stream = pd.stream("Abort", request_id="mine", **LONG)
    next(stream)
    begun = time.monotonic()
    assert pd.http.post(f"/v1/models/{UID}/requests/mine/abort", json={"block_duration": 0}).json() == {"msg": "DONE"}
    assert time.monotonic() - begun < 2 * PATIENCE
    with pytest.raises(StreamError, match="abort"):
        list(stream)
    pd.settled("baton_aborts_total", before + 2, model_uid=UID)
    free(pd)
    assert pd.http.post(f"/v1/models/{UID}/requests/mine/abort", content=b"").json() == {"msg": "NOT_FOUND"}


def test_02_repeated_and_shared_prompts_give_the_same_text(pd):
    stem = "The history of the lighthouse on the northern coast begins with a storm in the year of the great fire. " * 6
    texts = {tail: pd.complete(stem + tail, max_tokens=12)["choices"][0]["text"] for tail in ("It", "Then", "Nobody")}
    for _ in range(2):
        for tail, text in texts.items():
            assert pd.complete(stem + tail, max_tokens=12)["choices"][0]["text"] == text
    assert pd.complete(stem + "It", max_tokens=12)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_04_a_hand_off_that_fails_is_computed_locally(tiny):
    tiny.tiny("1p1d", uid="broken", fault="fail_pulls")
    assert tiny.complete("a b c d e f g h i j k l m n o p q r s t", model="broken", max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
    assert tiny.metric("baton_fallbacks_total", model_uid="broken") >= 1
    assert tiny.metric("baton_requests_total", model_uid="broken", outcome="error") == 0
    tiny.terminate("broken")


@pytest.mark.skipif(not os.path.exists(FAKE), reason=f"{FAKE} is not there")
def test_05_and_07_gpus_are_given_out_as_asked_and_come_back(tiny_model):
    with Server(binary=FAKE, env={"BATON_FAKE_GPUS": "4", "BATON_SHARE_GPUS": "false", "BATON_ALLOW_FAULT_HOOKS": "true"}) as server:
        def launch(**keys):
            return server.http.post("/v1/models", json={"model_name": "tiny", "model_uid": "g", "model_engine": "vLLM", "model_path": str(tiny_model),
                                                        "max_model_len": 256, **keys})

        assert launch(replica=2, gpu_idx=[2, 3]).status_code == 200
        assert [r["gpu_idx"] for r in server.replicas("g")] == [[2], [3]]
        assert [r["accelerators"] for r in server.replicas("g")] == [["2"], ["3"]]
        assert {x["gpu_index"] for x, _ in server.metrics()["xinference:model_gpu_binding"]} == {"2", "3"}
        r = launch(model_uid="other", replica=2, gpu_idx=[0, 1, 2])
        assert (r.status_code, r.json()["detail"]) == (400, "Invalid input. Allocated gpu must be a multiple of replica.")
        r = launch(model_uid="other", gpu_idx=[9])
        assert r.status_code == 400 and "gpu_idx [9] is not visible" in r.json()["detail"]
        assert launch(model_uid="other", replica=3).status_code == 503
        server.terminate("g")
        # A replica that fails in its launch gives its GPU back at once.
        assert launch(gpu_idx=[2], kv_dtype="bf16", fault="no such fault").status_code == 400
        assert launch(gpu_idx=[2]).status_code == 200
        server.terminate("g")


def test_06_and_24_replicas_on_the_workers_that_were_named_and_a_lost_worker(tiny_model, tmp_path):
    port = free_port()
    env = {**os.environ, "BATON_LINK_SECRET": "a secret of sixteen or more"}
    with Server(command="supervisor", extra=["--link-address", f"127.0.0.1:{port}"], env=env) as server, contextlib.ExitStack() as stack:
        def worker(name, at="0"):
            (tmp_path / name).mkdir(exist_ok=True)
            p = subprocess.Popen([BINARY, "worker", "--supervisor", f"127.0.0.1:{port}", "--host-id", name, "--run-dir", str(tmp_path / name),
                                  "--advertise-address", "127.0.0.1", "--worker-port", at, "--supervisor-grace-ms", "1000"],
                                 env=env, stderr=open(tmp_path / f"{name}.log", "ab"))
            stack.callback(p.wait, 10 * PATIENCE)
            stack.callback(p.terminate)
            return p

        processes = {name: worker(name) for name in ("a", "b")}
        rows = wait_for(lambda: (w := server.http.get("/v1/workers").json()) and len(w) == 2 and w, 10, "both workers")
        assert all(abs(time.time() - w["registered_ts"]) < 60 for w in rows), "how long each has been there"
        address = {name: wait_for(lambda: (m := re.search(r"worker\.joined address=(\S+)", (tmp_path / f"{name}.log").read_text())) and m[1], 10, "address")
                   for name in processes}
        config = [{"role": "prefill", "devices": [{"worker_ip": address["b"], "n_gpu": 0}]}, {"role": "decode", "devices": [{"worker_ip": address["a"], "n_gpu": 0}]}]
        r = server.http.post("/v1/models", json={"model_name": "tiny", "model_uid": UID, "model_engine": "vLLM", "model_path": str(tiny_model),
                                                 "replica": 2, "replica_config": config, **SMALL})
        assert r.status_code == 200, r.text
        assert [row["worker_address"] for row in server.replicas()] == [address["b"], address["a"]]
        assert server.complete("x", max_tokens=3)
        server.wait_ready()  # not so in the first moments of a start, when workers may bring deployments along
        processes["a"].kill()
        wait_for(lambda: server.http.get("/ready").status_code == 503, 10, "not ready")
        r = server.http.post("/v1/completions", json={"model": UID, "prompt": "x", "max_tokens": 3})
        assert r.status_code == 503 and r.headers["retry-after"] and "Both prefill and decode replicas must be available" in r.json()["detail"]
        assert [row["status"] for row in server.replicas()] == ["READY", "UPDATING"]
        # The whole says so too, in its row and in the metrics: what /ready and requests are told.
        (row,) = server.http.get("/v1/models/instances").json()
        assert row["status"] == "UPDATING" and "worker was lost" in row["replica_statuses"][1]["error_message"]
        assert server.metric("xinference:model_status", model_uid=UID, status="UPDATING") == 1
        assert any("is down" in e["event_content"] for e in server.http.get(f"/v1/models/{UID}/events").json())
        worker("a", address["a"].rsplit(":", 1)[1])
        server.wait_ready()
        assert server.http.get("/v1/models/instances").json()[0]["status"] == "READY"
        assert server.complete("x", max_tokens=3)
        server.terminate()


def test_08_no_process_is_left_when_a_model_is_terminated(tiny):
    tiny.tiny("2p2d", uid="gone")
    pids = tiny.pids(uid="gone")
    assert len(pids) == 4
    tiny.terminate("gone")
    assert not any(alive(p) for p in pids), "the answer comes when they are gone"


def test_09_a_failed_launch_leaves_its_uid_free(tiny, tiny_model):
    for wait in ("True", "False"):
        r = tiny.http.post(f"/v1/models?wait_ready={wait}", json={"model_name": "x", "model_uid": "again", "model_engine": "vLLM", "model_path": str(tiny_model), "n_gpu": None, "fault": "no such fault"})
        if wait == "True":
            assert r.status_code == 400
        wait_for(lambda: [i["status"] for i in tiny.http.get("/v1/models/instances?model_uid=again").json()] == ["ERROR"], 20, "the row says ERROR")
        assert tiny.http.get("/v1/models/again").status_code == 400
        (row,) = tiny.http.get("/v1/models/again/replicas").json()
        assert row["status"] == "ERROR" and "no such fault" in row["error_message"]
        # The row can be cleared, and then there is nothing to clear any more.
        assert tiny.http.delete("/v1/models/again").status_code == 200
        assert tiny.http.get("/v1/models/instances?model_uid=again").json() == []
        assert tiny.http.delete("/v1/models/again").status_code == 400
    tiny.tiny(uid="again")
    assert tiny.http.get("/v1/models/again").status_code == 200
    tiny.terminate("again")


@pytest.mark.parametrize("uid", ["Qwen/Qwen3.5-35B-A3B", "a/b/c d", "日本/モデル"])
def test_10_a_uid_may_have_slashes(tiny, uid):
    tiny.tiny(uid=uid)
    raw, quoted = uid.replace(" ", "%20"), httpx.QueryParams({"u": uid})
    quoted = str(quoted).removeprefix("u=").replace("+", "%20")
    for path in (raw, quoted):
        assert tiny.http.get(f"/v1/models/{path}").json()["id"] == uid
        assert len(tiny.http.get(f"/v1/models/{path}/replicas").json()) == 1
        assert tiny.http.get(f"/v1/models/{path}/progress").json()["progress"] == 1.0
        assert tiny.http.get(f"/v1/models/{path}/events").json()
        assert tiny.http.post(f"/v1/models/{path}/requests/r/abort", json={}).json() == {"msg": "NOT_FOUND"}
        assert tiny.http.delete(f"/v1/models/{path}/replicas/7").status_code == 400
    assert tiny.complete("x", model=uid, max_tokens=1)
    assert tiny.http.delete(f"/v1/models/{raw}").status_code == 200
    assert tiny.http.get(f"/v1/models/{raw}").status_code == 400
    for bad in ("a/replicas", "a/replicas/0", "x/requests/y/abort", "a/progress"):
        assert "would hide a route" in tiny.post(model_uid=bad).json()["detail"]


def test_11_and_20_a_crash_is_told_by_the_models_name_and_repaired(tiny):
    tiny.tiny(uid="crash")
    pid = tiny.pids(uid="crash")[0]
    stream = tiny.stream("x", model="crash", **LONG)
    next(stream)
    os.kill(pid, signal.SIGSTOP)  # so that it is not repaired before it was seen
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: tiny.replicas("crash")[0]["status"] != "READY", 5, "the row tells", 0.002)
    assert tiny.metric("xinference:model_unexpected_termination", model_uid="crash") == 1
    try:
        list(stream)
    except (StreamError, httpx.HTTPError) as e:
        assert "-rep" not in str(e)
    down = lambda: [e["event_content"] for e in tiny.http.get("/v1/models/crash/events").json() if e["event_type"] == "WARNING"]  # noqa: E731
    assert wait_for(down, 5, "the event") == ["replica 0 is down: killed by signal 9 (SIGKILL)"]
    wait_for(lambda: tiny.pids(uid="crash") not in ([], [pid]) and tiny.replicas("crash")[0]["status"] == "READY", 20, "a new process")
    assert tiny.complete("x", model="crash", max_tokens=2)
    r = tiny.http.post("/v1/completions", json={"model": "crash-rep0", "prompt": "x"})
    assert r.status_code == 404 and r.json()["detail"] == "Model not found in the model list, uid: crash-rep0. Available model uids: ['crash']"
    # What happened stays visible until the model is launched anew.
    assert tiny.metric("xinference:model_unexpected_termination", model_uid="crash") == 1
    assert tiny.metric("baton_replica_faults_total", model_uid="crash") == 1
    assert len(down()) == 1
    tiny.terminate("crash")
    tiny.tiny(uid="crash")
    assert tiny.metric("xinference:model_unexpected_termination", model_uid="crash") == 0
    tiny.terminate("crash")


def test_12_13_and_18_a_slow_launch_holds_nobody_up(tiny):
    launch = {"model_name": "slow", "model_uid": "slow", "model_engine": "vLLM", "model_path": MODEL, "n_gpu": None, "fault": "fill_delay_ms=600000"}
    assert tiny.http.post("/v1/models?wait_ready=false", json=launch).json() == {"model_uid": "slow"}
    wait_for(lambda: tiny.replicas("slow") and tiny.replicas("slow")[0]["status"] == "LOADING", 20, "loading")
    r = tiny.http.post("/v1/completions", json={"model": "slow", "prompt": "x"})
    assert r.status_code == 503 and r.headers["retry-after"] == "30" and r.json()["detail"].startswith("Model is loading, please retry later: ")
    assert tiny.http.get("/v1/models/slow").status_code == 503
    assert "slow" not in [m["id"] for m in tiny.http.get("/v1/models").json()["data"]]
    begun = time.monotonic()
    tiny.tiny(uid="quick")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: tiny.http.post("/v1/completions", json={"model": f"bad-{i}", "prompt": "x"}).status_code, range(400)))
    assert got == [404] * 400
    assert tiny.complete("x", model="quick", max_tokens=1)
    assert time.monotonic() - begun < 20 * PATIENCE
    assert len(tiny.http.get("/v1/workers").json()) == 1 and not tiny.lines("worker.lost")
    tiny.terminate("quick")


def test_19_a_launch_that_loads_is_cancelled(tiny):
    pids = tiny.pids(uid="slow")
    assert pids and tiny.http.post("/v1/models/slow/cancel", content=b"").text == "null"
    assert not any(alive(p) for p in pids)
    assert tiny.http.get("/v1/models/slow/progress").json()["progress"] == 0.0
    assert tiny.http.get("/v1/models/slow/replicas").json() == []
    r = tiny.http.post("/v1/models/slow/cancel")
    assert r.status_code == 400 and r.json()["detail"] == "Model slow has not been launched yet"
    tiny.tiny(uid="slow")
    r = tiny.http.post("/v1/models/slow/cancel")
    assert r.status_code == 400
    assert tiny.replicas("slow")[0]["status"] == "READY", "a running model is not touched"
    tiny.terminate("slow")


def test_15_and_16_a_slot_of_request_limits_comes_back_however_a_request_ends(tiny):
    tiny.tiny("1p1d", uid="one", request_limits=1, max_model_len=2048)
    ask = {"model": "one", "prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 1900}

    def refused():
        r = tiny.http.post("/v1/completions", json={**ask, "max_tokens": 1})
        assert r.status_code in (200, 429)
        if r.status_code == 429:
            assert "Rate limit reached" in r.json()["detail"] and r.headers["content-type"] == "application/json"
        return r.status_code == 429

    for end in ("leave", "abort", "stop", "error", "end"):
        keys = {"stop": " "} if end == "stop" else {}
        with tiny.http.stream("POST", "/v1/completions", json={**ask, **keys, "request_id": end, "max_tokens": 30 if end == "end" else 1900}) as r:
            lines = r.iter_lines()
            if end in ("leave", "abort", "error"):
                next(lines)
                assert refused(), end
            if end == "abort":
                tiny.http.post(f"/v1/models/one/requests/{end}/abort", json={"block_duration": 0})
            if end == "error":
                os.kill(tiny.pids("decode", uid="one")[0], signal.SIGKILL)
                os.kill(tiny.pids("prefill", uid="one")[0], signal.SIGKILL)
            if end != "leave":
                with contextlib.suppress(httpx.HTTPError):
                    list(lines)
        if end == "error":
            wait_for(lambda: all(r["status"] == "READY" for r in tiny.replicas("one")), 20, "both are back")
            wait_for(lambda: tiny.http.post("/v1/completions", json={**ask, "max_tokens": 1}).status_code == 200, 10, "serves again")
        wait_for(lambda: not refused(), 5, f"the slot is back after: {end}")
    for _ in range(10):  # one after the other is never too many
        assert not refused()
    assert tiny.http.post("/v1/completions", json={"model": "one", "prompt": []}).status_code == 400
    assert not refused()
    assert tiny.metric("xinference:model_request_total", model_uid="one", stream="unknown") >= 3
    tiny.terminate("one")
    tiny.tiny(uid="none", request_limits=0)
    assert tiny.http.post("/v1/completions", json={"model": "none", "prompt": "x"}).status_code == 429
    tiny.terminate("none")


@pytest.mark.parametrize("route,ask", [("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}), ("/v1/completions", {"prompt": "Hi"})])
def test_17_streams_are_framed_as_clients_read_them(pd, route, ask):
    with pd.http.stream("POST", route, json={"model": UID, "stream": True, "max_tokens": 6, "temperature": 0, **ask}) as r:
        assert r.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert r.headers["cache-control"] == "no-cache" and r.headers["x-accel-buffering"] == "no"
        raw = b"".join(r.iter_raw())
    frames = raw.split(b"\r\n\r\n")
    assert frames.pop() == b"" and frames.pop() == b"data: [DONE]"
    chunks = [json.loads(f.removeprefix(b"data: ")) for f in frames]
    assert all(f.startswith(b"data: {") and b"\n" not in f and len(f) < 65536 for f in frames)
    assert all(c["choices"] and "error" not in c for c in chunks)
    assert [c["choices"][0]["finish_reason"] for c in chunks][:-1] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length") and chunks[-1]["usage"]["completion_tokens"] > 0
    if "messages" in ask:
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant" and chunks[-1]["choices"][0]["delta"] == {"content": ""}


def test_21_a_failed_load_says_why(tiny):
    r = tiny.post(model_uid="why", fault="no such fault")
    assert r.status_code == 400 and "replica 0 failed to load: " in r.json()["detail"] and "no such fault" in r.json()["detail"]
    assert "no such fault" in tiny.replicas("why")[0]["error_message"]
    assert any(e["event_type"] == "ERROR" and "no such fault" in e["event_content"] for e in tiny.http.get("/v1/models/why/events").json())
    assert tiny.http.delete("/v1/models/why").status_code == 200 and tiny.replicas("why") == []


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_22_an_address_that_nobody_can_reach_is_refused(tmp_path, address):
    r = subprocess.run([BINARY, "worker", "--supervisor", f"127.0.0.1:{free_port()}", "--run-dir", str(tmp_path), "--advertise-address", address],
                       env={**os.environ, "BATON_LINK_SECRET": "a secret of sixteen or more"}, capture_output=True, text=True, timeout=20 * PATIENCE)
    assert r.returncode == 2 and f"must be an address other hosts can reach, not {address}" in r.stderr + r.stdout


def test_23_who_is_registered_is_told(tiny_model):
    with Server(command="supervisor") as server:
        r = server.http.post("/v1/models", json={"model_name": "t", "model_engine": "vLLM", "model_path": str(tiny_model), "n_gpu": None})
        assert r.status_code == 503 and r.json()["detail"] == "No available worker found. Registered workers: []"
        assert server.http.get("/v1/workers").json() == [] and server.http.get("/status").json()["workers"] == {}
        assert server.http.get("/ready").status_code == 503


def test_25_and_29_replicas_are_used_evenly_and_models_do_not_share_the_turn(tiny):
    for uid in ("x", "y"):
        tiny.tiny("2h", uid=uid)
    for i in range(8):  # x y y x y y …: one common turn would send all of x to one replica
        for uid in ("x", "y", "y"):
            assert tiny.complete(f"{i}", model=uid, max_tokens=2, ignore_eos=True)
    for uid, each in (("x", 4), ("y", 8)):
        counts = {labels["replica_index"]: v for labels, v in tiny.metrics()["xinference:model_request_total"]
                  if labels["model_uid"] == uid and labels["stream"] == "false"}
        assert counts == {"0": each, "1": each}
        tiny.terminate(uid)


def test_26_any_key_of_an_openai_client_is_taken_where_none_is_asked_for(pd):
    sdk = openai.OpenAI(base_url=pd.url + "/v1", api_key="sk-whatever")
    assert [m.id for m in sdk.models.list()] == [UID]
    shown = sdk.models.retrieve(UID)
    assert shown.id == UID and shown.object == "model" and shown.owned_by == "xinference" and shown.created == 0


def test_27_errors_carry_no_addresses(tiny, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["NopeForCausalLM"], "model_type": "nope"}')
    details = [tiny.post(model_uid="u", model_path=str(tmp_path)).json()["detail"], tiny.post(model_uid="u", model_path=__file__).json()["detail"],
               tiny.http.get("/v1/models/u").json()["detail"], tiny.http.post("/v1/completions", json={"model": "u", "prompt": "x"}).json()["detail"]]
    for detail in details:
        assert "address=" not in detail and "pid=" not in detail and not re.search(r"127\.0\.0\.1|\.sock|/tmp/baton-", detail), detail


def test_28_an_over_long_prompt_reaches_no_replica(pd):
    before = pd.steady("baton_prefill_tokens_total")
    r = pd.http.post("/v1/completions", json={"model": UID, "prompt": "word " * 3000, "max_tokens": 4})
    assert r.status_code == 400 and r.json()["error"]["code"] == "context_length_exceeded" and r.json()["error"]["n_ctx"] == 2048
    assert pd.steady("baton_prefill_tokens_total") == before


@pytest.mark.parametrize("stream", [False, True])
def test_30_tokens_are_counted_streaming_too(pd, stream):
    def counts():
        m = pd.metrics()
        return [sum(v for labels, v in m[f"xinference:{name}"] if labels["model_uid"] == UID)
                for name in ("input_tokens_total_counter", "output_tokens_total_counter", "generate_tokens_total")]

    def seconds(name):
        m = pd.metrics()
        return sum(v for labels, v in m[f"xinference:{name}_count"] if labels.get("stream", str(stream).lower()) == str(stream).lower())

    before, ttft, duration = counts(), seconds("time_to_first_token_seconds"), seconds("model_request_duration_seconds")
    if stream:
        usage = list(pd.stream("Count me", max_tokens=5, ignore_eos=True))[-1]["usage"]
    else:
        usage = pd.complete("Count me", max_tokens=5, ignore_eos=True)["usage"]
    wait_for(lambda: counts() != before, 3, "counted")
    assert [a - b for a, b in zip(counts(), before)] == [usage["prompt_tokens"], 5, 5]
    assert seconds("time_to_first_token_seconds") == ttft + 1 and seconds("model_request_duration_seconds") == duration + 1
