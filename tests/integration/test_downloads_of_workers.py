"""Downloads where workers are of other hosts: each brings the model into its own cache, the supervisor what describes it."""

import contextlib
import json
import os
import subprocess
import threading
from pathlib import Path

import harness
import pytest
from gguf_split import split_gguf
from harness import BINARY, PATIENCE, Server, free_port, wait_for
from hub_stand_in import Fault, StandIn

CLEAN = {k: "" for k in os.environ if k.lower().endswith("_proxy")}
SECRET = {"BATON_LINK_SECRET": "a secret of sixteen or more"}
TINY, SPLIT = "org/tiny", "org/split-GGUF"
SMALL = {"max_model_len": 64, "kv_cache_bytes": 16 << 20}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    tiny = Path(__file__).resolve().parents[1] / "data/model/qwen3"
    parts = split_gguf(Path(harness.MODEL).read_bytes(), 3)
    repos = {TINY: {f.name: f.read_bytes() for f in tiny.iterdir()}, SPLIT: {f"s-q4_1-{i + 1:05}-of-00003.gguf": p for i, p in enumerate(parts)}}
    with StandIn(tmp_path_factory.mktemp("hub"), repos) as stand_in:
        yield stand_in


class Cluster:
    """A supervisor and workers, each with a host id and a cache of its own."""

    def __init__(self, hub, folder):
        self.hub, self.folder, self.stack = hub, folder, contextlib.ExitStack()
        hub.faults, hub.requests = [], []
        self.port = free_port()
        env = {**CLEAN, **SECRET, **hub.environment(folder / "supervisor")}
        self.server = self.stack.enter_context(Server(command="supervisor", extra=["--link-address", f"127.0.0.1:{self.port}"], env=env))
        self.workers = {}

    def add(self, name, *args):
        (self.folder / name).mkdir(exist_ok=True)
        env = {**os.environ, **CLEAN, **SECRET, **self.hub.environment(self.folder / name)}
        log = self.folder / name / "log"
        before = len(self.server.http.get("/v1/workers").json())
        process = subprocess.Popen([BINARY, "worker", "--supervisor", f"127.0.0.1:{self.port}", "--host-id", name, "--run-dir", str(self.folder / name / "run"),
                                    "--advertise-address", "127.0.0.1", *args], env=env, stdin=subprocess.DEVNULL, stderr=open(log, "ab"))
        self.stack.callback(process.wait, 20 * PATIENCE)
        self.stack.callback(process.terminate)
        rows = wait_for(lambda: (w := self.server.http.get("/v1/workers").json()) and len(w) == before + 1 and w, 15, f"worker {name}")
        address = next(r["work-ip"] for r in rows if r["work-ip"] not in [w[1] for w in self.workers.values()])
        self.workers[name] = (process, address)
        return address

    def launch(self, repo, *placements, uid="m", expect=200, wait=True, **keys):
        config = [{"role": role, "devices": [{"worker_ip": address, "n_gpu": 0}]} for role, address in placements]
        r = self.server.http.post("/v1/models" + ("" if wait else "?wait_ready=False"),
                                  json={"model_name": repo, "model_uid": uid, "model_engine": "vLLM", "replica": len(config), "replica_config": config, **SMALL, **keys})
        assert r.status_code == expect, f"{r.status_code} {r.text}\n{self.server.log()[-3000:]}"
        return r.json()

    def cached(self, name, repo):
        """Names of the files in somebody's cache, and the bytes behind them."""
        snapshots = self.folder / name / "hub" / ("models--" + repo.replace("/", "--")) / "snapshots"
        return {p.name: p.stat().st_size for p in snapshots.glob("*/*")} if snapshots.exists() else {}


@pytest.fixture
def cluster(hub, tmp_path):
    made = Cluster(hub, tmp_path)
    with made.stack:
        yield made


