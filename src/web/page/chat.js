// Talking with a model.
import { h, show, field, select, set_options, checkbox } from "./dom.js";
import * as api from "./api.js";
import * as f from "./format.js";
import { prose } from "./prose.js";

const session = { messages: [], model: "" };  // kept while the page is open, whatever view is shown

/** One answer as it comes. */
class Answer {
  constructor() {
    this.reasoning = h("div", { class: "thought" });
    this.fold = h("details", { class: "reasoning", hidden: true }, h("summary", {}, "Reasoning"), this.reasoning);
    this.text = h("div", { class: "text" });
    this.facts = h("p", { class: "facts" });
    this.element = h("article", { class: "message assistant", "aria-label": "Answer" }, this.fold, this.text, this.facts);
    this.content = "";
    this.thought = "";
    this.began = performance.now();
    this.first = null;
    this.pieces = 0;
  }

  take(event) {
    const choice = event.choices?.[0];
    const delta = choice?.delta || {};
    if (delta.content || delta.reasoning_content) {
      this.first ??= performance.now();
      this.last = performance.now();
      ++this.pieces;
    }
    if (delta.reasoning_content) {
      this.thought += delta.reasoning_content;
      this.fold.hidden = false;
      this.reasoning.textContent = this.thought;
    }
    if (delta.content) {
      this.content += delta.content;
      show(this.text, prose(this.content));
    }
    if (choice?.finish_reason) this.finish = choice.finish_reason;
    if (event.usage) this.usage = event.usage;
    if (event.timings) this.timings = event.timings;
    this.tell();
  }

  tell() {
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    const facts = [];
    if (this.first) facts.push(["first token", f.seconds((this.first - this.began) / 1000)]);
    if (this.first && tokens > 1 && this.last > this.first) facts.push(["speed", `${f.number(((tokens - 1) * 1000) / (this.last - this.first))} tokens/s`]);
    if (tokens) facts.push(["tokens", this.usage ? `${this.usage.prompt_tokens} + ${tokens}` : tokens]);
    if (this.usage?.prompt_tokens_details?.cached_tokens) facts.push(["cached", this.usage.prompt_tokens_details.cached_tokens]);
    const t = this.timings;
    if (t) {
      facts.push(["served by", t.prefill_replica === t.decode_replica ? t.decode_replica : `${t.prefill_replica} → ${t.decode_replica}`]);
      if (t.queue_ms >= 1) facts.push(["queue", f.seconds(t.queue_ms / 1000)]);
      if (t.prefill_ms > 0) facts.push(["prefill", f.seconds(t.prefill_ms / 1000)]);
      if (t.handoff_ms > 0) facts.push(["hand-off", f.seconds(t.handoff_ms / 1000)]);
    }
    if (this.finish && this.finish !== "stop") facts.push(["ended by", this.finish]);
    if (this.fault) facts.push(["", this.fault]);
    show(this.facts, facts.map(([name, value]) => h("span", {}, name && h("b", {}, name), name && " ", value)));
  }
}

