#!/usr/bin/env python3
"""Compares the CUDA backend's logits with transformers' on random-weight models of real sizes, and SmolLM2's tokens with an oracle's.

    python3 scripts/gpu_parity.py --dump PATH/dump_logits [--work FOLDER] [--modes bf16,deterministic,fp16] [model ...]
    python3 scripts/gpu_parity.py --dump PATH/dump_logits --gguf SmolLM2.gguf --oracle tests/data/model/smollm2_greedy.json

Runs on a machine with a GPU, torch and transformers; libbaton_cuda.so lies beside dump_logits. For each model: random weights (seeded,
bf16) are made on the GPU and written as safetensors; transformers computes the logits in f32 (the reference) and in the mode's own
type; baton computes them through dump_logits: prompts of 1 to 8,192 tokens in one step each, then 128 further tokens for 1, 7 and 64
sequences of mixed lengths, with prompts in chunks and with blocks shared as the prefix cache shares them. Printed: the L2 error of
both against the reference, their ratio (criterion: at most 1.5), and how often baton's greedy token differs although the reference's
best two logits are further apart than transformers' own largest error in that row. Deterministic mode runs some sequences three times
(64 at once; 5 at once in small chunks, other blocks, nothing shared; alone) and compares the bits.

With --gguf nothing of transformers is needed: the oracle's file (scripts/make_greedy.py) has prompts, the greedy tokens of an f32
computation with the dequantised weights, the distance of its best two logits, and by how much transformers in bf16 changes it. The
tokens must be equal wherever the distance is larger than that.

The last table is the result; the exit code is 1 where a criterion is missed.
"""

import argparse
import concurrent.futures
import json
import pathlib
import queue
import shutil
import subprocess
import sys
import time

RATIO_MAX = 1.5
BLOCK = 64       # positions a KV block holds: what sequences share is a multiple of it
CHUNK = 64 << 20  # bytes copied at once
THREADS = 8


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


def make_model(config):
    """The model in bf16 on the device."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, 256, None
    with torch.device(device()):
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
    return model.eval()


def device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def save_model(model, folder):
    """config.json, a tokenizer and one safetensors file, which several threads fill by way of page-locked memory."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    make_tokenizer(folder, model.config.vocab_size)
    tied = model.config.tie_word_embeddings
    tensors = {n: t for n, t in model.state_dict().items() if not (tied and n == "lm_head.weight")}
    header, at = {}, 0
    for name, t in tensors.items():
        size = t.numel() * t.element_size()
        header[name] = dict(dtype="BF16", shape=list(t.shape), data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # the data begins at a multiple of 64
    path = folder / "model.safetensors"
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    target = torch.from_file(str(path), shared=True, size=8 + len(text) + at, dtype=torch.uint8)[8 + len(text):]
    work = queue.SimpleQueue()
    for name, t in tensors.items():
        flat, begin = t.reshape(-1).view(torch.uint8), header[name]["data_offsets"][0]
        for i in range(0, flat.numel(), CHUNK):
            work.put((flat[i:i + CHUNK], begin + i))
    on_gpu = device() == "cuda"

    def copy():
        slot = torch.empty(CHUNK, dtype=torch.uint8, pin_memory=on_gpu)
        stream = torch.cuda.Stream() if on_gpu else None
        while True:
            try:
                source, place = work.get_nowait()
            except queue.Empty:
                return
            n = source.numel()
            with torch.cuda.stream(stream):
                slot[:n].copy_(source, non_blocking=True)
            if stream is not None:
                stream.synchronize()
            target[place:place + n].copy_(slot[:n])

    if on_gpu:
        torch.cuda.synchronize()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(copy) for _ in range(THREADS)]:
            future.result()


