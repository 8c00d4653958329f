"""The check of what a client sees of a hand-off: the gap between a request's first two tokens beside its own inter-token latency."""

import json
import subprocess

from serve_mixed import ended, launched_pairs

# Milliseconds that the gap may be longer than the latency between two later tokens, at the median. Where both roles share a GPU it holds
# for `cuda_ipc` without other streams: prompts and decode steps then take turns, and NCCL carries the KV over the host's loopback.
BAR_MS = 2.0
SIZES = ((128, 24), (1024, 24), (8192, 16))  # tokens of a prompt, requests
STREAMS = 8


def check_gap(ctx):
    """Alone and beside streams with prompts of the same length, with each mover."""
    sizes = SIZES if ctx.longest >= 2000 else SIZES[:2]
    longest = max(tokens for tokens, _ in sizes)
    given = ctx.mover
    for mover in ctx.movers:
        name, ctx.mover = f"gap, {mover}", mover
        if launched_pairs(ctx, name, max_model_len=longest + 4096, gpu_memory_utilization=0.8):
            for streams in (0, STREAMS):
                for tokens, requests in sizes:
                    if streams == 0 or tokens < 8192 or ctx.prefill != ctx.decode:
                        measured(ctx, name, tokens, requests, streams)
            ended(ctx, name)
        else:
            ctx.server.terminate()
    ctx.mover = given


def measured(ctx, name, tokens, requests, streams):
    run = subprocess.run([ctx.binary, "bench", "handoff", "--url", f"http://127.0.0.1:{ctx.server.port}", "--input-tokens", str(tokens), "--output-tokens", "33",
                          "--requests", str(requests), "--streams", str(streams), "--seed", str(16 * tokens + streams + 1), "--json"], capture_output=True, text=True, timeout=120)
    if not ctx.report.check(run.returncode == 0, f"{name}: {tokens} tokens beside {streams} streams: ended with {run.returncode} {run.stderr.strip()[-300:]}"):
        return
    out = json.loads(run.stdout)
    barred = ctx.real and (ctx.prefill != ctx.decode or (streams == 0 and ctx.mover == "cuda_ipc"))
    p50 = {key: out[key]["p50"] for key in ("ttft_ms", "gap_1_2_ms", "itl_ms", "excess_ms")}
    ctx.report.check(not barred or p50["excess_ms"] <= BAR_MS,
                     f"{name}: {tokens} tokens beside {streams} streams: TTFT {p50['ttft_ms']:.2f}, gap {p50['gap_1_2_ms']:.2f}, ITL {p50['itl_ms']:.2f}, excess "
                     f"{p50['excess_ms']:.2f} ms at the median, {out['excess_ms']['max']:.2f} at most{f' (bar {BAR_MS})' if barred else ''}")
