"""The control API route by route: statuses, bodies, types, as Xinference's clients, command line and web page read them."""

import json
import re
import shutil

import pytest
from harness import UID, Server, wait_for


def test_every_error_has_both_shapes(pd):
    for method, path, status, detail in (("GET", "/nope", 404, "Not Found"), ("PUT", "/v1/models", 405, "Method Not Allowed"),
                                         ("GET", "/v1/autostart/models", 404, "Not Found"), ("POST", "/v1/models/a/b", 405, "Method Not Allowed")):
        r = pd.http.request(method, path)
        assert (r.status_code, r.json()["detail"], r.headers["content-type"]) == (status, detail, "application/json")
        assert r.json()["error"]["message"] == detail and set(r.json()["error"]) >= {"message", "type", "param", "code"}


@pytest.mark.parametrize("method,path,loc,kind", [
    ("POST", "/v1/models?wait_ready=maybe", ["query", "wait_ready"], "bool_parsing"),
    ("GET", "/v1/cluster/info?detailed=2", ["query", "detailed"], "bool_parsing"),
    ("GET", "/v1/cluster/info?include_routers=", ["query", "include_routers"], "bool_parsing"),
    ("DELETE", f"/v1/models/{UID}/replicas/one", ["path", "replica_id"], "int_parsing"),
    ("DELETE", f"/v1/models/{UID}/replicas/1.0", ["path", "replica_id"], "int_parsing"),
    ("DELETE", f"/v1/models/{UID}/replicas/99999999999999999999", ["path", "replica_id"], "int_parsing"),
])
def test_typed_parameters_answer_422_with_a_list(pd, method, path, loc, kind):
    r = pd.http.request(method, path, **({"json": {}} if method == "POST" else {}))
    assert r.status_code == 422
    (item,) = r.json()["detail"]
    assert set(item) == {"type", "loc", "msg", "input"} and item["loc"] == loc and item["type"] == kind
    assert isinstance(r.json()["error"]["message"], str)


@pytest.mark.parametrize("spelling", ["False", "false", "0", "no", "off", "FALSE", "n", "f"])
def test_wait_ready_has_many_spellings(pd, spelling):
    r = pd.http.post(f"/v1/models?wait_ready={spelling}", json={"model_name": ""})
    assert r.status_code == 400 and r.json()["detail"] == "Invalid input. Please specify the `model_name` field."


def test_the_list_and_the_description(pd):
    listed = pd.http.get("/v1/models").json()
    assert listed["object"] == "list"
    (entry,) = listed["data"]
    wanted = {"id", "object", "created", "owned_by", "model_type", "address", "accelerators", "model_name", "model_lang", "model_ability",
              "model_description", "model_format", "model_size_in_billions", "model_family", "quantization", "multimodal_projector", "model_hub",
              "revision", "context_length", "strict_system_first", "model_engine", "replica"}
    assert wanted <= set(entry) and entry["created"] == 0 and entry["owned_by"] == "xinference" and entry["replica"] == 2
    assert wanted <= set(pd.http.get(f"/v1/models/{UID}").json())
    r = pd.http.get("/v1/models/nope")
    assert (r.status_code, r.json()["detail"]) == (400, "Model not found in the model list, uid: nope")
    r = pd.http.delete("/v1/models/nope")
    assert (r.status_code, r.json()["detail"]) == (400, "Model not found in the model list, uid: nope")


def test_what_is_asked_of_unknown_models_is_empty(pd):
    for path, empty in (("instances?model_uid=nope", []), ("instances?model_name=nope", []), ("nope/replicas", []), ("nope/events", []),
                        ("nope/progress", {"progress": 0.0, "stage": "pending", "download_files": [], "replicas": []})):
        r = pd.http.get(f"/v1/models/{path}")
        assert (r.status_code, r.json()) == (200, empty)
    assert pd.http.post("/v1/models/nope/requests/r/abort", json={"block_duration": 1}).json() == {"msg": "NO_OP"}


def test_instances_replicas_progress_and_events(pd):
    (row,) = pd.http.get(f"/v1/models/instances?model_uid={UID}").json()
    assert set(row) >= {"model_name", "model_uid", "model_version", "model_ability", "replica", "status", "instance_created_ts", "n_worker", "replica_statuses"}
    assert row["status"] == "READY" and row["n_worker"] == 1 and isinstance(row["instance_created_ts"], int)
    assert len(pd.http.get("/v1/models/instances").json()) == 1
    rows = pd.replicas()
    assert [r["replica_id"] for r in rows] == [0, 1] and [r["role"] for r in rows] == ["prefill", "decode"]
    for r in rows:
        assert set(r) >= {"replica_id", "replica_model_uid", "worker_address", "model_address", "accelerators", "status", "created_ts",
                          "error_message", "replica_uid", "gpu_idx"}
        assert r["replica_uid"] == f"{UID}-{r['replica_id']}" and r["gpu_idx"] is None and r["accelerators"] is None
    progress = pd.http.get(f"/v1/models/{UID}/progress").json()
    assert progress["progress"] == 1.0
    assert all(set(p) == {"replica_id", "replica_model_uid", "progress", "stage", "info", "updated_at", "download_files"} for p in progress["replicas"])
    events = pd.http.get(f"/v1/models/{UID}/events").json()
    assert events and all(set(e) == {"event_type", "event_ts", "event_content"} and e["event_type"] in ("INFO", "WARNING", "ERROR") for e in events)