class Case:
    """Sequences of random ids: (prompt, ids, shared, of), and how they are run."""

    def __init__(self, name, vocab, lengths, further, chunk, every, together, share, reverse=False):
        import torch

        generator = torch.Generator().manual_seed(len(lengths))
        self.name, self.chunk, self.every, self.together, self.reverse = name, chunk, every, together, reverse
        self.sequences = []
        for i, prompt in enumerate(lengths):
            ids = torch.randint(0, vocab, (prompt + further,), generator=generator).tolist()
            shared = 0
            if share(i):
                shared = (min(prompt, lengths[i - 1]) - 1) // BLOCK * BLOCK
                ids[:shared] = self.sequences[i - 1][1][:shared]
            self.sequences.append((prompt, ids, shared, i - 1 if shared else 0))

    def variant(self, name, chunk, together, reverse, which=1):
        """Every which-th sequence, run in another way and with nothing shared."""
        other = Case(name, 1, [], 0, chunk, self.every, together, None, reverse)
        other.sequences = [(p, ids, 0, 0) for p, ids, _, _ in self.sequences[::which]]
        return other

    def positions(self, i):
        prompt, ids = self.sequences[i][:2]
        return list(range(prompt - 1, len(ids), self.every))

    def write(self, folder):
        lines = [f"{self.chunk} {self.every} {self.together} {int(self.reverse)} 0"]
        lines += [f"{p} {shared} {of} {' '.join(map(str, ids))}" for p, ids, shared, of in self.sequences]
        (folder / f"{self.name}.txt").write_text("\n".join(lines) + "\n")

    def results(self, folder, vocab):
        """For each sequence its kept logits and its sampled tokens."""
        import numpy
        import torch

        logits = torch.from_numpy(numpy.fromfile(folder / f"{self.name}.bin", dtype=numpy.float32).reshape(-1, vocab))
        tokens = [list(map(int, line.split())) for line in (folder / f"{self.name}.tokens").read_text().splitlines()]
        split = logits.split([len(self.positions(i)) for i in range(len(self.sequences))])
        return list(zip(split, tokens))


def cases(vocab, scale):
    """What is compared with the reference, and what with itself. `scale` 1 is the whole of it."""
    def cut(n):
        return max(1, int(n * scale))

    further = cut(128)
    compared = [
        Case("prefill", vocab, [cut(n) for n in (1, 2, 17, 64, 100, 511, 1024, 2049, 8192)], 0, 8192, 1, 1, lambda i: i == 7),
        Case("decode-1", vocab, [cut(300)], further, 2048, 1, 1, lambda i: False),
        Case("batch-7", vocab, [1 + cut(137) * i for i in range(7)], further, 256, 4, 7, lambda i: i > 1 and i % 2 == 0),
        Case("batch-64", vocab, [3 + 29 * i % 200 for i in range(64)], further, 512, 16, 64, lambda i: i % 3 == 2),
    ]
    many = Case("bits", vocab, [1 + cut(2100)] + [2 + 61 * i % 500 for i in range(1, 64)], 16, 512, 4, 64, lambda i: i % 3 == 2)
    same = [many, many.variant("bits-5", 96, 5, True), many.variant("bits-1", 8192, 1, False, 8)]
    return compared, same


def logits_at(model, ids, positions):
    import torch

    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([ids], device=device())).last_hidden_state[0, positions]
        return model.lm_head(hidden).float()


