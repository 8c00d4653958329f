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
    """The unit's ExecStart with this machine's paths."""

    def __init__(self, folder, config, watchdog_s=None, unit="baton.service"):
        self.manager = Manager(folder)
        self.log_path = folder / "log"
        words = shlex.split(setting(unit, "ExecStart")[0])
        places = {"/usr/local/bin/baton": harness.BINARY, "/etc/baton/baton.json": str(folder / "baton.json"), "/var/lib/baton": str(folder / "state"),
                  "/var/cache/baton": str(folder / "cache")}
        assert set(places) <= set(words)
        (folder / "baton.json").write_text(json.dumps(config))
        (folder / "run").mkdir()
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
    r = subprocess.run([harness.BINARY, "config", "check", "--config", str(CONFIG / example)], capture_output=True, text=True)
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
