"""Every check of a launch body: status, message, and that nothing is left behind; those of GPUs run over a GPU that is a thread."""

import os
from pathlib import Path

import pytest
from harness import BINARY, Server, free_port

# The build's GPU that is a thread, beside the program itself.
FAKE = Path(os.environ.get("BATON_FAKE_GPU_BINARY") or Path(BINARY).parent / "tests" / "baton-fake-gpu")


def body(worker, **keys):
    """A body that every check lets pass: 1P1D on the CPU."""
    return {"model_name": "tiny", "model_uid": "checked", "model_engine": "vLLM", "model_type": "LLM", "replica": 2, "n_worker": 1,
            "n_gpu": "auto", "worker_ip": None, "gpu_idx": None,
            "replica_config": [{"role": r, "devices": [{"worker_ip": worker, "n_gpu": 0}]} for r in ("prefill", "decode")], **keys}


def first(worker, **keys):
    """replica_config whose first entry is changed."""
    rows = body(worker)["replica_config"]
    for k, v in keys.items():
        if k in ("worker_ip", "n_gpu", "gpu_idx"):
            rows[0]["devices"][0][k] = v
        else:
            rows[0][k] = v
    return rows


W = "WORKER"
DEVICE = {"worker_ip": W, "n_gpu": 0}
HYBRID = {"role": "hybrid", "devices": [DEVICE]}
CASES = [
    ("1", {"replica": True}, 400, "Invalid input. The `replica` field must be an integer, got a boolean."),
    ("2", {"replica": 2.0}, 400, "Invalid input. The `replica` field must be an integer, got a float."),
    ("3 null", {"replica": None}, 400, "Invalid input. The `replica` field must be a valid integer."),
    ("3 text", {"replica": "two"}, 400, "Invalid input. The `replica` field must be a valid integer."),
    ("3 list", {"replica": [2]}, 400, "Invalid input. The `replica` field must be a valid integer."),
    ("4", {"replica": 0}, 400, "Invalid input. The `replica` field must be at least 1."),
    ("4 text", {"replica": "0"}, 400, "Invalid input. The `replica` field must be at least 1."),
    ("5 worker_ip", {"worker_ip": W}, 400, "Cannot specify worker_ip / n_gpu / gpu_idx together with replica_config."),
    ("5 n_gpu", {"n_gpu": 1}, 400, "Cannot specify worker_ip / n_gpu / gpu_idx together with replica_config."),
    ("5 gpu_idx", {"gpu_idx": []}, 400, "Cannot specify worker_ip / n_gpu / gpu_idx together with replica_config."),
    ("6 item", {"replica_config": [1, 2]}, 400, "Invalid replica_config: "),
    ("6 key", {"replica_config": first(W, color="red")}, 400, "Invalid replica_config: "),
    ("6 worker_ip", {"replica_config": first(W, worker_ip=1)}, 400, "Invalid replica_config: worker_ip must be a string"),
    ("6 n_gpu", {"replica_config": first(W, n_gpu="1")}, 400, "Invalid replica_config: n_gpu must be a non-negative integer or 'auto'"),
    ("6 gpu_idx", {"replica_config": first(W, gpu_idx=0)}, 400, "Invalid replica_config: gpu_idx must be a list of integers"),
    ("6 gpu_idx item", {"replica_config": first(W, gpu_idx=[True])}, 400, "Invalid replica_config: gpu_idx must contain only integers"),
    ("6 gpu_idx twice", {"replica_config": first(W, gpu_idx=[0, 0])}, 400, "Invalid replica_config: gpu_idx must not contain duplicate indexes"),
    ("name", {"model_name": ""}, 400, "Invalid input. Please specify the `model_name` field."),
    ("tool parser", {"tool_call_parser": "pythonic"}, 400,
     "tool_call_parser must be hermes, qwen, qwen25, qwen2.5, qwen3, llama3_json, llama4_json, llama3, llama3.1, llama, mistral or none, got pythonic"),
    ("engine", {"model_engine": None}, 400, "Invalid input. Please specify the `model_engine` field."),
    ("7", {"n_worker": 0}, 400, "n_worker must be a positive integer."),
    ("7 bool", {"n_worker": True}, 400, "n_worker must be a positive integer."),
    ("9 engine", {"model_engine": "TensorRT"}, 400, "PD separation requires model_type=LLM and model_engine="),
    ("9 type", {"model_type": "embedding"}, 400, "PD separation requires model_type=LLM and model_engine="),
    ("10 one role", {"replica_config": [{"role": "prefill", "devices": [DEVICE]}] * 2}, 400,
     "PD separation requires both prefill and decode replicas, without hybrid replicas"),
    ("10 hybrid", {"replica": 3, "replica_config": [*body(W)["replica_config"], HYBRID]}, 400,
     "PD separation requires both prefill and decode replicas, without hybrid replicas"),
    ("11", {"replica": 1}, 400, "replica_config length (2) must equal replica (1)."),
    ("11 empty", {"replica": 1, "replica_config": []}, 400, "replica_config length (0) must equal replica (1)."),
    ("12", {"replica_config": first(W, devices=[DEVICE, DEVICE])}, 400,
     "Each replica_config entry must have exactly one device (replica 0 has 2). Cross-worker sharding per replica is not supported yet."),
    ("13", {"replica_config": first(W, n_gpu=2, gpu_idx=[0])}, 400,
     "replica_config[0].devices[0].n_gpu (2) must equal len(gpu_idx) (1), or be 'auto'."),
    ("14", {"replica_config": first(W, n_gpu="auto", gpu_idx=[-1])}, 400, "replica_config[0].devices[0].gpu_idx must be non-negative integers."),
    ("15", {"replica_config": first(W, replica_uid="  ")}, 400, "replica_config[0].replica_uid must not be empty or whitespace-only."),
    ("16 rep", {"replica_config": first(W, replica_uid="a-rep0")}, 400,
     "replica_uid 'a-rep0' collides with a reserved internal replica/rank identifier; please choose another name."),
    ("16 rank", {"replica_config": first(W, replica_uid="a-rank0")}, 400,
     "replica_uid 'a-rank0' collides with a reserved internal replica/rank identifier; please choose another name."),
    ("17", {"replica_config": first(W, replica_uid="checked-1")}, 400, "Duplicate replica_uid 'checked-1' in replica_config."),
    ("19", {"replica_config": first(W, n_gpu="auto", gpu_idx=[7])}, 400, "replica_config[0].gpu_idx [7] is not visible on worker WORKER; visible GPU indexes: []"),
    ("22b n_gpu", {"replica_config": first(W, n_gpu=1)}, 400,
     "The parameter `n_gpu` must be greater than 0 and not greater than the number of GPUs: 0 on the machine."),
    ("22b ordinary", {"replica_config": None, "n_gpu": -1}, 400,
     "The parameter `n_gpu` must be greater than 0 and not greater than the number of GPUs: 0 on the machine."),
    ("22b path", {"model_path": "/no/such/model"}, 400, "Invalid input. `model_path`: /no/such/model File or directory does not exist."),
    ("23 blank", {"model_uid": " "}, 400, "The model UID is invalid. Please specify the model UID by 0 < length <= 100"),
    ("23 long", {"model_uid": "x" * 101}, 400, "The model UID is invalid."),
    ("23 suffix", {"model_uid": "m-rep3"}, 400, "The model UID is invalid."),
    ("23 route", {"model_uid": "instances"}, 400, "would hide a route of the API"),
    ("limits", {"request_limits": -1}, 400, "The `request_limits` parameter must be greater or equal than 0."),
    ("tp", {"tensor_parallel_size": 2}, 400, "Xavier V1 currently requires TP=1 and PP=1"),
    ("pp", {"pipeline_parallel_size": 2}, 400, "Xavier V1 currently requires TP=1 and PP=1"),
    ("lora", {"peft_model_config": {"lora_list": [{"lora_name": "a", "local_path": "/a"}]}}, 400,
     "Xavier V1 currently supports text-only models without LoRA"),
    ("gpu_idx multiple", {"replica_config": None, "gpu_idx": [0]}, 400, "Invalid input. Allocated gpu must be a multiple of replica."),
]


