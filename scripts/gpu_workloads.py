#!/usr/bin/env python3
"""Loads a server on one or two GPUs with the workloads of docs/PERFORMANCE.md and prints one table. Needs numpy for the models.

    python3 scripts/gpu_workloads.py --binary PATH/baton [--client PATH/baton] [--out FOLDER] [part ...]

Parts (without any: all that the GPUs allow):
  one       one hybrid replica, 0.6B, 512 tokens in, 128 out: saturated with 256 and 512 requests in flight; 16 requests/s; 16 streams
            of 512/600
  pair      0.6B on 1P1D and on two hybrid replicas: 1k and 8k prompts alone; 16 streams (512/600) with an 8k prompt every 250 ms;
            512/128 at 32 and 64 requests/s
  sweep     0.6B, and `sweep8` for 8B: 1P1D against two hybrid replicas, open loop over several rates: 512/128, 4k/256, 8k prompts
            into 64 running streams; goodput under TTFT 50 ms and 4 ms a token (8B: 200 and 10 ms)
`pair:pd`, `pair:two`, `sweep:pd` and so on run one half. Raw results, a JSON object a line with the server's counters and each thread's use
of a core, go to FOLDER/workloads.json. --tiny tries all of it on the CPU with a small model. Models are written to --models once.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from serving import descendants

HERE = pathlib.Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")
COUNTERS = ("baton_engine_steps_total", "baton_engine_host_seconds_total", "baton_generated_tokens_total", "baton_prefill_tokens_total",
            "baton_handoffs_total", "baton_handoff_exposed_seconds_total", "baton_handoff_pull_seconds_total", "baton_fallbacks_total",
            "baton_failovers_total")


def thread_ticks(pids):
    """{(pid, thread): (name, ticks of processor time)}."""
    out = {}
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/stat") as f:
                    name, rest = f.read().rsplit(")", 1)
                fields = rest.split()
                out[pid, int(thread)] = (name.split("(", 1)[1], int(fields[11]) + int(fields[12]))
        except OSError:
            pass
    return out


class Server:
    def __init__(self, o):
        self.o = o
        self.folder = tempfile.TemporaryDirectory(prefix="baton-workloads-")
        self.log_path = self.folder.name + "/log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([o.binary, "serve", "--port", "0", "--state-dir", self.folder.name + "/state", *o.serve], stdout=log, stderr=log)
        end = time.monotonic() + 90
        while not (found := re.search(r" supervisor\.listening address=127\.0\.0\.1:(\d+) ", self.log())):
            if time.monotonic() > end or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit(f"baton did not start:\n{self.log()[-3000:]}")
            time.sleep(0.02)
        self.port = int(found[1])
        while not (workers := json.loads(self.call("GET", "/v1/workers")[1])):
            time.sleep(0.05)
        self.worker = workers[0]["work-ip"]
        self.roles = {}

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

    def launch(self, model, kind, keys):
        roles = {"hybrid": ["hybrid"], "two": ["hybrid", "hybrid"], "pd": ["prefill", "decode"]}[kind]
        devices = [{"worker_ip": self.worker, **({"n_gpu": 0} if self.o.tiny else {"gpu_idx": [i]})} for i in range(len(roles))]
        body = {"model_name": "m", "model_uid": "m", "model_engine": "baton", "model_type": "LLM", "model_path": str(model), "replica": len(roles),
                "replica_config": [{"role": r, "devices": [d]} for r, d in zip(roles, devices)], **keys}
        begin = time.monotonic()
        status, answer = self.call("POST", "/v1/models", body)
        if status != 200:
            raise SystemExit(f"the launch failed: {answer[:400]}")
        self.pids = descendants(self.process.pid)
        for replica, role, pid in re.findall(r" replica\.up .*?replica=(\d+) role=(\w+) .*?pid=(\d+)", self.log()):
            self.roles[int(pid)] = role + replica
        return time.monotonic() - begin

    def terminate(self):
        self.call("DELETE", "/v1/models/m")

    def counters(self):
        out = {}
        for line in self.call("GET", "/metrics")[1].splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if found and found[1] in COUNTERS:
                replica = re.search(r'replica="([^"]*)"', found[2] or "")
                key = (found[1], replica[1] if replica else "")
                out[key] = out.get(key, 0.0) + float(found[3])
        return out

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        lines = [line for line in self.log().splitlines() if " error " in line or " warn " in line]
        if lines:
            print("\n".join(line[:240] for line in lines[-12:]), file=sys.stderr)
        if self.o.out:
            with open(self.o.out / "workloads.log", "a") as f:
                f.write("\n".join(line for line in self.log().splitlines() if " request.done " not in line)[-200_000:] + "\n")


class Bench:
    """Runs points one after the other on what is launched, and keeps their results."""

    def __init__(self, o):
        self.o, self.rows, self.seed = o, [], 1

    def warm(self, server, most):
        """Not measured: batches of 1 to `most` sequences and long prompts, so that no point pays for what happens once."""
        for inputs, outputs, n in ((512, 32, most), (8192, 8, 3)):
            self.seed += 1
            subprocess.run([self.o.client, "bench", "serve", "--url", f"http://127.0.0.1:{server.port}", "--model", "m", "--json", "--seed", str(self.seed),
                            "--concurrency", str(n), "--requests", str(n), "--warmup", str(n), "--input-tokens", str(inputs), "--output-tokens", str(outputs)],
                           capture_output=True, timeout=60)

    def point(self, server, kind, model, name, args):
        """One run of the client. `args` are its options; the seed is another each time, so that no prompt is in a cache."""
        self.seed += 1
        before, counters, begin = thread_ticks(server.pids), server.counters(), time.monotonic()
        busiest = Busiest(server)
        done = subprocess.run([self.o.client, "bench", "serve", "--url", f"http://127.0.0.1:{server.port}", "--model", "m", "--json",
                               "--seed", str(self.seed), *map(str, args)], capture_output=True, text=True, timeout=120)
        seconds = time.monotonic() - begin
        threads = busiest.end()
        try:
            result = json.loads(done.stdout)
        except ValueError:
            result = {"failed": -1, "first_error": (done.stdout + done.stderr)[-300:]}
        if done.returncode != 0:
            print(f"{name} on {kind}: {result.get('first_error', done.stderr[-300:])}", file=sys.stderr)
        time.sleep(0.3)  # replicas report their counters now and then: ratios are right, sums are not quite
        after = server.counters()
        use = {k: (n, t - before.get(k, ("", 0))[1]) for k, (n, t) in thread_ticks(server.pids).items()}
        row = {"model": model, "kind": kind, "name": name, "args": list(map(str, args)), "wall_s": round(seconds, 2), "result": result,
               "engine": engine(counters, after), "threads": threads,
               "cpu_s": {f"{server.roles.get(p, 'server' if p == server.process.pid else p)}/{n}/{t}": round(v / TICKS, 2)
                         for (p, t), (n, v) in sorted(use.items(), key=lambda e: -e[1][1])[:12] if v > 0}}
        self.rows.append(row)
        if self.o.out:
            with open(self.o.out / "workloads.json", "a") as f:
                f.write(json.dumps(row) + "\n")
        print(line(row), flush=True)


class Busiest:
    """Samples the use of a core by each of the server's threads: the highest share within 0.5 s says what saturates."""

    def __init__(self, server):
        self.server, self.peak, self.last, self.at = server, {}, thread_ticks(server.pids), time.monotonic()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)  # whoever is interrupted does not end it
        self.thread.start()

    def sample(self):
        while not self.over.wait(0.5):
            now, ticks = time.monotonic(), thread_ticks(self.server.pids)
            for key, (name, value) in ticks.items():
                share = (value - self.last.get(key, (name, value))[1]) / TICKS / (now - self.at)
                if share > self.peak.get(key, (name, 0))[1]:
                    self.peak[key] = (name, share)
            self.last, self.at = ticks, now

    def end(self):
        self.over.set()
        self.thread.join()
        best = {}
        for (pid, thread), (name, share) in sorted(self.peak.items(), key=lambda e: e[1][1]):
            process = self.server.roles.get(pid, "server" if pid == self.server.process.pid else "worker")
            best.setdefault(process, []).insert(0, round(share, 2))
        return {process: shares[:3] for process, shares in sorted(best.items())}


