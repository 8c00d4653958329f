#!/usr/bin/env python3
"""Holds what `baton doctor split` predicts for 1P1D and one hybrid replica on this machine's CPU against what `baton bench serve` measures.

    scripts/check_split.py --baton build/release/baton --model M.gguf [--under CMD] [--only NAME] [--save FILE]

For each of three workloads: measure the engine and predict; launch one hybrid replica, load it, then 1P1D; print both beside each other
and their ratio. Prediction and load have the same lengths, seed and arrivals. `--under` is put in front of every command that measures,
e.g. one that stops other programs meanwhile. Exit code 1 where a median of TTFT or TPOT, or the throughput, is off by more than 25 %.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import serving  # noqa: E402

LIMIT = 0.25
# Arguments that prediction and load share.
WORKLOADS = {
    "long prompts, short answers": ["--input-tokens", "1024", "--output-tokens", "32", "--rate", "0.8", "--requests", "30", "--warmup", "2"],
    "short prompts, long answers": ["--input-tokens", "64", "--output-tokens", "256", "--concurrency", "4", "--requests", "44", "--warmup", "8"],
    "mixed": ["--mix", "512:32,64:128,256:64", "--rate", "1.5", "--requests", "45", "--warmup", "3"],
}
# As the advisor names them: what it is asked for, and what is launched.
TOPOLOGIES = {"1 hybrid": ("hybrid", None), "1P1D": ("1p1d", [("prefill", None), ("decode", None)])}
FIGURES = {"TTFT p50, ms": lambda row: row["ttft_ms"]["p50"], "TPOT p50, ms": lambda row: row["tpot_ms"]["p50"], "tokens/s": lambda row: row["output_tok_per_s"]}
ALSO = {"TTFT p99, ms": lambda row: row["ttft_ms"]["p99"], "TPOT p99, ms": lambda row: row["tpot_ms"]["p99"], "ITL p99, ms": lambda row: row["itl_ms"]["p99"]}


def run(o, *command, under=True):
    done = subprocess.run([*(o.under.split() if under else []), o.baton, *command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return json.loads(done.stdout)


def ticks_of(pids):
    """Processor time of processes, in clock ticks."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total


class Others:
    """How much of the processor programs that are not ours take meanwhile."""

    def __init__(self, ours=()):
        self.ours = [p for pid in ours for p in serving.descendants(pid)]
        self.begin = self.now()

    def now(self):
        with open("/proc/stat") as f:
            cpu = [int(v) for v in f.readline().split()[1:9]]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = ticks_of(self.ours) + (used.ru_utime + used.ru_stime) * os.sysconf("SC_CLK_TCK")
        return sum(cpu), sum(cpu) - cpu[3] - cpu[4], own

    def share(self):
        whole, busy, own = (after - before for before, after in zip(self.begin, self.now()))
        return max(0.0, (busy - own) / max(whole, 1))


def predict(o, workload):
    others = Others()
    topologies = ",".join(t[0] for t in TOPOLOGIES.values())
    out = run(o, "doctor", "split", "--model-path", o.model, "--topology", topologies, "--seed", str(o.seed), "--json", *workload)
    return out, {row["topology"]: row for row in out["topologies"]}, others.share()


def measure(o, name, workload):
    server = serving.Server(o.baton)
    try:
        placements = TOPOLOGIES[name][1]
        status, answer, _ = server.launch(o.model, placements=placements, **({} if placements else {"n_gpu": None}))
        if status != 200:
            raise SystemExit(answer)
        load = ["--url", f"http://127.0.0.1:{server.port}", "--model", serving.UID, "--token-ids", "40000", "--json"]
        run(o, "bench", "serve", *load, "--input-tokens", "300", "--output-tokens", "16", "--concurrency", "4", "--requests", "12", "--seed", "77", under=False)
        time.sleep(1)
        others = Others([server.process.pid])
        return run(o, "bench", "serve", *load, "--seed", str(o.seed), *workload), others.share()
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--baton", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--under", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--save", default="")
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    saved, worst, disturbed = {}, 0.0, []
    print("| workload | topology | figure | predicted | measured | ratio |\n| --- | --- | --- | --- | --- | --- |")
    for workload, arguments in WORKLOADS.items():
        if o.only not in workload:
            continue
        whole, before, meanwhile = predict(o, arguments)
        saved[workload] = {"predictions": [whole], "measured": {}}
        disturbed.append(meanwhile)
        for name in TOPOLOGIES:
            measured, meanwhile = measure(o, name, arguments)
            saved[workload]["measured"][name] = measured
            disturbed.append(meanwhile)
            whole, after, meanwhile = predict(o, arguments)
            saved[workload]["predictions"].append(whole)
            disturbed.append(meanwhile)
            pair, before = (before[name], after[name]), after
            for label, figure in {**FIGURES, **ALSO}.items():
                here, there = statistics.median(figure(row) for row in pair), figure(measured)
                ratio = here / there if there else float("nan")
                if label in FIGURES:
                    worst = max(worst, abs(ratio - 1))
                mark = "" if label in FIGURES else " (no bar)"
                print(f"| {workload} | {name} | {label}{mark} | {here:.4g} | {there:.4g} | {ratio:.2f} |", flush=True)
    print(f"\nfarthest from what was measured: {100 * worst:.0f} %; other programs took {', '.join(f'{100 * d:.0f}' for d in disturbed)} % of the processor")
    if o.save:
        pathlib.Path(o.save).write_text(json.dumps(saved, indent=1))
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
