"""The unmodified OpenAI SDK against 1P1D."""

import concurrent.futures

import openai
import pytest
from harness import UID


@pytest.fixture(scope="module")
def client(pd):
    return openai.OpenAI(base_url=pd.url + "/v1", api_key="none")


QUESTION = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]


def test_chat_completes_and_streams_the_same_text(client):
    whole = client.chat.completions.create(model=UID, messages=QUESTION, temperature=0, max_tokens=24)
    assert "Paris" in whole.choices[0].message.content
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(model=UID, messages=QUESTION, temperature=0, max_tokens=24, stream=True,
                                                 stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 3


def test_completion_with_logprobs(client):
    r = client.completions.create(model=UID, prompt="Once upon a time", temperature=0, max_tokens=8, logprobs=3)
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == r.usage.completion_tokens
    assert all(x <= 0 for x in lp.token_logprobs)
    assert "".join(lp.tokens) == r.choices[0].text


def test_first_tokens_logprobs_cross_the_handoff(client):
    r = client.chat.completions.create(model=UID, messages=QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2)
    content = r.choices[0].logprobs.content
    assert len(content) >= r.usage.completion_tokens - 1  # the hidden end token may be left out
    assert all(len(t.top_logprobs) == 2 and t.top_logprobs[0].token == t.token for t in content)


def test_repeated_prompts_and_four_at_once(client):
    def ask(_):
        return client.chat.completions.create(model=UID, messages=QUESTION, temperature=0, max_tokens=16).choices[0].message.content

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1


def test_n_and_seed(client):
    def ask():
        r = client.chat.completions.create(model=UID, messages=QUESTION, temperature=1.0, seed=5, n=3, max_tokens=12)
        assert [c.index for c in r.choices] == [0, 1, 2]
        return [c.message.content for c in r.choices]

    first = ask()
    assert first == ask() and len(set(first)) > 1


def test_stop_string_and_max_tokens_one(client, pd):
    base = client.completions.create(model=UID, prompt="Count: one two three", temperature=0, max_tokens=24).choices[0].text
    stop = base[5:9]
    r = client.completions.create(model=UID, prompt="Count: one two three", temperature=0, max_tokens=24, stop=stop)
    assert r.choices[0].text == base[:base.index(stop)] and r.choices[0].finish_reason == "stop"
    before = pd.steady("baton_generated_tokens_total", role="decode")
    r = client.completions.create(model=UID, prompt="A brand new prompt", temperature=0, max_tokens=1, extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 1 and r.choices[0].finish_reason == "length"
    pd.settled("baton_kv_blocks", 0, state="offered")
    assert pd.steady("baton_generated_tokens_total", role="decode") == before


def test_evidence_of_the_handoff_is_in_the_log(client, pd):
    r = client.chat.completions.create(model=UID, messages=QUESTION, temperature=0, max_tokens=8, extra_body={"request_id": "evidence-1"})
    assert r.id == "chatcmpl-evidence-1"
    assert len(pd.awaited("kv.staged", req="evidence-1")) == 1
    assert len(pd.awaited("kv.loaded", req="evidence-1")) == 1
    assert pd.metric("baton_prefill_tokens_total", role="decode") == 0


def test_models_list_and_unknown_model(client):
    assert [m.id for m in client.models.list()] == [UID]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nope", messages=QUESTION)
