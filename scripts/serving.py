"""What the checks of the whole program share: a `baton serve` of its own, launches, requests, metrics, log events, GPU memory.

Python's standard library alone, so that it runs on a GPU machine as it is.
"""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

UID = "m"


class Report:
    """One line a check; `failures` holds those that did not hold."""

    def __init__(self, quiet=False):
        self.failures = []
        self.quiet = quiet

    def check(self, good, what):
        if not good:
            self.failures.append(what)
        if not good or not self.quiet:
            print(("ok    " if good else "FAIL  ") + what, flush=True)
        return good

    def note(self, what):
        print("      " + what, flush=True)


def wait_for(condition, seconds, step=0.01):
    """The condition's first true value, or its last one when the time is over."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(step)


def gpu_memory():
    """MiB in use of each GPU that CUDA_VISIBLE_DEVICES leaves; nothing without nvidia-smi."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30)
        used = [int(v) for v in out.stdout.split()]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        return [used[int(i)] for i in visible if int(i) < len(used)] if all(i.isdigit() for i in visible) else used
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []


def memory_back(before, slack=64, seconds=3, of=gpu_memory):
    """Whether every GPU has at most `slack` MiB more in use than before, and what is in use."""
    now = []

    def back():
        now[:] = of()
        return len(now) == len(before) and all(b - a <= slack for a, b in zip(before, now))

    return wait_for(back, seconds, 0.2), list(now)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def with_chat_template(model, folder):
    """The model, or where its folder has no chat template, a copy in `folder` (of links) that has a plain one."""
    path = pathlib.Path(model)
    if not path.is_dir() or (path / "chat_template.jinja").exists():
        return str(model)
    config = json.loads((path / "tokenizer_config.json").read_text()) if (path / "tokenizer_config.json").exists() else {}
    if "chat_template" in config:
        return str(model)
    config["chat_template"] = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
                               "{% if enable_thinking is defined and enable_thinking %} hm{% endif %}")
    copy = pathlib.Path(folder) / path.name
    copy.mkdir(parents=True, exist_ok=True)
    for file in path.iterdir():
        target = copy / file.name
        if file.name != "tokenizer_config.json" and not target.exists():
            target.symlink_to(file.resolve())
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    return str(copy)


