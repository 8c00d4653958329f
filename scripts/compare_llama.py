#!/usr/bin/env python3
"""Compares baton with llama-cpp-python on the same GGUF file: next tokens and speed.

    python3 -m venv V && CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release" \\
        V/bin/pip install --no-binary llama-cpp-python llama-cpp-python httpx numpy
    V/bin/python scripts/compare_llama.py tokens --baton build/release/baton --model M.gguf
    V/bin/python scripts/compare_llama.py speed  --baton build/release/baton --model M.gguf [--pairs 7]

tokens: over 500 teacher-forced positions, how often baton's next token is llama.cpp's best or within 0.1 logit of it.
speed: decode (64 tokens after an 8-token and after a 512-token prompt) and prefill (512), alternating, medians of the pairs'
ratios; llama.cpp with the better of 1 and 2 threads in each pair.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TEXT = """The history of the lighthouse begins with fires built on hilltops to guide sailors home. As harbours grew, people raised the
fires on platforms so that they could be seen from farther away. The most famous tower of the ancient world stood at Alexandria, and
travellers wrote that its light could be seen for thirty miles. In the middle ages monks often kept the lamps, and after them came
families who lived on lonely rocks for generations. A keeper's day was long: trimming the wick, winding the clockwork that turned the
lens, polishing brass, and writing down the weather. When electricity arrived the work changed slowly, one station at a time. Some
keepers were glad of the quiet; others missed the smell of oil and the sound of the mechanism at night. Today most lights run by
themselves, and a technician visits twice a year. Ships carry satellite receivers, but captains still look for the beam, because a
light on the horizon is a promise that somebody thought of them. Water boils at one hundred degrees Celsius at sea level, while on a
high mountain it boils sooner, since the air presses less on its surface. A computer adds numbers by passing small voltages through
switches that open and close billions of times each second. def add(a, b): return a + b. The recipe calls for two cups of flour, one
egg, a pinch of salt and a little milk; mix them well and let the batter rest for half an hour before you heat the pan. In spring the
river rises when snow melts in the mountains, and farmers along the banks move their animals to higher ground. The town keeps a record
of each flood on the wall of the old mill: a line, a year, and sometimes a name. Children learn to read the numbers before they can read
books. When the water falls again it leaves dark, rich soil behind, and by June the fields are green from one hill to the other. People
here say that the river takes with one hand and gives with two. An engineer from the city once offered to build a dam, but the council
voted against it, twelve to three, because nobody could tell what the fields would be worth without the mud. The oldest house stands where the road bends, and its door is
painted blue. Inside there is a long table, nine chairs, and a clock that has not been right since the war, though everyone winds it."""


def llama(model, threads, n_ctx=1024):
    import llama_cpp

    return llama_cpp.Llama(model_path=model, n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, verbose=False)


def compare_tokens(args):
    import httpx
    import numpy

    engine = llama(args.model, 2)
    ids = engine.tokenize(TEXT.encode(), add_bos=False)[: args.positions + 1]
    by_text = {}
    for i in range(engine.n_vocab()):
        by_text.setdefault(engine.detokenize([i], special=True).decode(errors="replace"), []).append(i)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    state = tempfile.mkdtemp()
    server = subprocess.Popen([args.baton, "serve", "--port", str(port), "--state-dir", state, "--model", args.model, "--model-uid", "m",
                               "--prefill", "1", "--decode", "1"], stderr=subprocess.DEVNULL)
    try:
        http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        for _ in range(300):
            try:
                if http.get("/ready").status_code == 200 and http.get("/v1/models").json()["data"]:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        best = close = 0
        for n in range(1, len(ids)):
            engine.eval([ids[n - 1]])
            row = numpy.ctypeslib.as_array(engine._ctx.get_logits(), (engine.n_vocab(),))
            top = row.max()
            r = http.post("/v1/completions", json={"model": "m", "prompt": ids[:n], "temperature": 0, "max_tokens": 1, "ignore_eos": True,
                                                   "logprobs": 1, "skip_special_tokens": False})
            ours = by_text.get(r.json()["choices"][0]["logprobs"]["tokens"][0], [])
            distance = min((top - row[i] for i in ours), default=1e9)
            best += distance == 0
            close += distance <= 0.1
        total = len(ids) - 1
        print(json.dumps({"positions": total, "equal": best / total, "equal_or_within_0.1": close / total}))
    finally:
        server.terminate()
        server.wait()


def llama_speed(engine, prompt_tokens, decode_tokens):
    rng = random.Random(prompt_tokens)
    ids = [rng.randrange(1000, 40000) for _ in range(prompt_tokens)]
    engine.reset()
    begin = time.perf_counter()
    engine.eval(ids)
    middle = time.perf_counter()
    for _ in range(decode_tokens):
        engine.eval([rng.randrange(1000, 40000)])
    end = time.perf_counter()
    return prompt_tokens / (middle - begin), decode_tokens / (end - middle) if decode_tokens else 0.0


def baton_speed(args, prompt_tokens, decode_tokens):
    out = subprocess.run([args.baton, "bench", "engine", "--model-path", args.model, "--prompt-tokens", str(prompt_tokens),
                          "--decode-tokens", str(decode_tokens), "--json"], check=True, capture_output=True, text=True).stdout
    r = json.loads(out)
    return r["prefill_tok_per_s"], r["decode_tok_per_s"]


def compare_speed(args):
    import llama_cpp

    engines = {t: llama(args.model, t) for t in (1, 2)}
    rows = {"decode after 8": [], "decode after 512": [], "prefill 512": []}
    for pair in range(args.pairs):
        order = ["baton", "llama"] if pair % 2 == 0 else ["llama", "baton"]
        got = {}
        for who in order:
            if who == "baton":
                short, long = baton_speed(args, 8, 64), baton_speed(args, 512, 64)
                got[who] = (short[1], long[1], long[0])
            else:
                runs = [(llama_speed(e, 8, 64), llama_speed(e, 512, 64)) for e in engines.values()]
                got[who] = (max(r[0][1] for r in runs), max(r[1][1] for r in runs), max(r[1][0] for r in runs))
        for i, name in enumerate(rows):
            rows[name].append((got["baton"][i], got["llama"][i]))
    print(f"llama-cpp-python {llama_cpp.__version__}, {os.cpu_count()} cores, {args.pairs} alternating pairs, tok/s")
    for name, pairs in rows.items():
        ratios = sorted(b / l for b, l in pairs)
        print(f"{name:17}  baton {statistics.median(b for b, _ in pairs):8.1f}  llama.cpp {statistics.median(l for _, l in pairs):8.1f}  "
              f"ratio median {statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["tokens", "speed"])
    parser.add_argument("--baton", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--positions", type=int, default=500)
    arguments = parser.parse_args()
    sys.exit(compare_tokens(arguments) if arguments.what == "tokens" else compare_speed(arguments))
