"""Checks of what a mixed load gets: prefill and decode against a hybrid replica, in deterministic and in fast mode; 2P2D; snapshots."""

import concurrent.futures
import itertools
import os
import random
import re
import signal
import statistics
import time

from serving import ordinary_ids, wait_for

# In fast mode two tokens may change places where their logprobs differ by less than what bf16 arithmetic leaves open.
NEAR_TIE = 0.3
CROWD = 32
EXACT = {"deterministic": True, "max_model_len": 4096, "gpu_memory_utilization": 0.8}
EDGES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1999, 2000)


def mixed_requests(n, model, longest=2000, seed=7):
    """Prompts of 1 to `longest` tokens, some that share a beginning or repeat; greedy and seeded; streamed or not; some left early."""
    rng = random.Random(seed)
    ids = ordinary_ids(model)
    shared = [rng.choices(ids, k=longest // 4) for _ in range(8)]
    out = []
    for i in range(n):
        size = min(longest, EDGES[i] if i < len(EDGES) else int(longest ** rng.random()) if i % 2 else rng.randint(1, longest))
        kind = rng.random()
        if kind < 0.1 and i > 50:
            prompt = out[rng.randrange(i)]["prompt"]
        elif kind < 0.35 and size > 8:
            begin = rng.choice(shared)[:rng.randint(1, size)]
            prompt = begin + rng.choices(ids, k=max(0, size - len(begin)))
        else:
            prompt = rng.choices(ids, k=size)
        body = {"prompt": prompt, "max_tokens": rng.randint(1, 48), "stream": rng.random() < 0.5, "ignore_eos": rng.random() < 0.8, "logprobs": 2}
        if i % 2 == 0:
            body["temperature"] = 0
        else:
            body |= {"temperature": rng.choice((0.6, 0.9, 1.0)), "seed": i, **rng.choice(({}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05},
                                                                                         {"frequency_penalty": 0.5, "repetition_penalty": 1.1}))}
        if i % 17 == 5:
            body |= {"stream": True, "max_tokens": 400, "ignore_eos": True, "stop_after": rng.choice((0, 1, 2, 8, 20))}
        out.append(body)
    return out


RUNS = itertools.count(1)


def run_all(server, asked, crowd=CROWD):
    """Answers in order, and the seconds it took. Their request ids tell the run and the number."""
    begin, run = time.monotonic(), next(RUNS)
    with concurrent.futures.ThreadPoolExecutor(crowd) as pool:
        answers = list(pool.map(lambda i: server.ask(**asked[i], request_id=f"mixed-{run}-{i}"), range(len(asked))))
    return answers, time.monotonic() - begin


def same_answer(a, b):
    """Texts and logprobs equal; of what was cut off, as far as both go."""
    if a.cut or b.cut:
        n = min(len(a.tokens), len(b.tokens))
        return a.error is None and a.tokens[:n] == b.tokens[:n] and a.logprobs[:n] == b.logprobs[:n]
    return a.whole() and a.text == b.text and a.finish == b.finish and a.tokens == b.tokens and a.logprobs == b.logprobs and \
        a.usage["prompt_tokens"] == b.usage["prompt_tokens"] and a.usage["completion_tokens"] == b.usage["completion_tokens"]


def equal(ctx, name, asked, got, want, took):
    wrong = [i for i, (a, b) in enumerate(zip(got, want)) if not same_answer(a, b)]
    texts = sum(a.text == b.text or a.cut or b.cut for a, b in zip(got, want))
    cut = sum(a.cut for a in got)
    ctx.report.check(not wrong, f"{name}: {len(got) - len(wrong)} of {len(got)} answers equal, {texts} in text ({cut} left early), {took:.1f} s")
    for i in wrong[:3]:
        explain(ctx, i, asked[i], got[i], want[i])


def explain(ctx, i, body, got, want):
    """Where a wrong answer parts from the other, which of them it is when the same is asked alone, and what the log says of it."""
    again = ctx.server.ask(**{**body, "stop_after": None})
    alone = "the other's" if again.tokens == want.tokens and again.logprobs == want.logprobs else \
        "this one" if again.tokens == got.tokens and again.logprobs == got.logprobs else "a third"
    settings = {k: v for k, v in body.items() if k not in ("prompt", "logprobs")}
    ctx.report.note(f"request {i} of {len(body['prompt'])} ids, {settings}: {got.error or ''} {got.finish}, {len(got.tokens)} tokens, parts in token "
                    f"{first_other(got.tokens, want.tokens)}, in logprob {first_other(got.logprobs, want.logprobs)}; asked again alone: {alone}")
    for a, b in list(zip(zip(got.tokens, got.logprobs), zip(want.tokens, want.logprobs)))[:4]:
        ctx.report.note(f"    {a} for {b}")
    for line in ctx.server.lines():
        if re.search(rf' req="?mixed-\d+-{i}(-\d+)?["@# ]', line + " "):
            ctx.report.note("    " + line[11:200])


def first_other(a, b):
    return next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def near_ties(ctx, name, asked, got, want, took):
    """Greedy answers of the fast mode against the deterministic ones: the first difference must be a near tie there."""
    margins, errors, strange, same = [], [], [], 0
    for i, (body, a, b) in enumerate(zip(asked, got, want)):
        if not a.cut and not a.whole():
            errors.append(a.error)
        if body["temperature"] != 0 or a.cut or not a.whole():
            continue
        at = next((k for k, (x, y) in enumerate(zip(a.tokens, b.tokens)) if x != y), min(len(a.tokens), len(b.tokens)))
        if at == len(a.tokens) == len(b.tokens):
            same += 1
            continue
        # One may have ended where the other went on: then the other's best two are the choice it had.
        top = b.top[at] if at < len(b.top) else a.top[at]
        best = sorted(top.values(), reverse=True)
        chosen = a.tokens[at] if at < len(a.tokens) else None
        margins.append(best[0] - top.get(chosen, best[-1]) if at < len(b.top) else best[0] - best[-1])
        if at < min(len(a.tokens), len(b.top)) and chosen not in top and best[0] - best[-1] > NEAR_TIE:
            strange.append((i, at, chosen))
    worst = max(margins, default=0)
    ctx.report.check(not errors and not strange and worst <= NEAR_TIE,
                     f"{name}: {same} greedy texts equal, {len(margins)} differ first at a near tie: margin median "
                     f"{statistics.median(margins or [0]):.3f}, largest {worst:.3f}; {took:.1f} s{'; ' + str((errors or strange)[0]) if errors or strange else ''}")


def launched(ctx, name, **keys):
    status, answer, took = ctx.server.launch(ctx.model, **keys)
    return ctx.report.check(status == 200, f"{name}: launched in {took:.1f} s{'' if status == 200 else ' ' + answer[:300]}")


def ended(ctx, name):
    """After a load: nothing held, no hand-off replaced, no prompt computed by a decode replica; then terminates."""
    server = ctx.server
    held = server.all_free(seconds=4)
    fallbacks, computed = server.metric("baton_fallbacks_total"), server.metric("baton_prefill_tokens_total", role="decode")
    bytes_by = {labels["mover"]: v for n, labels, v in server.metrics() if n == "baton_handoff_bytes_total" and v}
    counts = {labels["mover"]: v for n, labels, v in server.metrics() if n == "baton_handoffs_total" and v}
    moved = ", ".join(f"{m} {counts.get(m, 0):.0f} hand-offs {b / 1e9:.2f} GB" for m, b in bytes_by.items()) or "none"
    ctx.report.check(not held and fallbacks == 0 and computed == 0, f"{name}: {moved}; {fallbacks:.0f} fallbacks, decode computed {computed:.0f} prompt "
                     f"tokens, held: {held or 'nothing'}")
    server.terminate()


def pair(ctx, prefill=1, decode=1):
    return [("prefill", ctx.prefill)] * prefill + [("decode", ctx.decode)] * decode


def launched_pairs(ctx, name, prefill=1, decode=1, **keys):
    """Prefill and decode replicas; by NCCL they pair in the background, and until then extents would go over the link."""
    if ctx.mover:
        keys |= {"mover": ctx.mover, **({"fault": "nccl_one_gpu"} if ctx.mover == "nccl" and ctx.prefill == ctx.decode else {})}
    start = len(ctx.server.lines())
    if not launched(ctx, name, placements=pair(ctx, prefill, decode), **keys):
        return False
    want = 2 * prefill * decode
    if ctx.mover == "nccl" and not wait_for(lambda: len(ctx.server.events("xavier.channel_ready", start)) >= want, 20, 0.05):
        return ctx.report.check(False, f"{name}: {len(ctx.server.events('xavier.channel_ready', start))} of {want} ends of channels are ready after 20 s")
    return True


def baseline(ctx):
    """The mixed requests and what a deterministic hybrid replica answers; made once."""
    if not hasattr(ctx, "mixed"):
        asked = mixed_requests(ctx.requests, ctx.model, ctx.longest)
        if not launched(ctx, "hybrid, deterministic", n_gpu=1, **EXACT):
            return None
        answers, took = run_all(ctx.server, asked)
        errors = [a.error for a in answers if a.error]
        tokens = sum(len(b["prompt"]) for b in asked)
        ctx.report.check(not errors, f"hybrid, deterministic: {len(asked)} requests of {tokens} prompt tokens, {took:.1f} s{'; ' + str(errors[0]) if errors else ''}")
        alone = [ctx.server.ask(**{**b, "stop_after": None}) for b in asked[16:24]]
        equal(ctx, "hybrid, deterministic, alone", asked[16:24], alone, answers[16:24], 0)
        ended(ctx, "hybrid, deterministic")
        ctx.mixed = asked, answers
    return ctx.mixed


def check_mixed(ctx):
    made = baseline(ctx)
    if made is None:
        return
    asked, want = made
    for name, keys in (("deterministic", EXACT), ("fast", {**EXACT, "deterministic": False})):
        name = f"1P1D, {name}"
        if not launched_pairs(ctx, name, **keys):
            ctx.server.terminate()
            continue
        got, took = run_all(ctx.server, asked)
        (equal if keys["deterministic"] else near_ties)(ctx, name, asked, got, want, took)
        ended(ctx, name)


def check_2p2d(ctx):
    made = baseline(ctx)
    if made is None:
        return
    asked, want = made[0][:ctx.requests // 3], made[1][:ctx.requests // 3]
    if not launched_pairs(ctx, "2P2D, verified", 2, 2, verify_handoff=True, **EXACT):
        return ctx.server.terminate()
    start = len(ctx.server.lines())
    got, took = run_all(ctx.server, asked)
    equal(ctx, "2P2D, verified", asked, got, want, took)
    staged = {e["req"]: e["replica"] for e in ctx.server.awaited_events(len(asked), "kv.staged", start)}
    pairs = {}
    for e in ctx.server.awaited_events(len(asked), "kv.loaded", start):
        if e["req"] in staged:
            used = f"{staged[e['req']]}→{e['replica']}"
            pairs[used] = pairs.get(used, 0) + 1
    ctx.report.check(len(pairs) == 4, f"2P2D: hand-offs by pair: {pairs}")
    ended(ctx, "2P2D, verified")


def check_snapshots(ctx):
    """Two hybrids with enable_xavier: one reads what the other computed, and goes on with its streams when it is killed."""
    server = ctx.server
    rng = random.Random(3)
    ids = ordinary_ids(ctx.model)
    shared, streamed = (rng.choices(ids, k=ctx.longest * 3 // 4) for _ in range(2))
    if not launched(ctx, "2 hybrids with snapshots", placements=[("hybrid", ctx.prefill), ("hybrid", ctx.decode)], enable_xavier=True,
                    snapshot_read_always=True, **EXACT):
        return
    first = server.ask(prompt=shared, max_tokens=8, temperature=0, ignore_eos=True, request_id="snap-1")
    blocks = len(shared) // 64
    wait_for(lambda: server.metric("baton_snapshots", state="complete") >= blocks, 5, 0.05)
    made = server.metric("baton_snapshots", state="complete")
    second = server.ask(prompt=shared, max_tokens=8, temperature=0, ignore_eos=True, request_id="snap-2")
    by = {e["req"]: (e.get("replicas"), int(e["cached_tokens"])) for e in server.awaited_events(2, "request.done")}
    one, two = by.get("snap-1", ("?", 0)), by.get("snap-2", ("?", 0))
    ctx.report.check(first.whole() and first.text == second.text and one[0] != two[0] and two[1] >= len(shared) * 0.9 - 64,
                     f"snapshots: {made:.0f} made; the other replica ({one[0]} then {two[0]}) found {two[1]} of {len(shared)} prompt tokens, "
                     f"{'the same text' if first.text == second.text else 'another text'}")
    failover_from_snapshots(ctx, streamed)
    server.terminate()


def failover_from_snapshots(ctx, prompt):
    server, killed = ctx.server, {}
    tokens = 1500

    def on_first():
        killed["made"] = server.metric("baton_snapshots", state="complete")

    def kill():
        want = killed["made"] + len(prompt) // 64
        wait_for(lambda: server.metric("baton_snapshots", state="complete") >= want, 2, 0.02)
        row = wait_for(lambda: next((r for r in server.replicas() if r["running"]), None), 3, 0.01)
        if row is None:
            return
        killed["computed"] = {labels["replica"]: v for n, labels, v in server.metrics() if n == "baton_prefill_tokens_total"}
        killed["replica"] = str(row["replica_id"])
        os.kill(row["pid"], signal.SIGKILL)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = {}
        answer = server.ask(prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True, stream=True, logprobs=1, request_id="snap-3",
                            on_first=lambda: (on_first(), job.update(kill=pool.submit(kill))))
    time.sleep(0.3)
    after = {labels["replica"]: v for n, labels, v in server.metrics() if n == "baton_prefill_tokens_total"}
    survivor = next((r for r in after if r != killed.get("replica")), "?")
    computed = after.get(survivor, 0) - killed.get("computed", {}).get(survivor, 0)
    failovers = server.metric("baton_failovers_total")
    gap = max((b - a for a, b in zip(answer.times, answer.times[1:])), default=0)
    wait_for(lambda: all(r["status"] == "READY" and r["pid"] for r in server.replicas()), 20, 0.1)
    again = server.ask(prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True, stream=True, logprobs=1)
    ctx.report.check("replica" in killed and failovers == 1 and answer.whole() and answer.tokens == again.tokens and computed < len(prompt) / 2,
                     f"snapshots: replica {killed.get('replica', 'none')} killed in mid-stream: {failovers:.0f} failover, {computed:.0f} tokens computed again of "
                     f"{len(prompt)} and more, {'the undisturbed text' if answer.tokens == again.tokens else 'ANOTHER TEXT'}, longest gap {1e3 * gap:.0f} ms"
                     f"{'; ' + answer.error if answer.error else ''}")
