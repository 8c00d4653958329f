"""Generated conversations: what a chat template may get to see, good and bad, from a seed."""
import random

WORDS = ["Hello", "world", "the", "lighthouse", "été", "数学", "مرحبا", "😀", "<b>", "a&b", "\"quoted\"", "it's", "{{ x }}", "{% raw %}", "\\n", "C:\\dir",
         "<think>", "</think>", "<|im_end|>", "<tool_call>", "[INST]", "<s>", "null", "None", "3.14", "\u2028", "\u00a0", "'", "%s", "\t"]
TYPES = ["string", "integer", "number", "boolean", "array", "object", "null"]


def text(r, longest=8):
    body = r.choice([" ", " ", "\n", "\n\n"]).join(r.choice(WORDS) for _ in range(r.randint(0, longest)))
    return r.choice(["", "", "", " ", "\n", "  \n"]) + body + r.choice(["", "", "", " ", "\n", "\n\n"])


def value(r, depth=2):
    kind = r.randrange(9 if depth else 6)
    if kind == 0:
        return text(r, 4)
    if kind == 1:
        return r.choice([0, 1, -7, 42, 2**31, -2**63, 10**20])
    if kind == 2:
        return r.choice([0.0, 1.0, -0.5, 3.14, 1e16, 1e-7, 2.5e20, 123456.789, 1e22])
    if kind == 3:
        return r.random() < 0.5
    if kind == 4:
        return None
    if kind == 5:
        return r.choice(["on", "Paris", ""])
    if kind == 6:
        return [value(r, depth - 1) for _ in range(r.randint(0, 3))]
    return {r.choice(["a", "b", "city", "unit", "ключ", "n 1", "items"]): value(r, depth - 1) for _ in range(r.randint(0, 3))}


def schema(r, depth=2):
    kind = r.choice(TYPES[:6] if depth else TYPES[:4])
    out = {"type": kind if r.random() < 0.9 else [kind, "null"]}
    if r.random() < 0.7:
        out["description"] = text(r, 5)
    if kind == "string" and r.random() < 0.4:
        out["enum"] = [r.choice(WORDS) for _ in range(r.randint(1, 3))]
    if r.random() < 0.2:
        out["default"] = value(r, 1)
    if r.random() < 0.1:
        out["nullable"] = True
    if kind == "array":
        out["items"] = schema(r, depth - 1) if r.random() < 0.9 else {}
    if kind == "object":
        out["properties"] = {n: schema(r, depth - 1) for n in r.sample(["x", "y", "name", "type", "items", "größe"], r.randint(0, 3))}
        if r.random() < 0.7:
            out["required"] = list(out["properties"])[: r.randint(0, 3)]
        if r.random() < 0.2:
            out["additionalProperties"] = r.choice([False, {"type": "string"}])
    if r.random() < 0.1:
        out = {"anyOf": [schema(r, 0), schema(r, 0)]}
    return out


def tool(r, i):
    function = {"name": r.choice(["get_weather", "search", "add", "f"]) + str(i)}
    if r.random() < 0.95:
        function["description"] = text(r, 6)
    if r.random() < 0.95:
        function["parameters"] = {"type": "object", "properties": {n: schema(r) for n in r.sample(["city", "unit", "days", "flag", "opts"], r.randint(0, 4))}}
        if r.random() < 0.8:
            function["parameters"]["required"] = r.sample(list(function["parameters"]["properties"]), r.randint(0, len(function["parameters"]["properties"])))
    if r.random() < 0.1:
        function["strict"] = True
    if r.random() < 0.1:
        function["return"] = {"type": "string", "description": text(r, 3)}
    return {"type": "function", "function": function} if r.random() < 0.95 else function


def call(r, i, tools, as_text):
    names = [t.get("function", t)["name"] for t in tools] or ["f"]
    arguments = {n: value(r) for n in r.sample(["city", "unit", "days", "flag", "opts"], r.randint(0, 3))}
    if as_text:
        import json
        arguments = json.dumps(arguments, ensure_ascii=r.random() < 0.5)
    out = {"type": "function", "function": {"name": r.choice(names), "arguments": arguments}}
    if r.random() < 0.9:
        out["id"] = r.choice([f"call{i:05d}"[:9], f"call_{i}", f"functions.{out['function']['name']}:{i}"])
    return out