def dump(args, model_folder, folder, mode, wanted):
    folder.mkdir(parents=True, exist_ok=True)
    for case in wanted:
        case.write(folder)
    flags = {"bf16": [], "deterministic": ["--deterministic"], "fp16": ["--fp16"]}[mode] + ([] if device() == "cuda" else ["--cpu"])
    begin = time.time()
    done = subprocess.run([args.dump, model_folder, folder, *(c.name for c in wanted), "--cache", args.cache, *flags],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return f"{done.stderr.strip()[-300:]} (exit {done.returncode})"
    print(f"[{mode}] {time.time() - begin:.1f} s; {'; '.join(done.stdout.splitlines())}", flush=True)
    return None


def compare(case, results, reference, half):
    """`half`: for each sequence transformers' logits in the mode's type."""
    ours_error = half_error = worst = 0.0
    rows = clear = other = 0
    for i, (ours, tokens) in enumerate(results):
        prompt, positions = case.sequences[i][0], case.positions(i)
        exact, theirs = reference[i].double(), half[i].double()
        ours = ours.to(exact.device).double()
        e, h, n = (x.norm(dim=1) for x in (ours - exact, theirs - exact, exact))
        worst = max(worst, (e / h).max().item())
        ours_error += (e / n).sum().item()
        half_error += (h / n).sum().item()
        rows += len(positions)
        top = exact.topk(2, dim=1)
        decided = (top.values[:, 0] - top.values[:, 1] > (theirs - exact).abs().amax(1)).tolist()
        best = top.indices[:, 0].tolist()
        clear += sum(decided)
        other += sum(d and tokens[p - (prompt - 1)] != b for d, b, p in zip(decided, best, positions))
    return dict(rows=rows, ours=ours_error / rows, theirs=half_error / rows, ratio=ours_error / half_error, worst=worst, clear=clear, other=other)


def compare_bits(same, folder, vocab):
    """Rows of the other runs, and how many of them differ from the first run's in a bit or token."""
    import torch

    first, *others = (case.results(folder, vocab) for case in same)
    by_ids = {tuple(s[1]): r for s, r in zip(same[0].sequences, first)}
    rows = different = 0
    for case, results in zip(same[1:], others):
        for sequence, (logits, tokens) in zip(case.sequences, results):
            want, want_tokens = by_ids[tuple(sequence[1])]
            rows += len(want)
            different += int((want.view(torch.int32) != logits.view(torch.int32)).any(1).sum()) + (tokens != want_tokens)
    return rows, different


def run_model(args, name, modes):
    import copy

    import torch

    work = pathlib.Path(args.work) / name
    config = configs()[name]
    if args.tiny:
        config.num_hidden_layers, config.vocab_size = 2, 4096
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:2]
    begin = time.time()
    half = make_model(config)
    save_model(half, work / "model")
    model = copy.deepcopy(half).float()
    compared, same = cases(config.vocab_size, args.scale)
    print(f"{name}: made in {time.time() - begin:.1f} s", flush=True)
    rows = []
    with concurrent.futures.ThreadPoolExecutor(1) as background:
        dumps = {m: background.submit(dump, args, work / "model", work / m, m, compared + (same if m == "deterministic" else [])) for m in modes}
        reference = [[logits_at(model, s[1], c.positions(i)) for i, s in enumerate(c.sequences)] for c in compared]
        if device() == "cuda":
            torch.cuda.synchronize()
        print(f"{name}: reference after {time.time() - begin:.1f} s", flush=True)
        del model
        halves = None
        for mode in modes:
            if halves is None or mode == "fp16":
                half = half.half() if mode == "fp16" else half
                halves = [[logits_at(half, s[1], c.positions(i)) for i, s in enumerate(c.sequences)] for c in compared]
            failed = dumps[mode].result()
            if failed:
                rows.append(dict(model=name, mode=mode, case="all", failed=failed))
                continue
            for case, exact, theirs in zip(compared, reference, halves):
                results = case.results(work / mode, config.vocab_size)
                rows.append(dict(model=name, mode=mode, case=case.name, **compare(case, results, exact, theirs)))
            if mode == "deterministic":
                count, different = compare_bits(same, work / mode, config.vocab_size)
                rows.append(dict(model=name, mode=mode, case="bits", rows=count, different=different))
            shutil.rmtree(work / mode)
    shutil.rmtree(work)
    print(f"{name}: {time.time() - begin:.1f} s in all", flush=True)
    return rows