def engine(before, after):
    """The replicas' own counters over a point."""
    diff = {}
    for (name, replica), value in after.items():
        diff.setdefault(replica, {})[name.removeprefix("baton_").removesuffix("_total")] = value - before.get((name, replica), 0.0)
    out = {}
    for replica, d in sorted(diff.items()):
        steps, handoffs = d.get("engine_steps", 0), d.get("handoffs", 0)
        if steps:
            out[replica] = {"steps": steps, "host_us_a_step": round(d["engine_host_seconds"] * 1e6 / steps, 1),
                            "generated_a_step": round(d.get("generated_tokens", 0) / steps, 1), "prefilled_a_step": round(d.get("prefill_tokens", 0) / steps, 1)}
        for key in ("handoffs", "fallbacks", "failovers"):
            if d.get(key):
                out.setdefault(replica, {})[key] = d[key]
        if handoffs:
            out[replica]["exposed_us"] = round(d.get("handoff_exposed_seconds", 0) * 1e6 / handoffs)
            out[replica]["pull_us"] = round(d.get("handoff_pull_seconds", 0) * 1e6 / handoffs)
    return out


HEAD = (f"{'model':5} {'on':6} {'load':26} {'req/s':>7} {'tok/s':>7} {'TTFT p50':>8} {'p99':>7} {'TPOT p50':>8} {'p99':>6} {'ITL p50':>7} {'p99':>7} "
        f"{'good/s':>7} {'share':>5}  host us a step / tokens a step; exposed us; busiest threads; client")