def left_behind(server):
    metrics = server.metrics()
    return (server.http.get("/v1/models/instances").json(), server.http.get("/v1/models").json()["data"],
            server.http.get("/v1/models/checked/replicas").json(), server.http.get("/v1/models/checked/events").json(),
            sum(v for _, v in metrics["baton_xavier_objects"]), len(server.tree()))


@pytest.fixture(scope="module")
def server():
    with Server() as s:
        yield s


def localised(value, worker):
    """The case with the worker's address where its name stands."""
    if isinstance(value, dict):
        return {k: localised(v, worker) for k, v in value.items()}
    if isinstance(value, list):
        return [localised(v, worker) for v in value]
    return worker if value == W else value


@pytest.mark.parametrize("change,status,message", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_check_answers_and_leaves_nothing(server, tiny_model, change, status, message):
    worker = server.http.get("/v1/workers").json()[0]["work-ip"]
    for query in ("", "?wait_ready=False"):
        r = server.http.post("/v1/models" + query, json={**body(worker, model_path=str(tiny_model)), **localised(change, worker)})
        assert r.status_code == status, r.text
        assert r.json()["detail"] == r.json()["error"]["message"]
        assert message.replace(W, worker) in r.json()["detail"]
        rows, models, replicas, events, objects, processes = left_behind(server)
        assert (rows, models, replicas, events, objects, processes) == ([], [], [], [], 0, 1)


def test_18_a_worker_that_is_not_in_the_cluster(tiny_model):
    with Server(extra=["--link-address", f"127.0.0.1:{free_port()}"], env={"BATON_LINK_SECRET": "a secret of sixteen or more"}) as server:
        worker = server.http.get("/v1/workers").json()[0]["work-ip"]
        r = server.http.post("/v1/models", json=body(worker, model_path=str(tiny_model), replica_config=first(worker, worker_ip="10.9.8.7:1")))
        assert (r.status_code, r.json()["detail"]) == (
            400, f"replica_config[0].worker_ip '10.9.8.7:1' is not in the cluster. Registered workers: ['{worker}'].")
        assert left_behind(server)[0] == []


def test_8_and_22_without_workers(tiny_model):
    with Server(command="supervisor") as server:
        for change, status, message in (({"n_worker": 2}, 400, "replica_config is incompatible with n_worker>1 (sharded launch)."),
                                        ({}, 503, "No available worker found. Registered workers: []")):
            r = server.http.post("/v1/models", json={**body("10.0.0.1:1", model_path=str(tiny_model)), **change})
            assert r.status_code == status and r.json()["detail"] == message
            assert server.http.get("/v1/models/instances").json() == []


@pytest.mark.skipif(not FAKE.exists(), reason=f"{FAKE} is not built")
def test_gpus_that_are_not_shared(tiny_model):
    with Server(binary=str(FAKE), env={"BATON_SHARE_GPUS": "false", "BATON_FAKE_GPUS": "2"}) as server:
        worker = server.http.get("/v1/workers").json()[0]["work-ip"]
        info = server.http.get("/v1/cluster/info?detailed=true").json()
        gpus = info[1]["gpu_count"]
        assert gpus >= 1 and server.http.get("/v1/cluster/devices").json() == gpus

        def ask(rows, uid="checked"):
            return server.http.post("/v1/models", json=body(worker, model_path=str(tiny_model), model_uid=uid, max_model_len=256, replica_config=rows, replica=len(rows)))

        def on(*indexes, roles=("prefill", "decode")):
            return [{"role": r, "devices": [{"worker_ip": worker, "gpu_idx": [i]}]} for r, i in zip(roles, indexes)]

        r = ask(on(0, 0))
        assert (r.status_code, r.json()["detail"]) == (
            400, f"replica_config GPU conflict on worker {worker}: GPU indexes [0] requested by more than one replica, and this worker disallows sharing a GPU.")
        r = ask(on(99, 0))
        assert r.status_code == 400 and r.json()["detail"].startswith(f"replica_config[0].gpu_idx [99] is not visible on worker {worker}; visible GPU indexes: [0")
        r = ask([{"devices": [{"worker_ip": worker, "gpu_idx": [0]}]}], "first")
        assert r.status_code == 200, r.text
        r = ask([{"devices": [{"worker_ip": worker, "gpu_idx": [0]}]}])
        assert (r.status_code, r.json()["detail"]) == (
            400, f"replica_config GPU conflict on worker {worker}: GPU indexes [0] are already occupied, and this worker disallows sharing a GPU.")
        r = ask([{"devices": [{"worker_ip": worker}]}] * gpus)
        assert (r.status_code, r.json()["detail"]) == (503, "No available slot found for the model")
        assert [row["model_uid"] for row in server.http.get("/v1/models/instances").json()] == ["first"]
        server.terminate("first")
        r = ask([{"devices": [{"worker_ip": worker}]}], "again")
        assert r.status_code == 200, r.text
        server.terminate("again")