def run_models(args):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    modes = sorted(args.modes.split(","), key=["bf16", "deterministic", "fp16"].index)
    rows = [row for name in args.models or configs() for row in run_model(args, name, modes)]
    bad = 0
    print(f"{'model':13} {'mode':13} {'case':9} {'rows':>5} {'baton':>9} {'hf':>9} {'ratio':>6} {'worst':>6} {'clear':>5} {'other':>5}")
    for r in rows:
        line = f"{r['model']:13} {r['mode']:13} {r['case']:9} "
        if "failed" in r:
            good, line = False, line + "FAILED " + r["failed"]
        elif "different" in r:
            good, line = r["different"] == 0, line + f"{r['rows']:5} rows, {r['different']} with other bits"
        else:
            good = r["ratio"] <= RATIO_MAX and r["other"] == 0
            line += f"{r['rows']:5} {r['ours']:9.6f} {r['theirs']:9.6f} {r['ratio']:6.2f} {r['worst']:6.2f} {r['clear']:5} {r['other']:5}"
        bad += not good
        print(line + ("" if good else " MISSED"))
    compared = [r for r in rows if "ratio" in r]
    print(f"parity: {sum(r['rows'] for r in compared)} rows, {min((r['ratio'] for r in compared), default=0):.2f} to "
          f"{max((r['ratio'] for r in compared), default=0):.2f} times transformers' error, {sum(r['other'] for r in compared)} other tokens, "
          f"{sum(r['different'] for r in rows if 'different' in r)} other bits; {bad} missed")
    return bad


def run_oracle(args):
    oracle = json.loads(pathlib.Path(args.oracle).read_text())
    work = pathlib.Path(args.work) / "oracle"
    prompts = oracle["prompts"]
    bad = all_wrong = 0
    for mode in args.modes.split(","):
        case = Case("greedy", 1, [], 0, 2048, 1, 16, None)
        case.sequences = [(len(p["prompt"]), p["prompt"] + p["greedy"][:-1], 0, 0) for p in prompts]
        failed = dump(args, args.gguf, work, mode, [case])
        if failed:
            print(f"{mode}: FAILED {failed}")
            bad += 1
            continue
        positions = equal = whole = wrong = 0
        for i, (p, (logits, tokens)) in enumerate(zip(prompts, case.results(work, oracle["vocab"]))):
            different = [j for j, (a, b) in enumerate(zip(tokens, p["greedy"])) if a != b]
            positions += len(tokens)
            equal += len(tokens) - len(different)
            whole += not different
            for j in different:
                tie = p["margin"][j] <= p["noise"]
                wrong += not tie
                top = logits[j].topk(2).values
                if j == different[0] or not tie:
                    print(f"{mode}: prompt {i}, token {j}: {tokens[j]} instead of {p['greedy'][j]}; the best two are {p['margin'][j]:.4f} apart in f32, "
                          f"{(top[0] - top[1]).item():.4f} here; bf16 alone changes that by up to {p['noise']:.4f}: {'a near tie' if tie else 'WRONG'}")
        print(f"{mode}: {len(prompts)} prompts, {whole} with all tokens equal; {equal} of {positions} tokens equal, {wrong} others where there is no near tie")
        bad += wrong > 0
        all_wrong += wrong
        shutil.rmtree(work)
    print(f"parity: {len(prompts)} prompts in {args.modes}, {all_wrong} tokens wrong where there is no near tie; {bad} missed")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="of " + ", ".join(["qwen3-0.6b", "qwen2.5-0.5b", "llama-3.2-1b", "llama-3.1-8b"]) + "; none: all")
    parser.add_argument("--dump", required=True)
    parser.add_argument("--work", default="/dev/shm/baton-parity")
    parser.add_argument("--cache", default="/tmp/baton-parity-cache", help="for what baton tunes")
    parser.add_argument("--modes", default="bf16")
    parser.add_argument("--scale", type=float, default=1.0, help="of the lengths: less than 1 is a quick look")
    parser.add_argument("--tiny", action="store_true", help="two layers and a small vocabulary")
    parser.add_argument("--gguf")
    parser.add_argument("--oracle")
    args = parser.parse_args()
    return 1 if (run_oracle(args) if args.gguf else run_models(args)) else 0


if __name__ == "__main__":
    sys.exit(main())