def test_the_cluster(pd):
    worker = pd.http.get("/v1/workers").json()[0]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", worker["work-ip"])
    assert set(worker["models"]) == {f"{UID}-rep0", f"{UID}-rep1"} and worker["models"][f"{UID}-rep0"]["model_type"] == "LLM"
    assert pd.http.get("/v1/supervisor").json() == {"supervisor_ip": f"127.0.0.1:{pd.port}"}
    assert pd.http.get("/v1/address").json() == f"127.0.0.1:{pd.port}"
    assert pd.http.get("/v1/cluster/auth").json() == {"auth": False}
    assert pd.http.get("/v1/cluster/devices").json() == 0
    version = pd.http.get("/v1/cluster/version").json()
    assert set(version) == {"version", "full-revisionid", "build_type", "compiler"} and re.fullmatch(r"\d+\.\d+\.\d+", version["version"])
    assert not any(v for v in pd.http.get("/v1/cluster/ui_config").json().values())
    plain = pd.http.get("/v1/cluster/info").json()
    assert [n["node_type"] for n in plain] == ["Supervisor", "Worker"] and plain[1]["ip_address"] == worker["work-ip"]
    assert all(n["gpu_count"] == 0 and n["gpu_vram_total"] == 0 for n in plain)
    detailed = pd.http.get("/v1/cluster/info?detailed=true&include_routers=False").json()
    for node in detailed:
        assert {"cpu_available", "cpu_count", "mem_used", "mem_available", "mem_total", "gpu_utilization", "gpu_vram_available"} <= set(node)
        assert node["gpu_utilization"] is None and 0 <= node["cpu_available"] <= node["cpu_count"] and 0 < node["mem_used"] < node["mem_total"]
    status = pd.http.get("/status").json()
    assert isinstance(status["uptime"], int)
    (w,) = status["workers"].values()
    assert set(w) >= {"update_time", "failure_remaining_count", "status"}
    assert set(w["status"]["cpu"]) == {"usage", "total", "memory_used", "memory_available", "memory_total"}


METRICS = {
    "counter": {"generate_tokens_total", "input_tokens_total_counter", "output_tokens_total_counter", "model_request_total", "model_request_errors_total"},
    "histogram": {"time_to_first_token_seconds", "model_request_duration_seconds"},
    "gauge": {"model_serve_count", "model_request_limit", "model_last_load_duration_seconds", "supervisor_uptime_seconds", "workers_total",
              "models_loaded_total", "worker_cpu_utilization", "worker_memory_used_bytes", "worker_memory_total_bytes", "model_info", "model_status",
              "build_info", "config_info"},
}
LABELS = {"model_type", "model_uid", "replica_index", "model_name", "engine", "worker_address", "format", "quantization", "gpu_index"}


