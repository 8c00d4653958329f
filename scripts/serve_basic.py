"""The first check of the whole program: texts alone and in a crowd, hybrid and handed over, and what a stream's tokens take."""

import concurrent.futures
import statistics
import threading
import time

from serving import gpu_memory, memory_back

WORDS = "the sun rises over a quiet village while children play near old stone bridge and river flows past green hills".split()


def prompts(n, longest):
    out = []
    for i in range(n):
        size = [3, 15, 16, 17, 63, 64, 65, 200, longest][i % 9] + i // 9
        out.append(" ".join(WORDS[(i * 7 + j * (1 + i % 5)) % len(WORDS)] for j in range(size)))
    return out


def settings(i):
    return [{"temperature": 0}, {"temperature": 0.9, "seed": i}, {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "seed": i}][i % 3]


def texts(server, asked, crowd):
    """Text and the logprob of each token: equal numbers say more than equal texts."""
    def one(i):
        a = server.ask(prompt=asked[i], ignore_eos=True, max_tokens=32, logprobs=1, **settings(i))
        return a.error or (a.text, a.logprobs)

    with concurrent.futures.ThreadPoolExecutor(crowd) as pool:
        return list(pool.map(one, range(len(asked))))


def same(ctx, name, got, want):
    wrong = [i for i, (a, b) in enumerate(zip(got, want)) if a != b]
    errors = [t for t in got if isinstance(t, str)]
    ctx.report.check(not wrong and not errors, f"{name}: {len(got) - len(wrong)} of {len(got)} texts equal" + (f"; {errors[0]}" if errors else ""))


def streamed(server, prompt, on_first=None, max_tokens=64):
    """Arrival time of each token, from the sending of the request."""
    return server.ask(prompt=prompt, on_first=on_first, max_tokens=max_tokens, temperature=0, ignore_eos=True, stream=True).times


def measure(server, name, crowd, tokens, words):
    prompt = " ".join(WORDS[j % len(WORDS)] for j in range(words))
    streamed(server, prompt, max_tokens=4)

    def counters():
        return server.metric("baton_engine_steps_total"), server.metric("baton_engine_host_seconds_total") * 1e6

    # All streams have their first token, one has ended: in between the steps hold no prompts.
    lock, first, at = threading.Lock(), [], {}

    def on_first():
        with lock:
            first.append(1)
            last = len(first) == crowd
        if last:  # a moment later: until what came before is reported
            threading.Timer(0.11, lambda: at.setdefault("decode", counters())).start()

    def one(i):
        times = streamed(server, f"{i} {prompt}", on_first=on_first, max_tokens=tokens)
        with lock:
            ended = "end" not in at
            at.setdefault("end", None)
        if ended:
            at["end"] = counters()
        return times

    before, begin = counters(), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(crowd) as pool:
        runs = list(pool.map(one, range(crowd)))
    took = time.monotonic() - begin
    time.sleep(1.2)  # the last counters
    after = counters()

    def per_step(a, b):
        return f"{(b[1] - a[1]) / (b[0] - a[0]):.1f}" if a and b and b[0] > a[0] else "?"
    gaps = [b - a for times in runs for a, b in zip(times, times[1:])]
    begun = [times[0] for times in runs if times]
    print(f"      {name}: {crowd} streams of {words} words, {tokens} tokens: first {1e3 * statistics.median(begun):.1f} ms, between "
          f"{1e3 * statistics.median(gaps):.2f} ms (p99 {1e3 * sorted(gaps)[int(0.99 * len(gaps))]:.2f}), "
          f"{sum(map(len, runs)) / took:.0f} tokens/s, host {per_step(before, after)} us a step, {per_step(at.get('decode'), at.get('end'))} without prompts", flush=True)


def launched(ctx, name, keys):
    status, answer, took = ctx.server.launch(ctx.model, **keys)
    return ctx.report.check(status == 200, f"{name}: launched in {took:.1f} s{'' if status == 200 else ' ' + answer[:300]}")


def handed_over(ctx, asked, alone, mover, exact):
    server, start = ctx.server, len(ctx.server.lines())
    if not launched(ctx, "prefill and decode", {"placements": ctx.pair, "verify_handoff": True, **exact, **({"mover": mover} if mover else {})}):
        return
    by = server.awaited_events(1, "xavier.pair_up", start)[-1]["mover"]
    same(ctx, f"prefill and decode over {by}, 8 at once", texts(server, asked, 8), alone)
    ctx.report.check(server.settled(0, "baton_fallbacks_total"), "no hand-off was replaced by computation")
    ctx.report.check(server.metric("baton_prefill_tokens_total", role="decode") == 0, "the decode replica computed no prompt")
    server.terminate()


def timed(ctx, name, keys):
    server = ctx.server
    if not launched(ctx, f"{name}, fast", {"max_model_len": 8192, "gpu_memory_utilization": 0.8, **keys}):
        return
    for crowd in (1, 8) if ctx.quick else (1, 8, 64):
        measure(server, name, crowd, 64 if ctx.quick else 768 // (2 if crowd > 1 else 1), 40 if ctx.quick else 180)
    for _ in range(5):
        server.ask(prompt="the sun", stop_after=3, max_tokens=1000, ignore_eos=True, stream=True)
    begin = time.monotonic()
    held = server.all_free()
    ctx.report.check(not held, f"aborted streams free their blocks within {time.monotonic() - begin:.1f} s; held: {held or 'nothing'}")
    server.terminate()


def check_serve(ctx):
    server, before = ctx.server, gpu_memory()
    asked = prompts(9 if ctx.quick else 27, 60 if ctx.quick else 600)
    exact = {"deterministic": True, "max_model_len": 4096, "gpu_memory_utilization": 0.5}
    if launched(ctx, "hybrid, deterministic", {"n_gpu": 1, **exact}):
        alone = texts(server, asked, 1)
        same(ctx, "16 at once", texts(server, asked, 16), alone)
        same(ctx, "5 at once, from the prefix cache", texts(server, asked, 5), alone)
        ctx.report.check(not server.all_free(), "no block is held afterwards")
        ctx.report.check(server.terminate() == 200, "terminated")
        for mover in ("",) if ctx.quick else ("", "tcp"):
            handed_over(ctx, asked, alone, mover, exact)
    for name, keys in (("hybrid", {"n_gpu": 1}), ("prefill and decode", {"placements": ctx.pair})):
        timed(ctx, name, keys)
    back, now = memory_back(before)
    ctx.report.check(back, f"GPU memory is back: {before} MiB before, {now} after")
