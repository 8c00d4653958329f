"""The same request gives the same text on every topology and mover; decode replicas never compute a prompt."""

import concurrent.futures
import os
import random

import pytest
from harness import Server

PROMPTS = int(os.environ.get("BATON_EQUALITY_PROMPTS", "20"))
WORDS = "the sun rises over a quiet village while children play near old stone bridge and river flows past green hills".split()

DEPLOYMENTS = [
    ("1p1d", {}),
    ("2p2d", {}),
    ("1p1d", {"mover": "tcp"}),
    ("2p2d", {"mover": "tcp"}),
    ("1p1d", {"snapshot_read_always": True, "enable_prefix_caching": False}),
    ("1p1d", {"kv_layout": "kv"}),
    ("1p1d", {"verify_handoff": True}),
]


def prompts():
    rng = random.Random(7)
    out = []
    shared = [rng.choice(WORDS) for _ in range(400)]
    for i in range(PROMPTS):
        n = rng.choice([1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, rng.randint(1, 300), rng.randint(300, 1400)])
        words = [rng.choice(WORDS) for _ in range(n)]
        if i % 4 == 3:  # a prefix that others have too
            words = (shared + words)[:1400]
        out.append(" ".join(words))
    return out + out[:3]  # repeated prompts: prefix hits on both sides


def run(server, texts, sampling, workers):
    def one(i):
        r = server.complete(texts[i], max_tokens=12, ignore_eos=True, **sampling(i))
        return r["choices"][0]["text"], r["usage"]

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(len(texts))))


def greedy(_):
    return {"temperature": 0}


def seeded(i):
    return {"temperature": 1.0, "seed": 1000 + i}


@pytest.fixture(scope="module")
def reference():
    with Server() as server:
        server.launch("hybrid")
        texts = prompts()
        yield texts, run(server, texts, greedy, 1), run(server, texts, seeded, 4)


@pytest.mark.parametrize("topology,keys", DEPLOYMENTS, ids=lambda v: v if isinstance(v, str) else ",".join(v) or "plain")
def test_same_text_everywhere(reference, topology, keys):
    texts, want_greedy, want_seeded = reference
    with Server() as server:
        server.launch(topology, **keys)
        got = run(server, texts, greedy, 1)
        assert [t for t, _ in got] == [t for t, _ in want_greedy]
        crowd = run(server, texts, greedy, 16)
        assert [t for t, _ in crowd] == [t for t, _ in want_greedy]
        random_ = run(server, texts, seeded, 16)
        assert [t for t, _ in random_] == [t for t, _ in want_seeded]

        computed = sum(u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"] for _, u in got + crowd + random_)
        server.settled("baton_prefill_tokens_total", computed, role="prefill")
        assert server.metric("baton_prefill_tokens_total", role="decode") == 0
        assert server.metric("baton_fallbacks_total") == 0
        mover = keys.get("mover", "shm")
        # "none": D held every block of the prompt already, nothing had to move.
        moved = server.metric("baton_handoffs_total", mover=mover)
        assert moved + server.metric("baton_handoffs_total", mover="none") == server.metric("baton_handoffs_total") == 3 * len(texts)
        assert moved >= len(texts) / 2
        if "snapshot_read_always" in keys:
            assert sum(u["prompt_tokens_details"]["cached_tokens"] for _, u in crowd) > 0, "no snapshot was read"
        for pid_row in server.replicas():
            assert pid_row["status"] == "READY"
        server.terminate()
        for kind in ("router", "coordinator", "collective_manager", "block_tracker"):
            assert server.metric("baton_xavier_objects", kind=kind) == 0
