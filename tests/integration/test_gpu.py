"""Replicas on GPUs, through the whole program: `baton-fake-gpu` is baton over a GPU that is a thread with the CPU's numerics,
so that texts can be compared with those of CPU replicas. Launch, placement, sharing, loss of a device, what is missing."""

import concurrent.futures
import os
import time
from pathlib import Path

import pytest
from harness import BINARY, Server, alive, wait_for

FAKE = os.environ.get("BATON_FAKE_GPU_BINARY") or str(Path(BINARY).parent / "tests" / "baton-fake-gpu")
pytestmark = pytest.mark.skipif(not os.path.exists(FAKE), reason=f"{FAKE} is not there")
TEXTS = ["The sun", "Once upon a time there was a king who", "def main():", "One two three four five six seven " * 9,
         "The river flows past green hills and an old stone bridge where children play. " * 6, "x", "Paris is", "A list: 1, 2,"]
GPU = {"kv_cache_bytes": None, "max_num_seqs": 16, "max_num_batched_tokens": 512}


def server(gpus=1, binary=FAKE, **env):
    return Server(binary=binary, env={"BATON_FAKE_GPUS": str(gpus), **{f"BATON_FAKE_GPU_{k.upper()}": str(v) for k, v in env.items()}})


def sampled(i):
    """Greedy, seeded and penalised requests in turn."""
    return [{"temperature": 0}, {"temperature": 0.9, "seed": 100 + i}, {"temperature": 0.8, "seed": i, "top_k": 40, "top_p": 0.9},
            {"temperature": 0, "frequency_penalty": 0.7, "repetition_penalty": 1.1}][i % 4]


def texts(s):
    def one(i):
        r = s.complete(TEXTS[i % len(TEXTS)], max_tokens=24, ignore_eos=i % 3 == 0, logprobs=3 if i % 5 == 0 else None, **sampled(i))
        choice = r["choices"][0]
        return choice["text"], choice["finish_reason"], r["usage"], choice["logprobs"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(24)))


@pytest.fixture(scope="module")
def cpu_texts():
    with Server() as s:
        s.launch("hybrid", n_gpu=None)
        return texts(s)


def without_cached(rows):
    """What must be equal: whose prefix was found in a cache depends on who came first."""
    return [(text, finish, usage["prompt_tokens"], usage["completion_tokens"], logprobs) for text, finish, usage, logprobs in rows]


def test_a_gpu_replica_gives_the_texts_of_the_cpu(cpu_texts):
    with server() as s:
        s.launch("hybrid", n_gpu=1, **GPU)
        row = s.replicas()[0]
        assert row["gpu_idx"] == [0] and row["accelerators"] == ["0"] and row["status"] == "READY"
        assert s.awaited("replica.loaded", engine="fake cuda 0")
        status = next(iter(s.http.get("/status").json()["workers"].values()))["status"]
        assert status["gpu-0"]["name"] == "Fake GPU" and status["gpu-0"]["mem_total"] == 2 << 30
        assert without_cached(texts(s)) == without_cached(cpu_texts)
        answer = s.chat("Say hello.")
        assert answer["usage"]["completion_tokens"] > 0
        chunks = list(s.stream("The sun", max_tokens=12))
        assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == s.complete("The sun", max_tokens=12)["choices"][0]["text"]
        s.settled("baton_kv_blocks", 0, state="used")
        steps, host = s.metric("baton_engine_steps_total"), s.metric("baton_engine_host_seconds_total")
        assert steps > 50 and 0 < host < 0.005 * steps
        pid = s.pids()[0]
        s.terminate()
        assert not alive(pid), "TERMINATED means that the process, and what it held of the GPU, is gone"


@pytest.mark.parametrize("mover, keys", [("cuda_ipc", {"verify_handoff": True}), ("tcp", {"mover": "tcp"}),
                                         ("cuda_ipc", {"snapshot_read_always": True, "enable_prefix_caching": False, "kv_layout": "kv"})])
def test_prefill_and_decode_on_gpus_give_the_texts_of_the_cpu(cpu_texts, mover, keys):
    with server(gpus=2) as s:
        worker = s.http.get("/v1/workers").json()[0]["work-ip"]
        rows = [{"role": role, "devices": [{"worker_ip": worker, "gpu_idx": [i]}]} for i, role in enumerate(("prefill", "decode"))]
        s.launch("2h", replica=2, replica_config=rows, **keys, **GPU)
        assert [r["gpu_idx"] for r in s.replicas()] == [[0], [1]]
        assert s.awaited("xavier.pair_up", mover=mover)
        assert without_cached(texts(s)) == without_cached(cpu_texts)
        s.settled("baton_fallbacks_total", 0)
        assert s.metric("baton_handoffs_total", mover=mover) > 0
        assert s.metric("baton_prefill_tokens_total", role="decode") == 0


