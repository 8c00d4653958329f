"""JSON schemas from a seed, of the keywords that constrained decoding knows. Each has a value that is valid under it."""

import random

WORDS = "name age city price items tags note size state level code user date count flag ratio title path kind mode".split()
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "uri", "duration"]
PATTERNS = ["^[A-Z]{2}-[0-9]{3,5}$", "^(red|green|blue)$", "^[a-z]+(-[a-z]+){0,2}$", "[0-9]{2}", "^\\d{4}$", "^\\w+@\\w+$", "^a|b$", "^[^\\s]{1,8}$", "^\"q\\\\\"$"]


def string(r):
    s = {"type": "string"}
    pick = r.random()
    if pick < 0.15:
        s["format"] = r.choice(FORMATS)
    elif pick < 0.35:
        s["pattern"] = r.choice(PATTERNS)
    elif pick < 0.75:
        low = r.choice([None, 0, 1, 3])
        if low is not None:
            s["minLength"] = low
        s["maxLength"] = r.choice([4, 8, 12, 20, 40])
    return s


def number(r):
    s = {"type": r.choice(["integer", "integer", "number"])}
    whole = s["type"] == "integer" or r.random() < 0.5
    low, high = sorted([r.randint(-2000, 2000), r.randint(-2000, 2000)])
    if not whole:
        low, high = low / 8, high / 8 + 0.5
    if low == high:
        high += 1
    pick = r.random()
    if pick < 0.4:
        s["minimum"], s["maximum"] = low, high + (0 if not whole else 1)
    elif pick < 0.55:
        s["exclusiveMinimum"] = low
    elif pick < 0.7:
        s["exclusiveMaximum"], s["minimum"] = high + 2, low
    return s


def enum(r):
    pool = ["red", "green", "blue", "a b", 'quote"d', "ünï", 1, 2.5, -3, True, False, None, [1, "x"], {"k": 1}]
    values = r.sample(pool, r.randint(1, 5))
    return {"const": values[0]} if r.random() < 0.2 else {"enum": values}


def array(r, depth):
    s = {"type": "array"}
    if r.random() < 0.2:
        s["prefixItems"] = [schema(r, depth + 2) for _ in range(r.randint(1, 3))]
        s["items"] = False if r.random() < 0.5 else schema(r, depth + 2)
        return s
    s["items"] = schema(r, depth + 1)
    s["maxItems"] = r.choice([1, 2, 4])
    if r.random() < 0.5:
        s["minItems"] = r.choice([0, 1])
    return s


def obj(r, depth):
    names = r.sample(WORDS, r.randint(1, 4 if depth == 0 else 3))
    s = {"type": "object", "properties": {n: schema(r, depth + 1) for n in names}}
    required = [n for n in names if r.random() < 0.6]
    if required:
        s["required"] = required
    pick = r.random()
    if pick < 0.5:
        s["additionalProperties"] = False
    elif pick < 0.6:
        s["additionalProperties"] = {"type": "integer", "minimum": 0, "maximum": 99}
    elif pick < 0.65:
        s["required"] = required + ["extra"]
        s["additionalProperties"] = {"type": "boolean"}
    return s


def union(r, depth):
    pick = r.random()
    if pick < 0.3:
        return {"anyOf": [schema(r, depth + 1), {"type": "null"}]}
    if pick < 0.5:
        return {"type": r.sample(["string", "integer", "boolean", "null"], 2)}
    if pick < 0.7:  # told apart by a name
        return {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": k}, r.choice(WORDS[:8]): schema(r, depth + 2)}, "required": ["kind"], "additionalProperties": False}
                for k in r.sample(["x", "y", "z"], 2)
            ]
        }
    if pick < 0.85:
        return {
            "allOf": [
                {"type": "object", "properties": {"one": schema(r, depth + 2)}, "required": ["one"]},
                {"properties": {"two": {"type": "integer"}, "one": True}, "required": ["two"]},
            ]
        }
    return {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "anyOf": [{"properties": {"s": {"type": "string", "maxLength": 5}}, "required": ["s"]}, {"properties": {"b": {"type": "boolean"}}}]}


def schema(r, depth=0):
    pick = r.random()
    if depth == 0:
        return obj(r, 0) if pick < 0.75 else array(r, 0) if pick < 0.85 else union(r, 0)
    if depth > 2:
        return r.choice([string, number, enum])(r) if pick < 0.9 else {"type": r.choice(["boolean", "null"])}
    if pick < 0.25:
        return string(r)
    if pick < 0.5:
        return number(r)
    if pick < 0.6:
        return enum(r)
    if pick < 0.68:
        return {"type": r.choice(["boolean", "null"])}
    if pick < 0.78:
        return array(r, depth)
    if pick < 0.9:
        return obj(r, depth)
    return union(r, depth)


RECURSIVE = [
    {"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}, "required": ["v", "kids"], "additionalProperties": False}}, "$ref": "#/$defs/node"},
    {"type": "object", "properties": {"value": {"type": "string", "maxLength": 6}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["value", "next"]},
    {"$defs": {"e": {"oneOf": [{"type": "integer"}, {"type": "object", "properties": {"op": {"enum": ["+", "*"]}, "args": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1, "maxItems": 2}}, "required": ["op", "args"], "additionalProperties": False}]}}, "type": "object", "properties": {"e": {"$ref": "#/$defs/e"}}, "required": ["e"]},
    {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "integer", "minimum": 0, "maximum": 5}}, "additionalProperties": False, "minProperties": 1, "maxProperties": 3},
    {"type": "object", "additionalProperties": {"type": "string", "maxLength": 4}, "propertyNames": {"pattern": "^[a-z]{1,4}$"}, "maxProperties": 3},
    {"type": "object", "properties": {"na": {"type": "integer"}, "nb": {"type": "integer"}, "n": {"type": "integer"}}, "additionalProperties": {"type": "string", "maxLength": 3}},
]


def schemas(count, seed=1):
    """`count` schemas; every tenth one is of RECURSIVE."""
    r = random.Random(seed)
    return [RECURSIVE[i // 10 % len(RECURSIVE)] if i % 10 == 9 else schema(r) for i in range(count)]
