"""Cuts a GGUF file into several, as its users find large ones on a hub: the first has the metadata and its share of the tensors."""

import struct

FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, ALIGNMENT = 8, 9, 32


def _value_end(data, at, kind):
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != ARRAY:
        return at + FIXED[kind]
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind in FIXED:
        return at + count * FIXED[kind]
    for _ in range(count):
        at = _value_end(data, at, kind)
    return at


def _pair(key, kind, value):
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + struct.pack({2: "<H", 5: "<i"}[kind], value)


def split_gguf(data, parts):
    """The bytes of each part."""
    version, tensor_count, pair_count = struct.unpack_from("<IQQ", data, 4)
    begin = at = 24
    for _ in range(pair_count):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at = _value_end(data, at + 4, struct.unpack_from("<I", data, at)[0])
    pairs, tensors = data[begin:at], []
    for _ in range(tensor_count):
        start = at
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 4
        tensors.append((data[start:at], struct.unpack_from("<Q", data, at)[0]))
        at += 8
    base = -(-at // ALIGNMENT) * ALIGNMENT
    ends = sorted([offset for _, offset in tensors] + [len(data) - base])
    out, share = [], -(-tensor_count // parts)
    for part in range(parts):
        mine = tensors[part * share : (part + 1) * share]
        infos, body = b"", b""
        for head, offset in mine:
            infos += head + struct.pack("<Q", len(body))
            content = data[base + offset : base + ends[ends.index(offset) + 1]]
            body += content + b"\0" * (-len(content) % ALIGNMENT)
        own = _pair("split.no", 2, part) + _pair("split.count", 2, parts) + _pair("split.tensors.count", 5, tensor_count)
        head = b"GGUF" + struct.pack("<IQQ", version, len(mine), 3 + (pair_count if part == 0 else 0)) + (pairs if part == 0 else b"") + own + infos
        out.append(head + b"\0" * (-len(head) % ALIGNMENT) + body)
    return out


def vocabulary(data):
    """The spelling of every token, by id."""
    key = b"tokenizer.ggml.tokens"
    at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 8  # behind "an array of texts"
    count, at, out = struct.unpack_from("<Q", data, at)[0], at + 8, []
    for _ in range(count):
        size = struct.unpack_from("<Q", data, at)[0]
        out.append(data[at + 8 : at + 8 + size].decode())
        at += 8 + size
    return out
