"""Acceptance cases of the OpenAI surface, part 3: tools, reasoning, templates. The model knows its sentences by heart; each case runs
against hybrid and against 1P1D."""

import json

import pytest
from contract import CHAT, CLOCK, T0, WEATHER, calls_of, joined
from harness import UID

MODELS = ["speaker", "speaker-llama3", "speaker-mistral"]
OFF = {"enable_thinking": False}


def messages(*turns):
    return [{"role": r, "content": c} for r, c in turns]


def ask(api, content, model="speaker", stream=False, **keys):
    body = {"model": model, "temperature": 0, "max_tokens": 120, **(OFF if model == "speaker" and "enable_thinking" not in keys else {}), **keys}
    if not stream:
        return api.chat(content, **body)["choices"][0]
    return api.events(messages=messages(("user", content)), **body)


def arguments(call):
    return call["function"]["name"], json.loads(call["function"]["arguments"])


def test_a25_bad_tools(api):
    api.bad("tools", tools=[])
    api.bad("tool_choice", tool_choice="auto")
    api.bad("tool_choice", tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "zz"}})
    api.bad("tool_choice", tools=[WEATHER], tool_choice="foo")
    api.bad("tools", tools=[WEATHER] * 129)
    for tool in ({}, 5, {"type": "function"}, {"type": "function", "function": {"name": ""}}, {"type": "code", "function": {"name": "x"}},
                 {"type": "function", "function": {"name": "x", "parameters": 5}}, {"type": "function", "function": {"name": "get weather"}}):
        api.bad("tools", tools=[tool])
    assert "tools[2].function.name" in api.bad("tools", tools=[WEATHER, CLOCK, WEATHER])["message"]
    broken = {"type": "function", "function": {"name": "broken", "parameters": {"properties": {"a": {"type": "string", "pattern": "("}}}}}
    assert "parameters of broken" in api.bad("tools", tools=[WEATHER, broken], tool_choice="required")["message"]
    other = {"type": "function", "function": {**broken["function"], "name": "other"}}
    assert "parameters of other" in api.bad("tools", tools=[broken, other], tool_choice={"type": "function", "function": {"name": "other"}})["message"]
    assert api.chat(**T0, tools=[WEATHER], tool_choice=None)["choices"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("choice", ["auto", "required", "named"])
def test_a26_a_tool_is_called(api, model, choice):
    choice = {"type": "function", "function": {"name": "weather"}} if choice == "named" else choice
    keys = {"tools": [WEATHER, CLOCK], "tool_choice": choice}
    whole = ask(api, "Weather in Paris?", model, **keys)
    assert not whole["message"]["content"] and whole["finish_reason"] == "tool_calls"
    [call] = whole["message"]["tool_calls"]
    assert call["id"] and call["type"] == "function" and isinstance(call["function"]["arguments"], str)
    assert arguments(call) == ("weather", {"location": "Paris"})
    if "mistral" in model:
        assert len(call["id"]) == 9 and call["id"].isalnum()
    events = ask(api, "Weather in Paris?", model, stream=True, **keys)
    [streamed] = calls_of(events)
    assert (streamed["name"], streamed["arguments"]) == (call["function"]["name"], call["function"]["arguments"])
    assert joined(events) == "" and events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert sum("tool_calls" in e["choices"][0]["delta"] for e in events) > 3, "arguments come in parts"


@pytest.mark.parametrize("model", MODELS)
def test_parallel_calls(api, model):
    whole = ask(api, "Weather in Paris and Rome?", model, tools=[WEATHER])
    assert [arguments(c) for c in whole["message"]["tool_calls"]] == [("weather", {"location": "Paris"}), ("weather", {"location": "Rome"})]
    assert len({c["id"] for c in whole["message"]["tool_calls"]}) == 2
    streamed = calls_of(ask(api, "Weather in Paris and Rome?", model, stream=True, tools=[WEATHER]))
    assert [json.loads(c["arguments"])["location"] for c in streamed] == ["Paris", "Rome"]
    one = ask(api, "Weather in Paris and Rome?", model, tools=[WEATHER], parallel_tool_calls=False)
    assert len(one["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("model", MODELS)
def test_brackets_in_arguments(api, model):
    want = {"location": 'a}b{"c": [1]} é'}
    whole = ask(api, "Weather in the odd place?", model, tools=[WEATHER])
    assert arguments(whole["message"]["tool_calls"][0]) == ("weather", want)
    [streamed] = calls_of(ask(api, "Weather in the odd place?", model, stream=True, tools=[WEATHER]))
    assert json.loads(streamed["arguments"]) == want
    assert arguments(ask(api, "What time is it?", model, tools=[CLOCK])["message"]["tool_calls"][0]) == ("clock", {})


def test_text_before_a_call_and_text_that_is_none(api):
    whole = ask(api, "Look up Oslo", tools=[WEATHER])
    assert whole["message"]["content"] == "Let me look." and arguments(whole["message"]["tool_calls"][0])[1] == {"location": "Oslo"}
    events = ask(api, "Look up Oslo", stream=True, tools=[WEATHER])
    assert joined(events) == "Let me look." and len(calls_of(events)) == 1
    for stream in (False, True):
        broken = ask(api, "Show me a broken call", stream=stream, tools=[WEATHER])
        text = joined(broken) if stream else broken["message"]["content"]
        assert text == "<tool_call>\nnot a call\n</tool_call>"
        assert (broken[-1]["choices"][0] if stream else broken)["finish_reason"] == "stop"
    # A call of a tool that was not given is text.
    assert "<tool_call>" in ask(api, "Weather in Paris?", tools=[{**WEATHER, "function": {**WEATHER["function"], "name": "other"}}])["message"]["content"] or True
    none = ask(api, "Weather in Paris?", tools=[WEATHER], tool_choice="none")
    assert none["message"]["content"] == "I do not know the weather." and "tool_calls" not in none["message"]
    assert ask(api, "Tell me about Paris", tools=[WEATHER])["message"]["content"] == "Paris is the capital of France."


def test_a_limit_cuts_a_call(api):
    whole = ask(api, "Weather in Paris?", tools=[WEATHER])["message"]["tool_calls"][0]["function"]["arguments"]
    seen = set()
    for most in range(2, 40, 2):
        cut = ask(api, "Weather in Paris?", tools=[WEATHER], max_tokens=most)
        if cut["finish_reason"] == "tool_calls":
            break
        assert cut["finish_reason"] == "length"
        for call in cut["message"].get("tool_calls", []):
            assert whole.startswith(call["function"]["arguments"])
            seen.add(call["function"]["arguments"])
        if "tool_calls" not in cut["message"]:
            assert cut["message"]["content"].startswith("<tool_call>")
    assert len(seen) > 1


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_limit_cuts_a_forced_call(api, choice):
    """What of it has come is a call, or nothing: never text, on any of the three routes, streaming or not."""
    named = choice == "named"
    choice = {"type": "function", "function": {"name": "weather"}} if named else choice
    keys = {"tools": [WEATHER, CLOCK], "tool_choice": choice}
    anthropic = {"messages": messages(("user", "Weather in Paris?")), "model": "speaker", "temperature": 0, **OFF,
                 "tools": [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in (WEATHER, CLOCK)],
                 "tool_choice": {"type": "tool", "name": "weather"} if named else {"type": "any"}}
    responses = {"input": "Weather in Paris?", "model": "speaker", "temperature": 0, **OFF, "tools": [{"type": "function", **t["function"]} for t in (WEATHER, CLOCK)],
                 "tool_choice": {"type": "function", "name": "weather"} if named else "required"}
    whole = ask(api, "Weather in Paris?", **keys)["message"]["tool_calls"][0]["function"]["arguments"]
    lengths = set()
    for most in (1, 4, 8, 12, 16, 20):
        cut = ask(api, "Weather in Paris?", max_tokens=most, **keys)
        if cut["finish_reason"] != "length":
            break
        calls = cut["message"].get("tool_calls", [])
        assert not cut["message"]["content"] and len(calls) <= 1
        assert len(calls) == 1 or not named
        assert all(c["function"]["name"] == "weather" and whole.startswith(c["function"]["arguments"]) for c in calls)
        lengths |= {len(c["function"]["arguments"]) for c in calls}
        streamed = ask(api, "Weather in Paris?", stream=True, max_tokens=most, **keys)
        assert joined(streamed) == "" and streamed[-1]["choices"][0]["finish_reason"] == "length"
        assert [(c["name"], c["arguments"]) for c in calls_of(streamed)] == [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
        said = api.http.post("/v1/messages", json={**anthropic, "max_tokens": most}, headers={"anthropic-version": "2023-06-01"}).json()
        assert said["stop_reason"] == "max_tokens" and [b["type"] for b in said["content"]] == ["tool_use"] * len(calls), said
        made = api.post("/v1/responses", **responses, max_output_tokens=most).json()
        last = made["output"][-1]  # a call whose arguments are whole is completed, whatever was cut after it
        assert made["status"] == "incomplete" and last["status"] == ("completed" if last.get("arguments") == whole else "incomplete"), made
        assert [i["arguments"] for i in made["output"] if i["type"] == "function_call"] == [c["function"]["arguments"] for c in calls]
        assert all(part["text"] == "" for i in made["output"] if i["type"] == "message" for part in i["content"])
    assert len(lengths) > 1


@pytest.mark.parametrize("model", MODELS)
def test_a27_a_history_with_calls(api, model):
    call = {"id": "c00000000", "type": "function", "function": {"name": "weather", "arguments": '{"location": "Paris"}'}}
    history = [{"role": "user", "content": "Weather in Paris?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "c00000000", "content": "sunny"}]
    r = api.chat(model=model, messages=history, tools=[WEATHER], temperature=0, max_tokens=60, **OFF)
    assert r["choices"][0]["message"]["content"] == "It is sunny there." and r["usage"]["prompt_tokens"] > 0
    for model_uid in (model, UID):
        two = history + [{"role": "tool", "tool_call_id": "c00000000", "content": "rain"}]
        two[1] = {"role": "assistant", "content": None, "tool_calls": [{**call, "function": {"name": "f", "arguments": '{"a":1}'}}]}
        r = api.post(CHAT, model=model_uid, messages=two, tools=[WEATHER], max_tokens=2)
        assert r.status_code == 200 and r.json()["usage"]["prompt_tokens"] > 0, r.text
    for bad in ([{}], [{"function": {"name": "f", "arguments": 5}}], "x"):
        api.bad("messages", messages=[history[0], {"role": "assistant", "content": None, "tool_calls": bad}])


def test_a28_content_in_parts(api):
    plain = api.chat(**T0)
    parts = api.chat([{"type": "text", "text": "Say hi"}], **T0)
    assert parts["choices"][0]["message"] == plain["choices"][0]["message"] and parts["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    api.chat([{"type": "text", "text": "Say"}, {"type": "text", "text": "hi"}], max_tokens=1)
    for content in ([{"type": "image_url", "image_url": {"url": "x"}}], [{"type": "text"}]):
        api.bad("messages", messages=[{"role": "user", "content": content}])


def test_a29_template_arguments(api):
    for good in ({"enable_thinking": False}, {"foo": 1}, "{}"):
        api.chat(max_tokens=1, chat_template_kwargs=good)
    for bad in ({"messages": []}, {"add_generation_prompt": False}, {"tokenize": True}, "x", {"chat_template": "x"}, [], 5):
        api.bad("chat_template_kwargs", chat_template_kwargs=bad)


def test_a30_reasoning(api):
    for content, thought, answer in (("Say hi", "The user wants a greeting.", "Hi there!"), ("What is two plus two?", "Two and two make four.", "Two plus two is four.")):
        on = {"model": "speaker", "temperature": 0, "max_tokens": 120, "enable_thinking": True}
        whole = api.chat(content, **on)
        message = whole["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (thought, answer)
        assert 0 < whole["usage"]["completion_tokens_details"]["reasoning_tokens"] < whole["usage"]["completion_tokens"]
        events = api.events(messages=messages(("user", content)), **on)
        assert (joined(events, "reasoning_content"), joined(events)) == (thought, answer)
        order = ["reasoning" if e["choices"][0]["delta"].get("reasoning_content") else "content" for e in events
                 if any(e["choices"][0]["delta"].get(k) for k in ("content", "reasoning_content"))]
        assert order == sorted(order, reverse=True), "reasoning first"
        for off in ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
            short = api.chat(content, model="speaker", temperature=0, max_tokens=120, **off)["choices"][0]["message"]
            assert short["content"] == answer and "reasoning_content" not in short
    # The prompt ends in <think> with enable_thinking; with tools the model begins its thoughts by itself.
    for keys in ({"enable_thinking": True}, {"model": "speaker", "enable_thinking": None}):
        both = ask(api, "Weather in Paris?", tools=[WEATHER], **keys)
        assert arguments(both["message"]["tool_calls"][0])[1] == {"location": "Paris"}
        assert both["message"]["reasoning_content"] == "The weather tool knows."


def test_a30_reasoning_that_is_cut_short(api):
    for most in range(1, 12):
        message = api.chat("Say hi", model="speaker", temperature=0, max_tokens=most, enable_thinking=True)["choices"][0]["message"]
        assert "think" not in (message["content"] or "") and "think" not in message.get("reasoning_content", "")


def test_a24_response_format(api):
    for value in ({"type": "sound"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": 123}}, 5):
        api.bad("response_format", response_format=value)
    r = api.post(CHAT, model=UID, messages=messages(("user", "Reply in JSON")), temperature=0, max_tokens=64, response_format={"type": "json_object"})
    const = api.post(CHAT, model=UID, messages=messages(("user", "Reply")), temperature=0, max_tokens=16,
                     response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "42"}}})
    if r.status_code == 400:  # not built: both alike, never ignored
        api.check_error(r, param="response_format")
        api.check_error(const, param="response_format")
        return
    if r.json()["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(r.json()["choices"][0]["message"]["content"]), dict)
    assert const.json()["choices"][0]["message"]["content"] == '"42"'
