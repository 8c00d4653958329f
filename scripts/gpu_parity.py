#!/usr/bin/env python3
"""Compares the CUDA backend's logits with transformers' on random-weight models of real sizes.

    python3 scripts/gpu_parity.py --dump PATH/dump_logits [--work FOLDER] [model ...] [--quick]

Runs on a machine with a GPU, torch, transformers and safetensors. For each model: random weights (seeded, bf16) are saved as
safetensors; transformers computes the logits in f32 (the reference) and in bf16; baton computes them through dump_logits, prompts
in chunks and the rest token by token. Printed: the L2 error of both against the reference, their ratio (criterion: at most 1.5),
and how often baton's greedy token differs although the reference's best two logits are further apart than transformers' own
bf16 error. The last table is the result; the exit code is 1 where a criterion is missed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

RATIO_MAX = 1.5


def configs():
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=8192)
    plain = dict(rope_type="default", rope_theta=1000000.0)
    return {
        "qwen3-0.6b": Qwen3Config(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                                  num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960,
                                  tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters=plain),
        "qwen2.5-0.5b": Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                                    num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32768,
                                    tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters=plain),
        "llama-3.2-1b": LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                                    num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072,
                                    tie_word_embeddings=True, rms_norm_eps=1e-5, rope_parameters={**llama3, "factor": 32.0}),
        "llama-3.1-8b": LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                                    num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072,
                                    tie_word_embeddings=False, rms_norm_eps=1e-5, rope_parameters=llama3),
    }


def make_tokenizer(folder, vocab):
    """A byte-level tokenizer without merges: the model file needs one, the comparison does not."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}))


def make_model(config, folder):
    """The model in bf16 on the GPU, and its files."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, 256, None
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.copy_(1.0 + 0.2 * torch.randn_like(weight))
            elif name.endswith("bias"):
                weight.copy_(0.2 * torch.randn_like(weight))
            elif "embed_tokens" in name or "lm_head" in name:
                weight.copy_(0.05 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * weight.shape[1] ** -0.5)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size="8GB")
    make_tokenizer(folder, config.vocab_size)
    return model.eval()


def cases(config, quick):
    """Name → (chunk, [(prompt, further ids)], how many of the latter are compared: each n-th)."""
    long = 2048 if quick else 8192
    out = {
        "prefill": (8192, [(n, 0) for n in (1, 2, 17, 64, 100, 511, 1024, 2049, long)], 1),
        "decode b1": (2048, [(300, 128)], 1),
        "batch 7, chunk 256": (256, [(1 + 137 * i, 48) for i in range(7)], 4),
        "batch 64, chunk 512": (512, [(3 + 29 * i % 700, 32) for i in range(64)], 16),
    }
    return out


def logits_at(model, ids, positions):
    import torch

    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([ids], device="cuda")).last_hidden_state[0, positions]
        return model.lm_head(hidden).float()


def run_case(name, model, half, folder, work, dump, spec, vocab, flags):
    import numpy
    import torch

    chunk, lengths, every = spec
    generator = torch.Generator().manual_seed(len(name))
    sequences = [(p, torch.randint(0, vocab, (p + n,), generator=generator).tolist()) for p, n in lengths]
    requests = work / "requests.txt"
    requests.write_text("".join(f"{p} {' '.join(map(str, ids))}\n" for p, ids in sequences))
    out = work / "logits.bin"
    start = time.time()
    done = subprocess.run([dump, folder, requests, out, "--chunk", str(chunk), "--every", str(every), *flags],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return dict(case=name, failed=(done.stderr.strip() or f"exit {done.returncode}")[-200:])
    seconds = time.time() - start
    ours_all = numpy.memmap(out, dtype=numpy.float32, mode="r").reshape(-1, vocab)
    sampled = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    ours_error = half_error = norm = 0.0
    worst = 0.0
    rows = mismatches = clear = 0
    at = 0
    for (prompt, ids), tokens in zip(sequences, sampled):
        positions = list(range(prompt - 1, len(ids), every))
        reference = logits_at(model, ids, positions)
        theirs = logits_at(half, ids, positions)
        ours = torch.from_numpy(ours_all[at:at + len(positions)].copy()).cuda()
        at += len(positions)
        e, h, n = ((x.double() ** 2).sum(1) for x in (ours - reference, theirs - reference, reference))
        worst = max(worst, (e / h).max().item() ** 0.5)
        ours_error += (e / n).sqrt().sum().item()
        half_error += (h / n).sqrt().sum().item()
        rows += len(positions)
        top = reference.topk(2, dim=1)
        margin = top.values[:, 0] - top.values[:, 1]
        noise = (theirs - reference).abs().amax(1)
        for i, position in enumerate(positions):
            if margin[i] <= 2 * noise[i]:
                continue
            clear += 1
            mismatches += tokens[position - (prompt - 1)] != top.indices[i, 0].item()
    return dict(case=name, rows=rows, ours=ours_error / rows, theirs=half_error / rows, ratio=ours_error / half_error,
                worst=worst, clear=clear, mismatches=mismatches, seconds=seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--dump", required=True)
    parser.add_argument("--work", default="/dev/shm/baton-parity")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--flags", default="", help="passed on to dump_logits, e.g. --deterministic")
    args = parser.parse_args()
    import copy

    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    known = configs()
    results = []
    for name in args.models or known:
        work = pathlib.Path(args.work)
        folder = work / name
        half = make_model(known[name], folder)
        model = copy.deepcopy(half).float()
        for case, spec in cases(known[name], args.quick).items():
            result = dict(model=name, **run_case(case, model, half, folder, work, args.dump, spec, known[name].vocab_size, args.flags.split()))
            results.append(result)
            print(result, flush=True)
        del model, half
        torch.cuda.empty_cache()
        for file in folder.iterdir():
            os.unlink(file)
    bad = 0
    print(f"{'model':14} {'case':20} {'rows':>5} {'baton':>9} {'hf bf16':>9} {'ratio':>6} {'worst':>6} {'clear':>5} {'other':>5} {'s':>5}")
    for r in results:
        if "failed" in r:
            bad += 1
            print(f"{r['model']:14} {r['case']:20} FAILED {r['failed']}")
            continue
        good = r["ratio"] <= RATIO_MAX and r["mismatches"] == 0
        bad += not good
        print(f"{r['model']:14} {r['case']:20} {r['rows']:5} {r['ours']:9.5f} {r['theirs']:9.5f} {r['ratio']:6.2f} {r['worst']:6.2f} "
              f"{r['clear']:5} {r['mismatches']:5} {r['seconds']:5.1f} {'' if good else 'MISSED'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
