#!/usr/bin/env python3
"""Serves a model on a GPU through the whole program and checks what a client sees. Needs Python alone.

    python3 scripts/gpu_serve.py --binary PATH/baton --model PATH [--gpus 0,1] [--quick]

A hybrid replica gives the same texts alone and in a crowd (deterministic), a prefill and a decode replica, on two GPUs or sharing
one, give those of the hybrid one with every hand-off verified and none replaced; replicas in the fast mode are timed: time to the
first token, between tokens, tokens a second, the host's microseconds a step. Aborted streams free their blocks, a launch that does not
fit names bytes, and after terminate the GPU's memory is back. The exit code is 1 where a check fails.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WORDS = "the sun rises over a quiet village while children play near old stone bridge and river flows past green hills".split()
failures = []


def check(good, what):
    print(("ok    " if good else "FAIL  ") + what, flush=True)
    if not good:
        failures.append(what)


class Server:
    def __init__(self, binary):
        self.folder = tempfile.TemporaryDirectory(prefix="baton-gpu-serve-")
        self.log_path = self.folder.name + "/log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([binary, "serve", "--port", "0", "--state-dir", self.folder.name + "/state"], stdout=log, stderr=log)
        end = time.monotonic() + 90
        while True:
            found = re.search(r" supervisor\.listening address=127\.0\.0\.1:(\d+) ", self.log())
            if found:
                self.port = int(found[1])
                if self.get("/v1/workers"):
                    return
            if time.monotonic() > end or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit(f"baton did not start:\n{self.log()[-3000:]}")
            time.sleep(0.05)

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def get(self, path):
        return json.loads(self.call("GET", path)[1])

    def launch(self, model, uid="m", placements=None, **keys):
        worker = self.get("/v1/workers")[0]["work-ip"]
        body = {"model_name": uid, "model_uid": uid, "model_engine": "baton", "model_type": "LLM", "model_path": model, **keys}
        if placements:
            body["replica"] = len(placements)
            body["replica_config"] = [{"role": role, "devices": [{"worker_ip": worker, "gpu_idx": [gpu]}]} for role, gpu in placements]
        begin = time.monotonic()
        status, answer = self.call("POST", "/v1/models", body)
        return status, answer, time.monotonic() - begin

    def metric(self, name, **labels):
        total = 0.0
        for line in self.call("GET", "/metrics")[1].splitlines():
            found = re.fullmatch(re.escape(name) + r"(?:\{(.*)\})? (\S+)", line)
            if found and all(f'{k}="{v}"' in (found[1] or "") for k, v in labels.items()):
                total += float(found[2])
        return total

    def settled(self, value, name, **labels):
        end = time.monotonic() + 10
        while self.metric(name, **labels) != value and time.monotonic() < end:
            time.sleep(0.05)
        return self.metric(name, **labels) == value

    def complete(self, prompt, **keys):
        """Text and the logprob of each token: equal numbers say more than equal texts."""
        body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 32, "logprobs": 1, **keys}
        status, text = self.call("POST", "/v1/completions", body)
        if status != 200:
            return f"error {status} {text[:200]}"
        choice = json.loads(text)["choices"][0]
        return choice["text"] + " " + json.dumps(choice["logprobs"]["token_logprobs"])

    def stream(self, prompt, stop_after=None, on_first=None, **keys):
        """Arrival time of each token, from the sending of the request."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        begin = time.monotonic()
        body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 64, "stream": True, **keys}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        times = []
        for line in r:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            times.append(time.monotonic() - begin)
            if on_first is not None and len(times) == 1:
                on_first()
            if stop_after is not None and len(times) >= stop_after:
                break
        c.sock and c.sock.close()
        return times

    def terminate(self, uid="m"):
        return self.call("DELETE", f"/v1/models/{uid}")[0]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return -9


def prompts(n, longest):
    out = []
    for i in range(n):
        size = [3, 15, 16, 17, 63, 64, 65, 200, longest][i % 9] + i // 9
        out.append(" ".join(WORDS[(i * 7 + j * (1 + i % 5)) % len(WORDS)] for j in range(size)))
    return out


def settings(i):
    return [{"temperature": 0}, {"temperature": 0.9, "seed": i}, {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "seed": i}][i % 3]


def texts(server, asked, crowd):
    def one(i):
        return server.complete(asked[i], ignore_eos=True, **settings(i))

    with concurrent.futures.ThreadPoolExecutor(crowd) as pool:
        return list(pool.map(one, range(len(asked))))


def same(name, got, want):
    wrong = [i for i, (a, b) in enumerate(zip(got, want)) if a != b]
    errors = [t for t in got if t.startswith("error ")]
    check(not wrong and not errors, f"{name}: {len(got) - len(wrong)} of {len(got)} texts equal" + (f"; {errors[0]}" if errors else ""))


