"""Tools for models whose chat template does not know them: they are described in a message, and calls are found all the same."""

import json

import pytest
from contract import CLOCK, SPEAKER, WEATHER, speaker_folder
from harness import Server

RENDER = "/v1/chat/completions/render"
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
# As Gemma's, and as those that leave out what they do not know.
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + PLAIN
SILENT = PLAIN.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
HISTORY = [{"role": "user", "content": "Weather in Paris?"},
           {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"location": "Paris"}'}}]},
           {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server() as s:
        for uid, template in (("plain", PLAIN), ("strict", STRICT), ("silent", SILENT)):
            folder = speaker_folder(tmp_path_factory.mktemp("speaker") / uid, "hermes")
            config = json.loads((SPEAKER / "tokenizer_config.json").read_text())
            (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
            s.launch("hybrid", uid=uid, model_path=str(folder), max_model_len=1024, kv_cache_bytes=32 << 20, threads=1)
        yield s


def seen(server, model, **keys):
    r = server.http.post(RENDER, json={"model": model, **keys})
    assert r.status_code == 200, r.text
    return r.json()["prompt"]


def test_the_tools_stand_in_the_prompt(server):
    user = [{"role": "user", "content": "Say hi"}]
    for model, place in (("plain", "system"), ("strict", "user"), ("silent", "user")):
        prompt = seen(server, model, messages=user, tools=[WEATHER, CLOCK])
        assert prompt.startswith(f"<|im_start|>{place}\nYou can call functions.")
        assert prompt.count("You can call functions.") == 1 and '"name":"weather"' in prompt and '"name":"clock"' in prompt
        assert "You can call" not in seen(server, model, messages=user) and "You can call" not in seen(server, model, messages=user, tools=[WEATHER], tool_choice="none")
    prompt = seen(server, "plain", messages=[{"role": "system", "content": "Be kind."}, *user], tools=[WEATHER])
    assert prompt.startswith("<|im_start|>system\nBe kind.\n\nYou can call functions.") and prompt.count("<|im_start|>system") == 1


def test_calls_of_the_history_are_seen(server):
    for keys in ({"tools": [WEATHER]}, {}):
        prompt = seen(server, "plain", messages=HISTORY, **keys)
        assert '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"location": "Paris"}}\n</tool_call><|im_end|>' in prompt
        assert "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>" in prompt


def test_a_message_of_the_client_that_the_template_refuses_is_still_refused(server):
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    r = server.http.post("/v1/chat/completions", json={"model": "strict", "messages": messages, "tools": [WEATHER]})
    assert r.status_code == 400 and "System role not supported" in r.json()["error"]["message"]


def test_a_call_is_found(server):
    for choice in ("required", {"type": "function", "function": {"name": "clock"}}):
        body = {"model": "plain", "messages": [{"role": "user", "content": "What time is it?"}], "tools": [CLOCK], "tool_choice": choice, "max_tokens": 200,
                "parallel_tool_calls": False}
        r = server.http.post("/v1/chat/completions", json=body)
        assert r.status_code == 200, r.text
        choice = r.json()["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "clock"