def line(row):
    r = row["result"]
    if "ttft_ms" not in r:
        return f"{row['model']:5} {row['kind']:6} {row['name']:26} failed: {r.get('first_error', '')[:150]}"
    itl = r["background"]["itl_ms"] if "background" in r else r["itl_ms"]
    good = r["goodput"][-1]
    parts = []
    for replica, e in row["engine"].items():
        if "steps" in e:
            parts.append(f"r{replica} {e['host_us_a_step']:.0f}/{e['generated_a_step']:.0f}+{e['prefilled_a_step']:.0f}")
        if e.get("handoffs"):
            parts.append(f"handoffs {e['handoffs']:.0f} exposed {e.get('exposed_us', 0)}")
        parts += [f"{k} {e[k]:.0f}" for k in ("fallbacks", "failovers") if e.get(k)]
    busy = " ".join(f"{p} {shares[0]:.2f}" for p, shares in row["threads"].items() if shares and shares[0] >= 0.05)
    lost = f" FAILED {r['failed']}" if r["failed"] else ""
    lost += f" unfinished {r['unfinished']}" if r.get("unfinished") else ""
    client = r.get("client", {})
    return (f"{row['model']:5} {row['kind']:6} {row['name']:26} {r['requests_per_s']:7.1f} {r['output_tok_per_s']:7.0f} {r['ttft_ms']['p50']:8.2f} "
            f"{r['ttft_ms']['p99']:7.1f} {r['tpot_ms']['p50']:8.3f} {r['tpot_ms']['p99']:6.2f} {itl['p50']:7.3f} {itl['p99']:7.2f} "
            f"{good['per_s']:7.1f} {good['share']:5.2f}  {', '.join(parts)}; {busy}; client {client.get('busiest_cpu', 0):.2f} "
            f"lag p99 {client.get('event_lag_ms', {}).get('p99', 0):.2f}{lost}")


def slo(model):
    return ["--slo", "200:10" if model == "8b" else "50:4"]


def load(inputs, outputs, *more):
    return ["--input-tokens", inputs, "--output-tokens", outputs, *more]


def streams(n, every_ms, seconds, *, tokens=16, drain=2):
    """8k prompts every so often into n running streams of 512/600."""
    return load(8192, tokens, "--background", n, "--background-input", 512, "--background-output", 600, "--interval-ms", every_ms,
                "--duration", seconds, "--settle", 0.5, "--drain", drain)


def points_one(t):
    yield "alone 512/128", load(512, 128, "--concurrency", 1, "--requests", 8, "--warmup", 2)
    for n in (256, 512):
        yield f"{n} in flight 512/128", load(512, 128, "--concurrency", n, "--warmup", 2 * n, "--duration", 4 * t, "--drain", 0)
    yield "16/s 512/128", load(512, 128, "--rate", 16, "--warmup", 8, "--duration", 6 * t)
    yield "16 streams", load(512, 600, "--concurrency", 16, "--warmup", 16, "--duration", 3 * t, "--drain", 0)


