#!/usr/bin/env python3
"""Measures what the supervisor costs a request and a streamed token, with a replica that answers at once, beside nginx with a static body.

    scripts/measure_front_end.py [--baton build/release/tests/baton-fake-gpu] [--against OTHER] [--nginx nginx] [--floor build/release/tests/bench/relay_floor]
                                 [--rounds 3] [--seconds 3] [--clients 2] [--connections 8] [--streams 32] [--tokens 1000]

The replica is that of the tests' pretended GPU, whose steps compute nothing (BATON_FAKE_GPU_HOLLOW), in a process of its own; the model is the
tiny one of the unit tests. Processor time is the supervisor's own, all its threads, as the kernel counts it; nginx's is that of its workers. Both
serve the same client in the same run: processes with keep-alive connections, one request at a time each. A request is a chat of 1 KiB of text
with max_tokens 1; nginx answers a file of the size of that answer to the same POST. Without nginx (Debian's package) its part is left out.

What one stream costs a token is mostly the kernel's: a wake-up and a write. `relay_floor` (ninja relay_floor) does these alone, one message at a
time at the pace of the stream before it, and is measured the same way. --against measures another binary in turns with the first. Every figure is
the median of the rounds.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
WORDS = "the sun rises over a quiet village while children play near old stone bridge and river flows past green hills".split()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def cpu_us(pids):
    """Processor time of processes, in microseconds, from the scheduler's own nanoseconds."""
    total = 0
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except OSError:
                pass
    return total / 1000


