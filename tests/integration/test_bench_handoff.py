"""`baton bench handoff` on host memory: two real processes, both movers, and through a running server."""

import json
import os
import subprocess

import harness

SMALL = ["--sizes", "2,7", "--prompts", "64", "--rounds", "3", "--concurrent", "5", "--concurrent-tokens", "32", "--layer-us", "100"]


def bench(*arguments, code=0):
    done = subprocess.run([harness.BINARY, "bench", "handoff", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done


def test_pulls_between_two_processes():
    out = json.loads(bench("--json", *SMALL).stdout)
    assert out["pools"] == "host memory"
    assert out["copy_gb_per_s"] > 0
    assert [(line["mover"], line["mib"]) for line in out["sizes"]] == [("shm", 1.75), ("shm", 7.0), ("tcp", 1.75), ("tcp", 7.0)]
    for line in out["sizes"]:
        assert 0 < line["floor_us"] and 0 < line["p50_us"] <= line["p99_us"]
        assert line["gb_per_s"] > 0
    assert [(line["mover"], line["tokens"], line["hand_offs"]) for line in out["exposed"]] == [("shm", 64, 1), ("tcp", 64, 1)]
    assert [(line["mover"], line["tokens"], line["hand_offs"]) for line in out["concurrent"]] == [("shm", 32, 5), ("tcp", 32, 5)]
    # The layers of five prompts take 14 ms: were it counted from the start of a pull, not from the last layer, it would show.
    assert out["exposed"][0]["p50_us"] < 1_000_000
    assert out["beside"] == []


def test_a_mover_can_be_named_and_a_wrong_one_says_why():
    table = bench(*SMALL, "--movers", "shm").stdout
    assert "shm" in table and "tcp" not in table and "FLOOR US" in table
    assert "needs both pools on GPUs" in bench(*SMALL, "--movers", "cuda_ipc", code=1).stderr
    assert "unknown" in bench(*SMALL, "--movers", "pigeon", code=1).stderr
    assert "two GPU numbers" in bench(*SMALL, "--devices", "one", code=2).stderr


def test_no_process_and_no_file_stays():
    before = set(os.listdir("/tmp"))
    bench("--json", *SMALL, "--movers", "tcp")
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith("baton-bench-")]
    assert subprocess.run(["pgrep", "-f", "bench handoff --peer-fd"], capture_output=True).returncode == 1


def test_the_gap_through_a_server(pd):
    out = json.loads(bench("--url", pd.url, "--requests", "3", "--input-tokens", "40", "--output-tokens", "6", "--streams", "1", "--json").stdout)
    assert out["failed"] == 0 and out["requests"] == 3
    for key in ("ttft_ms", "gap_1_2_ms", "itl_ms"):
        assert 0 < out[key]["p50"] <= out[key]["max"]
    assert out["excess_ms"]["p50"] <= out["gap_1_2_ms"]["max"]
