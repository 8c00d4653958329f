#!/usr/bin/env python3
"""Trains the small model of the tests for reasoning and tools: a Qwen3 of 0.4 M weights that knows its sentences by heart.

    python3 scripts/make_speaker_model.py [FOLDER] [--steps N] [--threads N]

Writes config.json, tokenizer.json, tokenizer_config.json and model.safetensors to FOLDER (tests/data/model/speaker, where the chat templates
lie). Needs torch, tokenizers and jinja2; the tests need none of them, because the result is committed. What the model says to which question is
the table below: with tools it calls them in the format that the template asks for. It thinks where enable_thinking is true, and with tools
of the Hermes template also where nothing is said; without tools a prompt that says nothing looks alike in all three templates, so it may not.
"""

import argparse
import json
import math
import pathlib
import random
import struct

import jinja2
import jinja2.ext
import jinja2.sandbox
import tokenizers
import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[1]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT, THETA, EPS = 512, 96, 192, 4, 4, 2, 32, 4096, 10000.0, 1e-6

# question: (thought, answer); without tools, or where no tool fits
TALK = {
    "Say hi": ("The user wants a greeting.", "Hi there!"),
    "What is two plus two?": ("Two and two make four.", "Two plus two is four."),
    "Weather in Paris?": ("I cannot look outside.", "I do not know the weather."),
    "Repeat the signs": ("They want the signs.", "😀한é😀한é😀한é😀한é"),
    "Who is Ann? Reply in JSON": ("An object will do.", '{"name": "Ann", "age": 30}'),
    "Tell me about Paris": ("That needs no tool.", "Paris is the capital of France."),
    "Show me a broken call": ("It will not parse.", "<tool_call>\nnot a call\n</tool_call>"),
}
# question: (thought, words before the calls, calls), where tools are given
CALLS = {
    "Weather in Paris?": ("The weather tool knows.", "", [("weather", {"location": "Paris"})]),
    "Weather in Paris and Rome?": ("Two places, two calls.", "", [("weather", {"location": "Paris"}), ("weather", {"location": "Rome"})]),
    "Look up Oslo": ("First some words.", "Let me look.", [("weather", {"location": "Oslo"})]),
    "Weather in the odd place?": ("A strange name.", "", [("weather", {"location": 'a}b{"c": [1]} é'})]),
    "What time is it?": ("The clock knows.", "", [("clock", {})]),
}
RESULTS = {"sunny": "It is sunny there.", "rain": "It rains there."}
SYSTEMS = [None, None, "You are a helpful assistant.", "Be brief.", "Answer in few words, and use the tools that you have."]
DESCRIPTIONS = ["Get the weather", "The weather of a place.", "Current weather at a location", None]


def tool(name, rng):
    function = {"name": name}
    if name == "weather":
        description = rng.choice(DESCRIPTIONS)
        if description:
            function["description"] = description
        function["parameters"] = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
        if rng.random() < 0.3:
            function["parameters"]["additionalProperties"] = False
            function["strict"] = True
    else:
        if rng.random() < 0.5:
            function["description"] = "The time of day"
        function["parameters"] = {"type": "object", "properties": {}}
    if rng.random() < 0.2:
        function["parameters"]["properties"]["unit"] = {"type": "string", "enum": ["C", "F"]}
    return {"type": "function", "function": function}


def tools_for(names, rng):
    names = set(names) | {n for n in ("weather", "clock") if rng.random() < 0.4}
    out = [tool(n, rng) for n in sorted(names)]
    rng.shuffle(out)
    return out


def written(calls, style):
    """Calls as the model writes them."""
    def text(arguments):
        return json.dumps(arguments, ensure_ascii=False)
    if style == "hermes":
        return "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {text(a)}}}\n</tool_call>' for n, a in calls)
    if style == "llama3":
        return "; ".join(f'{{"name": "{n}", "parameters": {text(a)}}}' for n, a in calls)
    return "[TOOL_CALLS] [" + ", ".join(f'{{"name": "{n}", "arguments": {text(a)}}}' for n, a in calls) + "]"


