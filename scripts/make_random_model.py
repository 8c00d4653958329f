#!/usr/bin/env python3
"""Writes a model of random weights in the sizes of a known one, for load tests: config.json, tokenizer.json and model.safetensors.

    python3 scripts/make_random_model.py SHAPE FOLDER [--seed N] [--threads N]

SHAPE: qwen3-0.6b, qwen2.5-0.5b, llama-3.2-1b, llama-3.1-8b, or tiny (a Qwen3 of two layers, for tests). Needs numpy. A folder that holds
the same model already is left as it is.

The tokenizer has a text for every id, so that each generated token shows in a stream, and takes each word of `baton bench serve` (and each
` Qaaab` of its own) as one token: a prompt of N words is N tokens. Ids that are single bytes or special are never the best choice where
the embedding is the output too; otherwise they are as likely as any. The weights are bf16, tiled from one block of random numbers at
another offset for each tensor; their scale keeps the activations of the order of one.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import struct
import sys
import time

import numpy

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
PLAIN = {"rope_type": "default", "rope_theta": 1000000.0}
SHAPES = {  # family, vocabulary, hidden, feed-forward, layers, heads, key heads, head size, context, tied, epsilon, rope
    "qwen3-0.6b": ("qwen3", 151936, 1024, 3072, 28, 16, 8, 128, 40960, True, 1e-6, PLAIN),
    "qwen2.5-0.5b": ("qwen2", 151936, 896, 4864, 24, 14, 2, 64, 32768, True, 1e-6, PLAIN),
    "llama-3.2-1b": ("llama", 128256, 2048, 8192, 16, 32, 8, 64, 131072, True, 1e-5, {**LLAMA3, "factor": 32.0}),
    "llama-3.1-8b": ("llama", 128256, 4096, 14336, 32, 32, 8, 128, 131072, False, 1e-5, LLAMA3),
    "tiny": ("qwen3", 2000, 64, 128, 2, 4, 2, 32, 16384, True, 1e-6, PLAIN),
}
CLASSES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
# The words of `baton bench serve` and those of scripts/gpu_serve.py.
WORDS = """time year people way day man thing woman life child world school state family student group country problem hand part place case week
company system program question work government number night point home water room mother area money story fact month lot right study book eye
job word business issue side kind head house service friend father power hour game line end member law the sun rises over a quiet village while
children play near old stone bridge and river flows past green hills""".split()
EOS = 256
BLOCK = 8388593  # numbers in the block: a prime, so that no two rows of a tensor are equal


def config(shape):
    family, vocab, hidden, ffn, layers, heads, kv_heads, head_dim, context, tied, epsilon, rope = SHAPES[shape]
    return {"architectures": [CLASSES[family]], "model_type": family, "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "max_position_embeddings": context, "tie_word_embeddings": tied, "rms_norm_eps": epsilon, "rope_parameters": rope,
            "hidden_act": "silu", "attention_bias": family == "qwen2", "dtype": "bfloat16", "bos_token_id": None, "eos_token_id": EOS,
            "pad_token_id": None}


def tensors(shape):
    """(name, shape, kind) of each tensor; the kind decides the scale."""
    family, vocab, hidden, ffn, layers, heads, kv_heads, head_dim, _, tied, _, _ = SHAPES[shape]
    yield "model.embed_tokens.weight", (vocab, hidden), "embed"
    for i in range(layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,), "norm"
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            yield f"{at}self_attn.{name}_proj.weight", (rows * head_dim, hidden), "matrix"
            if family == "qwen2":
                yield f"{at}self_attn.{name}_proj.bias", (rows * head_dim,), "bias"
            if family == "qwen3" and name != "v":
                yield f"{at}self_attn.{name}_norm.weight", (head_dim,), "norm"
        yield at + "self_attn.o_proj.weight", (hidden, heads * head_dim), "matrix"
        yield at + "post_attention_layernorm.weight", (hidden,), "norm"
        yield at + "mlp.gate_proj.weight", (ffn, hidden), "matrix"
        yield at + "mlp.up_proj.weight", (ffn, hidden), "matrix"
        yield at + "mlp.down_proj.weight", (hidden, ffn), "matrix"
    yield "model.norm.weight", (hidden,), "norm"
    if not tied:
        yield "lm_head.weight", (vocab, hidden), "embed"


def bf16(values):
    """The bits of float32 values rounded to bf16."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def word(i):
    """A word of letters for each number."""
    out = ""
    for _ in range(4):
        out = chr(ord("a") + i % 26) + out
        i //= 26
    return "Q" + out


