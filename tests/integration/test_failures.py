"""kill -9 of every kind of process, idle and in mid-request; aborts in every phase; nothing is left behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest
from harness import BINARY, MODEL, PATIENCE, UID, Server, StreamError, alive, free_port, wait_for

LONG = " ".join(f"word{i}" for i in range(380))


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def undisturbed(server, prompt, **keys):
    return server.complete(prompt, ignore_eos=True, **keys)["choices"][0]["text"]


def stream_text(server, prompt, on_chunk=None, **keys):
    text = ""
    for i, chunk in enumerate(server.stream(prompt, ignore_eos=True, **keys)):
        if chunk["choices"]:
            text += chunk["choices"][0]["text"]
        if on_chunk:
            on_chunk(i)
    return text


def all_free(server, uid=UID):
    for name, labels in (("baton_requests_running", {}), ("baton_requests_waiting", {}), ("baton_kv_leases", {}),
                         ("baton_kv_blocks", {"state": "used"}), ("baton_kv_blocks", {"state": "offered"})):
        server.settled(name, 0, timeout=2.5, model_uid=uid, **labels)


@pytest.fixture(scope="module")
def two():
    with Server() as server:
        server.launch("2p2d")
        yield server


def serving_pid(server, role):
    """The replica of a role that has a sequence now."""
    def find():
        for row in server.replicas():
            if row["role"] == role and row["running"] + row["waiting"] > 0:
                return row["pid"]
    return wait_for(find, 5, f"a {role} replica is busy", 0.01)


@pytest.mark.parametrize("attempt", range(2))
def test_decode_killed_mid_stream_completes_with_the_undisturbed_text(two, attempt):
    two.wait_ready()
    prompt = f"Story {attempt}: the old lighthouse"
    want = undisturbed(two, prompt, max_tokens=96)
    killed = []

    def on_chunk(i):
        if i == 10:
            pid = serving_pid(two, "decode")
            kill(pid)
            killed.append(pid)

    assert stream_text(two, prompt, on_chunk, max_tokens=96) == want
    assert killed
    two.wait_ready()
    assert killed[0] not in two.pids()
    all_free(two)


@pytest.mark.parametrize("attempt", range(2))
def test_prefill_killed_mid_prefill_completes_with_the_undisturbed_text(two, attempt):
    two.wait_ready()
    prompt = f"Take {attempt}. " + LONG
    result = {}
    thread = threading.Thread(target=lambda: result.update(text=stream_text(two, prompt, max_tokens=16)))
    thread.start()
    kill(serving_pid(two, "prefill"))
    thread.join(30 * PATIENCE)
    two.wait_ready()
    assert result["text"] == undisturbed(two, prompt, max_tokens=16)
    all_free(two)


def test_replicas_killed_idle_come_back(two):
    two.wait_ready()
    before = two.pids()
    for pid in before:
        kill(pid)
    wait_for(lambda: not set(before) & set(two.pids()), 2, "the loss is noticed")
    two.wait_ready()
    assert not set(before) & set(two.pids())
    assert undisturbed(two, "After the storm", max_tokens=8)
    all_free(two)


def test_worker_killed_takes_its_replicas_and_all_come_back(two):
    two.wait_ready()
    worker, replicas = two.worker_pid(), two.pids()
    kill(worker)
    wait_for(lambda: not any(alive(p) for p in replicas), 2, "no replica outlives its worker")
    wait_for(lambda: two.worker_pid() not in (None, worker), 10, "a new worker")
    two.wait_ready()
    assert undisturbed(two, "A new worker", max_tokens=8)


@pytest.mark.parametrize("topology, role", [("1p1d", "decode"), ("hybrid", "hybrid")])
def test_the_only_replica_that_decodes_is_lost_and_its_replacement_goes_on(topology, role):
    """Other requests are refused until it is there; those that run wait for it, streaming or not."""
    with Server(env={"BATON_REPLACEMENT_WAIT_MS": "60000"}) as server:
        server.launch(topology)
        want = undisturbed(server, "Not alone", max_tokens=120)
        died = []

        def on_chunk(i):
            if i == 5:
                died.append(server.pids(role)[0])
                kill(died[0])

        assert stream_text(server, "Not alone", on_chunk, max_tokens=120) == want
        server.wait_ready()
        assert server.pids(role)[0] != died[0]
        assert server.metric("baton_requests_total", outcome="error") == 0
        all_free(server)


def test_only_decode_replica_lost_gives_a_clear_error_within_two_seconds():
    with Server(env={"BATON_REPLACEMENT_WAIT_MS": "0"}) as server:
        server.launch("1p1d")
        died = []

        def on_chunk(i):
            if i == 5:
                kill(server.pids("decode")[0])
                died.append(time.monotonic())

        with pytest.raises(StreamError, match="decode"):
            stream_text(server, "Alone", on_chunk, max_tokens=400)
        assert time.monotonic() - died[0] < 2 * PATIENCE
        r = server.http.post("/v1/completions", json={"model": UID, "prompt": "x", "max_tokens": 2})
        if r.status_code != 200:  # unless it is back already
            assert r.status_code == 503 and "Both prefill and decode replicas must be available" in r.json()["detail"]
            assert "retry-after" in r.headers
        server.wait_ready()
        assert undisturbed(server, "Back again", max_tokens=4)
        all_free(server)


def test_only_prefill_replica_lost_in_mid_prefill_is_computed_on_decode():
    with Server() as server:
        server.launch("1p1d")
        result = {}

        def ask():
            try:
                result["text"] = stream_text(server, LONG, max_tokens=8)
            except (StreamError, httpx.HTTPError) as e:
                result["error"] = str(e)

        thread = threading.Thread(target=ask)
        thread.start()
        kill(serving_pid(server, "prefill"))
        thread.join(30 * PATIENCE)
        server.wait_ready()
        assert result.get("text") == undisturbed(server, LONG, max_tokens=8), result
        assert server.metric("baton_fallbacks_total") >= 1
        all_free(server)


def test_no_orphans_after_the_supervisor_is_killed_and_the_next_start_relaunches(tmp_path):
    state = str(tmp_path / "state")
    with Server(state_dir=state) as first:
        first.launch("1p1d")
        want = undisturbed(first, "Remember me", max_tokens=8)
        tree = first.tree()
        assert len(tree) >= 3
        threading.Thread(target=_ignore, args=(first,), daemon=True).start()
        wait_for(lambda: first.metric("baton_requests_running") == 1, 5, "it runs", 0.005)
        kill(first.process.pid)
        first.process.wait()
        wait_for(lambda: not any(alive(p) for p in tree), 10, "no orphan")
    with Server(state_dir=state) as second:
        second.wait_ready()
        assert undisturbed(second, "Remember me", max_tokens=8) == want


def _ignore(server):
    with contextlib.suppress(Exception):
        stream_text(server, "in mid-request", max_tokens=500)


def test_sigterm_lets_running_streams_finish():
    with Server() as server:
        server.launch("1p1d")
        result = {}
        thread = threading.Thread(target=lambda: result.update(text=stream_text(server, "Slow end", max_tokens=60)))
        thread.start()
        wait_for(lambda: server.metric("baton_requests_running") == 1, 5, "it runs", 0.005)
        tree = server.tree()
        server.process.send_signal(signal.SIGTERM)
        thread.join(30 * PATIENCE)
        assert len(result["text"]) > 60
        assert server.process.wait(20 * PATIENCE) == 0
        assert not any(alive(p) for p in tree)


# ---- client disconnect in every phase ------------------------------------------------------------------------------


def raw_post(server, body):
    s = socket.create_connection(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return s


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_client_disconnect_frees_both_roles(pd, phase, stream):
    all_free(pd)
    before = pd.metric("baton_aborts_total")
    body = {"model": UID, "prompt": LONG + phase + str(stream), "max_tokens": 800, "ignore_eos": True, "stream": stream}
    sockets = [raw_post(pd, {**body, "prompt": body["prompt"] + str(i)}) for i in range(6 if phase == "queued" else 1)]
    if phase == "decode":
        wait_for(lambda: pd.metric("baton_requests_running") == 1, 20, "decoding", 0.005)
    else:
        # Each is accepted before it is left: a client that goes earlier was never a request.
        wait_for(lambda: pd.metric("baton_requests_waiting") + pd.metric("baton_requests_running") >= len(sockets), 10, "accepted", 0.002)
    for s in sockets:
        s.close()
    all_free(pd)
    assert pd.metric("baton_aborts_total") >= before + len(sockets)


def test_client_disconnect_during_the_pull():
    with Server(env={"BATON_ALLOW_FAULT_HOOKS": "true"}) as server:
        server.launch("1p1d", fault="pull_delay_ms=3000")
        s = raw_post(server, {"model": UID, "prompt": "A short one", "max_tokens": 50, "ignore_eos": True, "stream": True})
        wait_for(lambda: server.metric("baton_requests_running") == 1, 20, "first token is out, the pull is not done", 0.005)
        s.close()
        all_free(server)
        assert server.metric("baton_aborts_total", phase="transfer") == 1


def test_abort_route_ends_a_stream_with_an_error(pd):
    body = {"request_id": "to-abort", "max_tokens": 800}
    with pytest.raises(StreamError, match="abort"):
        for i, _ in enumerate(pd.stream("Abort me", ignore_eos=True, **body)):
            if i == 3:
                r = httpx.post(f"{pd.url}/v1/models/{UID}/requests/to-abort/abort", json={"block_duration": 1})
                assert r.json() == {"msg": "DONE"}
    url = f"/v1/models/{UID}/requests"
    assert pd.http.post(url + "/to-abort/abort").json() == {"msg": "NOT_FOUND"}
    assert pd.http.post("/v1/models/none/requests/x/abort").json() == {"msg": "NO_OP"}
    all_free(pd)


@pytest.mark.parametrize("fault,reason", [("corrupt", "checksum"), ("fail_pulls", None)])
def test_a_spoiled_pull_is_computed_locally_and_counted(fault, reason):
    with Server(env={"BATON_ALLOW_FAULT_HOOKS": "true"}) as server:
        server.launch("hybrid", uid="plain")
        want = server.complete("Spoiled " + LONG, model="plain", ignore_eos=True)["choices"][0]["text"]
        # "corrupt" also spoils the launch probe, which must then be answered by local computation too.
        server.launch("1p1d", fault=fault, verify_handoff=True)
        got = server.complete("Spoiled " + LONG, ignore_eos=True)["choices"][0]["text"]
        assert got == want
        assert server.metric("baton_fallbacks_total") == 1
        assert server.awaited("kv.fallback")
        if reason:
            assert server.metric("baton_fallbacks_total", reason=reason) == 1
        all_free(server)


# ---- separate supervisor and workers ---------------------------------------------------------------------------------


def test_workers_of_two_pretended_hosts_use_tcp_and_survive_a_supervisor_restart(tmp_path):
    link_port = free_port()
    state = str(tmp_path / "state")
    secret = {"BATON_LINK_SECRET": "s3cret-of-the-test-0123456789"}
    os.environ.update(secret)
    workers = []
    args = ["--link-address", f"127.0.0.1:{link_port}"]
    try:
        with Server(state_dir=state, extra=args, command="supervisor") as server:
            for name in ("a", "b"):
                run = tmp_path / name
                run.mkdir()
                workers.append(subprocess.Popen([BINARY, "worker", "--supervisor", f"127.0.0.1:{link_port}", "--host-id", name,
                                                 "--run-dir", str(run), "--advertise-address", "127.0.0.1"], stderr=open(tmp_path / f"{name}.log", "ab")))
            rows = wait_for(lambda: (w := server.http.get("/v1/workers").json()) and len(w) == 2 and w, 10, "both workers")
            config = [{"role": role, "devices": [{"worker_ip": w["work-ip"], "n_gpu": 0}]} for role, w in zip(("prefill", "decode"), rows)]
            body = {"model_name": "smollm2-instruct", "model_uid": UID, "model_engine": "baton", "model_path": MODEL,
                    "replica": 2, "replica_config": config, "max_model_len": 1024, "kv_cache_bytes": 64 << 20}
            r = server.http.post("/v1/models", json=body)
            assert r.status_code == 200, r.text
            want = undisturbed(server, "Two hosts", max_tokens=8)
            assert server.metric("baton_handoffs_total", mover="tcp") == 1
            pids = server.pids()
            kill(server.process.pid)
            server.process.wait()
        with Server(state_dir=state, extra=args, command="supervisor") as server:
            wait_for(lambda: len(server.http.get("/v1/workers").json()) == 2, 15, "workers register again")
            wait_for(lambda: server.http.get("/v1/models").json()["data"], 30, "the deployment is back")
            assert sorted(server.pids()) == sorted(pids), "replicas were adopted, not started again"
            assert undisturbed(server, "Two hosts", max_tokens=8) == want
            server.terminate()
            wait_for(lambda: not any(alive(p) for p in pids), 5, "replicas end")
    finally:
        for w in workers:
            w.send_signal(signal.SIGTERM)
        for w in workers:
            w.wait(10 * PATIENCE)
        os.environ.pop("BATON_LINK_SECRET", None)


def test_a_new_worker_holds_none_of_the_supervisors_sockets():
    with Server() as server:
        client = socket.create_connection(("127.0.0.1", server.port))
        server.http.get("/health")
        before = server.worker_pid()
        kill(before)
        worker = wait_for(lambda: (p := server.worker_pid()) not in (None, before) and p, 10, "a new worker")
        wait_for(lambda: server.http.get("/v1/workers").json(), 10, "it registers")

        def tcp_sockets(pid):
            inodes = {line.split()[9] for line in open("/proc/net/tcp").readlines()[1:] if int(line.split()[1].split(":")[1], 16) == server.port}
            links = []
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            return [link for link in links if link.removeprefix("socket:[").rstrip("]") in inodes]

        assert tcp_sockets(server.process.pid)
        assert not tcp_sockets(worker)
        client.close()


def test_the_command_line_wins_over_a_recorded_deployment(tmp_path):
    state = str(tmp_path / "state")
    with Server(state_dir=state) as server:
        server.launch("2p2d")
    with Server(state_dir=state, extra=["--model", MODEL, "--model-uid", UID, "--prefill", "1", "--decode", "1"]) as server:
        server.wait_ready()
        wait_for(lambda: server.http.get("/v1/models").json()["data"], 20, "launched")
        assert [r["role"] for r in server.replicas()] == ["prefill", "decode"]
        assert undisturbed(server, "One each", max_tokens=4)
