"""`baton top`: what it says agrees with what the server did."""

import concurrent.futures
import json
import os
import pty
import select
import signal
import subprocess
import time

import harness
from harness import UID, wait_for


def top(server, *args, **keys):
    return subprocess.run([harness.BINARY, "top", "--endpoint", server.url, *args], capture_output=True, text=True, timeout=60 * harness.PATIENCE, **keys)


def test_the_numbers_are_those_of_the_traffic(pd):
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        begin = time.monotonic()
        looking = pool.submit(top, pd, "--json", "--interval", "3000")
        answers = [a.result() for a in [pool.submit(pd.complete, f"{i} Once upon a time", max_tokens=24, ignore_eos=True) for i in range(4)]]
        worked = time.monotonic() - begin
        r = looking.result()
    assert r.returncode == 0, r.stderr
    model = json.loads(r.stdout)["models"][0]
    assert model["model_uid"] == UID and model["status"] == "READY"
    assert [x["role"] for x in model["replicas"]] == ["prefill", "decode"]
    tokens = sum(a["usage"]["completion_tokens"] for a in answers)
    assert 0 < model["output_tokens_per_second"] * 3 <= tokens * 1.35
    if worked < 2:  # it was all over before the second look, statistics of a second included
        assert model["output_tokens_per_second"] * 3 > tokens * 0.6
    decode = model["replicas"][1]
    assert decode["output_tokens_per_second"] > model["replicas"][0]["output_tokens_per_second"] >= 0
    assert decode["batch"] >= 1
    assert 0 <= model["queued"] <= 4
    times = [model[name] for name in ("queue_p50_s", "prefill_p50_s", "handoff_p50_s", "handoff_exposed_s", "handoff_added_s")]
    assert all(t is None or t >= 0 for t in times)
    if worked < 2:
        assert None not in times


def test_without_a_terminal_it_prints_one_table(pd):
    r = top(pd, "--interval", "200")
    assert r.returncode == 0 and "\x1b" not in r.stdout
    assert UID in r.stdout and "prefill" in r.stdout and "decode" in r.stdout


def test_on_a_terminal_it_stays_until_q_or_a_signal_and_leaves_it_as_it_was(pd):
    for ending in (lambda p, fd: os.write(fd, b"q"), lambda p, fd: p.send_signal(signal.SIGINT)):
        master, slave = pty.openpty()
        process = subprocess.Popen([harness.BINARY, "top", "--endpoint", pd.url, "--interval", "100"], stdin=slave, stdout=slave, stderr=slave,
                                   env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}, start_new_session=True)
        os.close(slave)
        shown = b""

        def read():
            nonlocal shown
            while select.select([master], [], [], 0)[0]:
                try:
                    shown += os.read(master, 65536)
                except OSError:
                    break
            return shown

        wait_for(lambda: read().count(b"EXPOSED") >= 2, 20, "two pictures")
        ending(process, master)
        wait_for(lambda: read() is None or process.poll() is not None, 10, "it ends")
        read()
        os.close(master)
        assert process.returncode == 0
        assert shown.startswith(b"\x1b[?1049h") and shown.rstrip().endswith(b"\x1b[?1049l")


def test_a_server_that_is_not_there_is_said():
    r = subprocess.run([harness.BINARY, "top", "--endpoint", f"http://127.0.0.1:{harness.free_port()}"], capture_output=True, text=True)
    assert r.returncode == 1 and "baton serve" in r.stderr
