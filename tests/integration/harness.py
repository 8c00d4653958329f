"""Real processes for the integration tests: a `baton serve` of its own port and state, launches, metrics, logs."""

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

BINARY = os.environ.get("BATON_BINARY", "")
MODEL = os.environ.get("BATON_TEST_MODEL", "")
UID = "m"
# Every limit of time here is that of a machine that does nothing else, times this: slow machines and sanitizers need more.
PATIENCE = float(os.environ.get("BATON_TEST_PATIENCE", "1"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def placement(topology):
    """replica_config of "1p1d", "2p2d", "hybrid", "2h"."""
    if topology == "hybrid":
        return None, 1
    if re.fullmatch(r"\d+h", topology):
        return None, int(topology[:-1])
    p, d = re.fullmatch(r"(\d+)p(\d+)d", topology).groups()
    rows = [{"role": "prefill"}] * int(p) + [{"role": "decode"}] * int(d)
    return rows, len(rows)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, timeout, what, step=0.02):
    timeout *= PATIENCE
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(step)


class Server:
    """One supervisor with its local worker; `tls` are the paths of certificate, key and ca for one that speaks HTTPS."""

    def __init__(self, state_dir=None, extra=(), command="serve", env=None, binary=None, headers=None, tls=None):
        self._tmp = tempfile.TemporaryDirectory(prefix="baton-test-")
        self.state_dir = state_dir or self._tmp.name + "/state"
        self.log_path = Path(self._tmp.name) / "log"
        self.log_file = open(self.log_path, "ab")
        if tls:
            extra = [*extra, "--tls-certificate", str(tls["cert"]), "--tls-key", str(tls["key"])]
        self.args = [binary or BINARY, command, "--port", "0", "--state-dir", self.state_dir, *extra]
        self.process = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=self.log_file,
                                        env={**os.environ, **(env or {})})
        try:
            self.port = int(wait_for(self._listens, 20, "the server listens"))
            self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
            self.http = httpx.Client(base_url=self.url, timeout=120 * PATIENCE, headers=headers, verify=ssl.create_default_context(cafile=tls["ca"]) if tls else True)
            if command == "serve":
                wait_for(lambda: self.http.get("/v1/workers").json(), 20, "a worker registers")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _listens(self):
        """The port, once it is open: a free one, which the log names."""
        found = re.search(r'supervisor\.listening(?: address=|","address":")(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)[ "]', self.log())
        if not found and self.process.poll() is not None:
            raise AssertionError(f"baton ended with {self.process.returncode}:\n{self.log()[-4000:]}")
        return found and found[1]

    def log(self):
        return self.log_path.read_text(errors="replace")

    def lines(self, event, **fields):
        """Log lines of an event whose fields match."""
        found = []
        for line in self.log().splitlines():
            if f" {event} " not in line and not line.endswith(f" {event}"):
                continue
            if all(re.search(rf'(^| ){k}="?{re.escape(str(v))}"?( |$)', line) for k, v in fields.items()):
                found.append(line)
        return found

    def awaited(self, event, **fields):
        """The same once there is one: a line may come after the answer that it is about."""
        return wait_for(lambda: self.lines(event, **fields), 5, f"{event} {fields}")

    def launch(self, topology="1p1d", uid=UID, expect=200, wait=True, **keys):
        rows, replica = placement(topology)
        worker = self.http.get("/v1/workers").json()[0]["work-ip"]
        body = {"model_name": "smollm2-instruct", "model_uid": uid, "model_engine": "baton", "model_type": "LLM",
                "model_path": MODEL, "replica": replica, "max_model_len": 2048, "kv_cache_bytes": 256 << 20, **keys}
        if not {"n_gpu", "gpu_idx", "replica_config"} & keys.keys() and not rows:
            body["n_gpu"] = None  # the CPU, also where there is a GPU
        if rows:
            body["replica_config"] = [{**r, "devices": [{"worker_ip": worker, "n_gpu": 0}]} for r in rows]
        r = self.http.post("/v1/models" + ("" if wait else "?wait_ready=False"), json=body)
        assert r.status_code == expect, f"{r.status_code} {r.text}\n{self.log()[-3000:]}"
        return r.json()

    def terminate(self, uid=UID):
        r = self.http.delete(f"/v1/models/{uid}")
        assert r.status_code == 200, r.text

    def replicas(self, uid=UID):
        return self.http.get(f"/v1/models/{uid}/replicas").json()

    def pids(self, role=None, uid=UID):
        return [r["pid"] for r in self.replicas(uid) if role in (None, r["role"]) and r["pid"]]

    def wait_ready(self, timeout=60):
        try:
            wait_for(lambda: self.http.get("/ready").status_code == 200, timeout, "ready", 0.05)
        except AssertionError as e:
            raise AssertionError(f"{e}: {self.http.get('/ready').text} {self.http.get(f'/v1/models/{UID}/events').text[-1500:]}") from e

    def metrics(self):
        """{name: [(labels, value)]}"""
        out = {}
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith("#") or not line:
                continue
            name, labels, value = re.fullmatch(r"([a-z_:A-Z0-9]+)(?:\{(.*)\})? (\S+)", line).groups()
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
            out.setdefault(name, []).append((labels, float(value)))
        return out

    def metric(self, name, **labels):
        return sum(v for have, v in self.metrics().get(name, []) if all(have.get(k) == x for k, x in labels.items()))

    def settled(self, name, value, timeout=3, **labels):
        """Waits until a metric has a value (replicas report ten times a second)."""
        wait_for(lambda: self.metric(name, **labels) == value, timeout,
                 f"{name}{labels} is {value}, now {self.metric(name, **labels)}")

    def steady(self, name, **labels):
        """A metric's value once it has not changed for half a second: what an earlier request left is in it."""
        value, since = self.metric(name, **labels), time.monotonic()
        end = since + 10 * PATIENCE
        while time.monotonic() - since < 0.5 * PATIENCE and time.monotonic() < end:
            time.sleep(0.05)
            now = self.metric(name, **labels)
            if now != value:
                value, since = now, time.monotonic()
        return value

    def complete(self, prompt, **keys):
        body = {"model": UID, "prompt": prompt, "temperature": 0, "max_tokens": 16, **keys}
        r = self.http.post("/v1/completions", json=body)
        assert r.status_code == 200, f"{r.status_code} {r.text}"
        return r.json()

    def chat(self, text, **keys):
        body = {"model": UID, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 32, **keys}
        r = self.http.post("/v1/chat/completions", json=body)
        assert r.status_code == 200, f"{r.status_code} {r.text}"
        return r.json()

    def stream(self, prompt, **keys):
        """Yields the data objects of a completions stream; raises on an error frame."""
        body = {"model": UID, "prompt": prompt, "temperature": 0, "max_tokens": 16, "stream": True, **keys}
        with self.http.stream("POST", "/v1/completions", json=body) as r:
            if r.status_code != 200:
                raise StreamError(r.read().decode())
            for line in r.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                data = json.loads(line[6:])
                if "error" in data:
                    raise StreamError(data["error"]["message"])
                yield data

    def tree(self):
        """Pids of all descendants of the supervisor."""
        children = {}
        for p in Path("/proc").iterdir():
            if p.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    stat = (p / "stat").read_text().rsplit(")", 1)[1].split()
                    children.setdefault(int(stat[1]), []).append(int(p.name))
        found, todo = [], [self.process.pid]
        while todo:
            kids = children.get(todo.pop(), [])
            found += kids
            todo += kids
        return found

    def worker_pid(self):
        for pid in self.tree():
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if len(argv) > 1 and argv[1] == b"worker":
                    return pid
        return None

    def stop(self, timeout=20):
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout * PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode

    def close(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        self.http.close()
        self.log_file.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        failed = kind is not None
        self.close()
        if failed:
            print(self.log()[-6000:])
        if not failed:
            self._tmp.cleanup()


class StreamError(Exception):
    pass
