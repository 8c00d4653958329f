"""The unmodified OpenAI SDK: tools, reasoning, structured outputs, responses, its timeouts and retries. Against hybrid and against 1P1D."""

import concurrent.futures
import json
import threading
from typing import Literal, Optional

import openai
import pydantic
import pytest
from contract import CLOCK, T0, WEATHER
from harness import PATIENCE, UID, Server

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
    parsed = client.chat.completions.parse(**SPEAKER, messages=ask, response_format=Person, extra_body={"enable_thinking": False})
    assert parsed.choices[0].message.parsed == Person(name="Ann", age=30)
    response = client.responses.parse(model="speaker", temperature=0, max_output_tokens=120, input="Who is Ann? Reply in JSON", text_format=Person,
                                      extra_body={"enable_thinking": False})
    assert response.output_parsed == Person(name="Ann", age=30)


class Order(pydantic.BaseModel):
    """Its values are few and short, so that every answer ends."""

    model_config = {"extra": "forbid"}
    size: Literal["small", "large"]
    pieces: int = pydantic.Field(ge=1, le=99)
    toppings: list[Literal["salt", "mint"]] = pydantic.Field(max_length=2)
    gift: Optional[bool]


def test_parse_whatever_the_model_would_say(client):
    """A model that was taught nothing, at temperature 1: what is parsed is what the schema allows."""
    ask = {"model": UID, "messages": [{"role": "user", "content": "Order something"}], "temperature": 1, "max_tokens": 120}
    for seed in range(4):
        choice = client.chat.completions.parse(**ask, seed=seed, response_format=Order).choices[0]
        assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Order)
        with client.chat.completions.stream(**ask, seed=seed, response_format=Order) as stream:
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.parsed == choice.message.parsed
        response = client.responses.parse(model=UID, input="Order something", temperature=1, max_output_tokens=120, text_format=Order)
        assert isinstance(response.output_parsed, Order)
    both = client.chat.completions.parse(**ask, n=2, seed=9, response_format=Order).choices
    assert all(isinstance(c.message.parsed, Order) for c in both)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**ask, "max_tokens": 3}, response_format=Order)


def test_tools_are_parsed_whatever_the_model_would_say(client):
    tool = openai.pydantic_function_tool(Order, name="order")
    ask = {"model": UID, "messages": [{"role": "user", "content": "Order something"}], "temperature": 1, "max_tokens": 200, "seed": 3, "tools": [tool]}
    for choice in ("required", {"type": "function", "function": {"name": "order"}}):
        message = client.chat.completions.parse(**ask, tool_choice=choice, parallel_tool_calls=False).choices[0].message
        assert isinstance(message.tool_calls[0].function.parsed_arguments, Order)
        with client.chat.completions.stream(**ask, tool_choice=choice, parallel_tool_calls=False) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        assert isinstance(done[0].parsed_arguments, Order)
    # Tools and a format together: whichever the model takes is whole.
    both = client.chat.completions.parse(**ask, tool_choice="auto", response_format=Order).choices[0].message
    assert isinstance(both.parsed, Order) or isinstance(both.tool_calls[0].function.parsed_arguments, Order)
    function = {"type": "function", **tool["function"]}
    response = client.responses.parse(model=UID, input="Order something", temperature=1, max_output_tokens=200, tools=[function], tool_choice="required", parallel_tool_calls=False)
    assert Order.model_validate_json(next(item for item in response.output if item.type == "function_call").arguments)


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


def test_the_clients_retries_wait_for_a_free_slot():
    refused = threading.Event()

    def note(response):
        if response.status_code == 429:
            refused.set()

    with Server() as server, openai.DefaultHttpxClient(event_hooks={"response": [note]}) as http:
        server.launch("hybrid", request_limits=1)
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=8, http_client=http)
        held = server.stream("x", max_tokens=1500, ignore_eos=True)
        next(held)
        with pytest.raises(openai.RateLimitError) as e:
            client.with_options(max_retries=0).completions.create(model=UID, prompt="y", max_tokens=1)
        assert e.value.response.headers["retry-after"] == "1"
        refused.clear()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.completions.create, model=UID, prompt="y", max_tokens=1)
            assert refused.wait(20 * PATIENCE)
            held.close()
            assert answer.result().choices