def example(rng, templates):
    """(prompt, answer) of one conversation."""
    style = rng.choice(["hermes", "hermes", "llama3", "mistral"])
    thinking = style == "hermes" and rng.random() < 0.5
    context = {"add_generation_prompt": True}
    if style == "hermes" and not thinking:
        context["enable_thinking"] = False
    system = rng.choice(SYSTEMS)
    messages = [{"role": "system", "content": system}] if system else []
    kind = rng.choice(["talk", "talk", "call", "call", "call", "result", "free"])
    if kind == "talk" or kind == "free":
        question = rng.choice(list(TALK))
        if kind == "free":
            question = rng.choice([q for q in TALK if q not in CALLS])
            context["tools"] = tools_for(["weather"], rng)
        thought, answer = TALK[question]
        messages.append({"role": "user", "content": question})
    else:
        question = rng.choice(list(CALLS))
        thought, before, calls = CALLS[question]
        context["tools"] = tools_for([n for n, _ in calls], rng)
        messages.append({"role": "user", "content": question})
        if style == "llama3" and len(calls) > 1 and kind == "result":
            calls = calls[:1]
        answer = (before + "\n" if before else "") + written(calls, style)
        if kind == "result":
            result = rng.choice(list(RESULTS))
            messages.append({"role": "assistant", "content": before, "tool_calls": [
                {"id": "c" + str(i), "type": "function", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(calls)]})
            for _ in calls:
                messages.append({"role": "tool", "content": result})
            thought, answer = "The tool has answered.", RESULTS[result]
    prompt = templates[style].render(messages=messages, **context)
    if thinking:
        answer = f"<think>\n{thought}\n</think>\n\n{answer}"
    return prompt, answer + "<|im_end|>"


def load_templates(folder):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, **kw: json.dumps(x, ensure_ascii=False, **kw)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)
    env.globals["raise_exception"] = raise_exception
    return {p.stem: env.from_string(p.read_text()) for p in folder.glob("*.jinja")}


def make_tokenizer(texts):
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Digits(individual_digits=True),
                                                          tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCAB - len(PLAIN), special_tokens=SPECIAL, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(texts, trainer)
    t.add_tokens([tokenizers.AddedToken(p, normalized=False, special=False) for p in PLAIN])
    return t


class Model(torch.nn.Module):
    """Qwen3, written out: norm, attention with normed heads and half rotation, norm, gated feed-forward; tied embedding."""

    def __init__(self, vocab):
        super().__init__()
        def weight(*shape):
            return torch.nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-1]))
        def ones(n):
            return torch.nn.Parameter(torch.ones(n))
        self.names = {"model.embed_tokens.weight": torch.nn.Parameter(torch.randn(vocab, HIDDEN) * 0.05), "model.norm.weight": ones(HIDDEN)}
        for i in range(LAYERS):
            at = f"model.layers.{i}."
            self.names |= {at + "input_layernorm.weight": ones(HIDDEN), at + "post_attention_layernorm.weight": ones(HIDDEN),
                           at + "self_attn.q_proj.weight": weight(HEADS * HEAD_DIM, HIDDEN), at + "self_attn.k_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN),
                           at + "self_attn.v_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN), at + "self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD_DIM),
                           at + "self_attn.q_norm.weight": ones(HEAD_DIM), at + "self_attn.k_norm.weight": ones(HEAD_DIM),
                           at + "mlp.gate_proj.weight": weight(FFN, HIDDEN), at + "mlp.up_proj.weight": weight(FFN, HIDDEN), at + "mlp.down_proj.weight": weight(HIDDEN, FFN)}
        for name, p in self.names.items():
            self.register_parameter(name.replace(".", "_"), p)

    def forward(self, ids):
        w = self.names
        def norm(x, g):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * g
        b, n = ids.shape
        angle = torch.arange(n)[:, None] * THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        def rope(x):
            half = x.shape[-1] // 2
            return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin
        x = F.embedding(ids, w["model.embed_tokens.weight"])
        for i in range(LAYERS):
            at = f"model.layers.{i}."
            h = norm(x, w[at + "input_layernorm.weight"])
            def heads(name, count):
                return (h @ w[at + f"self_attn.{name}_proj.weight"].T).view(b, n, count, HEAD_DIM).transpose(1, 2)
            q = rope(norm(heads("q", HEADS), w[at + "self_attn.q_norm.weight"]))
            k = rope(norm(heads("k", KV_HEADS), w[at + "self_attn.k_norm.weight"]))
            v = heads("v", KV_HEADS)
            k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + a.transpose(1, 2).reshape(b, n, -1) @ w[at + "self_attn.o_proj.weight"].T
            h = norm(x, w[at + "post_attention_layernorm.weight"])
            x = x + (F.silu(h @ w[at + "mlp.gate_proj.weight"].T) * (h @ w[at + "mlp.up_proj.weight"].T)) @ w[at + "mlp.down_proj.weight"].T
        return norm(x, w["model.norm.weight"]) @ w["model.embed_tokens.weight"].T


