#!/usr/bin/env python3
"""Holds what `baton doctor split` predicts for 1P1D and one hybrid replica on this machine's CPU against what `baton bench serve` measures.

    scripts/check_split.py --baton build/release/baton --model M.gguf [--under CMD] [--only NAME] [--save FILE]

Both topologies are launched, and their KV pools filled once. For each of three workloads the engine is measured, the load chosen (a rate
that keeps the busiest role BUSY of the time, by the advisor's own reckoning, so it means the same on a slow machine and a fast one), and
in each round both topologies are loaded and the engine measured again. A round's prediction is the mean of those before and after it, for
the same lengths, seed and arrivals; what is judged is the median of the rounds' ratios. `--under` is put in front of every command that
measures, e.g. one that stops other programs meanwhile. Exit code 1 where the median of TTFT or TPOT, or the throughput, is off by more
than 25 %.
"""

import argparse
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import serving  # noqa: E402

LIMIT = 0.25
ROUNDS = 3
BUSY = 0.4
# Arguments that prediction and load share; open loops get their rate from the machine.
WORKLOADS = {
    "long prompts, short answers": ["--input-tokens", "1024", "--output-tokens", "32", "--requests", "12", "--warmup", "2"],
    "short prompts, long answers": ["--input-tokens", "64", "--output-tokens", "256", "--concurrency", "4", "--requests", "24", "--warmup", "8"],
    "mixed": ["--mix", "512:32,64:128,256:64", "--requests", "24", "--warmup", "3"],
}
# As the advisor names them: what it is asked for, as what it is launched, and how.
TOPOLOGIES = {"1 hybrid": ("hybrid", "one", None), "1P1D": ("1p1d", "pair", [("prefill", None), ("decode", None)])}
FIGURES = {"TTFT p50, ms": lambda row: row["ttft_ms"]["p50"], "TPOT p50, ms": lambda row: row["tpot_ms"]["p50"], "tokens/s": lambda row: row["output_tok_per_s"]}
ALSO = {"TTFT p99, ms": lambda row: row["ttft_ms"]["p99"], "TPOT p99, ms": lambda row: row["tpot_ms"]["p99"], "ITL p99, ms": lambda row: row["itl_ms"]["p99"]}
# A pool that is soon filled: memory that is used for the first time costs a replica more than the advisor speaks of.
POOL_BYTES = 256 << 20
FILL_TOKENS = 1000
BLOCK_TOKENS = 16


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


class Advisor:
    """What the advisor says about one workload, from measurements that are taken again and again."""

    def __init__(self, o, folder, pool_tokens, workload):
        self.o, self.workload, self.load = o, workload, workload
        self.file = pathlib.Path(folder) / "rates.json"
        self.always = ["--topology", ",".join(t[0] for t in TOPOLOGIES.values()), "--kv-tokens", str(pool_tokens), "--no-search", "--json"]
        self.disturbed = []

    def measured(self):
        others = Others()
        load = self.load if "--concurrency" in self.load or "--rate" in self.load else [*self.load, "--rate", "1"]
        rates = run(self.o, "doctor", "split", "--model-path", self.o.model, *self.always, *load)["rates"]
        self.disturbed.append(others.share())
        return rates

    def predicted(self, rates, load, seed):
        self.file.write_text(json.dumps(rates))
        out = run(self.o, "doctor", "split", "--rates", str(self.file), *self.always, "--seed", str(seed), *load, under=False)
        return {row["topology"]: row for row in out["topologies"]}

    def choose_load(self, rates):
        """An open loop's rate: the highest at which no role of either topology is busy for more than BUSY of a long time."""
        if "--concurrency" in self.workload:
            return
        lengths, low, high = self.workload[:self.workload.index("--requests")], 0.01, 100.0
        while high > 1.02 * low:
            rate = math.sqrt(low * high)
            rows = self.predicted(rates, [*lengths, "--requests", "400", "--rate", f"{rate:.4f}"], 1)
            busiest = max(share for row in rows.values() for share in row["busy"].values())
            low, high = (rate, high) if busiest <= BUSY else (low, rate)
        self.load = [*self.workload, "--rate", f"{low:.3f}"]


def load_server(o, server, uid, *arguments, under=True):
    return run(o, "bench", "serve", "--url", f"http://127.0.0.1:{server.port}", "--model", uid, "--token-ids", "40000", "--json", *arguments, under=under)


