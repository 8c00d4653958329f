"""A deployment over several hosts. Each host is a network namespace of its own, so its own host id and its own loopback; they
share the machine, and with it the model file."""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess

import pytest
from harness import BINARY, PATIENCE, Server, wait_for

SECRET = {"BATON_LINK_SECRET": "s3cret-of-the-test-0123456789"}
LINK_PORT = 7000
SUPERVISOR, A, B = "10.77.0.1", "10.77.0.2", "10.77.0.3"
SMALL = {"max_model_len": 512, "kv_cache_bytes": 16 << 20}
CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """Three hosts on one switch: the supervisor's, which holds the switch, and two for workers."""

    def __init__(self):
        self.names = {ip: f"bt{os.getpid()}{kind}" for ip, kind in ((SUPERVISOR, "s"), (A, "a"), (B, "b"))}

    def up(self):
        s = self.names[SUPERVISOR]
        for name in self.names.values():
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        self.ip("-n", s, "link", "add", "br0", "type", "bridge")
        self.ip("-n", s, "addr", "add", f"{SUPERVISOR}/24", "dev", "br0")
        self.ip("-n", s, "link", "set", "br0", "up")
        self.ip("-n", s, "route", "add", "default", "dev", "br0")
        for ip in (A, B):
            name = self.names[ip]
            port = "p" + ip[-1]
            self.ip("-n", s, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            self.ip("-n", s, "link", "set", port, "master", "br0", "up")
            self.ip("-n", name, "addr", "add", f"{ip}/24", "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")

    def down(self):
        for name in self.names.values():
            with contextlib.suppress(OSError):
                self.ip("netns", "del", name)

    def cable(self, ip, state):
        """Plugs a host's cable out or in."""
        self.ip("-n", self.names[SUPERVISOR], "link", "set", "p" + ip[-1], state)

    @staticmethod
    def ip(*args):
        r = subprocess.run(["ip", *args], capture_output=True, text=True)
        if r.returncode != 0:
            raise OSError(f"ip {' '.join(args)}: {r.stderr.strip()}")

    @contextlib.contextmanager
    def at(self, ip):
        """This thread, and the processes that it starts, are on that host."""
        with open("/proc/thread-self/ns/net") as before:
            with open(f"/run/netns/{self.names[ip]}") as there:
                self.enter(there.fileno())
            try:
                yield
            finally:
                self.enter(before.fileno())

    @staticmethod
    def enter(fd):
        if libc.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture(scope="module")
def network():
    made = Network()
    try:
        made.up()
    except (OSError, subprocess.SubprocessError) as e:
        made.down()
        pytest.skip(f"no network namespaces can be made here: {e}")
    with made.at(SUPERVISOR):
        yield made
    made.down()


class Worker:
    """`baton worker` on a host."""

    def __init__(self, network, ip, folder, *args):
        folder.mkdir(exist_ok=True)
        self.log_path = folder / "log"
        self.start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with network.at(ip), open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([BINARY, "worker", "--supervisor", f"{SUPERVISOR}:{LINK_PORT}", "--run-dir", str(folder), *args],
                                            env={**os.environ, **SECRET}, stdin=subprocess.DEVNULL, stderr=log)

    def log(self):
        return self.log_path.read_bytes()[self.start:].decode(errors="replace")

    def address(self):
        return wait_for(lambda: (m := re.search(r"worker\.joined address=(\S+)", self.log())) and m[1], 10, "the worker registers")

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(15 * PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()


def supervisor(*args, command="supervisor"):
    return Server(command=command, extra=["--link-address", f"0.0.0.0:{LINK_PORT}", *args], env=SECRET)


def launch(server, model, *placements, uid="m", expect=200, **keys):
    """`placements`: (role, worker address)."""
    config = [{"role": role, "devices": [{"worker_ip": address, "n_gpu": 0}]} for role, address in placements]
    r = server.http.post("/v1/models", json={"model_name": "tiny", "model_uid": uid, "model_engine": "baton", "model_path": str(model),
                                             "replica": len(config), "replica_config": config, **SMALL, **keys})
    assert r.status_code == expect, f"{r.status_code} {r.text}\n{server.log()[-3000:]}"
    return r.json()


def text_of(server, prompt="Two hosts and", uid="m"):
    return server.complete(prompt, model=uid, max_tokens=8)["choices"][0]["text"]


def movers(worker):
    return re.findall(r"xavier\.linked .*mover=(\w+)", worker.log())


def test_prefill_and_decode_on_two_hosts(network, tiny_model, tmp_path):
    """KV goes over TCP from host to host; what is answered is what one replica alone answers. A worker that dies takes its
    replica along; its return, on another port, brings the deployment back. So does the end of a partition."""
    with supervisor() as server, Worker(network, A, tmp_path / "a") as a, Worker(network, B, tmp_path / "b") as b:
        assert a.address().startswith(A + ":") and b.address().startswith(B + ":")  # each by its way to the supervisor
        wait_for(lambda: len(server.http.get("/v1/workers").json()) == 2, 10, "both workers")
        launch(server, tiny_model, ("prefill", a.address()), ("decode", b.address()), verify_handoff=True)
        launch(server, tiny_model, ("hybrid", a.address()), uid="alone")
        assert [row["worker_address"] for row in server.replicas()] == [a.address(), b.address()]
        want = text_of(server, uid="alone")
        assert text_of(server) == want
        assert server.metric("baton_handoffs_total", mover="tcp") == 1 and server.metric("baton_handoffs_total") == 1
        wait_for(lambda: movers(b), 5, "the link is logged")
        assert set(movers(a) + movers(b)) == {"tcp"}

        old = b.address()
        server.wait_ready()
        b.stop(signal.SIGKILL)
        wait_for(lambda: server.http.get("/ready").status_code == 503, 10, "the loss is noticed")
        r = server.http.post("/v1/completions", json={"model": "m", "prompt": "x", "max_tokens": 3})
        assert r.status_code == 503 and "Both prefill and decode replicas must be available" in r.json()["detail"]
        assert text_of(server, uid="alone") == want  # the other deployment does not mind
        with Worker(network, B, tmp_path / "b") as again:
            assert again.address() != old and again.address().startswith(B + ":")
            server.wait_ready(30)
            assert [row["worker_address"] for row in server.replicas()] == [a.address(), again.address()]
            assert text_of(server) == want

            network.cable(B, "down")
            wait_for(lambda: server.http.get("/ready").status_code == 503, 15, "silence is noticed")
            network.cable(B, "up")
            server.wait_ready(40)
            assert text_of(server, "After the partition") == text_of(server, "After the partition", uid="alone")
            server.terminate()
            server.terminate("alone")
            assert server.http.get("/v1/models").json()["data"] == []


def test_serve_takes_workers_of_other_hosts(network, tiny_model, tmp_path):
    """`baton serve --host 0.0.0.0`: the local worker and the HTTP address are known under an address that others reach, and
    KV goes in both directions between the local worker's replicas and another host's."""
    with supervisor("--host", "0.0.0.0", command="serve") as server, Worker(network, A, tmp_path / "a") as a:
        workers = wait_for(lambda: (w := server.http.get("/v1/workers").json()) and len(w) == 2 and [x["work-ip"] for x in w], 10, "both workers")
        local = next(w for w in workers if w != a.address())
        assert local.startswith(SUPERVISOR + ":")
        assert server.http.get("/v1/address").json() == f"{SUPERVISOR}:{server.port}"
        assert server.http.get("/v1/supervisor").json() == {"supervisor_ip": f"{SUPERVISOR}:{server.port}"}
        with network.at(A):  # and it answers there
            assert subprocess.run([BINARY, "workers", "-e", f"http://{SUPERVISOR}:{server.port}"], capture_output=True, text=True).stdout.count(":") >= 2
        launch(server, tiny_model, ("prefill", local), ("decode", a.address()))
        launch(server, tiny_model, ("prefill", a.address()), ("decode", local), uid="back")
        assert text_of(server) == text_of(server, uid="back")
        assert server.metric("baton_handoffs_total", mover="tcp") == 2 and server.metric("baton_handoffs_total") == 2
        assert set(movers(a)) == {"tcp"}


def test_addresses_that_cannot_be_reached_are_refused(network, tiny_model, tmp_path):
    with supervisor() as server, Worker(network, A, tmp_path / "a", "--advertise-address", "127.0.0.1") as a, Worker(network, B, tmp_path / "b") as b:
        wait_for(lambda: len(server.http.get("/v1/workers").json()) == 2, 10, "both workers")
        assert server.awaited("worker.address_unusable", address=a.address())
        before = len(server.lines("replica.spawn"))
        detail = launch(server, tiny_model, ("prefill", a.address()), ("decode", b.address()), expect=400)["detail"]
        assert a.address() in detail and b.address() in detail and "--advertise-address" in detail
        assert server.http.get("/v1/models/instances").json() == [] and len(server.lines("replica.spawn")) == before
        # On one host, and in the other direction, where nobody has to reach it, it is good enough.
        launch(server, tiny_model, ("prefill", a.address()), ("decode", a.address()))
        launch(server, tiny_model, ("prefill", b.address()), ("decode", a.address()), uid="back")
        assert text_of(server) == text_of(server, uid="back")
        detail = launch(server, tiny_model, ("prefill", a.address()), ("decode", "10.77.0.9:1"), uid="x", expect=400)["detail"]
        assert "10.77.0.9:1" in detail and a.address() in detail  # and which ones there are
    for ip in ("0.0.0.0", "::"):
        with Worker(network, A, tmp_path / "refused", "--advertise-address", ip) as refused:
            assert refused.process.wait(10 * PATIENCE) == 2


def status(server, uid="m"):
    rows = server.http.get("/v1/models/instances", params={"model_uid": uid}).json()
    return rows[0]["status"] if rows else None


def test_deployments_outlive_a_restart_of_everything(network, tiny_model, tmp_path):
    """Supervisor and workers are started again, the workers on other ports. What ran before runs again once its workers are there;
    until then it is listed with its error, and nothing forgets it."""
    state = tmp_path / "state"
    args = {"command": "supervisor", "extra": ["--link-address", f"0.0.0.0:{LINK_PORT}"], "env": SECRET, "state_dir": str(state)}
    with Server(**args) as server, Worker(network, A, tmp_path / "a") as a, Worker(network, B, tmp_path / "b") as b:
        wait_for(lambda: len(server.http.get("/v1/workers").json()) == 2, 10, "both workers")
        launch(server, tiny_model, ("prefill", a.address()), ("decode", b.address()))
        launch(server, tiny_model, ("hybrid", a.address()), uid="alone")
        want = text_of(server)
        old = [a.address(), b.address()]
    recorded = json.loads((state / "deployments.json").read_text())
    assert set(recorded["deployments"]) == {"m", "alone"} and set(recorded["hosts"]) == set(old)
    for _ in range(2):  # also when it has failed once already
        with Server(**args) as server, Worker(network, A, tmp_path / "a") as a:
            wait_for(lambda: status(server, "alone") == "READY", 30, "what can run runs")
            assert text_of(server, uid="alone") == want
            assert wait_for(lambda: status(server), 30, "what cannot is listed") == "ERROR"
            rows = server.replicas()
            assert old[1] in rows[1]["error_message"] and "its workers are there" in rows[1]["error_message"]
            assert any(e["event_type"] == "ERROR" and old[1] in e["event_content"] for e in server.http.get("/v1/models/m/events").json())
            assert server.http.get("/ready").status_code == 200  # it is no reason not to use the others
            with Worker(network, B, tmp_path / "b") as b:
                wait_for(lambda: status(server) == "READY", 30, "it is launched when its worker comes")
                assert text_of(server) == want
                assert [row["worker_address"] for row in server.replicas()] == [a.address(), b.address()] != old
                old = [a.address(), b.address()]
        assert set(json.loads((state / "deployments.json").read_text())["hosts"]) == set(old)
    with Server(**args) as server, Worker(network, A, tmp_path / "a"):
        wait_for(lambda: status(server) == "ERROR" and status(server, "alone") == "READY", 30, "it is listed")
        server.terminate()  # clears the row, and what a restart would do
        assert status(server) is None
    assert set(json.loads((state / "deployments.json").read_text())["deployments"]) == {"alone"}


def test_a_wrong_secret_is_told_by_the_supervisor(network, tmp_path):
    with supervisor() as server:
        with network.at(A):
            wrong = subprocess.Popen([BINARY, "worker", "--supervisor", f"{SUPERVISOR}:{LINK_PORT}", "--run-dir", str(tmp_path)],
                                     env={**os.environ, "BATON_LINK_SECRET": "another-secret-0123456789"}, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wrong.wait(20 * PATIENCE) == 1
        line = server.awaited("net.link_refused")[0]
        assert f"remote={A}:" in line and "BATON_LINK_SECRET" in line


def test_replicas_say_now_and_then_that_their_supervisor_is_away(network, tiny_model, tmp_path):
    """A supervisor that is there again closes their links until their deployment is known: one line, not one for each try."""
    state = tmp_path / "state"
    args = {"command": "supervisor", "extra": ["--link-address", f"0.0.0.0:{LINK_PORT}"], "env": SECRET, "state_dir": str(state)}
    with Worker(network, A, tmp_path / "a") as a:
        with Server(**args) as server:
            wait_for(lambda: server.http.get("/v1/workers").json(), 10, "the worker")
            with Worker(network, B, tmp_path / "b") as b:
                wait_for(lambda: len(server.http.get("/v1/workers").json()) == 2, 10, "both workers")
                launch(server, tiny_model, ("hybrid", a.address()), uid="alone")
                launch(server, tiny_model, ("hybrid", b.address()))
            pids = server.pids(uid="alone")
            server.process.kill()
            server.process.wait()
        # The start waits for the other worker, which does not come.
        with Server(**args) as server:
            wait_for(lambda: status(server, "alone") == "READY", 30, "the replica is taken back")
            assert server.pids(uid="alone") == pids
            wait_for(lambda: "replica.supervisor_back" in a.log(), 5, "it says so")
            assert 1 <= a.log().count("replica.supervisor_lost") <= 4, a.log()[-3000:]