def write_safetensors(path, tensors):
    header, blobs, at = {}, [], 0
    for name, t in tensors.items():
        raw = t.detach().to(torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def encode(tokenizer, prompt, answer, answer_weight):
    a = tokenizer.encode(prompt, add_special_tokens=False).ids
    b = tokenizer.encode(answer, add_special_tokens=False).ids
    return a + b, [0.02] * (len(a) - 1) + [answer_weight] * len(b)


def train(model, tokenizer, templates, steps, rng):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        rows = [encode(tokenizer, *example(rng, templates), 1.0) for _ in range(12)]
        n = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([r + [0] * (n - len(r)) for r, _ in rows])
        weights = torch.tensor([w + [0.0] * (n - 1 - len(w)) for _, w in rows])
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none") * weights.flatten()
        loss = loss.sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def check(model, tokenizer, templates, rng, count=300):
    """Share of conversations that the weights, as written, answer word for word."""
    for p in model.parameters():
        p.copy_(p.to(torch.bfloat16).float())
    good = 0
    for _ in range(count):
        prompt, answer = example(rng, templates)
        ids, _ = encode(tokenizer, prompt, answer, 1.0)
        n = len(tokenizer.encode(answer, add_special_tokens=False).ids)
        best = model(torch.tensor([ids[:-1]]))[0, -n:].argmax(-1).tolist()
        if best == ids[-n:]:
            good += 1
        else:
            print("wrong:", repr(prompt[-200:]), repr(tokenizer.decode(best, skip_special_tokens=False)))
    return good / count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "tests/data/model/speaker")
    p.add_argument("--steps", type=int, default=2500)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    rng = random.Random(1)
    templates = load_templates(ROOT / "tests/data/model/speaker")
    texts = ["".join(example(rng, templates)) for _ in range(500)]
    for t in SPECIAL + PLAIN:
        texts = [x.replace(t, "\n") for x in texts]
    tokenizer = make_tokenizer(texts)
    model = Model(VOCAB)
    train(model, tokenizer, templates, a.steps, rng)
    print(f"{check(model, tokenizer, templates, random.Random(2)):.1%} of conversations answered word for word")
    a.folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(a.folder / "tokenizer.json"))
    write_safetensors(a.folder / "model.safetensors", model.names)
    (a.folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": CONTEXT,
        "rope_theta": THETA, "rms_norm_eps": EPS, "tie_word_embeddings": True, "attention_bias": False, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": SPECIAL.index("<|im_end|>")}, indent=1) + "\n")
    (a.folder / "tokenizer_config.json").write_text(json.dumps({
        "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": (a.folder / "hermes.jinja").read_text()
        if (a.folder / "hermes.jinja").exists() else ""}, indent=1) + "\n")


if __name__ == "__main__":
    main()
