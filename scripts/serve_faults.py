"""Checks of what breaks: replicas killed in mid-transfer, launches that cannot work, many launch and terminate cycles, start time."""

import concurrent.futures
import datetime
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from serve_mixed import EXACT, launched
from serving import Server, alive, gpu_memory, memory_back, ordinary_ids, some_ids, wait_for

SERVE_AGAIN_S = 2.0


# ---- kill ----------------------------------------------------------------------------------------------------------


class KillTries:
    """SIGKILL of prefill or decode replicas while a paced transfer runs, on a deployment of several of each."""

    def __init__(self, ctx, mover, tries, ids, pace_us, each=4):
        self.ctx, self.server, self.report, self.mover, self.tries = ctx, ctx.server, ctx.report, mover, tries
        self.uid = f"kill-{mover}"
        self.each, self.pace_us = each, pace_us
        rng = random.Random(5)
        known = ordinary_ids(ctx.model)
        self.long = [rng.choices(known, k=ids - 64 * i) for i in range(3)]
        self.short = [rng.choices(known, k=40 + i) for i in range(3)]
        self.wrong, self.slow, self.held, self.missed, self.again_s, self.recovered_s, self.inside = [], [], [], 0, [], [], []

    def ask(self, prompt, tokens, **more):
        return self.server.ask(uid=self.uid, prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True, logprobs=1, **more)

    def run(self):
        server, one_gpu = self.server, self.ctx.prefill == self.ctx.decode
        faults = f"pace_us={self.pace_us}" + (",nccl_one_gpu" if self.mover == "nccl" and one_gpu else "")
        placements = [("prefill", self.ctx.prefill)] * self.each + [("decode", self.ctx.decode)] * self.each
        keys = {**EXACT, "max_model_len": len(self.long[0]) + 128, "gpu_memory_utilization": self.ctx.share, "enable_prefix_caching": False,
                **({} if self.ctx.real else {"max_num_batched_tokens": 256, "kv_cache_bytes": 64 << 20})}
        before = gpu_memory()
        self.start = len(server.lines())
        status, answer, took = server.launch(self.ctx.model, uid=self.uid, placements=placements, mover=self.mover, fault=faults, **keys)
        if not self.report.check(status == 200, f"kill, {self.mover}: {self.each}P{self.each}D launched in {took:.1f} s{'' if status == 200 else ' ' + answer[:300]}"):
            return self.ctx.barrier.abort()
        self.channels_ready(20)
        self.want_long = [self.ask(p, 12) for p in self.long]
        self.want_short = [self.ask(p, 12) for p in self.short]
        self.together()
        full, pools = gpu_memory(), self.pools()
        self.together()
        for role in ("prefill", "decode"):
            self.kills(role)
        back_up = wait_for(lambda: all(r["status"] == "READY" and r["pid"] for r in server.replicas(self.uid)), 60, 0.1)
        self.channels_ready(20)
        self.together()
        grown = self.pools() - pools
        same, now = memory_back([sum(full)], 256 + grown, of=lambda: [sum(gpu_memory())])
        self.together()
        self.report.check(back_up and same, f"kill, {self.mover}: all replicas are back: {bool(back_up)}, GPU memory {sum(full)} MiB before the kills, {now[0]} after, "
                          f"their pools grown by {grown:.0f}")
        server.terminate(self.uid)
        if self.ctx.alone:
            back, now = memory_back(before)
            self.report.check(back, f"kill, {self.mover}: terminated, GPU memory {before} MiB before, {now} after")

    def pools(self):
        """MiB of the KV pools of both movers' idle replicas. One that starts alone knows better what is left than those that start together,
        and takes more."""
        config = pathlib.Path(self.ctx.model) / "config.json"
        if not config.exists():
            return 0
        c = json.loads(config.read_text())
        head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        block = 64 * c["num_hidden_layers"] * 2 * c["num_key_value_heads"] * head * 2
        wait_for(lambda: not any(v for n, labels, v in self.server.metrics() if n == "baton_kv_blocks" and labels["state"] in ("used", "offered")), 5, 0.1)
        return sum(v for n, _, v in self.server.metrics() if n == "baton_kv_blocks") * block / (1 << 20)

    def together(self):
        """Waits for the other mover's tries, so that memory is read when all replicas are there."""
        try:
            self.ctx.barrier.wait(180)
        except threading.BrokenBarrierError:
            self.report.note(f"kill, {self.mover}: the other mover's tries ended early")

    def kills(self, role):
        self.wrong, self.slow, self.held, self.missed, self.again_s, self.recovered_s, self.inside = [], [], [], 0, [], [], []
        done = tried = 0
        while done < self.tries and tried < 2 * self.tries:
            tried += 1
            done += self.one(role, tried)
        good = done == self.tries and not self.wrong and not self.slow and not self.held
        self.report.check(good, f"kill, {self.mover}: {done} of {self.tries} {role} replicas killed inside a transfer ({self.missed} tries missed it), {len(self.wrong)} wrong answers, served "
                          f"again after at most {max(self.again_s, default=0):.2f} s, the request itself went on after at most {max(self.recovered_s, default=0):.2f} s"
                          + (f"; wrong: {self.wrong[0]}" if self.wrong else "") + (f"; slow: {self.slow[:3]}" if self.slow else "") + (f"; held: {self.held[0]}" if self.held else ""))
        for line in self.inside[:2]:
            self.report.note(line)

    def one(self, role, n):
        """One try; 1 where the kill fell inside the transfer."""
        server = self.server
        if not wait_for(lambda: self.up("prefill") >= 2 and self.up("decode") >= 2, 40, 0.02):
            self.wrong.append(f"too few replicas are up: {[(r['role'], r['status'], r['pid']) for r in server.replicas(self.uid)]}")
            return 1
        self.channels_ready(5)
        index, request = n % len(self.long), f"{self.uid}-{role}-{n}"
        start = len(server.lines())
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            victim = pool.submit(self.ask, self.long[index], 12, stream=True, request_id=request)
            pull = wait_for(lambda: victim.done() or server.events("xavier.pull_started", start, model_uid=self.uid), 20, 0.001)
            row = None if pull in (True, [], None) else self.row(pull[0]["replica"] if role == "decode" else pull[0]["peer"].split("@")[0])
            # From a tenth to seven tenths of the time that the pauses alone take.
            if row:
                time.sleep(self.pace_us * 1e-6 * int(pull[0]["bytes"]) / (1 << 20) * (0.1 + 0.2 * (n % 4)))
            if row is None or victim.done():
                self.missed += 1
                victim.result()
                return 0
            by = "nccl" if self.mover == "nccl" and pull[0]["replica"] in self.paired().get(pull[0]["peer"], ()) else pull[0]["mover"]
            at, killed = time.monotonic(), datetime.datetime.now(datetime.timezone.utc).strftime("%H:%M:%S.%f")[:12]
            os.kill(row["pid"], signal.SIGKILL)
            probes = [pool.submit(self.ask, p, 12) for p in self.short]
            for probe, want in zip(probes, self.want_short):
                self.probed(n, probe.result(), want, time.monotonic() - at)
            got, want = victim.result(), self.want_long[index]
            self.recovered_s.append(time.monotonic() - at)
        if not got.whole() or got.tokens != want.tokens or got.logprobs != want.logprobs:
            self.wrong.append(f"try {n}, the request in transfer: {got.error or (got.tokens, want.tokens)}")
        held = server.all_free(self.uid, 2.5)
        if held:
            self.held.append(f"try {n}: {held}")
        return self.inside_transfer(start, request, role, row, {**pull[0], "mover": by}, killed)

    def probed(self, n, got, want, took):
        self.again_s.append(took)
        if not got.whole() or got.tokens != want.tokens:
            self.wrong.append(f"try {n}, a probe: {got.error or (got.tokens, want.tokens)}")
        elif took > SERVE_AGAIN_S:
            self.slow.append(f"try {n}: {took:.2f} s")

    def inside_transfer(self, start, request, role, row, pull, killed):
        """What the log says: the pull had begun, over this mover, and its KV was not loaded when the process was killed."""
        loaded = self.server.events("kv.loaded", start, req=request)
        early = [e for e in loaded if e["time"] <= killed]
        lost = [e for e in self.server.events("xavier.pull_lost", start, model_uid=self.uid) + self.server.events("xavier.serve_lost", start, model_uid=self.uid)]
        if early or pull["mover"] != self.mover or pull["time"] > killed:
            self.missed += 1
            return 0
        parts = [" ".join(f"{k}={e[k]}" for k in ("mover", "reason", "bytes", "left", "of") if k in e) for e in lost]
        self.inside.append(f"pull of {int(pull['bytes']) / 1e6:.0f} MB over {pull['mover']} by {pull['replica']} from {pull['peer']} began {pull['time']}, {role} {row['replica_id']} killed {killed}"
                           + (f", lost: {parts[0]}" if parts else "") + (f", loaded by {loaded[-1]['replica']} {loaded[-1]['time']}" if loaded else ", then computed"))
        return 1

    def row(self, replica):
        return next((r for r in self.server.replicas(self.uid) if str(r["replica_id"]) == replica and r["pid"]), None)

    def up(self, role):
        return sum(v for n, labels, v in self.server.metrics() if n == "baton_replica_up" and labels["model_uid"] == self.uid and labels["role"] == role)

    # NCCL pairs in the background, and until then extents go over the link: which pairs have a channel is read from the log.

    def paired(self):
        """{replica: peers with a channel} of the processes that run now."""
        ready = {}
        for line in self.server.lines()[self.start:]:
            if f"model_uid={self.uid}" not in line:
                continue
            if " replica.loaded " in line:
                ready[field(line, "replica")] = set()
            elif " xavier.channel_ready " in line:
                ready.setdefault(field(line, "replica"), set()).add(field(line, "peer"))
            elif " xavier.link_lost " in line or " xavier.channel_failed " in line:
                ready.setdefault(field(line, "replica"), set()).discard(field(line, "peer").split("@")[0])
        return ready

    def channels_ready(self, seconds):
        if self.mover != "nccl":
            return True
        def all_ready():
            rows = [r for r in self.server.replicas(self.uid) if r["pid"] and r["status"] == "READY"]
            have = self.paired()
            return all(str(d["replica_id"]) in have.get(str(p["replica_id"]), ()) and str(p["replica_id"]) in have.get(str(d["replica_id"]), ())
                       for p in rows if p["role"] == "prefill" for d in rows if d["role"] == "decode")
        return wait_for(all_ready, seconds, 0.05)


