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

/** [title, note, lines, format, value(before, now, seconds, where) → one number or null a line] */
const PLOTS = [
  ["Time to first token", "From a request's first byte to its first token.", [["median", "c1"], ["p95", "c4"]], f.seconds,
    (a, b, s, w) => [0.5, 0.95].map((q) => quantile(a, b, "baton_ttft_seconds", q, w))],
  ["Time between tokens", "Mean gap of each answer's tokens after the first.", [["median", "c2"], ["p95", "c4"]], f.seconds,
    (a, b, s, w) => [0.5, 0.95].map((q) => quantile(a, b, "baton_tpot_seconds", q, w))],
  ["Hand-off", "A whole pull of KV, and the part of it that no computing hid.", [["pull", "c5"], ["exposed", "c4"]], f.seconds,
    (a, b, s, w) => ["pull", "exposed"].map((x) => { const n = growth(a, b, "baton_handoffs_total", w); return n ? growth(a, b, `baton_handoff_${x}_seconds_total`, w) / n : null; })],
  ["Queue", "Sequences that wait or run, by role.", ROLES.flatMap(([r, c]) => [[`${r} waiting`, `${c} dashed`], [`${r} running`, c]]), f.number,
    (a, b, s, w) => ROLES.flatMap(([role]) => ["waiting", "running"].map((x) => sum(b, `baton_replica_${x}`, { ...w, role })))],
  ["Tokens per second", "Prompt tokens computed and tokens sampled, by role.", [["prefill: prompt", "c1"], ["decode: output", "c2"], ["hybrid: prompt", "c3 dashed"], ["hybrid: output", "c3"]], f.number,
    (a, b, s, w) => [["prefill", "prefill"], ["generated", "decode"], ["prefill", "hybrid"], ["generated", "hybrid"]].map(([what, role]) => rate(growth(a, b, `baton_${what}_tokens_total`, { ...w, role }), s))],
  ["Requests per second", "Answers that ended in this second.", [["ok", "c2"], ["error", "c4"], ["aborted", "c1"]], f.number,
    (a, b, s, w) => ["ok", "error", "aborted"].map((outcome) => rate(growth(a, b, "baton_requests_total", { ...w, outcome }), s))],
  ["Prompt tokens from the cache", "Share that was computed before.", [["cached", "c5"]], f.percent,
    (a, b, s, w) => [share(growth(a, b, "baton_cached_tokens_total", w), growth(a, b, "baton_prompt_tokens_total", w))]],
  ["KV blocks in use", "Share of the pool that sequences hold, by role.", ROLES, f.percent,
    (a, b, s, w) => ROLES.map(([role]) => {
      const used = sum(b, "baton_kv_blocks", { ...w, role, state: "used" }), offered = sum(b, "baton_kv_blocks", { ...w, role, state: "offered" });
      return share(used === null ? null : used + (offered ?? 0), sum(b, "baton_kv_blocks", { ...w, role }));
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
