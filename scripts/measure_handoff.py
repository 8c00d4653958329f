#!/usr/bin/env python3
"""Measures what a client sees of the hand-off, on this machine.

    scripts/measure_handoff.py --baton build/release/baton --model M.gguf

gap: on 1P1D, time between the first and the second token of a 1,000-token prompt, beside the median inter-token latency of the same
stream (the KV is there already, so the two should be alike).
interference: inter-token latency of a running stream while a 1,000-token prompt arrives every second, on 1P1D and on one hybrid replica.
Needs httpx.
"""

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import httpx


class Deployment:
    def __init__(self, args, topology):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.state = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen([args.baton, "serve", "--port", str(port), "--state-dir", self.state.name, "--model", args.model,
                                         "--model-uid", "m", *topology], stderr=subprocess.DEVNULL)
        with httpx.Client(base_url=self.url) as http:
            for _ in range(600):
                try:
                    if http.get("/ready").status_code == 200 and http.get("/v1/models").json()["data"]:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
        raise SystemExit("the server does not get ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def prompt(rng, n):
    return [rng.randrange(1000, 40000) for _ in range(n)]


def stream(url, ids, tokens, stop=None):
    """Arrival times of the tokens, in ms; the first element is when the request was sent."""
    times = [time.perf_counter() * 1e3]
    body = {"model": "m", "prompt": ids, "temperature": 0, "max_tokens": tokens, "ignore_eos": True, "stream": True, "logprobs": 0}
    with httpx.Client(timeout=120) as http, http.stream("POST", url + "/v1/completions", json=body) as r:
        for line in r.iter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line[6:])["choices"]
            count = len((choice[0].get("logprobs") or {}).get("tokens", [])) if choice else 0
            times += [time.perf_counter() * 1e3] * count
            if stop and stop.is_set():
                break
    return times


def gaps(args):
    rng = random.Random(1)
    with Deployment(args, ["--prefill", "1", "--decode", "1"]) as d:
        stream(d.url, prompt(rng, 1000), 8)
        rows = []
        for _ in range(args.repeat):
            t = stream(d.url, prompt(rng, 1000), 48)
            itl = [b - a for a, b in zip(t[2:], t[3:])]
            rows.append((t[1] - t[0], t[2] - t[1], statistics.median(itl)))
    print(f"gap, 1P1D, 1,000-token prompts, {args.repeat} streams: TTFT median {statistics.median(r[0] for r in rows):.0f} ms; "
          f"token 1 to 2 median {statistics.median(r[1] for r in rows):.2f} ms; ITL median {statistics.median(r[2] for r in rows):.2f} ms; "
          f"ratio median {statistics.median(r[1] / r[2] for r in rows):.2f} (max {max(r[1] / r[2] for r in rows):.2f})")


def interference(args, name, topology):
    rng = random.Random(2)
    with Deployment(args, topology) as d:
        quiet = stream(d.url, prompt(rng, 16), 200)
        stop = threading.Event()

        def arrivals():
            while not stop.is_set():
                threading.Thread(target=stream, args=(d.url, prompt(rng, 1000), 4)).start()
                stop.wait(1.0)

        sender = threading.Thread(target=arrivals)
        sender.start()
        time.sleep(0.5)
        busy = stream(d.url, prompt(rng, 16), args.tokens)
        stop.set()
        sender.join()
        time.sleep(1)
    for label, t in (("alone", quiet), ("with arrivals", busy)):
        itl = sorted(b - a for a, b in zip(t[1:], t[2:]))
        print(f"{name:7} {label:14} ITL p50 {statistics.median(itl):6.2f}  p99 {itl[int(len(itl) * 0.99)]:7.2f}  max {itl[-1]:7.2f} ms  ({len(itl)} tokens)")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--baton", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=600)
    args = parser.parse_args()
    gaps(args)
    interference(args, "1P1D", ["--prefill", "1", "--decode", "1"])
    interference(args, "hybrid", ["--replica", "1"])


if __name__ == "__main__":
    sys.exit(main())
