"""traceparent (W3C Trace Context): the trace of a request stands in its line of the log, with the request's own id."""

import re

import openai
import pytest
from harness import UID

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GOOD = f"00-{TRACE}-00f067aa0ba902b7-01"


def line_of(server, request_id):
    return server.awaited("request.done", req=request_id)[0]


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", {"prompt": "One"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "One"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "One"}], "stream": True}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "One"}]}),
])
def test_the_trace_is_logged_with_the_request(pd, path, body):
    request_id = f"traced-{path.replace('/', '-')}-{len(body)}"
    r = pd.http.post(path, json={"model": UID, "max_tokens": 2, **body},
                     headers={"traceparent": GOOD, "tracestate": "vendor=1", "X-Request-Id": request_id, "anthropic-version": "2023-06-01"})
    assert r.status_code == 200, r.text
    assert f" trace={TRACE} " in line_of(pd, request_id)
    # The caller knows its trace; a span of ours there is not.
    assert not {"traceparent", "traceresponse"} & set(r.headers)


@pytest.mark.parametrize("number, value", enumerate(["", "00", GOOD.upper(), GOOD + "-x", GOOD[:-1], f"ff{GOOD[2:]}", f"00-{'0' * 32}-00f067aa0ba902b7-01",
                                                     f"00-{TRACE}-{'0' * 16}-01", f'00-{TRACE[:-1]}"-00f067aa0ba902b7-01', "x" * 5000]))
def test_what_is_no_trace_is_ignored(pd, number, value):
    r = pd.http.post("/v1/completions", json={"model": UID, "prompt": "One", "max_tokens": 2, "request_id": f"untraced-{number}"}, headers={"traceparent": value})
    assert r.status_code == 200, r.text
    assert "trace=" not in line_of(pd, f"untraced-{number}")


def test_other_requests_take_it_too(pd):
    for path in ("/health", "/v1/models", "/metrics"):
        assert pd.http.get(path, headers={"traceparent": GOOD}).status_code == 200


def test_an_instrumented_sdk(pd):
    """What OpenTelemetry's instrumentation of an HTTP client adds to the SDK's requests."""
    with openai.OpenAI(base_url=pd.url + "/v1", api_key="none", default_headers={"traceparent": GOOD}) as client:
        r = client.chat.completions.create(model=UID, messages=[{"role": "user", "content": "One"}], max_tokens=2)
    request_id = re.sub(r"^chatcmpl-|^chat", "", r.id)
    assert f" trace={TRACE} " in line_of(pd, request_id)