def gpu_memory():
    """MiB in use of each GPU; nothing without nvidia-smi."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30)
        return [int(v) for v in out.stdout.split()]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []


def measure(server, name, crowd, tokens, words, **labels):
    prompt = " ".join(WORDS[j % len(WORDS)] for j in range(words))
    server.stream(prompt, max_tokens=4)
    def counters():
        return server.metric("baton_engine_steps_total"), server.metric("baton_engine_host_us_total")

    # All streams have their first token, one has ended: in between the steps hold no prompts.
    lock, first, at = threading.Lock(), [], {}

    def on_first():
        with lock:
            first.append(1)
            last = len(first) == crowd
        if last:  # a moment later: until what came before is reported
            threading.Timer(0.11, lambda: at.setdefault("decode", counters())).start()

    def one(i):
        times = server.stream(f"{i} {prompt}", on_first=on_first, max_tokens=tokens, ignore_eos=True)
        with lock:
            ended = "end" not in at
            at.setdefault("end", None)
        if ended:
            at["end"] = counters()
        return times

    before, begin = counters(), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(crowd) as pool:
        runs = list(pool.map(one, range(crowd)))
    took = time.monotonic() - begin
    time.sleep(1.2)  # the last counters
    after = counters()

    def per_step(a, b):
        return f"{(b[1] - a[1]) / (b[0] - a[0]):.1f}" if a and b and b[0] > a[0] else "?"
    gaps = [b - a for times in runs for a, b in zip(times, times[1:])]
    begun = [times[0] for times in runs if times]
    print(f"      {name}: {crowd} streams of {words} words, {tokens} tokens: first {1e3 * statistics.median(begun):.1f} ms, between "
          f"{1e3 * statistics.median(gaps):.2f} ms (p99 {1e3 * sorted(gaps)[int(0.99 * len(gaps))]:.2f}), "
          f"{sum(map(len, runs)) / took:.0f} tokens/s, host {per_step(before, after)} us a step, {per_step(at.get('decode'), at.get('end'))} without prompts", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gpus", default="0", help="of the prefill and the decode replica, e.g. 0,1; one number: they share it")
    parser.add_argument("--quick", action="store_true")
    o = parser.parse_args()
    gpus = [int(g) for g in o.gpus.split(",")]
    prefill, decode = gpus[0], gpus[min(1, len(gpus) - 1)]
    asked = prompts(9 if o.quick else 27, 60 if o.quick else 600)
    before = gpu_memory()
    server = Server(o.binary)
    try:
        exact = {"deterministic": True, "max_model_len": 4096, "gpu_memory_utilization": 0.5}
        status, answer, took = server.launch(o.model, n_gpu=1, **exact)
        check(status == 200, f"hybrid, deterministic: launched in {took:.1f} s {'' if status == 200 else answer}")
        crowds = (16, 5, 8)
        if status != 200:  # the rest in the fast mode, where only equal batches must give equal texts
            exact.pop("deterministic")
            crowds = (1, 1, 1)
            status, answer, took = server.launch(o.model, n_gpu=1, **exact)
            check(status == 200, f"hybrid, fast: launched in {took:.1f} s {'' if status == 200 else answer}")
        alone = texts(server, asked, 1)
        same(f"{crowds[0]} at once", texts(server, asked, crowds[0]), alone)
        same(f"{crowds[1]} at once, from the prefix cache", texts(server, asked, crowds[1]), alone)
        check(server.settled(0, "baton_kv_blocks", state="used"), "no block is held afterwards")
        check(server.terminate() == 200, "terminated")
        for mover in ("",) if o.quick else ("", "tcp"):
            status, answer, took = server.launch(o.model, placements=[("prefill", prefill), ("decode", decode)], verify_handoff=True,
                                                 **exact, **({"mover": mover} if mover else {}))
            check(status == 200, f"prefill and decode: launched in {took:.1f} s {'' if status == 200 else answer}")
            if status != 200:
                continue
            pair = re.findall(r"xavier\.pair_up .*mover=(\S+)", server.log())[-1]
            same(f"prefill and decode over {pair}, {crowds[2]} at once", texts(server, asked, crowds[2]), alone)
            check(server.settled(0, "baton_fallbacks_total"), "no hand-off was replaced by computation")
            check(server.metric("baton_prefill_tokens_total", role="decode") == 0, "the decode replica computed no prompt")
            server.terminate()
        for name, keys in (("hybrid", {"n_gpu": 1}), ("prefill and decode", {"placements": [("prefill", prefill), ("decode", decode)]})):
            status, answer, took = server.launch(o.model, max_model_len=8192, gpu_memory_utilization=0.8, **keys)
            check(status == 200, f"{name}, fast: launched in {took:.1f} s {'' if status == 200 else answer}")
            if status != 200:
                continue
            for crowd in (1, 8) if o.quick else (1, 8, 64):
                measure(server, name, crowd, 64 if o.quick else 768 // (2 if crowd > 1 else 1), 40 if o.quick else 180)
            for _ in range(5):
                server.stream("the sun", stop_after=3, max_tokens=1000, ignore_eos=True)
            begin = time.monotonic()
            free = server.settled(0, "baton_replica_running") and server.settled(0, "baton_kv_blocks", state="used")
            check(free, f"aborted streams free their blocks within {time.monotonic() - begin:.1f} s: {server.metric('baton_replica_running'):.0f} run, "
                        f"{server.metric('baton_kv_blocks', state='used'):.0f} blocks used, {server.metric('baton_kv_blocks', state='offered'):.0f} offered, "
                        f"{server.metric('baton_kv_leases'):.0f} leases, {server.metric('baton_snapshots', state='filling'):.0f} snapshots being filled")
            server.terminate()
        status, answer, _ = server.launch(o.model, n_gpu=1, gpu_memory_utilization=0.0001)
        check(status == 400 and "bytes" in answer, f"too little memory is an error with bytes: {answer[:160]}")
        status, answer, _ = server.launch(o.model, gpu_idx=[97])
        check(status == 400 and "visible GPU indexes" in answer, "a GPU that is not there is named")
        if before:
            after = gpu_memory()
            check(all(b - a < 64 for a, b in zip(before, after)), f"GPU memory is back: {before} MiB before, {after} after")
    finally:
        code = server.stop()
        check(code == 0, f"the server ends with {code}")
        if failures:
            lines = [line for line in server.log().splitlines() if " error " in line or " warn " in line]
            print("\n".join(line[:300] for line in lines[-12:]))
    print(f"{len(failures)} checks failed")


if __name__ == "__main__":
    main()
    sys.exit(1 if failures else 0)