def launch_all(o, server):
    """Launches both topologies, and lets every block of their pools be used once; the positions of a pool."""
    for _, uid, placements in TOPOLOGIES.values():
        status, answer, _ = server.launch(o.model, uid, placements, kv_cache_bytes=POOL_BYTES, **({} if placements else {"n_gpu": None}))
        if status != 200:
            raise SystemExit(answer)
    blocks = serving.wait_for(lambda: min(replica["kv_blocks"] for _, uid, _ in TOPOLOGIES.values() for replica in server.replicas(uid)), 10)
    tokens = blocks * BLOCK_TOKENS
    for _, uid, _ in TOPOLOGIES.values():
        load_server(o, server, uid, "--input-tokens", str(FILL_TOKENS), "--output-tokens", "8", "--concurrency", "2", "--warmup", "0",
                    "--requests", str(math.ceil(1.2 * tokens / FILL_TOKENS)), "--seed", "77", under=False)
    return tokens


class Row:
    """One figure of one topology: round by round."""

    def __init__(self):
        self.predicted, self.measured = [], []

    def add(self, pair, measured):
        self.predicted.append(statistics.mean(pair))
        self.measured.append(measured)

    def ratios(self):
        return [p / m if m else float("nan") for p, m in zip(self.predicted, self.measured)]

    def ratio(self):
        return statistics.median(self.ratios())


def check(o, server, advisor):
    """All rounds of a workload; the rows by topology and figure, and everything for --save."""
    rows = {(name, label): Row() for name in TOPOLOGIES for label in {**FIGURES, **ALSO}}
    before = advisor.measured()
    advisor.choose_load(before)
    kept = {"load": advisor.load, "rates": [before], "rounds": []}
    for number in range(ROUNDS):
        seed, measured = o.seed + number, {}
        for name in list(TOPOLOGIES)[::1 if number % 2 == 0 else -1]:
            others = Others([server.process.pid])
            measured[name] = load_server(o, server, TOPOLOGIES[name][1], *advisor.load, "--seed", str(seed))
            advisor.disturbed.append(others.share())
        after = advisor.measured()
        predictions = [advisor.predicted(rates, advisor.load, seed) for rates in (before, after)]
        for (name, label), row in rows.items():
            figure = {**FIGURES, **ALSO}[label]
            row.add([figure(p[name]) for p in predictions], figure(measured[name]))
        kept["rates"].append(after)
        kept["rounds"].append({"predicted": predictions, "measured": measured})
        before = after
    return rows, kept


def described(load):
    """The rate, or the number in flight."""
    return f"{load[load.index('--rate') + 1]}/s" if "--rate" in load else f"{load[load.index('--concurrency') + 1]} in flight"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--baton", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--under", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--save", default="")
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    saved, bad, worst, disturbed = {}, 0, 0.0, []
    server = serving.Server(o.baton)
    try:
        pool_tokens = launch_all(o, server)
        print("| workload | topology | figure | predicted | measured | ratio | of the rounds |\n| --- | --- | --- | --- | --- | --- | --- |")
        with tempfile.TemporaryDirectory(prefix="baton-check-split-") as folder:
            for workload, arguments in WORKLOADS.items():
                if o.only not in workload:
                    continue
                advisor = Advisor(o, folder, pool_tokens, arguments)
                rows, saved[workload] = check(o, server, advisor)
                disturbed += advisor.disturbed
                for (name, label), row in rows.items():
                    judged = label in FIGURES
                    if judged:
                        worst = max(worst, abs(row.ratio() - 1))
                        bad += abs(row.ratio() - 1) > LIMIT
                    print(f"| {workload}, {described(advisor.load)} | {name} | {label}{'' if judged else ' (no bar)'} | {statistics.median(row.predicted):.4g} | "
                          f"{statistics.median(row.measured):.4g} | {row.ratio():.2f} | {', '.join(f'{r:.2f}' for r in row.ratios())} |", flush=True)
    finally:
        server.stop()
        if o.save:
            pathlib.Path(o.save).write_text(json.dumps(saved, indent=1))
    print(f"\n{bad} figures are off by more than {100 * LIMIT:.0f} %, the farthest by {100 * worst:.0f} %; "
          f"other programs took {', '.join(f'{100 * d:.0f}' for d in disturbed)} % of the processor")
    return 0 if bad == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
