#!/usr/bin/env python3
"""Writes the golden files under tests/data/model from independent implementations.

    python3 scripts/make_goldens.py [dequant] [models]

Needs numpy, gguf, torch (CPU), transformers, tokenizers and safetensors. Everything is seeded; the versions used are
printed and stored in tests/data/model/VERSIONS.txt.

dequant: blocks of random bytes for every supported GGUF format and the f32 values the gguf package gives for them.
models:  small random models of every family, their logits for a prompt and 64 greedy tokens from transformers; see
         golden_models.py.
"""

import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "model"

FORMATS = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# Byte offsets of the f16 scales in a block; random bytes there would be infinities and NaNs.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}


def make_dequant():
    """One file a format: u32 number of values, u32 number of bytes, the block bytes, the f32 values."""
    import gguf

    out = DATA / "dequant"
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    for name in FORMATS:
        qtype = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[qtype]
        blocks = max(4, 512 // elements)
        raw = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        for offset in SCALES.get(name, []):
            scale = (rng.standard_normal(blocks) * 0.05).astype(np.float16)
            raw[:, offset:offset + 2] = scale.view(np.uint8).reshape(blocks, 2)
        if name in ("F16", "BF16"):
            # Finite values only; infinities and NaNs have tests of their own.
            values = (rng.standard_normal(blocks) * 10.0 ** rng.integers(-6, 4, blocks)).astype(np.float32)
            half = values.astype(np.float16).view(np.uint16) if name == "F16" else (values.view(np.uint32) >> 16)
            raw = half.astype(np.uint16).reshape(blocks, 1).view(np.uint8)
        values = gguf.quants.dequantize(raw.reshape(1, -1), qtype).astype(np.float32).ravel()
        with open(out / f"{name.lower()}.bin", "wb") as f:
            f.write(np.array([values.size, raw.size], dtype="<u4").tobytes())
            f.write(raw.tobytes())
            f.write(values.astype("<f4").tobytes())
        print(f"dequant {name}: {values.size} values, {raw.size} bytes")


def main():
    what = sys.argv[1:] or ["dequant", "models"]
    DATA.mkdir(parents=True, exist_ok=True)
    if "dequant" in what:
        make_dequant()
    if "models" in what:
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
        import golden_models

        golden_models.make_models(DATA)
    from importlib.metadata import version

    lines = [f"{p} {version(p)}" for p in ("numpy", "gguf", "torch", "transformers", "tokenizers", "safetensors")]
    (DATA / "VERSIONS.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
