"""Constrained answers on device replicas (the GPU is a thread with the CPU's numerics): the texts of CPU replicas, though masks are
given only while the step that needs them runs."""

import concurrent.futures
import json
import os

import jsonschema
import pytest
from harness import Server
from schemas import schemas
from test_gpu import FAKE, GPU, server

pytestmark = pytest.mark.skipif(not os.path.exists(FAKE), reason=f"{FAKE} is not there")
MANY = schemas(8, seed=4)


def answers(s):
    def one(i):
        if i % 3 == 2:  # free ones between them
            r = s.complete(f"Story {i}: ", max_tokens=40, temperature=0.9, seed=i, ignore_eos=True)
        else:
            r = s.complete(f"Value {i}: ", max_tokens=120, temperature=1.0, seed=i, guided_json=MANY[i % len(MANY)], logprobs=2 if i % 4 == 0 else None)
        return r["choices"][0]["text"], r["choices"][0]["finish_reason"], r["choices"][0]["logprobs"]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        return list(pool.map(one, range(24)))


@pytest.fixture(scope="module")
def cpu_answers():
    with Server() as s:
        s.launch("hybrid", n_gpu=None)
        return answers(s)


@pytest.mark.parametrize("topology", ["hybrid", "1p1d"])
def test_device_gives_the_answers_of_the_cpu(cpu_answers, topology):
    with server() as s:
        s.launch(topology, n_gpu=1 if topology == "hybrid" else "auto", **GPU)
        got = answers(s)
        assert got == cpu_answers
        for i, (text, finish, _) in enumerate(got):
            if i % 3 != 2 and finish == "stop":
                jsonschema.Draft202012Validator(MANY[i % len(MANY)]).validate(json.loads(text))
        assert s.complete("x", max_tokens=2)["choices"]
