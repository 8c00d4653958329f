"""OpenAI's Responses API over the chat route. Each case runs against hybrid and against 1P1D."""

import json

import pytest
from contract import T0, WEATHER
from harness import UID

ORDER = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added", "response.output_text.delta",
         "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
FLAT = {"type": "function", **WEATHER["function"]}


def ask(api, expect=200, **keys):
    r = api.post("/v1/responses", **{"model": UID, "input": "Say hi", "temperature": 0, "max_output_tokens": 32, **keys})
    assert r.status_code == expect, f"{r.status_code} {r.text}"
    return r.json()


def stream(api, **keys):
    out = []
    with api.http.stream("POST", "/v1/responses", json={"model": UID, "input": "Say hi", "temperature": 0, "max_output_tokens": 32, "stream": True, **keys}) as r:
        assert r.status_code == 200, r.read()
        assert r.headers["content-type"].startswith("text/event-stream")
        raw = r.read().decode()
    for block in filter(None, raw.split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"]
        out.append(event)
    assert [e["sequence_number"] for e in out] == list(range(len(out)))
    return out


def test_a_response(api):
    r = ask(api)
    chat = api.chat(**T0)
    assert r["object"] == "response" and r["id"].startswith("resp_") and r["model"] == UID and r["status"] in ("completed", "incomplete")
    [message] = r["output"]
    assert message["type"] == "message" and message["role"] == "assistant" and message["content"][0]["type"] == "output_text"
    assert message["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    u = r["usage"]
    assert u["input_tokens"] == chat["usage"]["prompt_tokens"] and u["output_tokens"] == chat["usage"]["completion_tokens"]
    assert u["total_tokens"] == u["input_tokens"] + u["output_tokens"] and "reasoning_tokens" in u["output_tokens_details"]
    cut = ask(api, max_output_tokens=2)
    assert cut["status"] == "incomplete" and cut["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_stream(api):
    whole = ask(api, max_output_tokens=200, input="What is the capital of France? Answer with one word.")
    events = stream(api, max_output_tokens=200, input="What is the capital of France? Answer with one word.")
    kinds = [e["type"] for e in events]
    assert [k for i, k in enumerate(kinds) if i == 0 or kinds[i - 1] != k] == ORDER
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    text = "".join(e["delta"] for e in deltas)
    assert text == whole["output"][0]["content"][0]["text"] and all(e["output_index"] == e["content_index"] == 0 for e in deltas)
    last = events[-1]["response"]
    assert last["status"] == "completed" and last["output"][0]["content"][0]["text"] == text
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert stream(api, max_output_tokens=2)[-1]["type"] == "response.incomplete"


def test_input_in_items(api):
    plain = ask(api, instructions="Be brief.")
    items = ask(api, input=[{"role": "developer", "content": "Be brief."}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hi"}]}])
    assert plain["output"][0]["content"] == items["output"][0]["content"] and plain["usage"]["input_tokens"] == items["usage"]["input_tokens"]


def test_reasoning_and_tools(api):
    keys = {"model": "speaker", "max_output_tokens": 120}
    r = ask(api, **keys, input="Weather in Paris?", tools=[FLAT])
    assert [o["type"] for o in r["output"]] == ["reasoning", "function_call"]
    assert r["output"][0]["content"] == [{"type": "reasoning_text", "text": "The weather tool knows."}]
    call = r["output"][1]
    assert call["name"] == "weather" and json.loads(call["arguments"]) == {"location": "Paris"} and call["call_id"]
    events = stream(api, **keys, input="Weather in Paris?", tools=[FLAT])
    kinds = [e["type"] for e in events]
    assert "response.reasoning_text.delta" in kinds and kinds.count("response.output_item.done") == 2
    assert "".join(e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta") == call["arguments"]
    assert events[-1]["response"]["output"][1]["arguments"] == call["arguments"] and events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    after = ask(api, **keys, tools=[FLAT], input=[{"role": "user", "content": "Weather in Paris?"}, *r["output"],
                                                   {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}])
    assert after["output"][-1]["content"][0]["text"] == "It is sunny there."


@pytest.mark.parametrize("change,param", [({"previous_response_id": "resp_1"}, "previous_response_id"), ({"conversation": "c"}, "conversation"), ({"background": True}, "background"),
                                          ({"input": None}, "input"), ({"input": []}, "input"), ({"input": [{"type": "computer_call"}]}, "input"), ({"max_output_tokens": 0}, "max_output_tokens"),
                                          ({"tools": [{"type": "web_search"}]}, "tools"), ({"temperature": 9}, "temperature"), ({"truncation": "auto"}, "truncation"),
                                          ({"instructions": 5}, "instructions"), ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"), ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input")])
@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_refused(api, change, param, streamed):
    r = api.post("/v1/responses", **{"model": UID, "input": "Say hi", "stream": streamed, **change})
    api.check_error(r, param=param)


def test_an_unknown_model(api):
    assert api.check_error(api.post("/v1/responses", model="nope", input="x"), 404)["code"] == "model_not_found"


def test_anthropics_messages_call_tools(api):
    tool = {"name": "weather", "description": "Get the weather", "input_schema": WEATHER["function"]["parameters"]}
    ask_body = {"model": "speaker", "max_tokens": 120, "temperature": 0, "enable_thinking": False, "tools": [tool], "messages": [{"role": "user", "content": "Look up Oslo"}]}
    head = {"anthropic-version": "2023-06-01"}
    whole = api.http.post("/v1/messages", json=ask_body, headers=head).json()
    assert [c["type"] for c in whole["content"]] == ["text", "tool_use"] and whole["stop_reason"] == "tool_use"
    assert whole["content"][0]["text"] == "Let me look." and whole["content"][1]["input"] == {"location": "Oslo"}
    with api.http.stream("POST", "/v1/messages", json={**ask_body, "stream": True}, headers=head) as r:
        raw = r.read().decode()
    events = [json.loads(block.split("\ndata: ", 1)[1]) for block in raw.split("\n\n") if block]
    starts = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert starts == ["text", "tool_use"] and [e["index"] for e in events if e["type"] == "content_block_stop"] == [0, 1]
    assert json.loads("".join(e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta" and e["index"] == 1)) == {"location": "Oslo"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": whole["content"][1]["id"], "content": "sunny"}
    after = api.http.post("/v1/messages", headers=head, json={**ask_body, "messages": [*ask_body["messages"], {"role": "assistant", "content": whole["content"]}, {"role": "user", "content": [result]}]})
    assert after.json()["content"] == [{"type": "text", "text": "It is sunny there."}]
