#!/usr/bin/env python3
"""Writes the oracle that scripts/gpu_parity.py --gguf compares a GPU's tokens with.

    python3 scripts/make_greedy.py GGUF --dump PATH/dump_logits [--work FOLDER] [--out tests/data/model/smollm2_greedy.json]

Needs torch, transformers, accelerate, gguf and safetensors; a GPU is not needed. The weights are dequantised to f32; baton's CPU backend
chooses 72 greedy tokens for each of 50 prompts in f32; transformers computes the same sequences in f32 and must agree wherever its best
two logits are more than 1e-3 apart. Beside the tokens go the distance of the best two logits at each, and by how much transformers in bf16
changes that distance at most over the prompt's tokens.
"""

import argparse
import json
import pathlib
import subprocess
import sys

FURTHER = 72
TIE = 1e-3
TOPICS = ["the tides", "a good night's sleep", "how bread rises", "the first bicycle", "why leaves turn red", "prime numbers", "the city of Lisbon",
          "a lost umbrella", "binary search", "the colour blue", "earthquakes", "learning to swim", "honey bees", "the printing press", "a rainy Sunday",
          "the speed of light", "growing tomatoes", "an old lighthouse", "how vaccines work", "chess openings", "the silk road", "black holes",
          "writing a letter", "volcanoes", "the number zero"]
ASKS = ["Explain {} to a child of ten.", "Write three sentences about {}."]
# Beside chat: plain text, code, other languages, numbers, and a long prompt.
PLAIN = {0: "Once upon a time, in a village by the sea,", 7: "def fibonacci(n):\n    ", 13: "1, 1, 2, 3, 5, 8, 13,", 21: "La capitale de la France est",
         28: "Der Wind weht heute", 34: "The quick brown fox jumps over the lazy dog. " * 40 + "Then", 41: "A", 48: "{\"name\": \"baton\", \"version\": "}


def prompts(tokenizer):
    out = []
    for i in range(50):
        if i in PLAIN:
            out.append(tokenizer(PLAIN[i])["input_ids"])
            continue
        ask = ASKS[i % 2].format(TOPICS[i // 2])
        text = f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n"
        out.append(tokenizer(text)["input_ids"])
    return out


def dequantise(gguf, folder):
    """The tokenizer, and the model in f32, which is also written as safetensors."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = dict(pretrained_model_name_or_path=str(gguf.parent), gguf_file=gguf.name)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.architectures = [type(model).__name__]
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: t.contiguous() for n, t in model.state_dict().items() if not (model.config.tie_word_embeddings and n == "lm_head.weight")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer, model


def greedy_on_cpu(dump, model, work, asked):
    """The tokens of baton's CPU backend, 16 sequences at a time."""
    lines = [f"512 {FURTHER} 16 0 {FURTHER - 1}"] + [f"{len(ids)} 0 0 {' '.join(map(str, ids))}" for ids in asked]
    (work / "greedy.txt").write_text("\n".join(lines) + "\n")
    subprocess.run([dump, model, work, "greedy", "--cpu"], check=True)
    return [list(map(int, line.split())) for line in (work / "greedy.tokens").read_text().splitlines()]


def main():
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("--dump", required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/baton-greedy"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/data/model/smollm2_greedy.json"))
    args = parser.parse_args()
    tokenizer, model = dequantise(args.gguf, args.work / "model")
    asked = prompts(tokenizer)
    chosen = greedy_on_cpu(args.dump, args.work / "model", args.work, asked)

    def logits(ids, tokens):
        with torch.no_grad():
            return model(torch.tensor([ids + tokens[:-1]])).logits[0, len(ids) - 1:].float()

    exact = [logits(ids, tokens) for ids, tokens in zip(asked, chosen)]
    model = model.bfloat16()
    entries, ties = [], 0
    for ids, tokens, rows in zip(asked, chosen, exact):
        top = rows.topk(2, dim=1)
        margin = (top.values[:, 0] - top.values[:, 1]).tolist()
        for j, (token, best) in enumerate(zip(tokens, top.indices[:, 0].tolist())):
            if token == best:
                continue
            ties += 1
            print(f"token {j} after {len(ids)}: baton {token}, transformers {best}, {margin[j]:.2e} apart", file=sys.stderr)
            if margin[j] > TIE:
                sys.exit("baton's CPU backend and transformers differ")
        rounded = logits(ids, tokens).gather(1, top.indices)
        noise = (rounded[:, 0] - rounded[:, 1] - top.values[:, 0] + top.values[:, 1]).abs().max().item()
        entries.append(dict(prompt=ids, greedy=tokens, margin=[round(m, 4) for m in margin], noise=round(noise, 4)))
    text = ",\n".join(json.dumps(e, separators=(",", ":")) for e in entries)
    args.out.write_text(f'{{"model": "{args.gguf.name}", "vocab": {model.config.vocab_size}, "prompts": [\n{text}\n]}}\n')
    close = sum(m <= e["noise"] for e in entries for m in e["margin"])
    print(f"{len(entries)} prompts of {min(map(len, asked))} to {max(map(len, asked))} tokens, {FURTHER} tokens each; {ties} near ties between CPU and transformers; "
          f"{close} tokens where bf16 could choose another; {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
