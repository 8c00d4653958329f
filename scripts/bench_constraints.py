#!/usr/bin/env python3
"""What constrained decoding costs. Two parts:

  bench_constraints.py masks TOKENIZER_JSON VOCAB   compile time, and time a mask, the first and the second time, of some schemas
  bench_constraints.py serve MODEL [BATCH [TOKENS [ROUNDS]]]   decode rate of BATCH (16) streams on the CPU with and without a schema, in turns

BATON_BINARY and BATON_GRAMMAR_TOOL name the programs (masks needs the package tokenizers, serve needs httpx)."""

import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import time

SCHEMAS = {
    "flat": ({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "ok": {"type": "boolean"}}, "required": ["name", "age", "ok"], "additionalProperties": False}, '{"name": "Ann Smith of York", "age": 42, "ok": true}'),
    "nested": (
        {"type": "object", "properties": {"user": {"type": "object", "properties": {"first": {"type": "string", "maxLength": 40}, "mail": {"type": "string", "format": "email"}, "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c", "dd"]}, "maxItems": 5}}, "required": ["first", "mail", "tags"]}, "items": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer", "minimum": 1, "maximum": 9999}, "price": {"type": "number"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["id", "price", "note"]}}}, "required": ["user", "items"]},
        '{"user": {"first": "Ann", "mail": "ann@example.com", "tags": ["a", "dd"]}, "items": [{"id": 12, "price": 3.5, "note": "cheap one"}, {"id": 77, "price": 10, "note": null}]}',
    ),
    "recursive": ({"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["v", "kids"]}}, "$ref": "#/$defs/n"}, '{"v": 1, "kids": [{"v": 2, "kids": [{"v": 3, "kids": []}]}, {"v": 4, "kids": []}]}'),
    "maxlen5000": ({"type": "object", "properties": {"t": {"type": "string", "minLength": 10, "maxLength": 5000}}, "required": ["t"]}, '{"t": "the quick brown fox jumps over the lazy dog"}'),
    "enum500": ({"enum": [f"value number {i} of many" for i in range(500)]}, '"value number 77 of many"'),
    "opt60": ({"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(60)}}, '{"property_3": "abc", "property_40": "def"}'),
    "pattern": ({"type": "object", "properties": {"p": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4,8}(-[a-z]+)*$"}}, "required": ["p"]}, '{"p": "AB-123456-xy"}'),
    "json": (None, '{"a": [1, 2, {"b": "some text here"}], "c": null}'),
}


def masks(tokenizer_json, vocab):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_json)
    lines = [json.dumps({"kind": 1 if s is None else 2, "text": "" if s is None else json.dumps(s), "samples": 0, "ids": tokenizer.encode(text).ids}) for s, text in SCHEMAS.values()]
    out = subprocess.run([os.environ["BATON_GRAMMAR_TOOL"], tokenizer_json, vocab], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    print(out.stderr.strip())
    for name, line in zip(SCHEMAS, out.stdout.split("\n")):
        a = json.loads(line)
        cold, warm = a["cold_us"], a["warm_us"]
        print(f"{name:11s} compile {a['compile_ms']:7.3f} ms; token cold mean {statistics.mean(cold):6.0f} max {max(cold):6.0f} µs, warm mean {statistics.mean(warm):5.1f} max {max(warm):5.1f} µs; "
              f"program {a['bytes'] / 1e3:.0f} kB, remembered {a['own_bytes'] / 1e6:.2f} MB{'' if 'rejected' not in a and a['may_end'] else ' REJECTED'}")


def serve(model, batch=16, tokens=160, rounds=5):
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../tests/integration"))
    os.environ["BATON_TEST_MODEL"] = model
    from harness import Server

    schema = {"type": "object", "properties": {"text": {"type": "string", "minLength": 2000}, "n": {"type": "integer"}}, "required": ["text", "n"], "additionalProperties": False}

    with Server() as server:
        server.launch("hybrid", max_num_seqs=batch)

        def one(i, constrained):
            extra = {"guided_json": schema} if constrained else {"ignore_eos": True}
            begin = time.monotonic()
            r = server.complete(f"Item {i}: tell a long story.", max_tokens=tokens, temperature=1.0, seed=i, **extra)
            return r["usage"]["completion_tokens"], time.monotonic() - begin

        [replica] = server.pids()

        def cpu_s():
            fields = open(f"/proc/{replica}/stat").read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        def round_of(constrained):
            """Tokens a second, and the replica's CPU time a token in ms: the second hardly knows what else the machine does."""
            begin, cpu = time.monotonic(), cpu_s()
            with concurrent.futures.ThreadPoolExecutor(batch) as pool:
                done = list(pool.map(lambda i: one(i, constrained), range(batch)))
            count = sum(n for n, _ in done)
            return count / (time.monotonic() - begin), (cpu_s() - cpu) * 1e3 / count

        round_of(True), round_of(False)  # masks and prompts are warm from here on
        rates, costs = [], []
        for _ in range(rounds):
            free, bound = round_of(False), round_of(True)
            again = round_of(False)
            rates.append(bound[0] / ((free[0] + again[0]) / 2))
            costs.append(bound[1] / ((free[1] + again[1]) / 2))
            print(f"tokens/s free {free[0]:.1f} and {again[0]:.1f}, constrained {bound[0]:.1f}: ratio {rates[-1]:.3f}; "
                  f"CPU ms a token {free[1]:.2f} and {again[1]:.2f}, constrained {bound[1]:.2f}: ratio {costs[-1]:.3f}", flush=True)
        print(f"median of {len(rates)}: rate {statistics.median(rates):.3f}, CPU time {statistics.median(costs):.3f}")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("masks", "serve"):
        sys.exit(__doc__)
    if sys.argv[1] == "masks":
        masks(sys.argv[2], sys.argv[3])
    else:
        serve(sys.argv[2], *(int(a) for a in sys.argv[3:6]))
