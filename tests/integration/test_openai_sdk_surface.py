"""The unmodified OpenAI SDK: tools, reasoning, structured outputs, responses, its timeouts and retries. Against hybrid and against 1P1D."""

import json
import threading
import time

import openai
import pydantic
import pytest
from contract import CLOCK, T0, WEATHER
from harness import PATIENCE, UID, Server, wait_for

ASK = [{"role": "user", "content": "Weather in Paris?"}]
SPEAKER = {"model": "speaker", "temperature": 0, "max_tokens": 120}


@pytest.fixture
def client(api):
    return openai.OpenAI(base_url=api.server.url + "/v1", api_key="none", timeout=120 * PATIENCE)


def test_tools_round_trip(client):
    messages = list(ASK)
    first = client.chat.completions.create(**SPEAKER, messages=messages, tools=[WEATHER, CLOCK]).choices[0]
    assert first.finish_reason == "tool_calls" and first.message.reasoning_content
    call = first.message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"location": "Paris"}
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(**SPEAKER, messages=messages, tools=[WEATHER, CLOCK]).choices[0].message.content == "It is sunny there."


def test_tools_streamed_through_the_sdks_accumulator(client):
    with client.chat.completions.stream(**SPEAKER, messages=ASK, tools=[WEATHER]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"location": "Paris"}


def test_strict_tools_are_parsed(client):
    function = WEATHER["function"]
    strict = {**function, "strict": True, "parameters": {**function["parameters"], "additionalProperties": False}}
    final = client.chat.completions.parse(**SPEAKER, messages=ASK, tools=[{"type": "function", "function": strict}]).choices[0].message
    assert final.tool_calls[0].function.parsed_arguments == {"location": "Paris"}


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_structured_outputs(client):
    ask = [{"role": "user", "content": "Who is Ann? Reply in JSON"}]
    try:
        parsed = client.chat.completions.parse(**SPEAKER, messages=ask, response_format=Person, extra_body={"enable_thinking": False})
    except openai.BadRequestError as e:
        if e.param == "response_format":
            pytest.skip("constrained decoding is not built")
        raise
    assert parsed.choices[0].message.parsed == Person(name="Ann", age=30)
    response = client.responses.parse(model="speaker", temperature=0, max_output_tokens=120, input="Who is Ann? Reply in JSON", text_format=Person,
                                      extra_body={"enable_thinking": False})
    assert response.output_parsed == Person(name="Ann", age=30)


def test_responses(client):
    r = client.responses.create(model=UID, input="Say hi", temperature=0, max_output_tokens=32)
    assert r.output_text == client.chat.completions.create(model=UID, messages=[{"role": "user", "content": "Say hi"}], **T0).choices[0].message.content
    events = list(client.responses.create(model=UID, input="Say hi", temperature=0, max_output_tokens=32, stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == r.output_text
    with client.responses.stream(model="speaker", input="Weather in Paris?", temperature=0, max_output_tokens=120,
                                 tools=[{"type": "function", "strict": False, **WEATHER["function"]}]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert json.loads(final.output[-1].arguments) == {"location": "Paris"}
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.create(model=UID, input="x", previous_response_id="resp_1")
    assert e.value.param == "previous_response_id"


def test_completions(client):
    r = client.completions.create(model=UID, prompt=["Once upon a time", "The sun"], echo=True, logprobs=1, **T0)
    assert [c.text.startswith(p) for c, p in zip(r.choices, ("Once upon a time", "The sun"))] == [True, True]
    assert r.choices[0].logprobs.token_logprobs[0] is None
    assert "".join(c.choices[0].text for c in client.completions.create(model=UID, prompt="Once upon a time", stream=True, **T0)) == \
        client.completions.create(model=UID, prompt="Once upon a time", **T0).choices[0].text


def test_errors_are_the_sdks(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=UID, messages=ASK, temperature=9)
    assert e.value.param == "temperature" and e.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="nope", messages=ASK)
    assert e.value.code == "model_not_found"


def test_a_timeout_of_the_client_ends_the_work(client, api):
    long = {"model": UID, "messages": ASK, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3, max_retries=0).chat.completions.create(**long)
    api.idle()
    before = api.server.metric("baton_aborts_total", model_uid=UID)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3, max_retries=1).chat.completions.create(**long)
    api.idle()
    assert api.server.metric("baton_aborts_total", model_uid=UID) == before + 2, "one abort a try"


def test_the_clients_retries_wait_for_a_free_slot(tiny_model):
    with Server() as server:
        server.launch("hybrid", model_path=str(tiny_model), max_model_len=2048, kv_cache_bytes=32 << 20, request_limits=1)
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=8)
        busy = threading.Thread(target=lambda: server.complete("x", max_tokens=1500, ignore_eos=True))
        busy.start()
        wait_for(lambda: server.metric("baton_requests_running") == 1, 10, "one runs")
        with pytest.raises(openai.RateLimitError) as e:
            client.with_options(max_retries=0).completions.create(model=UID, prompt="y", max_tokens=1)
        assert e.value.response.headers["retry-after"] == "1"
        begun = time.monotonic()
        assert client.completions.create(model=UID, prompt="y", max_tokens=1).choices
        assert time.monotonic() - begun > 0.2
        busy.join()