def ordinary_ids(model):
    """Ids that are neither bytes nor special; for a GGUF file some that every vocabulary has."""
    config = pathlib.Path(model) / "config.json"
    size = min(100_000, json.loads(config.read_text())["vocab_size"] if config.exists() else 32_000)
    return range(min(300, size // 2), size)


def some_ids(model, n):
    ids = ordinary_ids(model)
    return [ids[i % len(ids)] for i in range(n)]


class Answer:
    """What a client got: text, tokens and their logprobs, how it ended, when each piece came (seconds after the request)."""

    def __init__(self):
        self.text, self.finish, self.error, self.usage = "", None, None, None
        self.tokens, self.logprobs, self.top = [], [], []
        self.times, self.cut = [], False

    def add(self, choice):
        self.text += choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
        self.finish = choice.get("finish_reason") or self.finish
        lp = choice.get("logprobs")
        if lp and "tokens" in lp:
            self.tokens += lp["tokens"]
            self.logprobs += lp["token_logprobs"]
            self.top += lp.get("top_logprobs") or []

    def whole(self):
        return self.error is None and self.finish is not None and not self.cut


class Server:
    """One supervisor with its local worker, in a folder of its own."""

    def __init__(self, binary, env=None, args=()):
        self.folder = tempfile.TemporaryDirectory(prefix="baton-gpu-serve-")
        self.log_path = self.folder.name + "/log"
        self.read_to, self.tail, self.seen = 0, "", []
        self.started = time.monotonic()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([binary, "serve", "--port", "0", "--state-dir", self.folder.name + "/state", *args],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        found = wait_for(lambda: re.search(r" supervisor\.listening address=127\.0\.0\.1:(\d+) ", self.log()) or self.process.poll() is not None, 30, 0.002)
        if found in (None, True):
            self.process.kill()
            raise SystemExit(f"baton did not start:\n{self.log()[-3000:]}")
        self.port = int(found[1])
        if not wait_for(lambda: self.get("/v1/workers"), 60, 0.005):
            raise SystemExit(f"no worker came:\n{self.log()[-3000:]}")

    # ---- log -----------------------------------------------------------------------------------------------------

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def lines(self):
        """All whole lines so far; reads only what is new."""
        with open(self.log_path, errors="replace") as f:
            f.seek(self.read_to)
            new = f.read()
            self.read_to = f.tell()
        *whole, self.tail = (self.tail + new).split("\n")
        self.seen += whole
        return self.seen

    def events(self, event, start=0, **fields):
        """[{field: value}] of an event's lines, from line `start` on, whose fields match; `time` is the line's."""
        found = []
        for line in self.lines()[start:]:
            if f" {event} " not in line:
                continue
            have = fields_of(line)
            if all(have.get(k) == str(v) for k, v in fields.items()):
                found.append(have)
        return found

    def awaited_events(self, want, event, start=0, **fields):
        """As events(), once there are `want` of them or 5 s have passed: a line may come after the answer that it is about."""
        wait_for(lambda: len(self.events(event, start, **fields)) >= want, 5, 0.02)
        return self.events(event, start, **fields)

    def troubles(self):
        """Lines of warnings and errors, without what an ordinary end causes."""
        return [line for line in self.lines() if any(level in line for level in (" error ", " warning ", " critical ")) and "closed by the other side" not in line]

    # ---- HTTP ----------------------------------------------------------------------------------------------------

    def call(self, method, path, body=None, timeout=120):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def get(self, path):
        return json.loads(self.call("GET", path)[1])

    def worker(self):
        return self.get("/v1/workers")[0]["work-ip"]

    def gpus(self):
        """Numbers of the GPUs that the worker sees."""
        status = next(iter(self.get("/status")["workers"].values()))["status"]
        return sorted(int(k[4:]) for k in status if k.startswith("gpu-"))

    def launch(self, model, uid=UID, placements=None, **keys):
        """Status, answer and seconds; `placements`: [(role, GPU, or None for the CPU)]."""
        body = {"model_name": uid, "model_uid": uid, "model_engine": "baton", "model_type": "LLM", "model_path": model, **keys}
        if placements:
            worker = self.worker()
            body["replica"] = len(placements)
            body["replica_config"] = [{"role": role, "devices": [{"worker_ip": worker, **({"n_gpu": 0} if gpu is None else {"gpu_idx": [gpu]})}]}
                                      for role, gpu in placements]
        begin = time.monotonic()
        status, answer = self.call("POST", "/v1/models", body)
        return status, answer, time.monotonic() - begin

    def terminate(self, uid=UID):
        return self.call("DELETE", f"/v1/models/{uid}")[0]

    def replicas(self, uid=UID):
        return self.get(f"/v1/models/{uid}/replicas")

    def ask(self, route="completions", stop_after=None, on_first=None, timeout=120, uid=UID, **body):
        """One request, streamed where `stream` is true; `stop_after` pieces the client goes away (0: before the first)."""
        out, begin, r = Answer(), time.monotonic(), None
        path = "/v1/chat/completions" if route == "chat" else "/v1/completions"
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request("POST", path, json.dumps({"model": uid, **body}), {"Content-Type": "application/json"})
            if stop_after == 0:
                time.sleep(0.005)
                out.cut = True
                return out
            r = c.getresponse()
            if r.status != 200:
                out.error = f"{r.status} {r.read().decode()[:300]}"
            elif body.get("stream"):
                read_stream(r, out, begin, stop_after, on_first)
            else:
                answer = json.loads(r.read())
                out.times.append(time.monotonic() - begin)
                out.usage = answer.get("usage")
                out.add(answer["choices"][0])
        except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
            out.error = f"{type(e).__name__}: {e}"
        finally:
            if r is not None:
                r.close()
            c.close()
        return out

    # ---- metrics -------------------------------------------------------------------------------------------------

    def metrics(self):
        """[(name, labels, value)]"""
        out = []
        for line in self.call("GET", "/metrics")[1].splitlines():
            found = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line)
            if found:
                out.append((found[1], dict(re.findall(r'(\w+)="([^"]*)"', found[2] or "")), float(found[3])))
        return out

    def metric(self, name, **labels):
        return sum(v for n, have, v in self.metrics() if n == name and all(have.get(k) == str(x) for k, x in labels.items()))

    def settled(self, value, name, seconds=10, **labels):
        """Waits until a metric has the value; replicas report ten times a second."""
        return wait_for(lambda: self.metric(name, **labels) == value, seconds, 0.05)

    def all_free(self, uid=UID, seconds=2.5):
        """Waits until nothing is held; what still is, or nothing."""
        held = {}

        def free():
            held.clear()
            for name, labels, value in self.metrics():
                if labels.get("model_uid") != uid or value == 0:
                    continue
                if name in ("baton_requests_running", "baton_requests_waiting", "baton_replica_running", "baton_replica_waiting", "baton_kv_leases"):
                    held[name] = value
                elif name == "baton_kv_blocks" and labels["state"] in ("used", "offered"):
                    held[labels["state"] + " blocks"] = value
            return not held

        wait_for(free, seconds, 0.05)
        return dict(held)

    # ---- processes -----------------------------------------------------------------------------------------------

    def tree(self):
        """Pids of all descendants of the supervisor."""
        return descendants(self.process.pid)[1:]

    def stop(self):
        """The exit code after SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return -9


def descendants(pid):
    """The process and all below it, itself first."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as f:
                    children.setdefault(int(f.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
            except (OSError, IndexError):
                pass
    found = [pid]
    for parent in found:  # grows as it goes
        found += children.get(parent, [])
    return found


def fields_of(line):
    out = {k: v.strip('"') for k, v in re.findall(r' ([a-z_]+)=("[^"]*"|\S*)', line)}
    out["time"] = line[11:23]
    return out


def read_stream(response, out, begin, stop_after=None, on_first=None):
    """The frames of an event stream into the answer."""
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            return
        data = json.loads(line[6:])
        if data.get("error"):
            out.error = data["error"].get("message", "error") if isinstance(data["error"], dict) else str(data["error"])
            return
        out.times.append(time.monotonic() - begin)
        out.usage = data.get("usage") or out.usage
        for choice in data.get("choices", []):
            out.add(choice)
        if on_first is not None and len(out.times) == 1:
            on_first()
        if stop_after is not None and len(out.times) >= stop_after:
            out.cut = True
            return
    if out.finish is None and out.error is None:
        out.error = "the stream broke off"