def call(url, body=None):
    request = urllib.request.Request(url, json.dumps(body).encode() if body is not None else None, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as r:
        return json.loads(r.read() or b"{}")


class Baton:
    def __init__(self, binary, folder):
        folder.mkdir()
        self.name = binary
        self.port = free_port()
        env = {**os.environ, "BATON_FAKE_GPUS": "1", "BATON_FAKE_GPU_HOLLOW": "1"}
        self.process = subprocess.Popen([binary, "serve", "--port", str(self.port), "--state-dir", str(folder / "state"), "--log-level", "warn"], env=env, stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{self.port}"
        model = folder / "tiny"
        shutil.copytree(ROOT / "tests/data/model/qwen3", model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
        for _ in range(200):
            try:
                if call(url + "/v1/workers"):
                    break
            except OSError:
                time.sleep(0.05)
        call(url + "/v1/models", {"model_name": "tiny", "model_uid": "m", "model_engine": "baton", "model_path": str(model), "n_gpu": 1, "max_num_seqs": 64})
        self.pids = [self.process.pid]

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Nginx:
    def __init__(self, binary, folder, size):
        self.port = free_port()
        (folder / "answer.json").write_bytes(b"x" * size)
        (folder / "nginx.conf").write_text(f"""
{"user root; " if os.geteuid() == 0 else ""}worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/error.log; daemon off;
events {{ worker_connections 512; }}
http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 10000000; default_type application/json;
  server {{ listen 127.0.0.1:{self.port}; location / {{ root {folder}; error_page 405 =200 /answer.json; try_files /answer.json =404; }} }} }}
""")
        self.process = subprocess.Popen([binary, "-c", str(folder / "nginx.conf"), "-p", str(folder)], stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        self.pids = [int(p) for p in subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True).stdout.split()]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def request_bytes(route, body):
    data = json.dumps(body).encode()
    return f"POST {route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def client(port, payloads, connections, seconds, out):
    """Keeps one request open on each connection; counts complete answers."""
    poll, open_ = select.epoll(), {}
    for i in range(connections):
        s = socket.create_connection(("127.0.0.1", port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.sendall(payloads[i % len(payloads)])
        open_[s.fileno()] = [s, b"", -1, i]
        poll.register(s.fileno(), select.EPOLLIN)
    done, errors, size = 0, 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for fd, _ in poll.poll(0.1):
            entry = open_[fd]
            data = entry[0].recv(65536)
            entry[1] += data
            if entry[2] < 0:
                head = entry[1].find(b"\r\n\r\n")
                if head < 0:
                    continue
                lower = entry[1][:head].lower()
                at = lower.find(b"content-length:")
                errors += not entry[1].startswith(b"HTTP/1.1 200")
                entry[2] = head + 4 + int(lower[at + 15:].split(b"\r\n", 1)[0])
            if len(entry[1]) >= entry[2]:
                size = entry[2]
                entry[1], entry[2] = b"", -1
                done += 1
                entry[3] += 1
                entry[0].sendall(payloads[entry[3] % len(payloads)])
    out.put((done, errors, size))


def load(server, payloads, args):
    """Requests a second, processor microseconds of the server a request, errors, bytes of the last answer."""
    out = multiprocessing.Queue()
    workers = [multiprocessing.Process(target=client, args=(server.port, payloads, args.connections, args.seconds, out)) for _ in range(args.clients)]
    before, begun = cpu_us(server.pids), time.monotonic()
    for w in workers:
        w.start()
    results = [out.get() for _ in workers]
    spent, wall = cpu_us(server.pids) - before, time.monotonic() - begun
    for w in workers:
        w.join()
    count = sum(r[0] for r in results)
    return count / wall, spent / max(count, 1), sum(r[1] for r in results), results[0][2]


def read_streams(port, payload, streams):
    """Reads streams to their end; how many frames came, and seconds from the first one's first byte."""
    sockets = []
    for _ in range(streams):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(payload)
        sockets.append(s)
    frames, open_, begun = 0, {s.fileno(): (s, b"") for s in sockets}, None
    poll = select.epoll()
    for fd in open_:
        poll.register(fd, select.EPOLLIN)
    while open_:
        for fd, _ in poll.poll(1):
            s, tail = open_[fd]
            data = s.recv(1 << 20)
            begun = begun or time.monotonic()
            frames += data.count(b"data: {")
            tail = (tail + data)[-64:]
            if not data or b"[DONE]" in tail:
                poll.unregister(fd)
                del open_[fd]
            else:
                open_[fd] = (s, tail)
    return frames, time.monotonic() - begun, sockets


def stream_cost(server, streams, tokens):
    """Processor microseconds of the supervisor for each token of `streams` streams at once, frames a token, and seconds a token of one stream."""
    payload = request_bytes("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": tokens, "ignore_eos": True})
    before = cpu_us(server.pids)
    frames, seconds, sockets = read_streams(server.port, payload, streams)
    spent = cpu_us(server.pids) - before
    for s in sockets:
        s.close()
    return spent / (streams * tokens), frames / (streams * tokens), seconds / tokens


def floor_cost(binary, tokens, gap_s):
    """Processor microseconds that a wake-up and a write cost, a token, at that pace."""
    process = subprocess.Popen([binary, str(tokens), str(round(gap_s * 1e6))], stdout=subprocess.PIPE, text=True)
    port = int(process.stdout.readline())
    before = cpu_us([process.pid])
    _, _, sockets = read_streams(port, b"go", 1)
    spent = cpu_us([process.pid]) - before
    for s in sockets:
        s.close()
    process.wait()
    return spent / tokens


class Figures:
    """What was measured of one thing, a list of numbers for each round."""

    def __init__(self):
        self.rounds = {}

    def add(self, what, *numbers):
        self.rounds.setdefault(what, []).append(numbers)

    def median(self, what):
        return [statistics.median(column) for column in zip(*self.rounds[what])]


def measure(batons, nginx_binary, floor, payloads, folder, args):
    figures, static = {b: Figures() for b in batons}, Figures()
    nginx = None
    try:
        for b in batons:
            *_, size = load(b, payloads, argparse.Namespace(**{**vars(args), "seconds": 1}))  # warm
        if pathlib.Path(nginx_binary).exists():
            nginx = Nginx(nginx_binary, folder, max(1, size - 150))
        for turn in range(args.rounds):
            for b in batons if turn % 2 == 0 else reversed(batons):
                rate, us, errors, _ = load(b, payloads, args)
                figures[b].add("chat", us, rate, errors)
            if nginx:
                rate, us, errors, _ = load(nginx, payloads, args)
                static.add("chat", us, rate, errors)
            for b in batons if turn % 2 == 0 else reversed(batons):
                us, frames, pace = stream_cost(b, 1, args.tokens)
                figures[b].add("one", us, frames, pace * 1e6, floor_cost(floor, args.tokens, pace) if floor else 0)
                figures[b].add("many", *stream_cost(b, args.streams, args.tokens))
    finally:
        if nginx:
            nginx.stop()
    return figures, static if nginx else None


def report(name, figures, static, args):
    us, rate, errors = figures.median("chat")
    print(f"{name}\n  chat of 1 KiB: {us:.1f} us of the supervisor a request, {rate:.0f} requests/s, {errors:.0f} errors")
    if static:
        nginx_us, static_rate, bad = static.median("chat")
        print(f"  nginx, static: {nginx_us:.1f} us of its workers a request, {static_rate:.0f} requests/s, {bad:.0f} errors; ratio {rate / static_rate:.2f}")
    us, frames, pace, least = figures.median("one")
    print(f"  1 stream: {us:.2f} us of the supervisor a token, one each {pace:.1f} us, {frames:.2f} frames a token" + (f"; a wake-up and a write alone: {least:.2f} us" if least else ""))
    us, frames, _ = figures.median("many")
    print(f"  {args.streams} streams: {us:.2f} us of the supervisor a token, {frames:.2f} frames a token", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--baton", default=str(ROOT / "build/release/tests/baton-fake-gpu"))
    p.add_argument("--against", help="another binary, measured in turns with the first")
    p.add_argument("--nginx", default=shutil.which("nginx") or "/usr/sbin/nginx")
    p.add_argument("--floor", default=str(ROOT / "build/release/tests/bench/relay_floor"))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=3, help="of each load")
    p.add_argument("--clients", type=int, default=2)
    p.add_argument("--connections", type=int, default=8, help="of each client")
    p.add_argument("--streams", type=int, default=32)
    p.add_argument("--tokens", type=int, default=1000)
    args = p.parse_args()
    rng = random.Random(1)
    bodies = []
    for _ in range(64):
        text = ""
        while len(text) < 1024:
            text += rng.choice(WORDS) + " "
        bodies.append({"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text[:1024]}], "max_tokens": 1, "temperature": 0.7})
    payloads = [request_bytes("/v1/chat/completions", b) for b in bodies]
    batons = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try:
            for i, binary in enumerate(filter(None, [args.baton, args.against])):
                batons.append(Baton(binary, folder / str(i)))
            figures, static = measure(batons, args.nginx, args.floor if pathlib.Path(args.floor).exists() else None, payloads, folder, args)
            for b in batons:
                report(b.name, figures[b], static, args)
        finally:
            for b in batons:
                b.stop()


if __name__ == "__main__":
    sys.exit(main())