def byte_alphabet():
    """The characters that byte-level BPE writes for the bytes (as in GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(other))]


def tokenizer(vocab):
    texts = sorted(byte_alphabet()) + ["<|endoftext|>"]
    known = set(texts)
    for text in ["\u0120" + w for w in WORDS] + WORDS:
        if text not in known:
            known.add(text)
            texts.append(text)
    texts += ["\u0120" + word(i) for i in range(vocab - len(texts))]
    special = {"id": EOS, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": None, "pre_tokenizer": level,
            "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": {t: i for i, t in enumerate(texts)}, "merges": []}}


def write_tiled(file, offset, block, start, count):
    """`count` numbers of the endlessly repeated block, from `start` on."""
    while count > 0:
        piece = block[start:start + min(count, 1 << 22)]
        data = memoryview(piece).cast("B")
        while data:
            n = os.pwrite(file, data, offset)
            offset, data = offset + n, data[n:]
        count -= len(piece)
        start = (start + len(piece)) % len(block)


def write_weights(shape, path, seed, threads):
    random = numpy.random.Generator(numpy.random.SFC64(seed))
    plan = list(tensors(shape))
    header, end = {}, 0
    for name, dims, _ in plan:
        size = 2 * int(numpy.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers = random.standard_normal(BLOCK, dtype=numpy.float32)
    blocks = {}

    def scaled(kind, dims):
        scale = {"embed": 0.05, "norm": 0.2, "bias": 0.2, "matrix": dims[-1] ** -0.5}[kind]
        if (kind, scale) not in blocks:
            blocks[kind, scale] = bf16(numbers * numpy.float32(scale) + numpy.float32(kind == "norm"))
        return blocks[kind, scale]

    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        base = f.tell()
        f.truncate(base + end)
        f.flush()
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            jobs = []
            for name, dims, kind in plan:
                at, count = base + header[name]["data_offsets"][0], int(numpy.prod(dims))
                start = int(random.integers(BLOCK))
                block = scaled(kind, dims)
                if kind == "embed":  # bytes and special ids: small, so that they are not chosen
                    small = EOS + 1
                    rows = numpy.resize(block, small * dims[1])
                    rows = bf16((numpy.roll(rows, -start).astype(numpy.uint32) << 16).view(numpy.float32) * numpy.float32(0.1))
                    jobs.append(pool.submit(write_tiled, f.fileno(), at, rows, 0, len(rows)))
                    at, count = at + 2 * len(rows), count - len(rows)
                for first in range(0, count, 1 << 26):  # large tensors in pieces, for several threads
                    n = min(count - first, 1 << 26)
                    jobs.append(pool.submit(write_tiled, f.fileno(), at + 2 * first, block, (start + first) % BLOCK, n))
            for job in jobs:
                job.result()
    return base + end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=min(16, os.cpu_count() or 1))
    o = parser.parse_args()
    mark, want = o.folder / "random_model.txt", f"{o.shape} seed {o.seed}\n"
    if mark.exists() and mark.read_text() == want:
        return
    begin = time.monotonic()
    o.folder.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    (o.folder / "config.json").write_text(json.dumps(config(o.shape), indent=1))
    (o.folder / "tokenizer.json").write_text(json.dumps(tokenizer(SHAPES[o.shape][1])))
    (o.folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}))
    size = write_weights(o.shape, o.folder / "model.safetensors", o.seed, o.threads)
    mark.write_text(want)
    print(f"{o.shape}: {size / 1e9:.2f} GB in {time.monotonic() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