def points_pair(t):
    yield "alone 1k", load(1024, 8, "--concurrency", 1, "--requests", 30, "--warmup", 5)
    yield "alone 8k", load(8192, 8, "--concurrency", 1, "--requests", 16, "--warmup", 3)
    yield "16 streams, 8k per 250 ms", streams(16, 250, 5 * t)
    for rate in (32, 64):
        yield f"{rate}/s 512/128", load(512, 128, "--rate", rate, "--warmup", rate // 2, "--duration", 4 * t)


RATES = {"0.6b": ((64, 160, 256, 352), (8, 18, 28, 40), (4, 12, 20, 28)),
         "8b": ((40, 64, 88), (2, 5, 8, 11), (1.5, 2.5, 3.5))}


def points_sweep(t, model):
    short, middle, long = RATES[model]
    drain = 2 if model == "8b" else 1  # what one request takes

    def seconds(rate):  # of a slow rate longer, so that there are some requests
        return round(t * min(4, max(2.5, 16 / rate)), 2)

    for rate in short:
        yield f"{rate}/s 512/128", load(512, 128, "--rate", rate, "--warmup", max(2, rate // 4), "--duration", seconds(rate), "--drain", drain, *slo(model))
    for rate in middle:
        yield f"{rate}/s 4k/256", load(4096, 256, "--rate", rate, "--warmup", max(2, rate // 4), "--duration", seconds(rate), "--drain", drain, *slo(model))
    for rate in long:
        yield f"64 streams, 8k at {rate}/s", streams(64, round(1000 / rate, 3), seconds(rate), drain=drain) + slo(model)


# Parts of the same model, deployment and keys share a launch.
PARTS = {"one": ("0.6b", ("hybrid",), lambda t: points_one(t), {"max_num_seqs": 512}),
         "pair": ("0.6b", ("pd", "two"), lambda t: points_pair(t), {}),
         "sweep": ("0.6b", ("pd", "two"), lambda t: points_sweep(t, "0.6b"), {}),
         "sweep8": ("8b", ("pd", "two"), lambda t: points_sweep(t, "8b"), {})}
SHAPES = {"0.6b": "qwen3-0.6b", "8b": "llama-3.1-8b"}


def launches(parts):
    """{(model, kind, further keys): names of the parts}, in the order of the first of them."""
    out = {}
    for part in parts:
        name, _, half = part.partition(":")
        model, kinds, _, extra = PARTS[name]
        for kind in [half] if half else kinds:
            out.setdefault((model, kind, json.dumps(extra)), []).append(name)
    return out


def model_folder(o, model):
    shape = "tiny" if o.tiny else SHAPES[model]
    folder = o.models / shape
    subprocess.run([sys.executable, HERE / "make_random_model.py", shape, folder], check=True)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--client", help="the baton that makes the load; default: the same")
    parser.add_argument("--out", type=pathlib.Path, default=os.environ.get("OUT") and pathlib.Path(os.environ["OUT"]))
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "baton-models")
    parser.add_argument("--only", help="regular expression: which points of the parts")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no further point begins")
    parser.add_argument("--time", type=float, default=1.0, help="factor of the durations")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="a further key of the launch")
    parser.add_argument("--serve", action="append", default=[], metavar="OPTION", help="a further option of baton serve, e.g. --serve=--snapshot-bytes=1073741824")
    parser.add_argument("--cold", action="store_true", help="measure from the launch on, without a warm-up")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("parts", nargs="*", metavar="part")
    o = parser.parse_args()
    known = [*PARTS, *(f"{name}:{kind}" for name, (_, kinds, *_) in PARTS.items() for kind in kinds)]
    if unknown := [part for part in o.parts if part not in known]:
        parser.error(f"no part is called {unknown[0]}; there are: {' '.join(known)}")
    o.client = o.client or o.binary
    keys = {"max_model_len": 10240, "gpu_memory_utilization": 0.85} if not o.tiny else {"max_model_len": 10240}
    keys.update((k, json.loads(v)) for k, v in (s.split("=", 1) for s in o.set))
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the server is stopped
    bench = Bench(o)
    server = Server(o)
    begin = time.monotonic()
    try:
        for (model, kind, extra), names in launches(o.parts or list(PARTS)).items():
            if time.monotonic() - begin > o.limit:
                break
            seconds = server.launch(model_folder(o, model), kind, {**json.loads(extra), **keys})
            print(f"{model} on {kind}: launched in {seconds:.1f} s, {time.monotonic() - begin:.0f} s into the run", flush=True)
            if not o.cold:
                bench.warm(server, 32 if o.tiny else 64 if names == ["pair"] else 160)
            for label, args in (point for name in names for point in PARTS[name][2](o.time)):
                if (not o.only or re.search(o.only, label)) and time.monotonic() - begin < o.limit:
                    bench.point(server, kind, model, label, args)
            server.terminate()
    finally:
        server.stop()
    print(f"\n{HEAD}")
    for row in bench.rows:
        print(line(row))
    print(f"{time.monotonic() - begin:.0f} s in all")
    return 1 if any(row["result"].get("failed") for row in bench.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