export default function chat(main, path, signal) {
  const model = select([], { "aria-label": "Model" });
  const system = field("System message", h("textarea", { rows: 3 }), { wide: true });
  const temperature = field("Temperature", h("input", { type: "number", min: 0, max: 2, step: 0.1, value: 0.7 }));
  const top_p = field("Top p", h("input", { type: "number", min: 0, max: 1, step: 0.05, value: 0.95 }));
  const max_tokens = field("Tokens at most", h("input", { type: "number", min: 1, value: 512 }));
  const seed = field("Seed", h("input", { type: "number", placeholder: "none" }));
  const think = checkbox("Let it think", true);
  const log = h("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: 0 });
  const box = h("textarea", { rows: 2, placeholder: "Write a message", "aria-label": "Message" });
  const error = h("p", { class: "error", role: "alert" });
  const send = h("button", { class: "primary" }, "Send");
  const stop = h("button", { class: "plain", type: "button", hidden: true, onclick: () => under_way?.abort() }, "Stop");
  const clear = h("button", { class: "plain", type: "button", onclick: () => { session.messages = []; show(log); empty(); box.focus(); } }, "New chat");
  let under_way = null;
  let models = [];

  const empty = () => { if (!session.messages.length) show(log, h("p", { class: "empty" }, "Nothing said yet.")); };
  const said = (m) => h("article", { class: `message ${m.role}`, "aria-label": m.role === "user" ? "You" : "Answer" },
    m.reasoning && h("details", { class: "reasoning" }, h("summary", {}, "Reasoning"), h("div", { class: "thought" }, m.reasoning)),
    h("div", { class: "text" }, m.role === "user" ? m.content : prose(m.content)), m.facts);

  function request() {
    const messages = session.messages.map(({ role, content }) => ({ role, content }));
    if (system.control.value.trim()) messages.unshift({ role: "system", content: system.control.value });
    const body = { model: model.value, messages, stream: true, stream_options: { include_usage: true }, timings: true };
    for (const [name, of] of Object.entries({ temperature, top_p, max_tokens, seed })) if (of.control.value !== "") body[name] = Number(of.control.value);
    if (!think.hidden) body.enable_thinking = think.input.checked;
    return body;
  }

  async function ask(e) {
    e?.preventDefault();
    const text = box.value.trim();
    if (!text || under_way) return;
    if (!model.value) { error.textContent = "No model that chats is running."; return; }
    error.textContent = "";
    if (!session.messages.length) show(log);
    session.messages.push({ role: "user", content: text });
    log.append(said(session.messages.at(-1)));
    box.value = "";
    const answer = new Answer();
    log.append(answer.element);
    log.scrollTop = log.scrollHeight;
    under_way = new AbortController();
    stop.hidden = false;
    send.disabled = true;
    try {
      for await (const event of api.stream("/v1/chat/completions", request(), under_way.signal)) {
        const at_end = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
        answer.take(event);
        if (at_end) log.scrollTop = log.scrollHeight;
      }
    } catch (fault) {
      if (fault.name === "AbortError") answer.finish = "you";
      else answer.fault = fault.message;
      if (fault.name !== "AbortError" && !answer.content) error.textContent = fault.message;
      answer.tell();
    }
    if (answer.content || answer.thought) {
      session.messages.push({ role: "assistant", content: answer.content, reasoning: answer.thought, facts: answer.facts });
    } else {
      answer.element.remove();
      log.lastElementChild?.remove();
      session.messages.pop();
      if (!box.value) box.value = text;
      empty();
    }
    under_way = null;
    stop.hidden = true;
    send.disabled = false;
    if (!signal.aborted) box.focus();
  }

  function choose() {
    session.model = model.value;
    const ability = models.find((m) => m.id === model.value)?.model_ability || [];
    think.hidden = !ability.includes("hybrid") && !ability.includes("reasoning");
  }

  model.addEventListener("change", choose);
  box.addEventListener("keydown", (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) ask(e); });
  signal.addEventListener("abort", () => under_way?.abort());
  main.append(h("h1", { class: "visually-hidden" }, "Chat"),
    h("div", { class: "chat" },
      h("section", { class: "talk", "aria-label": "Talk" }, log, error,
        h("form", { class: "compose", onsubmit: ask }, box, h("div", { class: "actions" }, clear, stop, send))),
      h("details", { class: "card settings", open: window.matchMedia("(min-width: 900px)").matches }, h("summary", {}, "Model and settings"),
        h("div", { class: "field wide" }, model), system, h("div", { class: "grid two" }, temperature, top_p, max_tokens, seed), think)));
  session.messages.forEach((m) => log.append(said(m)));
  empty();
  log.scrollTop = log.scrollHeight;
  api.get("/v1/models", signal).then(({ data }) => {
    models = data.filter((m) => m.model_ability?.includes("chat"));
    set_options(model, models.length ? models.map((m) => m.id) : [["", "No model that chats is running"]], path[0] || session.model);
    choose();
    box.focus();
  }, (fault) => { error.textContent = fault.message; });
}