def field(line, name):
    begin = line.find(f" {name}=") + len(name) + 2
    return line[begin:].split(" ", 1)[0].strip('"')


def check_kill(ctx):
    """Both movers at the same time, each on replicas of its own."""
    jobs = []
    before = gpu_memory()
    ctx.alone, ctx.share = len(ctx.movers) == 1, 0.8 / len(ctx.movers)
    ctx.barrier = threading.Barrier(len(ctx.movers))
    with concurrent.futures.ThreadPoolExecutor(len(ctx.movers)) as pool:
        for mover in ctx.movers:
            small = mover == "nccl" and ctx.prefill == ctx.decode  # two contexts take turns on one card: slow
            jobs.append(pool.submit(KillTries(ctx, mover, ctx.tries, min(ctx.kill_tokens, 2000) if small else ctx.kill_tokens, ctx.pace_us, ctx.each).run))
        for job in jobs:
            job.result()
    if not ctx.alone:
        back, now = memory_back(before)
        ctx.report.check(back, f"kill: terminated, GPU memory {before} MiB before, {now} after")


# ---- cycles --------------------------------------------------------------------------------------------------------


def check_cycles(ctx):
    server, prompt = ctx.server, some_ids(ctx.model, 100)
    memory, processes, descriptors, seconds, texts, bad = [], [], [], [], set(), []
    start_memory, start_processes = gpu_memory(), len(server.tree())
    start_descriptors = open_descriptors(server)
    for i in range(ctx.cycles):
        begin = time.monotonic()
        mover = ctx.movers[i // 2 % len(ctx.movers)]
        one_gpu = {"fault": "nccl_one_gpu"} if mover == "nccl" and ctx.prefill == ctx.decode else {}
        placed = {"placements": [("prefill", ctx.prefill), ("decode", ctx.decode)]} if i % 2 == 0 else {"n_gpu": 1}
        status, answer, _ = server.launch(ctx.model, max_model_len=2048, gpu_memory_utilization=0.5, **placed,
                                          **({"mover": mover, **one_gpu} if i % 2 == 0 else {}))
        pids = [r["pid"] for r in server.replicas()] if status == 200 else []
        if status != 200:
            bad.append(f"cycle {i}: {answer[:200]}")
            break
        got = server.ask(prompt=prompt, max_tokens=4, temperature=0, ignore_eos=True)
        texts.add(got.error or got.text)
        if server.terminate() != 200 or any(alive(p) for p in pids):
            bad.append(f"cycle {i}: a process outlived terminate")
        seconds.append(time.monotonic() - begin)
        memory.append(gpu_memory())
        processes.append(len(server.tree()))
        descriptors.append(open_descriptors(server))
    growth = [b - a for a, b in zip(memory[0], memory[-1])] if memory and memory[0] else []
    back = all(b - a < 64 for m in memory for a, b in zip(start_memory, m))
    ctx.report.check(not bad and len(texts) == 1 and back and all(g <= 2 for g in growth) and set(processes) == {start_processes} and
                     max(descriptors[1:], default=0) <= (descriptors[0] if descriptors else 0) + 2,
                     f"cycles: {len(seconds)} launches and terminates, {min(seconds, default=0):.2f} to {max(seconds, default=0):.2f} s each; GPU memory {start_memory} MiB "
                     f"at first, {memory[-1] if memory else '?'} at last, most {max(memory, default='?')}; processes {start_processes}, then {sorted(set(processes))}; descriptors "
                     f"{start_descriptors}, {descriptors[0] if descriptors else '?'} after the first, {descriptors[-1] if descriptors else '?'} after the last; {len(texts)} text"
                     + (f"; {bad[0]}" if bad else "") + (f"; texts {sorted(texts)[:3]}" if len(texts) > 1 else ""))


def open_descriptors(server):
    """Of the supervisor and its worker together."""
    total = 0
    for pid in [server.process.pid, *server.tree()]:
        try:
            total += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            pass
    return total


# ---- start ---------------------------------------------------------------------------------------------------------


def first_token(ctx, model, topology, env):
    """Seconds from the process's start to the first streamed token, what they were spent on, the last error."""
    server = Server(ctx.binary, {**ctx.env, **env}, ["--model", model, "--model-uid", "m", *topology])
    try:
        listening, first, answer = time.monotonic() - server.started, [], None
        while time.monotonic() - server.started < 60 and not first and server.process.poll() is None:
            answer = server.ask(prompt=some_ids(model, 16), max_tokens=2, temperature=0, ignore_eos=True, stream=True, stop_after=1,
                                on_first=lambda: first.append(time.monotonic() - server.started))
            time.sleep(0.004)
        loads = [f"{e['ms']} ms ({e['phases']})" if "phases" in e else f"{e['ms']} ms" for e in server.events("replica.loaded")]
        failed = "" if first else f"; {answer.error if answer else 'ended'}: {server.troubles()[-1:]}"
        return first[0] if first else None, f"listening {listening:.2f}, loaded in {', '.join(loads)}{failed}"
    finally:
        server.stop()


def check_start(ctx):
    """The first start of a machine tunes its kernels and keeps the result; the bars are for those after it."""
    own = ("0.6B", ctx.model, 3.0) if ctx.real else ("tiny", ctx.model, 60.0)
    for name, model, bar in [("8B", ctx.model_8b, 6.0)] if ctx.model_8b else [own]:
        for file in pathlib.Path(model).glob("*.safetensors"):  # into the page cache
            subprocess.run(["cat", str(file)], stdout=subprocess.DEVNULL, check=True)
        with tempfile.TemporaryDirectory(prefix="baton-start-") as cache:
            for topology in ([], ["--prefill", "1", "--decode", "1"])[:2 if name != "8B" else 1]:
                times = [first_token(ctx, model, topology, {"BATON_CACHE_DIR": cache}) for _ in range(3 if not topology else 2)]
                got = [t for t, _ in times]
                text = ", ".join("none" if t is None else f"{t:.2f}" for t in got)
                ctx.report.check(None not in got and max(got[1:]) <= bar, f"start, {name} {'1P1D' if topology else 'hybrid, its first start tunes'}: first streamed "
                                 f"token after {text} s (bar {bar:.0f}); {times[-1][1]}")


# ---- errors --------------------------------------------------------------------------------------------------------


def refused(ctx, server, name, needles, path=None, **keys):
    begin = time.monotonic()
    status, answer, _ = server.launch(path or ctx.model, uid="refused", **keys)
    detail = json.loads(answer).get("detail", answer) if answer.startswith("{") else answer
    if status == 200:
        server.terminate("refused")
    good = status in (400, 503) and all(n in str(detail) for n in needles)
    ctx.report.check(good, f"errors: {name}: {status} after {time.monotonic() - begin:.1f} s: {str(detail)[-220:]}")


def check_errors(ctx):
    server, memory = ctx.server, gpu_memory()
    said = ["bytes", "free" if ctx.real else "may be taken"]
    refused(ctx, server, "a share too small for the weights", said, n_gpu=1, gpu_memory_utilization=0.0001)
    refused(ctx, server, "a KV pool larger than the card", said, n_gpu=1, kv_cache_bytes=1 << 44)
    refused(ctx, server, "an index out of range", ["[97]", "visible GPU indexes"], gpu_idx=[97])
    if ctx.real:
        status, answer, _ = server.launch(ctx.model, uid="large", n_gpu=1, gpu_memory_utilization=0.9, max_model_len=2048)
        ctx.report.check(status == 200, f"errors: one model takes 0.9 of the card{'' if status == 200 else ': ' + answer[:200]}")
        refused(ctx, server, "a card that another model fills", ["bytes free", "asked for"], gpu_idx=[0], gpu_memory_utilization=0.5, max_model_len=2048)
        got = server.ask(uid="large", prompt=some_ids(ctx.model, 40), max_tokens=4, temperature=0)
        ctx.report.check(got.whole(), f"errors: the other model serves on{'' if got.whole() else ': ' + str(got.error)}")
        server.terminate("large")
    back, now = memory_back(memory)
    ctx.report.check(back, f"errors: after the failed launches GPU memory is back: {memory} MiB before, {now} after")
    for name, binary, env, needles in machines_without(ctx):
        other = Server(binary, {**ctx.env, **env})
        try:
            refused(ctx, other, name, ["number of GPUs: 0 on the machine", *needles], n_gpu=1)
            ctx.report.check(other.call("GET", "/health")[0] == 200, f"errors: {name}: the server lives on")
        finally:
            other.stop()


OLD_DRIVER = "int cuInit(unsigned flags) { return 0; }\nint cuDriverGetVersion(int* v) { *v = 11040; return 0; }\n"


def machines_without(ctx):
    """(what is missing, program, environment, what the error says): machines that lack a GPU, a driver, a new enough one, the module."""
    yield "no GPU is visible", ctx.binary, {"CUDA_VISIBLE_DEVICES": "", "BATON_FAKE_GPUS": "0"}, []
    if not ctx.real:
        return
    folder, paths = pathlib.Path(ctx.server.folder.name), os.environ.get("LD_LIBRARY_PATH", "")
    broken, old, bare = folder / "broken", folder / "old", folder / "bare"
    for made in (broken, old, bare):
        made.mkdir(exist_ok=True)
    (broken / "libcuda.so.1").write_bytes(b"\x7fELF, but no further")
    yield "a driver library that cannot be loaded", ctx.binary, {"LD_LIBRARY_PATH": f"{broken}:{paths}"}, ["driver"]
    compiler = shutil.which("cc") or shutil.which("gcc")
    (old / "stub.c").write_text(OLD_DRIVER)
    if compiler and subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(old / "libcuda.so.1"), str(old / "stub.c")]).returncode == 0:
        yield "a driver of CUDA 11.4", ctx.binary, {"LD_LIBRARY_PATH": f"{old}:{paths}"}, ["driver knows CUDA 11.4"]
    else:
        ctx.report.note("errors: no C compiler here: a driver that is too old was not tried")
    shutil.copy2(ctx.binary, bare / "baton")
    yield "no CUDA module beside the program", str(bare / "baton"), {}, ["module"]
