"""The systemd units: their files, and their own command lines under a notification socket as systemd gives one."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import harness
import httpx
import pytest
from harness import PATIENCE, wait_for

CONFIG = Path(__file__).resolve().parents[2] / "config"
UNITS = ["baton.service", "baton-worker@.service"]


def setting(unit, key):
    return re.findall(rf"^{key}=(.*)$", (CONFIG / unit).read_text(), re.M)


class Manager:
    """What a service manager has: the socket, and what came over it and when."""

    def __init__(self, folder):
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.heard = []  # (monotonic seconds, text)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            text = self.socket.recv(4096).decode()
            self.heard.append((time.monotonic(), text))

    def texts(self, start):
        return [t for _, t in list(self.heard) if t.startswith(start)]

    def wait(self, start, timeout=30):
        return wait_for(lambda: self.texts(start), timeout, f"{start} among {self.heard}")


class Service:
    """The unit's ExecStart with this machine's paths. One on the same folder again is its next start."""

    def __init__(self, folder, config, watchdog_s=None, unit="baton.service"):
        (folder / "notify").unlink(missing_ok=True)
        self.manager = Manager(folder)
        self.log_path = folder / "log"
        self.log_path.unlink(missing_ok=True)
        words = shlex.split(setting(unit, "ExecStart")[0])
        places = {"/usr/local/bin/baton": harness.BINARY, "/etc/baton/baton.json": str(folder / "baton.json"), "/var/lib/baton": str(folder / "state"),
                  "/var/cache/baton": str(folder / "cache")}
        assert set(places) <= set(words)
        (folder / "baton.json").write_text(json.dumps(config))
        (folder / "run").mkdir(exist_ok=True)
        env = {**os.environ, "NOTIFY_SOCKET": self.manager.path, "XDG_RUNTIME_DIR": str(folder / "run")}
        if watchdog_s:
            env["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([places.get(w, w) for w in words], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if watchdog_s:
            assert self.process.poll() is None

    def url(self):
        found = wait_for(lambda: re.search(r" supervisor\.listening address=(\S+) ", self.log_path.read_text()), 20, "it listens")
        return f"http://{found[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20 * PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def deployment(**keys):
    row = {"devices": [{"worker_ip": "", "n_gpu": 0}]}
    return {"model_uid": "m", "model_name": "smollm2", "model_engine": "baton", "model_path": harness.MODEL, "max_model_len": 2048,
            "kv_cache_bytes": 256 << 20, "replica_config": [{"role": "prefill", **row}, {"role": "decode", **row}], **keys}


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_no_fault_in_the_unit(unit, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    # A template is checked as an instance of it; the binary is where it is here.
    copy = tmp_path / unit.replace("@", "@host-9996")
    copy.write_text((CONFIG / unit).read_text().replace("/usr/local/bin/baton", harness.BINARY))
    r = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    assert r.returncode == 0 and r.stderr == "", r.stderr
    r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=40", str(copy)], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout[-600:]


def test_ready_is_said_when_the_start_up_deployments_serve_and_stopping_when_they_end(tmp_path):
    with Service(tmp_path, {"port": 0, "deployments": [deployment()]}) as service:
        url = service.url()
        assert not service.manager.texts("READY=1") or httpx.get(url + "/ready").status_code == 200
        service.manager.wait("READY=1")
        # No second try: it serves from that moment.
        r = httpx.post(url + "/v1/completions", json={"model": "m", "prompt": "One, two,", "max_tokens": 4}, timeout=30 * PATIENCE)
        assert r.status_code == 200, r.text
        assert httpx.get(url + "/ready").status_code == 200
        assert "1 models, 2 replicas" in service.manager.texts("READY=1")[0]
        assert len(service.manager.texts("READY=1")) == 1

        # A stream that runs when the end comes is finished; STOPPING comes first.
        with httpx.stream("POST", url + "/v1/completions", timeout=60 * PATIENCE,
                          json={"model": "m", "prompt": "Once upon a time", "max_tokens": 120, "ignore_eos": True, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            service.process.terminate()
            service.manager.wait("STOPPING=1", 5)
            assert service.process.poll() is None
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert service.process.wait(20 * PATIENCE) == 0
        assert service.manager.texts("EXTEND_TIMEOUT_USEC=")


def test_a_start_that_cannot_succeed_never_says_ready(tmp_path):
    with Service(tmp_path, {"port": 0, "deployments": [deployment(model_path=str(tmp_path / "none.gguf"))]}) as service:
        assert service.process.wait(30 * PATIENCE) != 0
        assert not service.manager.texts("READY=1")


def test_the_watchdog_is_fed_by_a_process_that_works_and_by_no_other(tmp_path):
    with Service(tmp_path, {"port": 0}, watchdog_s=0.6) as service:
        service.manager.wait("READY=1")
        before = len(service.manager.texts("WATCHDOG=1"))
        time.sleep(2)
        assert len(service.manager.texts("WATCHDOG=1")) - before >= 3
        service.process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        stopped = len(service.manager.texts("WATCHDOG=1"))
        time.sleep(1)
        assert len(service.manager.texts("WATCHDOG=1")) == stopped
        service.process.send_signal(signal.SIGCONT)
        wait_for(lambda: len(service.manager.texts("WATCHDOG=1")) > stopped, 5, "signs of life again")


def test_a_reload_is_told_from_its_beginning_to_its_end(tmp_path):
    with Service(tmp_path, {"port": 0, "api_keys": ["a"]}) as service:
        service.manager.wait("READY=1")
        for count, keys in enumerate((["b"], ["c"]), 1):
            (tmp_path / "baton.json").write_text(json.dumps({"port": 0, "api_keys": keys}))
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            service.process.send_signal(signal.SIGHUP)
            wait_for(lambda: len(service.manager.texts("READY=1")) == count + 1, 10, f"READY again among {service.manager.heard}")
            told = service.manager.texts("RELOADING=1")
            assert len(told) == count
            # systemd 253 and later (Type=notify-reload) takes a reload for done only when this is later than its signal.
            usec = int(re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=(\d+)", told[-1])[1])
            assert before <= usec <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            order = [t.split("\n")[0] for _, t in list(service.manager.heard) if t.startswith(("READY=1", "RELOADING=1"))]
            assert order == ["READY=1"] + ["RELOADING=1", "READY=1"] * count
            assert httpx.get(service.url() + "/v1/models", headers={"Authorization": f"Bearer {keys[0]}"}).status_code == 200
        (tmp_path / "baton.json").write_text("{")  # a reload that fails ends too
        service.process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(service.manager.texts("READY=1")) == 4, 10, "READY after a fault")
        assert httpx.get(service.url() + "/v1/models", headers={"Authorization": "Bearer c"}).status_code == 200


def test_a_reload_before_it_is_ready_says_nothing_of_ready(tmp_path):
    """READY comes when the deployments route, whatever is reloaded meanwhile."""
    with Service(tmp_path, {"port": 0, "deployments": [deployment()]}) as service:
        url = service.url()
        service.process.send_signal(signal.SIGHUP)
        service.manager.wait("READY=1")
        assert httpx.get(url + "/ready").status_code == 200
        assert len(service.manager.texts("READY=1")) == 1 + len(service.manager.texts("RELOADING=1"))


def test_what_ran_before_a_reboot_runs_after_it(tmp_path):
    """Every process is killed, and what a reboot wipes is wiped: only the state folder is left."""
    keys = {"port": 0, "deployments": [deployment()]}
    launched = deployment(model_uid="launched", replica_config=None, replica=1, n_gpu=None)
    with Service(tmp_path, keys) as service:
        service.manager.wait("READY=1")
        r = httpx.post(service.url() + "/v1/models", json=launched, timeout=60 * PATIENCE)
        assert r.status_code == 200, r.text
        ask = {"prompt": "Once", "max_tokens": 1800, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", service.url() + "/v1/completions", timeout=60 * PATIENCE, json={"model": "launched", **ask}) as stream:
            next(stream.iter_lines())  # in the middle of something
            descendants = _descendants(service.process.pid)
            assert len(descendants) >= 4  # a worker, prefill, decode, and the third
            for pid in [service.process.pid, *descendants]:
                _kill(pid)
            service.process.wait(10 * PATIENCE)
        wait_for(lambda: not any(harness.alive(p) for p in descendants), 10, "all are dead")
        shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").mkdir()
    with Service(tmp_path, keys) as service:
        service.manager.wait("READY=1", 60)
        assert "2 models, 3 replicas" in service.manager.texts("READY=1")[-1]
        for uid in ("m", "launched"):
            r = httpx.post(service.url() + "/v1/completions", json={"model": uid, "prompt": "One", "max_tokens": 4}, timeout=60 * PATIENCE)
            assert r.status_code == 200, r.text
        # And an ordinary end, and the start after it.
        httpx.delete(service.url() + "/v1/models/launched", timeout=60 * PATIENCE)
    with Service(tmp_path, keys) as service:
        service.manager.wait("READY=1", 60)
        assert "1 models, 2 replicas" in service.manager.texts("READY=1")[-1]


def _descendants(pid):
    children = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p) == pid]
    return children + [d for c in children for d in _descendants(c)]


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_children_have_no_way_to_the_manager(tmp_path):
    with Service(tmp_path, {"port": 0, "deployments": [deployment()]}, watchdog_s=5) as service:
        service.manager.wait("READY=1")
        children = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p) == service.process.pid]
        assert children
        for child in children:
            names = {v.split(b"=")[0] for v in (child / "environ").read_bytes().split(b"\0")}
            assert not {b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"WATCHDOG_PID"} & names


def _parent(proc):
    try:
        return int((proc / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return None


@pytest.mark.parametrize("example", sorted(p.name for p in CONFIG.glob("*.json") if "deployments" in p.read_text()))
def test_examples_pass_the_check(example):
    r = subprocess.run([harness.BINARY, "config", "check", "--values-only", "--config", str(CONFIG / example)], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr


def test_a_worker_says_ready_when_it_is_registered(tmp_path):
    secret = "a secret of the link"
    port = harness.free_port()
    env = {"BATON_LINK_SECRET": secret}
    manager = Manager(tmp_path)
    words = [w.replace("/usr/local/bin/baton", harness.BINARY).replace("%I", f"127.0.0.1:{port}").replace("/run/baton-worker", str(tmp_path / "run"))
             for w in shlex.split(setting("baton-worker@.service", "ExecStart")[0])]
    worker = subprocess.Popen(words, env={**os.environ, **env, "NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "600000"}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        assert worker.poll() is None and not manager.texts("READY=1")
        with harness.Server(command="supervisor", extra=("--link-address", f"127.0.0.1:{port}"), env=env):
            manager.wait("READY=1", 20)
            manager.wait("WATCHDOG=1", 5)
            worker.terminate()
            assert worker.wait(20 * PATIENCE) == 0
            assert manager.texts("STOPPING=1")
    finally:
        worker.kill()
        worker.wait()


def test_a_start_waits_for_the_workers_that_it_names(tmp_path):
    """After a reboot of everything hosts come back one after the other: a deployment over two of them is launched when both are there."""
    link, ports = harness.free_port(), [harness.free_port(), harness.free_port()]
    env = {"BATON_LINK_SECRET": "a secret of the link"}
    workers = []

    def start_worker(port):
        run = tmp_path / f"run-{port}-{len(workers)}"
        run.mkdir()
        workers.append(subprocess.Popen([harness.BINARY, "worker", "--supervisor", f"127.0.0.1:{link}", "--run-dir", str(run), "--worker-port", str(port)],
                                        env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def supervisor():
        return harness.Server(command="supervisor", state_dir=str(tmp_path / "state"), extra=("--link-address", f"127.0.0.1:{link}"), env=env)

    try:
        with supervisor() as server:
            for port in ports:
                start_worker(port)
            wait_for(lambda: len(server.http.get("/v1/workers").json()) == 2, 20, "both workers")
            rows = [{"role": role, "devices": [{"worker_ip": f"127.0.0.1:{port}", "n_gpu": 0}]} for role, port in zip(("prefill", "decode"), ports)]
            server.launch("2h", replica_config=rows)  # "2h" places nothing itself
            for pid in [server.process.pid, *(p.pid for p in workers), *(d for p in workers for d in _descendants(p.pid))]:
                _kill(pid)
            for p in [server.process, *workers]:
                p.wait(10 * PATIENCE)
        with supervisor() as server:
            start_worker(ports[1])
            wait_for(lambda: len(server.http.get("/v1/workers").json()) == 1, 20, "one worker")
            time.sleep(1.5)  # longer than a start waits for nobody in particular
            assert server.http.get("/ready").status_code == 503
            start_worker(ports[0])
            server.wait_ready()
            assert [r["role"] for r in server.replicas()] == ["prefill", "decode"]
            assert server.complete("One", max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
    finally:
        for p in workers:
            p.kill()
            p.wait()


def test_a_start_up_deployment_without_a_worker_goes_to_the_local_one(tmp_path):
    """Also where other hosts may join, and one of them is there first."""
    link = harness.free_port()
    secret = "a secret of the link"
    run = tmp_path / "other"
    run.mkdir()
    worker = subprocess.Popen([harness.BINARY, "worker", "--supervisor", f"127.0.0.1:{link}", "--run-dir", str(run)], env={**os.environ, "BATON_LINK_SECRET": secret},
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with Service(tmp_path, {"port": 0, "link_address": f"127.0.0.1:{link}", "link_secret": secret, "deployments": [deployment()]}) as service:
            service.manager.wait("READY=1", 60)
            url = service.url()
            wait_for(lambda: len(httpx.get(url + "/v1/workers").json()) == 2, 20, "both workers")
            assert len({r["worker_address"] for r in httpx.get(url + "/v1/models/m/replicas").json()}) == 1
            r = httpx.post(url + "/v1/completions", json={"model": "m", "prompt": "One", "max_tokens": 3}, timeout=60 * PATIENCE)
            assert r.status_code == 200, r.text
    finally:
        worker.kill()
        worker.wait()
