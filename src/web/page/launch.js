// The form that launches a model, and what becomes of the launch.
import { h, show, field, select, set_options, checkbox, toast } from "./dom.js";
import * as api from "./api.js";
import * as f from "./format.js";
import { Placement } from "./placement.js";
import { repeat } from "./poll.js";

const ENGINES = ["baton", "vLLM", "SGLang", "MLX", "Transformers", "llama.cpp"];
const shell = (text) => (/^[\w./:@,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The three ways to name a model. */
class ModelChoice {
  constructor() {
    const way = (value, label) => h("label", { class: "check" }, h("input", { type: "radio", name: "way", value, onchange: () => this.turn(value) }), h("span", {}, label));
    this.ways = h("div", { class: "ways", role: "radiogroup", "aria-label": "Where the model comes from" }, way("path", "File or folder"), way("name", "Known family"), way("hub", "Hub repository"));
    this.path = field("Path on the worker", h("input", { spellcheck: "false", placeholder: "/models/model.gguf" }), { hint: "A GGUF file, or a folder with config.json and safetensors." });
    this.path_name = field("Model name", h("input", { spellcheck: "false" }), { hint: "Left empty: the file's name." });
    this.family = field("Family", select([], { onchange: () => this.load() }));
    this.size = field("Size (billions)", select([], { onchange: () => this.narrow() }));
    this.format = field("Format", select([], { onchange: () => this.narrow() }));
    this.quantization = field("Quantization", select([]));
    this.repo = field("Repository", h("input", { spellcheck: "false", placeholder: "Qwen/Qwen2.5-0.5B-Instruct" }), { hint: "Its config.json must name a supported architecture." });
    this.note = h("p", { class: "note" });
    this.fields = { path: [this.path, this.path_name], name: [this.family, this.size, this.format, this.quantization, this.note], hub: [this.repo] };
    this.place = h("div", { class: "grid" });
    this.element = h("fieldset", {}, h("legend", {}, "Model"), this.ways, this.place);
    this.specs = [];
    this.turn("path");
  }

  turn(way) {
    this.way = way;
    for (const input of this.ways.querySelectorAll("input")) input.checked = input.value === way;
    show(this.place, this.fields[way]);
    this.element.dispatchEvent(new Event("change", { bubbles: true }));
  }

  async families() {
    const all = await api.get("/v1/model_registrations/LLM");
    set_options(this.family.control, all.map((m) => m.model_name));
    await this.load();
  }

  async load() {
    if (!this.family.control.value) return;
    const family = await api.get(`/v1/model_registrations/LLM/${api.segment(this.family.control.value)}`);
    this.specs = family.model_specs || [];
    this.note.textContent = family.model_description || "";
    set_options(this.size.control, [...new Set(this.specs.map((s) => String(s.model_size_in_billions)))].map((s) => [s, s.replace("_", ".")]));
    this.narrow();
  }

  narrow() {
    const of_size = this.specs.filter((s) => String(s.model_size_in_billions) === this.size.control.value);
    set_options(this.format.control, [...new Set(of_size.map((s) => s.model_format))]);
    set_options(this.quantization.control, [...new Set(of_size.filter((s) => s.model_format === this.format.control.value).flatMap((s) => s.quantizations))]);
  }

  /** The model's part of the launch body, or null after saying what is missing. */
  body() {
    const need = (box, what) => {
      const value = box.control.value.trim();
      box.fault(value ? "" : what);
      if (!value) box.control.focus();
      return value;
    };
    if (this.way === "path") {
      const path = need(this.path, "A path is needed.");
      const name = this.path_name.control.value.trim() || path.replace(/\/+$/, "").split("/").at(-1).replace(/\.gguf$/, "");
      return path && { model_name: name, model_path: path };
    }
    if (this.way === "hub") {
      const repo = need(this.repo, "A repository is needed, as owner/name.");
      return repo && { model_name: repo };
    }
    return need(this.family, "A family is needed.") && {
      model_name: this.family.control.value, model_size_in_billions: this.size.control.value, model_format: this.format.control.value,
      quantization: this.quantization.control.value };
  }
}

/** Keywords of the engine. */
class Options {
  constructor() {
    this.max_model_len = field("Context length", h("input", { type: "number", min: 1, placeholder: "the model's" }), { hint: "Positions a sequence may have." });
    this.max_num_seqs = field("Sequences at once", h("input", { type: "number", min: 1, placeholder: "64; GPU 256" }));
    this.gpu_memory_utilization = field("Share of GPU memory", h("input", { type: "number", min: 0.05, max: 1, step: 0.05, placeholder: "0.9" }));
    this.dtype = field("Type of numbers", select([["", "auto"], "bfloat16", "float16"]), { hint: "On GPUs." });
    this.prefix = checkbox("Reuse earlier prompts (prefix cache)", true);
    this.deterministic = checkbox("Deterministic", false);
    this.more = field("More keywords", h("textarea", { rows: 2, spellcheck: "false", placeholder: '{"block_size": 32}' }), { hint: "JSON; docs/API.md lists them.", wide: true });
    this.element = h("details", { class: "options" }, h("summary", {}, "Engine options"),
      h("div", { class: "grid" }, this.max_model_len, this.max_num_seqs, this.gpu_memory_utilization, this.dtype, h("div", { class: "field checks" }, this.prefix, this.deterministic), this.more));
  }

  body() {
    const all = {};
    for (const name of ["max_model_len", "max_num_seqs", "gpu_memory_utilization"])
      if (this[name].control.value !== "") all[name] = Number(this[name].control.value);
    if (this.dtype.control.value) all.dtype = this.dtype.control.value;
    if (!this.prefix.input.checked) all.enable_prefix_caching = false;
    if (this.deterministic.input.checked) all.deterministic = true;
    this.more.fault("");
    if (this.more.control.value.trim()) {
      try {
        const more = JSON.parse(this.more.control.value);
        if (more === null || typeof more !== "object" || Array.isArray(more)) throw new Error("an object is needed, like {\"block_size\": 32}");
        Object.assign(all, more);
      } catch (fault) {
        this.more.fault(`No JSON object: ${fault.message}`);
        this.element.open = true;
        this.more.control.focus();
        return null;
      }
    }
    return all;
  }
}

/** A launch under way. */
class Launching {
  constructor(uid, signal) {
    this.uid = uid;
    this.bar = h("progress", { max: 1, value: 0, "aria-label": `Loading ${uid}` });
    this.words = h("p", { class: "note", "aria-live": "polite" }, "starting");
    this.rows = h("ul", { class: "parts" });
    this.cancel = h("button", { type: "button", class: "plain danger", onclick: () => this.stop() }, "Cancel");
    this.element = h("section", { class: "card launching", "aria-label": `Launch of ${uid}` }, h("div", { class: "head" }, h("h2", {}, uid), this.cancel), this.bar, this.words, this.rows);
    this.over = new AbortController();
    signal.addEventListener("abort", () => this.over.abort());
    repeat(this.over.signal, 400, () => this.look());
  }

  async stop() {
    this.cancel.disabled = true;
    try {
      await api.call("POST", `/v1/models/${api.segment(this.uid)}/cancel`);
      this.end("cancelled", "");
    } catch (fault) { toast(fault.message, "bad"); }
  }

  end(words, kind, link) {
    this.over.abort();
    this.cancel.remove();
    this.bar.remove();
    show(this.rows);
    this.words.className = kind;
    show(this.words, words, link);
  }

  async look() {
    try {
      const [progress, instances] = await Promise.all([api.get(`/v1/models/${api.segment(this.uid)}/progress`), api.get("/v1/models/instances")]);
      if (this.over.signal.aborted) return;
      const mine = instances.find((i) => i.model_uid === this.uid);
      if (!mine) return this.end("It is gone: cancelled or terminated.", "");
      if (mine.status === "READY") return this.end("Ready. ", "good", [h("a", { href: `#/chat/${api.segment(this.uid)}` }, "Chat with it"), " or ", h("a", { href: "#/running" }, "see its replicas"), "."]);
      if (mine.status === "ERROR") return this.end(mine.replica_statuses.map((r) => r.error_message).find((m) => m) || "The launch failed; its events say why.", "error");
      this.bar.value = progress.progress;
      this.words.textContent = `${progress.stage || "starting"}: ${f.percent(progress.progress)}`;
      show(this.rows, (progress.download_files || []).map((d) => h("li", {}, `${d.name}: ${f.bytes(d.downloaded_bytes)} of ${f.bytes(d.total_bytes)}`)),
        mine.replica_statuses.map((r) => h("li", {}, h("span", { class: `chip ${r.role}` }, r.role), ` ${r.replica_uid}: ${r.status}`)));
    } catch (fault) {
      if (fault.name !== "AbortError") this.words.textContent = fault.message;
    }
  }
}

export default function launch(main, path, signal) {
  const model = new ModelChoice(), options = new Options(), placement = new Placement();
  const uid = field("Served as (uid)", h("input", { spellcheck: "false", maxlength: 100 }), { hint: "The name that requests give as model. Left empty: the model's name." });
  const engine = field("Engine", select(ENGINES), { hint: "The other names mean baton's engine too." });
  const error = h("p", { class: "error", role: "alert" });
  const command = h("code", {});
  const launches = h("div", { class: "stack" });
  const button = h("button", { class: "primary" }, "Launch");

  function body() {
    const named = model.body();
    const keywords = named && options.body();
    if (!keywords) return null;
    if (!placement.check()) { placement.element.querySelector("select")?.focus(); return null; }
    const replicas = placement.config();
    const all = { model_type: "LLM", model_engine: engine.control.value, ...named, replica: replicas.length, replica_config: replicas, ...keywords };
    if (uid.control.value.trim()) all.model_uid = uid.control.value.trim();
    return all;
  }

  /** The same launch as a command line, for those who come back with a script. */
  function preview() {
    const words = ["baton", "launch"];
    const value = (box) => box.control.value.trim();
    if (model.way === "path" && value(model.path)) words.push("--model-path", value(model.path));
    if (model.way === "path" && value(model.path_name)) words.push("-n", value(model.path_name));
    if (model.way === "hub" && value(model.repo)) words.push("-n", value(model.repo));
    if (model.way === "name" && value(model.family)) words.push("-n", value(model.family), "-s", value(model.size), "-f", value(model.format), "-q", value(model.quantization));
    if (uid.control.value.trim()) words.push("-u", uid.control.value.trim());
    if (engine.control.value !== "baton") words.push("-en", engine.control.value);
    words.push("--replica-config", JSON.stringify(placement.config()));
    command.textContent = words.map(shell).join(" ");
  }

  async function submit(e) {
    e.preventDefault();
    error.textContent = "";
    const request = body();
    if (!request) return;
    button.disabled = true;
    try {
      const answer = await api.call("POST", "/v1/models?wait_ready=false", request);
      launches.prepend(new Launching(answer.model_uid, signal).element);
      launches.scrollIntoView({ block: "nearest" });
    } catch (fault) {
      error.textContent = fault.message;
    } finally {
      button.disabled = false;
    }
  }

  const form = h("form", { class: "card launch", onsubmit: submit, oninput: preview, onchange: preview, novalidate: true },
    model.element, h("div", { class: "grid" }, uid, engine), placement.element, options.element, error,
    h("div", { class: "actions" }, button), h("details", {}, h("summary", {}, "As a command"), h("pre", { tabindex: 0, "aria-label": "The launch as a command" }, command)));
  main.append(h("h1", {}, "Launch a model"), launches, form);
  model.families().catch((fault) => { error.textContent = fault.message; });
  repeat(signal, 3000, async () => {
    try {
      const info = await api.get("/v1/cluster/info?detailed=true", signal);
      placement.set_workers(info.filter((n) => n.node_type === "Worker").map((n) => ({ address: n.ip_address, gpus: n.gpu_count })));
    } catch (fault) {
      if (fault.name !== "AbortError") error.textContent = fault.message;
    }
  });
  // What is loading already, whoever launched it.
  api.get("/v1/models/instances", signal).then((all) => {
    for (const i of all) if (i.status === "CREATING") launches.append(new Launching(i.model_uid, signal).element);
  }, () => {});
}
