"""Small random models of every family, with what transformers computes for them (called by make_goldens.py).

For each family NAME, tests/data/model/NAME holds a model directory (config.json, safetensors, tokenizer.json, …) and

  golden.json   prompt ids, 64 greedy ids that follow, and the smallest gap between the best two logits on the way
  logits.bin    f32 [prompt tokens, vocab], logits after each prompt token

llama.gguf and qwen2.gguf beside them hold the same weights as GGUF files, written the way converters do (llama's q and
k rows in pair order, Llama 3 rope scaling as rope_freqs.weight).
"""

import json
import math
import pathlib
import shutil

import numpy as np

VOCAB = 288
PROMPT_TOKENS = 40
GREEDY_TOKENS = 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog and then the other thing that there was",
    "a replica hands its blocks to another replica, which then decodes the rest of them",
    "numbers 0123456789 and some UTF-8: \u00e9\u00e8\u00fc \u4f60\u597d",
]


def make_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def families():
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

    common = dict(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None,
        tie_word_embeddings=False,
    )
    llama3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=64)
    return {
        "llama": (LlamaConfig(**common, head_dim=16, rms_norm_eps=1e-5, rope_parameters=llama3), "float32", None),
        "qwen2": (Qwen2Config(**common), "float16", "120KB"),
        "qwen3": (Qwen3Config(**{**common, "num_attention_heads": 2, "num_key_value_heads": 1}, head_dim=32,
                              rope_parameters=dict(rope_type="default", rope_theta=1000000.0)), "bfloat16", None),
        "mistral": (MistralConfig(**common, sliding_window=None), "float16", None),
        "smollm2": (LlamaConfig(**{**common, "num_hidden_layers": 3, "num_attention_heads": 3,
                                   "num_key_value_heads": 1, "hidden_size": 48, "tie_word_embeddings": True},
                                rope_parameters=dict(rope_type="default", rope_theta=100000.0)), "float32", None),
    }


def randomise(model, seed, half):
    """Weights with enough spread that greedy choices are clear; `half`: values a 16-bit float holds exactly."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 2:
                p.copy_(noise * (1.6 / math.sqrt(p.shape[1])))
            elif name.endswith("bias"):
                p.copy_(noise * 0.3)
            else:
                p.copy_(1.0 + 0.2 * noise)
            p.copy_(p.to(half).to(torch.float32))


def golden(model, prompt):
    import torch

    ids = list(prompt)
    gap = math.inf
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float()
        first = logits.numpy().copy()
        for _ in range(GREEDY_TOKENS):
            # No cache: the whole text again, so that nothing but the forward pass is trusted.
            last = model(torch.tensor([ids])).logits[0, -1].float()
            best = torch.topk(last, 2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
    return first, ids[len(prompt):], gap


def old_style_config(path):
    """The spelling of transformers 4: rope_theta beside rope_scaling, torch_dtype."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")


def permute(weight, heads):
    """Rows of each head from half order to pair order, as GGUF writers do for llama."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def gguf_tensor_name(name):
    parts = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }
    stem, kind = name.rsplit(".", 1)
    if stem in parts:
        return f"{parts[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{parts[rest]}.{kind}"


def rope_factors(config):
    """Llama 3 scaling as divisors of the frequencies."""
    rope = config.rope_parameters
    dim = config.head_dim
    factors = []
    for i in range(dim // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * i / dim)
        original = rope["original_max_position_embeddings"]
        if wavelength < original / rope["high_freq_factor"]:
            factors.append(1.0)
        elif wavelength > original / rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def write_gguf(path, arch, model, tokenizer):
    import gguf

    config = model.config
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_rope_freq_base(config.rope_parameters["rope_theta"])
    w.add_vocab_size(config.vocab_size)
    w.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(tokens)
    w.add_token_types([3 if t in SPECIAL else 1 for t in tokens])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)
    if arch == "llama":
        w.add_tensor("rope_freqs.weight", rope_factors(config))
    for name, p in model.state_dict().items():
        data = p.numpy()
        if arch == "llama" and "q_proj" in name:
            data = permute(data, config.num_attention_heads)
        if arch == "llama" and "k_proj" in name:
            data = permute(data, config.num_key_value_heads)
        w.add_tensor(gguf_tensor_name(name), data.astype(np.float16) if data.ndim == 2 else data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make_rope(data):
    """rope.json: RoPE parameters with the inverse frequencies and attention scale transformers gives for them."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    cases = []
    for parameters in [
        dict(rope_type="default", rope_theta=10000.0),
        dict(rope_type="default", rope_theta=1000000.0),
        dict(rope_type="linear", rope_theta=10000.0, factor=2.5),
        dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=8192),
        dict(rope_type="llama3", rope_theta=10000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=64),
        dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64),
        dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=32768),
        dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=128, beta_fast=16.0,
             beta_slow=2.0, attention_factor=1.25),
    ]:
        config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=256,
                             rope_parameters=dict(parameters))
        rope = LlamaRotaryEmbedding(config)
        cases.append(dict(rope_parameters=parameters, inv_freq=[float(f) for f in rope.inv_freq],
                          scale=float(rope.attention_scaling)))
    (pathlib.Path(data) / "rope.json").write_text(json.dumps(cases, indent=1) + "\n")


def make_models(data):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    make_rope(data)
    tokenizer = make_tokenizer()
    rng = np.random.default_rng(3)
    prompt = [int(v) for v in rng.integers(3, VOCAB, PROMPT_TOKENS)]
    for index, (name, (config, dtype, shard)) in enumerate(families().items()):
        out = pathlib.Path(data) / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        half = torch.bfloat16 if dtype == "bfloat16" else torch.float16
        for seed in range(200):
            randomise(model, 1000 * index + seed, half)
            logits, greedy, gap = golden(model, prompt)
            # A clear gap at every step, and a text that does not just repeat itself.
            if gap > 2e-3 * np.abs(logits).max() and len(set(greedy)) > 12:
                break
        else:
            raise SystemExit(f"{name}: no seed gives clear greedy choices")
        stored = AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
        stored.load_state_dict({k: v.to(getattr(torch, dtype)) for k, v in model.state_dict().items()})
        stored.generation_config.temperature = 0.7
        stored.generation_config.top_p = 0.9
        stored.generation_config.do_sample = True
        stored.save_pretrained(out, **({"max_shard_size": shard} if shard else {}))
        if name in ("qwen3", "smollm2"):
            old_style_config(out / "config.json")
        tokenizer.save(str(out / "tokenizer.json"))
        (out / "tokenizer_config.json").write_text(json.dumps(
            {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE,
             "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2) + "\n")
        (out / "golden.json").write_text(json.dumps({"prompt": prompt, "greedy": greedy, "gap": gap}) + "\n")
        (out / "logits.bin").write_bytes(logits.astype("<f4").tobytes())
        if name in ("llama", "qwen2"):
            write_gguf(pathlib.Path(data) / f"{name}.gguf", name, model, tokenizer)
        print(f"{name}: seed {seed}, gap {gap:.4f}, max |logit| {np.abs(logits).max():.3f}, "
              f"{len(set(greedy))} different greedy tokens")