def test_every_worker_downloads_and_the_supervisor_only_what_describes(cluster, hub):
    a, b = cluster.add("a"), cluster.add("b")
    cluster.launch(TINY, ("prefill", a), ("decode", b))
    text = cluster.server.complete("Hello", max_tokens=4)["choices"][0]["text"]
    whole = {name: len(content) for name, content in hub.repos[TINY].items()}
    for name in ("a", "b"):
        got = cluster.cached(name, TINY)
        assert got["model.safetensors"] == whole["model.safetensors"] and "tokenizer.json" in got
    here = cluster.cached("supervisor", TINY)
    assert {"config.json", "tokenizer.json"} <= set(here) and not [f for f in here if "safetensors" in f], here
    blobs = cluster.folder / "supervisor/hub" / ("models--" + TINY.replace("/", "--")) / "blobs"
    assert sum(p.stat().st_size for p in blobs.iterdir()) < whole["model.safetensors"] + whole["tokenizer.json"]
    described = cluster.server.http.get("/v1/models/m").json()
    assert described["model_family"] == "qwen3" and described["context_length"] == 64
    # Again: everybody has what he needs, nobody asks.
    cluster.server.terminate()
    hub.requests.clear()
    cluster.launch(TINY, ("prefill", a), ("decode", b))
    assert not hub.requests and cluster.server.complete("Hello", max_tokens=4)["choices"][0]["text"] == text
    # Each worker's cache is listed as its own.
    rows = cluster.server.http.get("/v1/cache/models").json()["list"]
    assert sorted(r["actor_ip_address"] for r in rows) == sorted([a, b])
    # A third one, that has nothing yet.
    c = cluster.add("c")
    cluster.launch(TINY, ("hybrid", c), uid="other")
    assert cluster.server.complete("Hello", model="other", max_tokens=4)["choices"][0]["text"] == text


def test_of_a_gguf_in_several_files_the_first_describes(cluster, hub):
    a = cluster.add("a")
    cluster.launch(SPLIT, ("hybrid", a), model_format="ggufv2", quantization="Q4_1")
    assert "Paris" in cluster.server.complete("The capital of France is", max_tokens=6)["choices"][0]["text"]
    assert len(cluster.cached("a", SPLIT)) == 3
    assert list(cluster.cached("supervisor", SPLIT)) == ["s-q4_1-00001-of-00003.gguf"]


def test_progress_and_cancel_reach_every_worker(cluster, hub):
    hub.faults = [Fault(".", times=-1, host="cdn", seconds_a_piece=0.05)]
    a, b = cluster.add("a"), cluster.add("b")
    cluster.launch(SPLIT, ("prefill", a), ("decode", b), wait=False, model_format="ggufv2", quantization="Q4_1")

    def both():
        p = cluster.server.http.get("/v1/models/m/progress").json()
        return p["stage"] == "downloading" and all(r["download_files"] and sum(f["downloaded_bytes"] for f in r["download_files"]) > 100_000 for r in p["replicas"])

    wait_for(both, 30, "both download")
    assert cluster.server.http.post("/v1/models/m/cancel").json() is None
    assert cluster.server.http.get("/v1/models/instances").json() == []
    for name in ("a", "b"):
        wait_for(lambda name=name: "download.end" in (cluster.folder / name / "log").read_text(), 10, f"{name} stops")
    requests = len(hub.seen("cdn"))
    threading.Event().wait(0.5)
    assert len(hub.seen("cdn")) == requests, "nobody asks for more"


def test_one_that_fails_or_is_lost_ends_the_launch_and_says_so(cluster, hub):
    a, b = cluster.add("a"), cluster.add("b")
    # The second worker may not.
    process, _ = cluster.workers["b"]
    hub.faults = [Fault(".", times=-1, host="cdn", seconds_a_piece=0.05)]
    answers = []
    thread = threading.Thread(target=lambda: answers.append(cluster.server.http.post("/v1/models", json={
        "model_name": SPLIT, "model_uid": "m", "model_engine": "vLLM", "model_format": "ggufv2", "quantization": "Q4_1", "replica": 2,
        "replica_config": [{"role": r, "devices": [{"worker_ip": w, "n_gpu": 0}]} for r, w in (("prefill", a), ("decode", b))], **SMALL})))
    thread.start()
    wait_for(lambda: len(hub.seen("cdn")) >= 4, 20, "both have begun")
    process.kill()
    thread.join(20 * PATIENCE)
    assert answers and answers[0].status_code == 503 and f"worker {b} was lost during the download" in answers[0].json()["detail"]
    wait_for(lambda: "download.end" in (cluster.folder / "a/log").read_text(), 10, "the other one stops")
    hub.faults = [Fault("model.safetensors|" + hub.etag(hub.repos[TINY]["model.safetensors"]), times=-1, status=404)]
    refused = cluster.launch(TINY, ("hybrid", a), expect=400)
    assert "model.safetensors" in json.dumps(refused)
    hub.faults = []
    cluster.launch(TINY, ("hybrid", a))
