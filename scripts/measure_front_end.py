#!/usr/bin/env python3
"""Measures what the supervisor costs a request and a streamed token, with a replica that answers at once, beside nginx with a static body.

    scripts/measure_front_end.py [--baton build/release/tests/baton-fake-gpu] [--nginx nginx] [--seconds 5] [--clients 2] [--connections 8]

The replica is that of the tests' pretended GPU, whose steps compute nothing (BATON_FAKE_GPU_HOLLOW), in a process of its own; the model is the
tiny one of the unit tests. Processor time is the supervisor's own, all its threads, as the kernel counts it; nginx's is that of its workers. Both
serve the same client in the same run: processes with keep-alive connections, one request at a time each. A request is a chat of 1 KiB of text
with max_tokens 1; nginx answers a file of the size of that answer to the same POST. Without nginx (Debian's package) its part is left out.
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


def stream_cost(server, streams, tokens):
    """Processor microseconds of the supervisor for each token of `streams` streams at once."""
    payload = request_bytes("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": tokens, "ignore_eos": True})
    before = cpu_us(server.pids)
    sockets = []
    for _ in range(streams):
        s = socket.create_connection(("127.0.0.1", server.port))
        s.sendall(payload)
        sockets.append(s)
    frames, open_ = 0, {s.fileno(): (s, b"") for s in sockets}
    poll = select.epoll()
    for fd in open_:
        poll.register(fd, select.EPOLLIN)
    while open_:
        for fd, _ in poll.poll(1):
            s, tail = open_[fd]
            data = s.recv(1 << 20)
            frames += data.count(b"data: {")
            tail = (tail + data)[-64:]
            if not data or b"[DONE]" in tail:
                poll.unregister(fd)
                s.close()
                del open_[fd]
            else:
                open_[fd] = (s, tail)
    return (cpu_us(server.pids) - before) / (streams * tokens), frames / (streams * tokens)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--baton", default=str(ROOT / "build/release/tests/baton-fake-gpu"))
    p.add_argument("--nginx", default=shutil.which("nginx") or "/usr/sbin/nginx")
    p.add_argument("--seconds", type=float, default=5)
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
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        baton = Baton(args.baton, folder)
        try:
            load(baton, payloads, argparse.Namespace(**{**vars(args), "seconds": 1}))  # warm
            rate, us, errors, size = load(baton, payloads, args)
            print(f"chat of 1 KiB: {us:.0f} us of the supervisor a request, {rate:.0f} requests/s, {errors} errors", flush=True)
            if pathlib.Path(args.nginx).exists():
                nginx = Nginx(args.nginx, folder, max(1, size - 150))
                try:
                    static, nginx_us, bad, _ = load(nginx, payloads, args)
                finally:
                    nginx.stop()
                print(f"nginx, static: {nginx_us:.0f} us of its workers a request, {static:.0f} requests/s, {bad} errors; ratio {rate / static:.2f}", flush=True)
            for streams in (1, args.streams):
                us, frames = stream_cost(baton, streams, args.tokens)
                print(f"{streams} streams: {us:.2f} us of the supervisor a token, {frames:.2f} frames a token", flush=True)
        finally:
            baton.stop()


if __name__ == "__main__":
    sys.exit(main())
