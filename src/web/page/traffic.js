// Live plots of what the server measures.
import { h, set_options, select, field } from "./dom.js";
import * as api from "./api.js";
import * as f from "./format.js";
import { Chart } from "./chart.js";
import { parse, sum, growth, quantile } from "./metrics.js";
import { repeat } from "./poll.js";

const WINDOW = 120, PERIOD = 1000;
const ROLES = [["prefill", "c1"], ["decode", "c2"], ["hybrid", "c3"]];
const rate = (value, s) => (value === null ? null : value / s);
const share = (part, whole) => (part === null || !whole ? null : part / whole);

/** Mean of what a histogram took in between two readings; null where nothing came. */
const mean = (a, b, name, w) => { const n = growth(a, b, `${name}_count`, w); return n ? growth(a, b, `${name}_sum`, w) / n : null; };
const add = (...parts) => (parts.every((p) => p === null) ? null : parts.reduce((total, p) => total + (p ?? 0), 0));
/** Share of the tokens that came to the replicas of a role whose KV was there already. */
const found = (a, b, w) => {
  const [hit, ...rest] = ["baton_found_tokens_total", "baton_prefill_tokens_total", "baton_received_tokens_total"].map((name) => growth(a, b, name, w));
  return share(hit, add(hit, ...rest));
};

/** [title, note, lines, format, value(before, now, seconds, where) → one number or null a line] */
const PLOTS = [
  ["Time to first token", "From a request's first byte to its first token.", [["median", "c1"], ["p95", "c4"]], f.seconds,
    (a, b, s, w) => [0.5, 0.95].map((q) => quantile(a, b, "baton_ttft_seconds", q, w))],
  ["What the first token waits for", "Mean of each part: reading and tokenizing, the queue, the prompt's computation.", [["reading", "c6"], ["queue", "c4 dashed"], ["prefill", "c1"]], f.seconds,
    (a, b, s, w) => ["prepare", "queue", "prefill"].map((stage) => mean(a, b, "baton_stage_seconds", { ...w, stage }))],
  ["Time between tokens", "Each answer's mean gap; the gap after the first token holds the hand-off.", [["median", "c2"], ["p95", "c4"], ["first gap, median", "c5 dashed"]], f.seconds,
    (a, b, s, w) => [...[0.5, 0.95].map((q) => quantile(a, b, "baton_tpot_seconds", q, w)), quantile(a, b, "baton_token_gap_seconds", 0.5, { ...w, gap: "first" })]],
  ["Hand-off", "Means: a whole pull of KV, what of it came after the prefill, what clients waited longer for the second token.", [["pull", "c5"], ["after the prefill", "c4"], ["seen by clients", "c3 dashed"]], f.seconds,
    (a, b, s, w) => {
      const n = growth(a, b, "baton_handoffs_total", w);
      return [n ? growth(a, b, "baton_handoff_pull_seconds_total", w) / n : null, mean(a, b, "baton_stage_seconds", { ...w, stage: "handoff" }), mean(a, b, "baton_handoff_added_seconds", w)];
    }],
  ["Queue", "Sequences that wait for a role, and that its replicas run.", ROLES.flatMap(([r, c]) => [[`${r} waiting`, `${c} dashed`], [`${r} running`, c]]), f.number,
    (a, b, s, w) => ROLES.flatMap(([role]) => ["baton_queue_depth", "baton_replica_running"].map((name) => sum(b, name, { ...w, role })))],
  ["Sequences in a step", "Mean batch of the engines' steps, by role.", ROLES, f.number,
    (a, b, s, w) => ROLES.map(([role]) => mean(a, b, "baton_engine_step_sequences", { ...w, role }))],
  ["Tokens per second", "Prompt tokens computed and tokens sampled, by role.", [["prefill: prompt", "c1"], ["decode: output", "c2"], ["hybrid: prompt", "c3 dashed"], ["hybrid: output", "c3"]], f.number,
    (a, b, s, w) => [["prefill", "prefill"], ["generated", "decode"], ["prefill", "hybrid"], ["generated", "hybrid"]].map(([what, role]) => rate(growth(a, b, `baton_${what}_tokens_total`, { ...w, role }), s))],
  ["Requests per second", "Answers that ended in this second.", [["ok", "c2"], ["error", "c4"], ["aborted", "c1"]], f.number,
    (a, b, s, w) => ["ok", "error", "aborted"].map((outcome) => rate(growth(a, b, "baton_requests_total", { ...w, outcome }), s))],
  ["Cache hits", "Share of the tokens whose KV a replica had already, by role.", ROLES, f.percent,
    (a, b, s, w) => ROLES.map(([role]) => found(a, b, { ...w, role }))],
  ["KV blocks in use", "Share of the pool that sequences hold, by role.", ROLES, f.percent,
    (a, b, s, w) => ROLES.map(([role]) => {
      const [used, offered] = ["used", "offered"].map((state) => sum(b, "baton_kv_blocks", { ...w, role, state }));
      return share(add(used, offered), sum(b, "baton_kv_blocks", { ...w, role }));
    })],
];

export default function traffic(main, path, signal) {
  const model = select([["", "All models"]]);
  const note = h("p", { class: "error", role: "alert" });
  const charts = PLOTS.map(([title, text, lines, format]) => new Chart(title, text, lines.map(([name, color]) => ({ name, color })), format, WINDOW));
  main.append(h("div", { class: "head" }, h("h1", {}, "Traffic"), field("Model", model)), note, h("div", { class: "charts" }, charts.map((c) => c.element)));
  let readings = [];  // [unix time, Map]
  const draw = () => {
    const where = { model_uid: model.value || undefined };
    const times = readings.slice(1).map(([t]) => t);
    charts.forEach((chart, k) => {
      const rows = readings.slice(1).map(([t, now], i) => PLOTS[k][4](readings[i][1], now, t - readings[i][0], where));
      chart.draw(times, chart.lines.map((_, line) => rows.map((r) => r[line])));
    });
  };
  model.addEventListener("change", draw);
  charts.forEach((c) => c.render());
  repeat(signal, PERIOD, async () => {
    try {
      const text = (await api.text_of("/metrics", signal)).split("\n").filter((l) => l.startsWith("baton_")).join("\n");
      const now = Date.now() / 1000;
      readings.push([now, parse(text)]);
      readings = readings.filter(([t]) => now - t <= WINDOW + 5);
      const uids = new Set((readings.at(-1)[1].get("baton_requests_running") || []).map((s) => s.labels.model_uid));
      set_options(model, [["", "All models"], ...[...uids].sort()]);
      note.textContent = "";
      draw();
    } catch (fault) {
      if (fault.name !== "AbortError") note.textContent = fault.message;
    }
  });
}
