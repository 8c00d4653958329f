"""Launches by name and by repository over a stand-in for a hub, their progress and cancel; registrations, engines, caches."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import harness
import pytest
from gguf_split import split_gguf, vocabulary
from hub_stand_in import Fault, StandIn, wait_until

GGUF_REPO = "bartowski/SmolLM2-135M-Instruct-GGUF"
SPLIT_REPO = "org/split-GGUF"
GGUF = "SmolLM2-135M-Instruct-Q4_K_M.gguf"  # what lies behind the name is the test model
CLEAN = {k: "" for k in os.environ if k.lower().endswith("_proxy")}
MINE = {"version": 1, "model_name": "my-llm", "model_lang": ["en"], "model_ability": ["chat"], "context_length": 2048,
        "model_specs": [{"model_format": "ggufv2", "model_size_in_billions": "0_135", "quantizations": ["q4_1"], "model_uri": "file://" + harness.MODEL}]}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    tiny = Path(__file__).resolve().parents[1] / "data/model/qwen3"
    parts = split_gguf(Path(harness.MODEL).read_bytes(), 3)
    repos = {SPLIT_REPO: {f"split-q4_1-{i + 1:05}-of-00003.gguf": part for i, part in enumerate(parts)}, GGUF_REPO: {GGUF: Path(harness.MODEL).read_bytes(), "README.md": b"x"}, "org/tiny": {f.name: f.read_bytes() for f in tiny.iterdir()},
             "org/recurrent": {"config.json": b'{"model_type":"qwen3_5","architectures":["Qwen3_5ForCausalLM"]}', "tokenizer.json": b"{}", "model.safetensors": bytes(5000)}}
    with StandIn(tmp_path_factory.mktemp("hub"), repos) as stand_in:
        yield stand_in


@pytest.fixture
def server(hub, tmp_path):
    hub.faults, hub.requests = [], []
    with harness.Server(env={**CLEAN, **hub.environment(tmp_path / "home")}) as s:
        yield s


def launch(server, expect=200, wait=True, **keys):
    body = {"model_name": "smollm2-instruct", "model_engine": "vLLM", "model_type": "LLM", "n_gpu": None, "max_model_len": 512, "kv_cache_bytes": 64 << 20, **keys}
    r = server.http.post("/v1/models" + ("" if wait else "?wait_ready=False"), json=body)
    assert r.status_code == expect, f"{r.status_code} {r.text}\n{server.log()[-3000:]}"
    return r.json()


BY_NAME = {"model_size_in_billions": "0.135", "model_format": "ggufv2", "quantization": "q4_k_m", "model_uid": "m"}


def test_a_launch_by_name_downloads_and_serves(server, hub, tmp_path):
    answers = []
    hub.faults = [Fault(".", times=-1, host="cdn", seconds_a_piece=0.0001)]
    done = threading.Event()

    def watch():
        while not done.is_set():
            answers.append(server.http.get("/v1/models/m/progress").json())
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert launch(server, **BY_NAME) == {"model_uid": "m"}
    finally:
        done.set()
        watcher.join()
    downloading = [a for a in answers if a["stage"] == "downloading"]
    assert downloading, answers[-3:]
    rows = [a["download_files"][0] for a in downloading if a["download_files"]]
    assert {r["name"] for r in rows} == {GGUF} and {r["status"] for r in rows} <= {"downloading", "completed"}
    assert all(r["total_bytes"] == os.path.getsize(harness.MODEL) and 0 <= r["downloaded_bytes"] <= r["total_bytes"] for r in rows)
    assert [r["downloaded_bytes"] for r in rows] == sorted(r["downloaded_bytes"] for r in rows)
    assert all(0 <= a["progress"] <= 1 for a in answers)
    description = server.http.get("/v1/models/m").json()
    assert description["model_size_in_billions"] == "0_135" and description["model_format"] == "ggufv2" and description["quantization"] == "Q4_K_M"
    assert server.complete("The capital of France is", max_tokens=4)["choices"][0]["text"]
    assert server.awaited("launch.resolved", repo=GGUF_REPO)
    cached = server.http.get("/v1/cache/models").json()["list"]
    assert [(c["model_name"], c["quantization"], c["model_size_in_billions"]) for c in cached] == [("smollm2-instruct", "Q4_K_M", "0_135")]
    assert os.path.samefile(cached[0]["real_path"], cached[0]["path"]) and cached[0]["actor_ip_address"] == server.http.get("/v1/workers").json()[0]["work-ip"]
    assert server.http.get("/v1/cache/models", params={"model_name": "qwen3"}).json() == {"list": []}
    family = server.http.get("/v1/model_registrations/LLM/smollm2-instruct").json()
    spec = next(s for s in family["model_specs"] if s["model_format"] == "ggufv2" and s["model_size_in_billions"] == "0_135")
    assert spec["cache_status"][spec["quantizations"].index("Q4_K_M")] is True and not all(spec["cache_status"])
    # Again: nothing is asked of the hub, also after a restart.
    server.terminate("m")
    hub.requests.clear()
    launch(server, **BY_NAME)
    assert not hub.requests


def test_a_restart_launches_by_name_again(hub, tmp_path):
    hub.faults = []
    env = {**CLEAN, **hub.environment(tmp_path / "home")}
    with harness.Server(state_dir=str(tmp_path / "state"), env=env) as s:
        launch(s, **BY_NAME)
    hub.requests.clear()
    with harness.Server(state_dir=str(tmp_path / "state"), env={**env, "HF_HUB_OFFLINE": "1"}) as s:
        s.wait_ready()
        assert s.complete("Hello", max_tokens=2)["choices"]
    assert not hub.requests


def test_pd_by_name(server):
    worker = server.http.get("/v1/workers").json()[0]["work-ip"]
    rows = [{"role": r, "devices": [{"worker_ip": worker, "n_gpu": 0}]} for r in ("prefill", "decode")]
    body = {"model_name": "smollm2-instruct", "model_engine": "vLLM", "max_model_len": 512, "kv_cache_bytes": 64 << 20, "replica": 2, "replica_config": rows, **BY_NAME}
    assert server.http.post("/v1/models", json=body).json() == {"model_uid": "m"}
    assert server.complete("Hello", max_tokens=2)["choices"]


def test_a_repository_by_its_id(server, hub):
    assert launch(server, model_name="org/tiny", model_uid="tiny", max_model_len=64)["model_uid"] == "tiny"
    assert server.http.get("/v1/models/tiny").json()["model_name"] == "org/tiny"
    refused = launch(server, 400, model_name="org/recurrent", model_uid="r")
    assert "is not supported by baton yet" in refused["detail"] and not hub.seen("cdn", hub.etag(hub.repos["org/recurrent"]["model.safetensors"]))
    worker = server.http.get("/v1/workers").json()[0]["work-ip"]
    rows = [{"role": r, "devices": [{"worker_ip": worker, "n_gpu": 0}]} for r in ("prefill", "decode")]
    r = server.http.post("/v1/models", json={"model_name": "org/recurrent", "model_engine": "vLLM", "replica": 2, "replica_config": rows})
    assert r.status_code == 400 and "Xavier PD does not yet support hybrid/recurrent attention caches" in r.json()["detail"]
    assert "does not exist" in launch(server, 400, model_name="org/none")["detail"]


def test_a_gguf_in_several_files(server, hub, tmp_path):
    launch(server, model_name=SPLIT_REPO, model_uid="parts", model_format="ggufv2", quantization="Q4_1")
    launch(server, model_name="x", model_uid="whole", model_path=harness.MODEL)
    text = lambda uid: server.complete("The capital of France is", model=uid, max_tokens=8)["choices"][0]["text"]  # noqa: E731
    assert text("parts") == text("whole")
    assert server.http.get("/v1/models/parts").json()["context_length"] == server.http.get("/v1/models/whole").json()["context_length"]
    (row,) = [c for c in server.http.get("/v1/cache/models").json()["list"] if c["model_name"] == SPLIT_REPO]
    assert row["path"].endswith("split-q4_1-00001-of-00003.gguf")
    server.terminate("parts")
    # By the path of any of its files: what lies there are links to files without names.
    second = row["path"].replace("-00001-", "-00002-")
    assert os.path.islink(second) and "of-00003" not in os.path.realpath(second)
    launch(server, model_name="x", model_uid="path", model_path=second)
    assert text("path") == text("whole")
    server.terminate("path")
    # Roles share it as they share one file.
    worker = server.http.get("/v1/workers").json()[0]["work-ip"]
    rows = [{"role": r, "devices": [{"worker_ip": worker, "n_gpu": 0}]} for r in ("prefill", "decode")]
    r = server.http.post("/v1/models", json={"model_name": "x", "model_uid": "pd", "model_engine": "vLLM", "model_path": row["path"], "max_model_len": 512,
                                             "kv_cache_bytes": 64 << 20, "replica": 2, "replica_config": rows})
    assert r.status_code == 200, r.text
    assert text("pd") == text("whole")
    os.unlink(second)
    assert "split-q4_1-00002-of-00003.gguf" in launch(server, 400, model_name="x", model_uid="none", model_path=row["path"])["detail"]


def test_cancel_during_the_download(server, hub, tmp_path):
    hub.faults = [Fault(".", times=-1, host="cdn", seconds_a_piece=0.05)]
    answer = {}

    def post():
        answer["r"] = server.http.post("/v1/models", json={"model_name": "smollm2-instruct", "model_engine": "vLLM", "n_gpu": None, **BY_NAME})

    poster = threading.Thread(target=post)
    poster.start()
    def came():
        p = server.http.get("/v1/models/m/progress").json()
        return p["stage"] == "downloading" and sum(f["downloaded_bytes"] for f in p["download_files"]) > 2_000_000

    wait_until(came)
    assert [i["status"] for i in server.http.get("/v1/models/instances").json()] == ["CREATING"]
    assert server.http.get("/v1/models/m").status_code == 503
    assert launch(server, 400, **BY_NAME)["detail"].startswith("Model is already in the model list")
    begin = time.monotonic()
    assert server.http.post("/v1/models/m/cancel").json() is None
    poster.join(10)
    assert answer["r"].status_code == 499 and answer["r"].json()["detail"] == "Launch cancelled" and time.monotonic() - begin < 5
    assert server.http.get("/v1/models/instances").json() == [] and server.http.get("/v1/models/m/progress").json()["stage"] == "pending"
    partial = tmp_path / "home/hub" / ("models--" + GGUF_REPO.replace("/", "--")) / "blobs" / (hub.etag(hub.repos[GGUF_REPO][GGUF]) + ".incomplete")
    wait_until(lambda: partial.exists() and partial.stat().st_size > 0)
    wait_until(lambda: server.lines("download.end"))
    size = partial.stat().st_size
    assert 0 < size < os.path.getsize(harness.MODEL)
    hub.faults, hub.requests = [], []
    launch(server, **BY_NAME)
    assert min(int(r[3]["range"].split("=")[1].split("-")[0]) for r in hub.seen("cdn")) == size


def test_the_worker_keeps_answering_while_it_downloads(server, hub):
    hub.faults = [Fault(".", times=-1, host="cdn", seconds_a_piece=0.02)]
    launch(server, wait=False, **BY_NAME)
    wait_until(lambda: server.http.get("/v1/models/m/progress").json()["stage"] == "downloading")
    launch(server, model_name="x", model_uid="other", model_path=harness.MODEL)
    server.http.post("/v1/completions", json={"model": "other", "prompt": "a", "max_tokens": 2}).raise_for_status()
    assert server.http.get("/v1/models/m/progress").json()["stage"] == "downloading"
    assert server.http.delete("/v1/models/m").json() is None
    assert server.stop() == 0


def test_failed_downloads_say_why_and_leave_the_uid_free(server, hub):
    hub.faults = [Fault("/api/models", times=-1, status=404, headers={"X-Error-Code": "RepoNotFound"})]
    assert GGUF_REPO in launch(server, 400, **BY_NAME)["detail"]
    hub.faults = [Fault("/api/models", times=-1, status=403, headers={"X-Error-Code": "GatedRepo"})]
    assert "is gated" in launch(server, 400, **BY_NAME)["detail"]
    assert launch(server, 200, wait=False, **BY_NAME) == {"model_uid": "m"}
    harness.wait_for(lambda: [i["status"] for i in server.http.get("/v1/models/instances").json()] == ["ERROR"], 10, "the row of a failed launch")
    assert any("is gated" in e["event_content"] for e in server.http.get("/v1/models/m/events").json())
    assert all(r["status"] == "ERROR" and "is gated" in r["error_message"] for r in server.http.get("/v1/models/m/replicas").json())
    hub.faults = []
    launch(server, **BY_NAME)


def test_names_that_do_not_resolve(server):
    assert "qwen2.5-instruct" in launch(server, 400, model_name="gpt-5")["detail"]
    r = launch(server, 400, model_name="qwen2.5-instruct")
    assert r["detail"] == "model 'qwen2.5-instruct' has several sizes; choose model_size_in_billions 0_5, 1_5, 3, 7, 14, 32 or 72"
    assert r["error"]["param"] == "model_size_in_billions"
    assert "it has pytorch" in launch(server, 400, model_name="qwen2.5-instruct", model_size_in_billions=7, model_format="gptq")["detail"]
    assert "download_hub" in launch(server, 400, model_name="qwen3", model_size_in_billions=8, download_hub="openmind_hub")["detail"]
    assert server.http.get("/v1/models/instances").json() == []


# ---- registrations, engines ---------------------------------------------------------------------------------------------


def test_registrations(hub, tmp_path):
    env = {**CLEAN, **hub.environment(tmp_path / "home")}
    with harness.Server(state_dir=str(tmp_path / "state"), env=env) as server:
        get = lambda path, status=200, **params: (lambda r: (r.json(), r.status_code == status or pytest.fail(r.text))[0])(server.http.get(path, params=params))
        brief = get("/v1/model_registrations/LLM", detailed="false")
        assert [b["model_name"] for b in brief] == ["llama-3.1-instruct", "llama-3.2-instruct", "mistral-instruct", "qwen2.5-instruct", "qwen3", "smollm2-instruct"]
        assert all(b["is_builtin"] is True and len(b) == 2 for b in brief)
        assert get("/v1/model_registrations/LLM") == brief
        detailed = get("/v1/model_registrations/LLM", detailed="True")
        assert {"model_name", "model_lang", "model_ability", "model_specs", "download_hubs", "context_length", "version", "model_family", "model_description"} <= set(detailed[0])
        assert get("/v1/model_registrations/embedding") == []
        assert get("/v1/model_registrations/nonsense", 400)["detail"] == "Unsupported model type: nonsense"
        assert get("/v1/model_registrations/LLM/none", 400)["detail"] == "Model none not found"

        def post(body, status=200):
            r = server.http.post("/v1/model_registrations/LLM", json=body)
            assert r.status_code == status, r.text
            return r.json()

        assert post({"model": json.dumps(MINE), "worker_ip": None, "persist": True}) is None
        assert post({"model": json.dumps(MINE), "persist": True}, 400)["detail"] == "Model my-llm already registered"
        assert post({"persist": True}, 400)["error"]["param"] == "model"
        assert "model_specs" in post({"model": json.dumps({**MINE, "model_name": "b", "model_specs": []}), "persist": False}, 400)["detail"]
        assert post({"model": "{", "persist": False}, 400)["detail"]
        assert post({"model": json.dumps({**MINE, "model_name": "passing"}), "persist": False}) is None
        assert get("/v1/model_registrations/LLM/my-llm")["is_builtin"] is False
        launch(server, model_name="my-llm", model_uid="mine")
        assert server.http.get("/v1/models/mine").json()["quantization"] == "q4_1"
    with harness.Server(state_dir=str(tmp_path / "state"), env=env) as server:
        server.wait_ready()
        assert server.http.get("/v1/models/mine").status_code == 200  # the launch by a registered name came back too
        names = [b["model_name"] for b in server.http.get("/v1/model_registrations/LLM").json()]
        assert "my-llm" in names and "passing" not in names
        assert server.http.delete("/v1/model_registrations/LLM/my-llm").json() is None
        assert server.http.delete("/v1/model_registrations/LLM/my-llm").status_code == 400
        assert server.http.delete("/v1/model_registrations/LLM/qwen3").status_code == 400
        assert "my-llm" not in json.dumps(server.http.get("/v1/model_registrations/LLM").json())


def test_a_registrations_template_and_stop_tokens_are_used(server):
    template = "The capital of France is{% if messages | length > 1 %} not{% endif %}"
    register = lambda **keys: server.http.post("/v1/model_registrations/LLM", json={"model": json.dumps({**MINE, **keys}), "persist": False})  # noqa: E731
    assert register(model_name="odd", model_ability=["chat", "tools"], model_lang=["en", "fr"], model_description="an odd one", chat_template=template).status_code == 200
    launch(server, model_name="odd", model_uid="odd")
    launch(server, model_name="x", model_uid="plain", model_path=harness.MODEL)
    described = server.http.get("/v1/models/odd").json()
    assert described["model_ability"] == ["generate", "chat", "tools"] and described["model_lang"] == ["en", "fr"] and described["model_description"] == "an odd one"
    said = server.chat("Hello?", model="odd", max_tokens=6)
    want = server.complete("The capital of France is", model="plain", max_tokens=6)
    assert said["choices"][0]["message"]["content"] == want["choices"][0]["text"] and said["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"]
    assert server.chat("Hello?", model="plain", max_tokens=6)["usage"]["prompt_tokens"] != said["usage"]["prompt_tokens"]
    # A token that its registration names ends an answer: here one that the answer has.
    assert " Paris" in want["choices"][0]["text"]
    paris = vocabulary(Path(harness.MODEL).read_bytes()).index("\u0120Paris")
    assert register(model_name="short", chat_template=template, stop_token_ids=[paris]).status_code == 200
    launch(server, model_name="short", model_uid="short")
    ended = server.chat("Hello?", model="short", max_tokens=6)["choices"][0]
    assert ended["finish_reason"] == "stop" and ended["message"]["content"] == want["choices"][0]["text"].split(" Paris")[0]
    # A family that is talked to as this one.
    assert register(model_name="cousin", chat_template="odd").status_code == 200
    launch(server, model_name="cousin", model_uid="cousin")
    assert server.chat("Hello?", model="cousin", max_tokens=6)["choices"][0]["message"]["content"] == want["choices"][0]["text"]
    for keys, field in (({"chat_template": "{% if"}, "chat_template"), ({"chat_template": "nobody"}, "chat_template"), ({"stop_token_ids": [-1]}, "stop_token_ids")):
        r = register(model_name="wrong", **keys)
        assert r.status_code == 400 and r.json()["error"]["param"] == field, r.text
    assert register(model_name="beyond", stop_token_ids=[10**6]).status_code == 200
    assert "stop_token_ids" in launch(server, 400, model_name="beyond", model_uid="beyond")["detail"]


def test_engines_and_families(server):
    for path in ("/v1/engines/LLM/qwen2.5-instruct", "/v1/engines/qwen2.5-instruct"):
        engines = server.http.get(path, params={"enable_virtual_env": "false"}).json()
        assert {"vLLM", "baton", "Transformers"} <= set(engines)
        for rows in engines.values():
            assert all(set(r) == {"model_name", "model_format", "model_size_in_billions", "quantizations"} for r in rows)
    assert server.http.get("/v1/engines/LLM/none").status_code == 400
    families = server.http.get("/v1/models/families").json()
    assert set(families) == {"chat", "generate", "tools", "vision", "reasoning", "audio", "omni", "hybrid"} and "qwen3" in families["reasoning"]
    assert server.http.get("/v1/models/prompts").json() == {}
    assert "qwen3" in server.http.get("/v1/models/vllm-supported").json()["chat"]


def test_the_xinference_client_launches_and_registers_by_name(server):
    client = pytest.importorskip("xinference_client").RESTfulClient(server.url)
    uid = client.launch_model(model_name="smollm2-instruct", model_engine="vLLM", model_uid="m", model_size_in_billions=0.135, model_format="ggufv2",
                              quantization="Q4_K_M", n_gpu=None, max_model_len=512, kv_cache_bytes=64 << 20)
    assert uid == "m" and client.get_model("m").chat(messages=[{"role": "user", "content": "Hi"}], generate_config={"max_tokens": 2})["choices"]
    client.register_model("LLM", json.dumps(MINE), persist=False)
    assert "my-llm" in [m["model_name"] for m in client.list_model_registrations("LLM")]
    assert client.get_model_registration("LLM", "my-llm")["model_ability"] == ["chat"]
    client.unregister_model("LLM", "my-llm")
    assert "vLLM" in client.query_engine_by_model_name("smollm2-instruct")
    assert [c["model_name"] for c in client.list_cached_models()] == ["smollm2-instruct"]


def test_baton_pull(hub, tmp_path):
    hub.faults, hub.requests = [], []
    env = {**os.environ, **CLEAN, **hub.environment(tmp_path / "home")}
    pull = lambda *args, **more: subprocess.run([harness.BINARY, "pull", *args], capture_output=True, text=True, timeout=60, env={**env, **more})
    done = pull("smollm2-instruct", "-s", "0.135", "-f", "ggufv2", "-q", "q4_k_m")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.name == GGUF and path.read_bytes() == hub.repos[GGUF_REPO][GGUF]
    got = json.loads(pull("org/tiny", "--json").stdout)
    assert "model.safetensors" in got["files"] and Path(got["path"], "config.json").exists()
    refused = pull("org/none")
    assert refused.returncode == 1 and "org/none" in refused.stderr
    assert pull("qwen2.5-instruct").returncode == 2
    offline = pull("qwen3", "-s", "8", HF_HUB_OFFLINE="1")
    assert offline.returncode == 1 and "Qwen/Qwen3-8B (revision main) is not in the cache" in offline.stderr
