"""The unmodified Xinference client, sync and async, drives everything it has for language models."""

import asyncio
import threading
import time

import pytest
from harness import MODEL, Server, wait_for
from xinference_client import RESTfulClient
from xinference_client.client.restful.async_restful_client import AsyncClient

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
WEATHER = [{"type": "function", "function": {"name": "weather", "description": "Tells the weather of a city",
                                             "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


def replica_config(worker_ip, prefill, decode):
    """The specification's example, on the CPU."""
    return [{"replica_uid": f"{role[0].upper()}{i}", "role": role, "devices": [{"worker_ip": worker_ip, "n_gpu": 0}]}
            for role, count in (("prefill", prefill), ("decode", decode)) for i in range(count)]


def launch_keys(worker_ip, prefill, decode, uid):
    return dict(model_name="smollm2-instruct", model_engine="vLLM", model_type="LLM", model_uid=uid, model_path=MODEL,
                model_size_in_billions="0_135", model_format="ggufv2", quantization="Q4_1", replica=prefill + decode,
                replica_config=replica_config(worker_ip, prefill, decode), max_model_len=1024, kv_cache_bytes=128 << 20,
                vllm_transfer_backend_type="nixl", trust_remote_code=True)


@pytest.fixture(scope="module")
def server():
    with Server() as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    c = RESTfulClient(server.url)
    yield c
    c.close()


@pytest.fixture(scope="module")
def worker_ip(client):
    return client.get_workers_info()[0]["work-ip"]


@pytest.fixture(scope="module", params=[(1, 1), (2, 2)], ids=["1p1d", "2p2d"])
def uid(request, client, worker_ip):
    prefill, decode = request.param
    uid = f"pd{prefill}{decode}"
    assert client.launch_model(**launch_keys(worker_ip, prefill, decode, uid)) == uid
    yield uid
    client.terminate_model(uid)
    assert uid not in client.list_models()


def test_lists_and_describes(client, uid, server):
    replicas = int(uid[2]) + int(uid[3])
    listed = client.list_models()
    assert list(listed) == [uid]
    for shown in (listed[uid], client.describe_model(uid)):
        assert shown["model_engine"] == "vLLM" and shown["replica"] == replicas and shown["model_type"] == "LLM"
        assert shown["model_name"] == "smollm2-instruct" and shown["quantization"] == "Q4_1" and shown["model_format"] == "ggufv2"
        assert {"chat", "generate"} <= set(shown["model_ability"])
    info = client.get_instance_info(None, uid)
    assert len(info) == 1 and info[0]["status"] == "READY" and info[0]["replica"] == replicas
    assert client.get_instance_info("smollm2-instruct", None)[0]["model_uid"] == uid
    rows = server.replicas(uid)
    assert [r["role"] for r in rows] == ["prefill"] * int(uid[2]) + ["decode"] * int(uid[3])
    assert [r["replica_uid"] for r in rows][:1] == ["P0"]
    assert all(r["status"] == "READY" and r["replica_model_uid"] == f"{uid}-rep{r['replica_id']}" for r in rows)
    assert client.get_launch_model_progress(uid)["progress"] == 1.0


def test_chats_and_generates(client, uid):
    model = client.get_model(uid)
    whole = model.chat(QUESTION, generate_config={"max_tokens": 16, "temperature": 0})
    assert "Paris" in whole["choices"][0]["message"]["content"]
    chunks = list(model.chat(QUESTION, generate_config={"max_tokens": 16, "temperature": 0, "stream": True}))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["delta"] == {"content": ""} and chunks[-1]["choices"][0]["finish_reason"]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    text = model.generate("Once upon a time", {"max_tokens": 12, "temperature": 0})["choices"][0]["text"]
    parts = list(model.generate("Once upon a time", {"max_tokens": 12, "temperature": 0, "stream": True}))
    assert "".join(p["choices"][0]["text"] for p in parts) == text and len(parts) > 3
    tooled = model.chat(QUESTION, tools=WEATHER, enable_thinking=False, generate_config={"max_tokens": 8, "temperature": 0})
    assert tooled["choices"][0]["message"]["role"] == "assistant"
    assert tooled["usage"]["prompt_tokens"] >= whole["usage"]["prompt_tokens"]
    model.close()


def test_aborts_a_stream_and_follows_its_progress(client, uid):
    model = client.get_model(uid)
    config = {"max_tokens": 900, "temperature": 0, "stream": True, "request_id": f"{uid}-abort", "ignore_eos": True}
    stream = model.generate("Count up from one:", config)
    next(stream)
    assert 0 <= client.get_progress(f"{uid}-abort")["progress"] <= 1
    assert client.abort_request(uid, f"{uid}-abort", block_duration=2)["msg"] == "DONE"
    with pytest.raises(Exception, match="abort"):
        for _ in stream:
            pass
    with pytest.raises(RuntimeError, match="The request has been aborted"):
        model.generate("x", {"max_tokens": 1, "request_id": f"{uid}-abort"})
    assert client.abort_request(uid, "nobody")["msg"] == "NOT_FOUND"
    assert client.abort_request("nope", "nobody")["msg"] == "NO_OP"
    with pytest.raises(RuntimeError, match="Request not found"):
        client.get_progress("nobody")
    model.close()


def test_pd_topology_is_fixed(client, uid):
    with pytest.raises(RuntimeError, match="PD topology.*Adding replicas to Xavier-distributed models is not supported"):
        client.add_model_replica(uid)
    with pytest.raises(RuntimeError, match="PD topology"):
        client.terminate_model_replica(uid, 0)


def test_errors_reach_the_user_as_detail(client, worker_ip):
    for ask, message in (
            (lambda: client.terminate_model("nope"), "Model not found in the model list, uid: nope"),
            (lambda: client.describe_model("nope"), "Model not found in the model list, uid: nope"),
            (lambda: client.get_model("nope"), "Model not found in the model list, uid: nope"),
            (lambda: client.cancel_launch_model("nope"), "Model nope has not been launched yet"),
            (lambda: client.terminate_model_replica("nope", 3), "Replica not found in the model list, uid: nope, replica_id: 3"),
            (lambda: client.launch_model(model_name="m", model_engine=None), "Please specify the `model_engine` field"),
            (lambda: client.launch_model(**{**launch_keys(worker_ip, 1, 1, "x"), "replica": 3}), r"replica_config length \(2\) must equal replica \(3\)")):
        with pytest.raises(RuntimeError, match=message):
            ask()
    assert client.get_instance_info(None, "nope") == []
    assert client.get_launch_model_progress("nope") == {"progress": 0.0, "stage": "pending", "download_files": [], "replicas": []}
    assert client.get_supervisor_info()["supervisor_ip"] == client._get_supervisor_internal_address()


def test_a_launch_in_the_background_is_followed_and_cancelled(client, worker_ip, server):
    keys = launch_keys(worker_ip, 1, 1, "later")
    assert client.launch_model(**keys, wait_ready=False) == "later"
    assert client.get_instance_info(None, "later")[0]["status"] in ("CREATING", "LOADING", "READY")
    wait_for(lambda: client.get_instance_info(None, "later")[0]["status"] == "READY", 30, "ready")
    client.terminate_model("later")

    outcome = []

    def blocking():
        try:
            outcome.append(client.launch_model(**keys))
        except RuntimeError as e:
            outcome.append(e)

    thread = threading.Thread(target=blocking)
    thread.start()
    other = RESTfulClient(server.url)
    wait_for(lambda: other.get_instance_info(None, "later"), 10, "the launch begins", 0.002)
    other.cancel_launch_model("later")
    thread.join(20)
    assert outcome and "Launch cancelled" in str(outcome[0])
    assert other.get_instance_info(None, "later") == []
    assert other.get_launch_model_progress("later")["progress"] == 0.0
    assert client.launch_model(**keys) == "later"
    with pytest.raises(RuntimeError, match="Model is already in the model list, uid: later"):
        client.launch_model(**keys)
    with pytest.raises(RuntimeError, match="is running, not launching"):
        client.cancel_launch_model("later")
    client.terminate_model("later")
    other.close()


def test_hybrid_replicas_come_and_go(client, server):
    uid = client.launch_model(model_name="smollm2-instruct", model_engine="transformers", model_uid="h", model_path=MODEL, n_gpu=None,
                              replica=2, enable_xavier=True, max_model_len=512, kv_cache_bytes=64 << 20)
    added = client.add_model_replica(uid)
    assert added["replica_id"] == 2 and added["replica_model_uid"] == "h-rep2"
    assert client.list_models()[uid]["replica"] == 3
    assert client.terminate_model_replica(uid, 0) == 2
    assert [r["replica_id"] for r in server.replicas(uid)] == [1, 2]
    for _ in range(4):
        assert server.complete("Hello", model=uid, max_tokens=4)["usage"]["completion_tokens"] == 4
    assert {r["replica_id"] for r in server.replicas(uid)} == {1, 2}
    assert client.terminate_model_replica(uid, 2) == 1
    assert client.terminate_model_replica(uid, 1) == 0
    assert uid not in client.list_models()


def test_the_async_client_does_the_same(server, worker_ip):
    async def run():
        client = AsyncClient(server.url)
        uid = await client.launch_model(**launch_keys(worker_ip, 1, 1, "aio"))
        assert uid in await client.list_models()
        assert (await client.describe_model(uid))["model_engine"] == "vLLM"
        model = await client.get_model(uid)
        whole = await model.chat(QUESTION, generate_config={"max_tokens": 16, "temperature": 0})
        assert "Paris" in whole["choices"][0]["message"]["content"]
        text = ""
        async for chunk in await model.chat(QUESTION, generate_config={"max_tokens": 16, "temperature": 0, "stream": True}):
            text += chunk["choices"][0]["delta"].get("content", "")
        assert text == whole["choices"][0]["message"]["content"]
        made = await model.generate("Once upon a time", {"max_tokens": 8, "temperature": 0})
        assert made["usage"]["completion_tokens"] == 8
        config = {"max_tokens": 900, "stream": True, "request_id": "aio-abort", "ignore_eos": True}
        stream = await model.generate("Count:", config)
        await stream.__anext__()
        assert 0 <= (await client.get_progress("aio-abort"))["progress"] <= 1
        assert (await client.abort_request(uid, "aio-abort", block_duration=0))["msg"] == "DONE"
        # The reason, or that the connection ended early, where aiohttp sees that before it has read the frame.
        with pytest.raises(Exception, match="abort|not completed"):
            async for _ in stream:
                pass
        with pytest.raises(RuntimeError, match="PD topology"):
            await client.add_model_replica(uid)
        with pytest.raises(RuntimeError, match="Model not found"):
            await client.describe_model("nope")
        assert (await client.get_workers_info())[0]["work-ip"] == worker_ip
        assert (await client.get_launch_model_progress(uid))["progress"] == 1.0
        await model.close()
        await client.terminate_model(uid)
        assert uid not in await client.list_models()
        assert await client.launch_model(**launch_keys(worker_ip, 1, 1, "aio")) == "aio"
        await client.terminate_model("aio")
        await client.close()

    asyncio.run(run())


def test_what_the_log_says_of_a_launch(server, client, worker_ip):
    keys = launch_keys(worker_ip, 1, 1, "logged")
    client.launch_model(**{**keys, "transfer_backend_type": "mooncake", "some_future_keyword": 7})
    assert len(server.lines("launch.begin", model_uid="logged", engine="vLLM", served_by="baton", transfer_backend="xavier")) == 1
    assert len(server.lines("launch.transfer_backend", model_uid="logged", used="xavier")) == 1
    assert len(server.lines("launch.ignored_keyword", model_uid="logged", key="some_future_keyword")) == 1
    answer = server.http.post("/v1/models", json={**keys, "model_uid": "asks", "max_model_len": 1 << 20, "quantization": "Q8_0"}).json()
    assert len(answer["warnings"]) == len(server.lines("launch.warning", model_uid="asks")) >= 2
    assert any("max_model_len 1048576 is beyond the model's context" in w for w in answer["warnings"]) and any("quantization is Q8_0" in w for w in answer["warnings"])
    events = [e["event_content"] for e in server.http.get("/v1/models/asks/events").json() if e["event_type"] == "WARNING"]
    assert set(answer["warnings"]) <= set(events)
    client.terminate_model("asks")
    with pytest.raises(RuntimeError, match="Xavier V1 currently requires TP=1 and PP=1"):
        client.launch_model(**{**keys, "model_uid": "tp"}, tensor_parallel_size=2)
    client.terminate_model("logged")


def test_the_cluster_ends_on_request():
    with Server() as server:
        client = RESTfulClient(server.url)
        begun = time.monotonic()
        assert client.abort_cluster()["result"] is True
        assert server.process.wait(20) == 0
        assert time.monotonic() - begun < 20
        client.close()
