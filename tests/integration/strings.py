"""Texts for the comparison of tokenizers: pieces of this repository and of Python's library, and generated ones, from a seed."""
import random
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Blocks of characters that tokenizers' patterns and normalisers tell apart.
RANGES = [(0x20, 0x7E)] * 8 + [(0x61, 0x7A)] * 6 + [(0x30, 0x39)] * 3 + [
    (0, 0x1F), (0x7F, 0xFF), (0x100, 0x24F), (0x2B0, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF),
    (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x23FF), (0x2460, 0x24FF), (0x3000, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFE6F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE000, 0xE010), (0x10000, 0x100FF)]
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\r", "\u00a0", "\u3000", "\u0085", "\u2028", "\u200b", "\ufeff", "\u180e", "\x0b", "\x0c"]
BITS = ["'s", "'S", "'LL", "'re", "'ſ", "don't", "I'M", "’ll", "e\u0301", "o\u0308\u0323", "\u212b", "ﬁ", "Ⅷ½", "１２３", "٣٤٥", "123456789", "3.14", "0x1F", "==", "===>", "<0x0A>", "▁", "▁▁a",
        "😀", "👨‍👩‍👧‍👦", "🇫🇷", "नमस्ते", "สวัสดี", "한글", "ABCdef", "camelCaseWord", "HTTPServer", "/path/to", "://", "...", "\n's", "\n\n\n", "ǅ", "İ", "ß", "µ", "Ω", "²³", "_", "a_b", "$", "`", "|"]


def corpus(limit_bytes=3_000_000):
    """Paragraphs of real text and code, in a fixed order."""
    folders = [(ROOT / "docs", "*.md"), (ROOT / "src", "*.cpp"), (Path(sysconfig.get_paths()["stdlib"]) / "test", "test_unicode*.py"),
               (Path(sysconfig.get_paths()["stdlib"]), "*.py")]
    out, size = [], 0
    for folder, pattern in folders:
        for path in sorted(folder.rglob(pattern) if folder.name != "src" else folder.glob("*/" + pattern)):
            text = path.read_text(errors="replace")[:200_000]
            for part in text.split("\n\n"):
                if part:
                    out.append(part)
                    size += len(part)
            if size > limit_bytes:
                return out
    return out


def generated(r, specials=()):
    out = []
    for _ in range(r.choice([1, 2, 4, 8, 16])):
        kind = r.randrange(10)
        if kind < 4:
            low, high = r.choice(RANGES)
            out.append("".join(chr(r.randint(low, high)) for _ in range(r.randint(1, 6))))
        elif kind < 6:
            out.append(r.choice(SPACES) * r.choice([1, 1, 1, 2, 5]))
        elif kind < 8:
            out.append(r.choice(BITS))
        elif kind < 9 and specials:
            out.append(r.choice(specials))
        else:
            out.append(r.choice("aA1 \n'<=あ") * r.choice([1, 3, 7, 30, 200]))
        if r.random() < 0.4:
            out.append(" ")
    return "".join(out)


def strings(seed, count, specials=()):
    """`count` texts: half of the corpus' (cut at random), half generated; special spellings appear in both."""
    r = random.Random(seed)
    real = corpus()
    out = []
    while len(out) < count:
        if len(out) % 2 == 0:
            text = r.choice(real)
            begin = r.randrange(len(text))
            text = text[begin:begin + r.choice([20, 80, 300, 1000])]
            if specials and r.random() < 0.3:
                at = r.randrange(len(text) + 1)
                text = text[:at] + r.choice(specials) + text[at:]
        else:
            text = generated(r, specials)
        out.append(text)
    return out