def test_metrics_have_xinferences_names(pd):
    pd.complete("Measure me", max_tokens=2)
    text = pd.http.get("/metrics").text
    types = dict(re.findall(r"^# TYPE xinference:(\w+) (\w+)$", text, re.M))
    for kind, names in METRICS.items():
        for name in names:
            assert types.get(name) == kind, name
    metrics = pd.metrics()
    assert metrics["xinference:models_loaded_total"] == [({"model_type": "LLM"}, 1.0)]
    assert {x["replica_index"] for x, _ in metrics["xinference:model_serve_count"]} == {"0", "1"}
    assert all(set(x) == LABELS for x, _ in metrics["xinference:output_tokens_total_counter"])
    assert {x["stream"] for x, _ in metrics["xinference:model_request_total"]} == {"true", "false", "unknown"}
    assert all(v == -1 for _, v in metrics["xinference:model_request_limit"])
    assert ({"model_uid": UID, "model_name": "smollm2-instruct", "status": "READY"}, 1.0) in metrics["xinference:model_status"]
    bounds = [x["le"] for x, _ in metrics["xinference:time_to_first_token_seconds_bucket"] if x["replica_index"] == "1" and x["stream"] == "true"]
    assert bounds == ["0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "+Inf"]
    bounds = [x["le"] for x, _ in metrics["xinference:model_request_duration_seconds_bucket"] if x["replica_index"] == "1"]
    assert bounds == ["0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60", "120", "+Inf"]
    # Every family once, each line of it after its type, every number finite.
    assert len(re.findall(r"^# TYPE ", text, re.M)) == len(set(re.findall(r"^# TYPE (\S+)", text, re.M)))


def test_other_kinds_of_models_are_refused(pd):
    for route, what in (("/v1/embeddings", "embeddings"), ("/v1/rerank", "rerank")):
        r = pd.http.post(route, json={"model": UID, "input": "x"})
        assert (r.status_code, r.json()["detail"]) == (400, f"model {UID} does not support {what}")
        assert pd.http.post(route, json={"model": "nope", "input": "x"}).status_code == 404
        assert pd.http.post(route, json={"input": "x"}).status_code == 400


def test_progress_of_a_request(pd):
    stream = pd.stream("Count", request_id="far", max_tokens=500, ignore_eos=True)
    next(stream)
    first = pd.http.get("/v1/requests/far/progress").json()["progress"]
    for _ in range(100):
        next(stream)
    assert 0 <= first < pd.http.get("/v1/requests/far/progress").json()["progress"] <= 1
    stream.close()
    r = pd.http.get("/v1/requests/nobody/progress")
    assert r.status_code == 400 and r.json()["detail"] == "Request not found: nobody"


def test_a_launch_by_version(tiny_model):
    with Server() as server:
        body = {"model_uid": "v", "model_engine": "vLLM", "model_type": "LLM", "model_version": "tiny--0_5B--pytorch--none", "replica": 1, "n_gpu": None,
                "replica_config": None, "model_path": str(tiny_model), "kv_cache_bytes": 8 << 20}
        assert server.http.post("/v1/models/instance", json=body).json()["model_uid"] == "v"
        shown = server.http.get("/v1/models/v").json()
        assert (shown["model_name"], shown["model_size_in_billions"], shown["model_format"], shown["quantization"]) == ("tiny", "0_5", "pytorch", "none")
        for version in (None, "tiny", "tiny--x--pytorch--none", 5):
            r = server.http.post("/v1/models/instance", json={**body, "model_uid": "w", "model_version": version})
            assert r.status_code == 400 and "model_version" in r.json()["detail"]
        assert len(server.http.get("/v1/models/instances").json()) == 1


def test_envs_reach_the_replicas_process(tiny_model):
    with Server() as server:
        server.launch("hybrid", model_path=str(tiny_model), envs={"TEST_OF_ENVS": "a b"}, max_model_len=128, kv_cache_bytes=8 << 20)
        with open(f"/proc/{server.pids()[0]}/environ", "rb") as f:
            environment = f.read().split(b"\0")
        assert b"TEST_OF_ENVS=a b" in environment
        r = server.http.post("/v1/models", json={"model_name": "t", "model_uid": "l", "model_engine": "vLLM", "model_path": str(tiny_model), "n_gpu": None,
                                                 "envs": {"LD_PRELOAD": "/x.so"}})
        assert r.status_code == 400 and r.json()["detail"] == "envs must not set LD_PRELOAD"


def test_metrics_that_gateways_read(pd):
    before = {name: pd.steady(f"vllm:{name}") for name in ("prompt_tokens_total", "generation_tokens_total")}
    usage = pd.complete("Measure me for a gateway", max_tokens=3)["usage"]
    pd.settled("vllm:prompt_tokens_total", before["prompt_tokens_total"] + usage["prompt_tokens"])
    pd.settled("vllm:generation_tokens_total", before["generation_tokens_total"] + usage["completion_tokens"])
    stream = pd.stream("A long one", max_tokens=1500, ignore_eos=True)
    next(stream)
    pd.settled("vllm:num_requests_running", 1, model_name=UID, engine="0")
    wait_for(lambda: pd.metric("vllm:kv_cache_usage_perc") > 0, 5, "blocks are in use")
    assert pd.metric("vllm:kv_cache_usage_perc") < 1 and pd.metric("vllm:num_requests_waiting") == 0
    stream.close()
    pd.settled("vllm:num_requests_running", 0)
    pd.settled("vllm:kv_cache_usage_perc", 0)


def test_replicas_that_were_added_come_back_after_a_restart(tiny_model, tmp_path):
    state = str(tmp_path / "state")
    with Server(state_dir=state) as server:
        server.launch("2h", model_path=str(tiny_model), max_model_len=128, kv_cache_bytes=8 << 20)
        worker = server.http.get("/v1/workers").json()[0]["work-ip"]
        r = server.http.post(f"/v1/models/{UID}/replicas", json={"replica_config": {"replica_uid": "third", "devices": [{"worker_ip": worker, "n_gpu": 0}]}})
        assert (r.status_code, r.json()) == (200, {"replica_id": 2, "replica_model_uid": f"{UID}-rep2", "worker_address": worker})
        for body, detail in (({"replica_config": {"replica_uid": "third", "devices": [{"worker_ip": worker, "n_gpu": 0}]}}, "Duplicate replica_uid 'third' in replica_config."),
                             ({"replica_config": {"role": "decode", "devices": [{"worker_ip": worker, "n_gpu": 0}]}}, "only hybrid replicas can be added to a running model"),
                             ({"replica_config": {"devices": [{"worker_ip": worker, "n_gpu": 3}]}}, "The parameter `n_gpu` must be greater than 0")):
            r = server.http.post(f"/v1/models/{UID}/replicas", json=body)
            assert r.status_code == 400 and r.json()["detail"].startswith(detail)
        assert server.http.delete(f"/v1/models/{UID}/replicas/9").json()["detail"] == f"Replica not found in the model list, uid: {UID}, replica_id: 9"
        assert server.http.delete(f"/v1/models/{UID}/replicas/0").json() == {"remaining_replicas": 2}
        assert json.loads(open(state + "/deployments.json").read())["deployments"]
    with Server(state_dir=state) as server:
        server.wait_ready()
        assert [r["status"] for r in server.replicas()] == ["READY"] * 2
        assert server.complete("x", max_tokens=2)


def test_a_replica_that_cannot_be_added_says_why(tiny_model, tmp_path):
    """Its slot is gone by then, and what it said is told all the same."""
    folder = tmp_path / "model-of-a-name-that-is-longer-than-a-short-string"
    shutil.copytree(tiny_model, folder)
    with Server() as server:
        server.launch("hybrid", model_path=str(folder), max_model_len=128, kv_cache_bytes=8 << 20)
        (folder / "model.safetensors").rename(tmp_path / "elsewhere")
        r = server.http.post(f"/v1/models/{UID}/replicas", json={})
        assert r.status_code == 400 and r.json()["detail"].startswith("replica 1 failed to load: ") and "safetensors" in r.json()["detail"], r.text
        assert r.json()["detail"] in [e["event_content"] for e in server.http.get(f"/v1/models/{UID}/events").json()]
        assert [row["replica_id"] for row in server.replicas()] == [0]
        (tmp_path / "elsewhere").rename(folder / "model.safetensors")
        assert server.http.post(f"/v1/models/{UID}/replicas", json={}).json()["replica_id"] == 1


def test_anthropics_messages(pd):
    ask = {"model": UID, "max_tokens": 16, "temperature": 0, "system": "You are brief.",
           "messages": [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France? Answer with one word."}]}]}
    head = {"anthropic-version": "2023-06-01", "x-api-key": "any"}
    whole = pd.http.post("/v1/messages", json=ask, headers=head).json()
    same = pd.chat("What is the capital of France? Answer with one word.", max_tokens=16,
                   messages=[{"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is the capital of France? Answer with one word."}])
    assert whole["type"] == "message" and whole["role"] == "assistant" and whole["model"] == UID and whole["id"].startswith("msg_")
    assert whole["content"] == [{"type": "text", "text": same["choices"][0]["message"]["content"]}]
    assert whole["stop_reason"] == ("end_turn" if same["choices"][0]["finish_reason"] == "stop" else "max_tokens")
    assert whole["usage"] == {"input_tokens": same["usage"]["prompt_tokens"], "output_tokens": same["usage"]["completion_tokens"]}
    with pd.http.stream("POST", "/anthropic/v1/messages", json={**ask, "stream": True}) as r:
        assert r.headers["content-type"].startswith("text/event-stream")
        raw = b"".join(r.iter_raw()).decode()
    events = [re.fullmatch(r"event: (\w+)\ndata: (\{.*\})", e).groups() for e in raw.split("\n\n") if e]
    assert all(json.loads(data)["type"] == name for name, data in events)
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"] and names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert "".join(json.loads(d)["delta"]["text"] for n, d in events if n == "content_block_delta") == whole["content"][0]["text"]
    last = json.loads(events[-2][1])
    assert last["delta"]["stop_reason"] == whole["stop_reason"] and last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    for change, status, kind, message in (({"model": "nope"}, 404, "not_found_error", "Model not found"), ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: Field required"),
                                          ({"messages": []}, 400, "invalid_request_error", "messages"), ({"temperature": 9}, 400, "invalid_request_error", "temperature"),
                                          ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "not supported here")):
        r = pd.http.post("/v1/messages", json={**ask, **change}, headers=head)
        assert r.status_code == status and r.json()["type"] == "error" and r.json()["error"]["type"] == kind, r.text
        assert message in r.json()["error"]["message"] and r.json()["detail"] == r.json()["error"]["message"]
    assert pd.http.post("/v1/messages", json=ask).json()["error"]["message"] == "anthropic-version: header is required"
    assert [m["id"] for m in pd.http.get("/anthropic/v1/models").json()["data"]] == [UID]