def content(r, parts):
    if parts:
        return [{"type": "text", "text": text(r)} if r.random() < 0.9 else {"type": r.choice(["image", "image_url", "text"]), "text": "", "image_url": {"url": "x"}}
                for _ in range(r.randint(0, 3))]
    return text(r)


def conversation(r):
    """A context as Hugging Face passes it: messages, tools, flags."""
    tools = [tool(r, i) for i in range(r.randint(1, 3))] if r.random() < 0.5 else []
    parts = r.random() < 0.15
    as_text = r.random() < 0.3
    wild = r.random() < 0.15  # any role anywhere
    messages = []
    if r.random() < 0.5:
        messages.append({"role": r.choice(["system", "system", "system", "developer"]), "content": content(r, parts)})
    calls = 0
    for _ in range(r.randint(1, 4)):
        if wild:
            messages.append({"role": r.choice(["user", "assistant", "system", "tool", "ipython", "function", "developer"]), "content": content(r, parts)})
            continue
        messages.append({"role": "user", "content": content(r, parts)})
        if r.random() < 0.25:
            break
        while tools and r.random() < 0.6:
            made = [call(r, calls + i, tools, as_text) for i in range(r.choice([1, 1, 1, 2, 3]))]
            calls += len(made)
            message = {"role": "assistant", "content": r.choice([None, "", text(r)]), "tool_calls": made}
            if r.random() < 0.1:
                del message["content"]
            if r.random() < 0.3:
                message[r.choice(["reasoning_content", "reasoning_content", "reasoning", "thinking"])] = text(r)
            messages.append(message)
            for one in made:
                result = {"role": "tool", "content": r.choice([text(r), "{\"t\": 21.5}", value(r) if r.random() < 0.2 else "ok"])}
                if r.random() < 0.8:
                    result["name"] = one["function"]["name"]
                if r.random() < 0.9 and "id" in one:
                    result["tool_call_id"] = one["id"]
                messages.append(result)
            if r.random() < 0.7:
                break
        answer = {"role": "assistant", "content": content(r, parts)}
        if r.random() < 0.3:
            answer[r.choice(["reasoning_content", "reasoning_content", "reasoning", "thinking"])] = r.choice([text(r), "", None])
        elif r.random() < 0.3 and isinstance(answer["content"], str):
            answer["content"] = f"<think>\n{text(r)}\n</think>\n\n" + answer["content"]
        messages.append(answer)
    if r.random() < 0.8 and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": content(r, parts)})
    context = {"messages": messages, "add_generation_prompt": r.random() < 0.8, "bos_token": r.choice(["<s>", "<|begin_of_text|>", ""]), "eos_token": "</s>"}
    if tools or r.random() < 0.3:
        context["tools"] = tools or None
    flags = {"enable_thinking": [True, False], "thinking": [True, False], "reasoning_effort": ["low", "medium", "high", "none"], "documents": [
        [], [{"title": text(r, 3), "text": text(r)}, {"title": "t", "snippet": "s", "contents": "c", "doc_id": 3}]], "date_string": ["26 Jul 2024"],
        "tools_in_user_message": [True, False], "custom_tools": [tools], "builtin_tools": [["wolfram_alpha"]], "unk_token": ["<unk>"], "pad_token": ["<pad>"],
        "preserve_thinking": [True, False], "clear_thinking": [True, False], "drop_thinking": [True, False], "thinking_budget": [0, 100, -1, 513],
        "keep_past_thinking": [True], "thinking_mode": ["thinking", "chat"], "add_vision_id": [True], "model_identity": ["M"], "safety_mode": ["NONE", "STRICT"],
        "citation_mode": ["accurate", "fast"], "xml_tools": [None], "functions": [tools, "[]"], "datetime": ["now"], "force_reasoning": [True]}
    if r.random() < 0.1:  # what FireFunction wants
        context.update(functions=r.choice(["[]", str(tools)]), datetime="26 Jul 2024")
    for name, values in flags.items():
        if r.random() < (0.4 if name in ("enable_thinking", "thinking", "reasoning_effort") else 0.06):
            context[name] = r.choice(values)
    return context


def conversations(seed):
    """Without end, the same for the same seed."""
    r = random.Random(seed)
    while True:
        yield conversation(r)
