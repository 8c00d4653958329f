"""Launches at the same moment, launch after launch, and what they leave: no process, descriptor, memory, port or object."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from harness import BINARY, PATIENCE, Server, wait_for

CYCLES = int(os.environ.get("BATON_TEST_CYCLES", "12"))  # the full run takes 100
SMALL = {"max_model_len": 256, "kv_cache_bytes": 8 << 20, "threads": 1}


def used(server):
    """(processes, descriptors, kilobytes, listening ports, shared memory files) of the supervisor and its worker."""
    processes = [server.process.pid, *server.tree()]
    descriptors, kilobytes, ports, shared = 0, 0, set(), 0
    for pid in processes:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            descriptors += 1
            shared += "memfd:" in os.readlink(link) or "/dev/shm/" in os.readlink(link)
        status = Path(f"/proc/{pid}/status").read_text()
        kilobytes += int(status.split("VmRSS:")[1].split()[0])
        inodes = {os.readlink(link)[8:-1] for link in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(link).startswith("socket:[")}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                row = line.split()
                if row[3] == "0A" and row[9] in inodes:
                    ports.add(row[1])
    return len(processes), descriptors, kilobytes, len(ports), shared


def objects(server):
    return {labels["kind"]: v for labels, v in server.metrics()["baton_xavier_objects"]}


def test_two_launches_of_one_uid_and_launches_beside_each_other(tiny_model):
    with Server() as server:
        body = {"model_name": "tiny", "model_engine": "vLLM", "model_path": str(tiny_model), "n_gpu": None, **SMALL}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                got = list(pool.map(lambda _: server.http.post("/v1/models", json={**body, "model_uid": "one"}), range(4)))
                assert sorted(r.status_code for r in got) == [200, 400, 400, 400], [r.text for r in got]
                assert all(r.json()["detail"] == "Model is already in the model list, uid: one" for r in got if r.status_code == 400)
                assert [r["status"] for r in server.replicas("one")] == ["READY"]
                server.terminate("one")
            # Other uids do not wait for each other, and without a uid each gets one of its own.
            got = list(pool.map(lambda i: server.http.post("/v1/models", json={**body, **({"model_uid": f"n{i}"} if i % 2 else {})}), range(6)))
            assert [r.status_code for r in got] == [200] * 6, [r.text for r in got]
            uids = [r.json()["model_uid"] for r in got]
            assert len(set(uids)) == 6 and "tiny" in uids and sum(u.startswith("tiny-") for u in uids) == 2
            assert [r.status_code for r in pool.map(lambda u: server.http.delete(f"/v1/models/{u}"), uids)] == [200] * 6
        assert objects(server) == dict.fromkeys(("router", "coordinator", "collective_manager", "block_tracker"), 0)
        assert len(server.tree()) == 1


def test_cycles_leave_nothing(tiny_model):
    with Server(env={"BATON_ALLOW_FAULT_HOOKS": "true"}) as server:
        def cycle(i):
            server.launch("2p2d" if i % 4 == 3 else "1p1d", model_path=str(tiny_model), verify_handoff=i % 2 == 0, **SMALL)
            assert server.complete(f"round {i}", max_tokens=4)["usage"]["completion_tokens"] >= 1
            if i % 3 == 2:  # another launch, which fails
                r = server.http.post("/v1/models", json={"model_name": "x", "model_engine": "vLLM", "model_path": str(tiny_model), "n_gpu": None,
                                                         "model_uid": "bad", "fault": "no such fault"})
                assert r.status_code == 400 and "no such fault" in r.json()["detail"]
            server.terminate()

        for i in range(4):  # pools and caches fill in the first rounds
            cycle(i)
        before = used(server)
        begun = time.monotonic()
        for i in range(CYCLES):
            cycle(i)
        print(f"{CYCLES} cycles in {time.monotonic() - begun:.1f} s")
        wait_for(lambda: used(server)[:2] == before[:2], 5, f"processes and descriptors are {before[:2]}, now {used(server)[:2]}")
        after = used(server)
        print("processes, descriptors, kilobytes, ports, shared memory:", before, after)
        assert after[3:] == before[3:]
        assert after[2] < before[2] * 1.1 + 4096 + 64 * CYCLES, (before, after)
        assert objects(server) == dict.fromkeys(("router", "coordinator", "collective_manager", "block_tracker"), 0)
        assert server.http.get("/v1/models").json()["data"] == []
        run_dir = Path(server.state_dir, "run_dir").read_text().strip()
        assert sorted(p.name for p in Path(run_dir).iterdir()) == ["control.sock", "worker.sock"]


@pytest.mark.parametrize("when", ["at once", "while loading"])
def test_a_cancelled_launch_leaves_nothing(tiny_model, when):
    with Server(env={"BATON_ALLOW_FAULT_HOOKS": "true"}) as server:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            launch = pool.submit(lambda: server.http.post("/v1/models", json={
                "model_name": "tiny", "model_uid": "c", "model_engine": "vLLM", "model_path": str(tiny_model), "n_gpu": None, "replica": 3, **SMALL}))
            wait_for(lambda: server.http.get("/v1/models/instances?model_uid=c").json(), 10, "the row is there", 0.001)
            if when == "while loading":
                wait_for(lambda: len(server.tree()) > 1, 10, "a process runs", 0.001)
            r = server.http.post("/v1/models/c/cancel")
            if r.status_code == 400:  # it was ready already
                assert "is running, not launching" in r.json()["detail"] and launch.result().status_code == 200
                return server.terminate("c")
            assert (r.status_code, r.text) == (200, "null")
            answer = launch.result(20)
        assert (answer.status_code, answer.json()["detail"]) == (499, "Launch cancelled")
        assert len(server.tree()) == 1, "the answer came when the processes were gone"
        assert server.http.get("/v1/models/instances").json() == []
        server.launch("hybrid", uid="c", model_path=str(tiny_model), **SMALL)
        server.terminate("c")


def test_a_slow_disk_stops_nobody(tiny_model, tmp_path):
    """The state file is written beside the control thread: a pipe in its place, which nobody reads, holds up the one answer."""
    state = tmp_path / "state"
    state.mkdir()
    with Server(state_dir=str(state)) as server:
        os.mkfifo(state / "deployments.json.new")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            launch = pool.submit(server.launch, "hybrid", uid="slow", model_path=str(tiny_model), **SMALL)
            wait_for(lambda: "slow" in server.http.get("/v1/models").text, 20, "the model is there")
            for _ in range(20):
                assert server.http.get("/health").status_code == 200
                assert server.complete("a", model="slow", max_tokens=1)
            assert not launch.done()
            # Whoever reads the pipe lets the writer go on.
            with open(state / "deployments.json.new", "rb") as pipe:
                pipe.read()
            assert launch.result(20)["model_uid"] == "slow"
        os.unlink(state / "deployments.json.new")
        assert not server.lines("worker.lost") and not server.lines("replica.down")
        server.terminate("slow")


def test_a_start_that_fails_ends_every_time(tmp_path):
    """Its threads have hardly begun then."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [BINARY, "supervisor", "--port", str(taken.getsockname()[1]), "--state-dir", tmp_path / "state"]
        for _ in range(25):
            ended = subprocess.run(command, timeout=20, capture_output=True, text=True)
            assert ended.returncode != 0 and "supervisor.start_failed" in ended.stdout + ended.stderr


NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.mark.skipif(subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0, reason="no right to make a pid namespace")
def test_as_first_process_of_a_container_it_reaps_what_a_killed_worker_leaves(tmp_path):
    start = tmp_path / "baton"
    start.write_text(f'#!/bin/sh\nexec {" ".join(NAMESPACE)} "{BINARY}" "$@"\n')
    start.chmod(0o755)

    def state(pid):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    with Server(binary=str(start)) as server:
        first = server.tree()[0]
        server.launch("1p1d", **SMALL)
        worker = server.worker_pid()
        replicas = set(server.tree()) - {first, worker}
        assert len(replicas) == 2
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in {worker, *replicas}), 10, "no process of the worker is left, dead ones neither")
        wait_for(lambda: len([pid for pid in server.tree() if state(pid) != "Z"]) == 4, 20, "the new worker has both replicas")
        os.kill(first, signal.SIGTERM)
        assert server.process.wait(20 * PATIENCE) == 0