def test_auto_takes_a_gpu_where_there_is_one_and_the_cpu_where_there_is_none():
    with server(gpus=1) as s:
        s.launch("hybrid", n_gpu="auto", **GPU)
        assert s.replicas()[0]["gpu_idx"] == [0]
    with server(gpus=0) as s:
        s.launch("hybrid", n_gpu="auto", **GPU)
        assert s.replicas()[0]["gpu_idx"] is None
        assert s.complete("The sun")["usage"]["completion_tokens"] > 0


def test_what_is_missing_is_said():
    with server(gpus=0) as s:
        error = s.launch("hybrid", expect=400, n_gpu=1)
        assert "number of GPUs: 0 on the machine. (no fake GPU is set up)" in str(error)
    with server(gpus=2) as s:
        error = s.launch("hybrid", expect=400, gpu_idx=[5])
        assert "[5] is not visible" in str(error) and "visible GPU indexes: [0, 1]" in str(error)
        error = s.launch("hybrid", expect=400, n_gpu=1, dtype="float32")
        assert "dtype float32" in str(error)


def test_the_program_without_a_gpu_names_the_missing_part():
    with Server() as s:
        workers = s.http.get("/status").json()["workers"].values()
        if any(k.startswith("gpu-") for w in workers for k in w["status"]):
            pytest.skip("there is a GPU here")
        error = str(s.launch("hybrid", expect=400, n_gpu=1))
        assert "number of GPUs: 0 on the machine. (" in error
        assert any(part in error for part in ("no CUDA module", "driver", "no GPU", "cannot be loaded")), error


def test_replicas_share_a_gpu_and_two_models_take_two():
    with server(gpus=2, bytes=1 << 30) as s:
        s.launch("2h", gpu_idx=[1, 1], gpu_memory_utilization=0.8, **GPU)
        assert [r["gpu_idx"] for r in s.replicas()] == [[1], [1]]
        shares = [(int(a), int(b)) for a, b in
                  (line.split(" blocks=")[1].split(" weight_bytes")[0].split(" kv_bytes=") for line in s.lines("replica.loaded"))]
        assert len(shares) == 2 and shares[0] == shares[1]
        assert 0.3 * (1 << 30) < shares[0][1] < 0.4 * (1 << 30)
        s.launch("hybrid", uid="other", n_gpu=1, **GPU)
        assert s.replicas("other")[0]["gpu_idx"] == [0], "the least used one"


def test_too_little_memory_is_a_launch_error_with_bytes():
    with server(bytes=60 << 20) as s:
        error = str(s.launch("hybrid", expect=400, n_gpu=1, **{**GPU, "max_model_len": 2048}))
        assert "has not enough memory" in error and "bytes are needed" in error
        assert s.replicas() == [] or all(not r["pid"] for r in s.replicas())


def test_a_failed_device_is_replaced_and_streams_go_on(tmp_path):
    with server(gpus=2, step_us=2_000, fail_at=60, fail_mark=tmp_path / "failed") as s:
        s.launch("2h", n_gpu=1, **GPU)
        before = set(s.pids())
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            def one(_):
                return "".join(c["choices"][0]["text"] for c in s.stream("The sun", max_tokens=100, ignore_eos=True) if c["choices"])
            got = list(pool.map(one, range(8)))
        assert len(set(got)) == 1
        assert len(s.lines("replica.device_failed")) == 1
        assert s.metric("baton_failovers_total") > 0
        wait_for(lambda: set(s.pids()) != before and len(s.pids()) == 2, 20, "a new process took the GPU")


def test_aborts_free_what_the_device_still_writes():
    with server(step_us=3_000) as s:
        s.launch("hybrid", n_gpu=1, **GPU)
        for _ in range(5):
            stream = s.stream("The sun", max_tokens=400, ignore_eos=True)
            next(stream)
            stream.close()
        s.settled("baton_replica_running", 0)
        s.settled("baton_kv_blocks", 0, state="used")
        started = time.monotonic()
        s.terminate()
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("gpu", [True, False])
def test_more_sequences_than_tokens_in_a_step(gpu):
    with server(binary=FAKE if gpu else BINARY) as s:
        s.launch("hybrid", n_gpu=1 if gpu else None, max_num_seqs=16, max_num_batched_tokens=4)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            done = list(pool.map(lambda i: s.complete(TEXTS[i % 2], max_tokens=40, ignore_eos=True), range(16)))
        assert all(r["usage"]["completion_tokens"] == 40 for r in done)
        assert len({r["choices"][0]["text"] for r in done}) == 2
