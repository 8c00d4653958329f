// Line charts over time, drawn as SVG.
import { h, svg, show } from "./dom.js";
import { percent } from "./format.js";

const WIDTH = 560, HEIGHT = 190, LEFT = 58, RIGHT = 10, TOP = 10, BOTTOM = 22;

/** A round upper end for an axis that must hold `value`. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= value * 1.0001);
}

/**
 * A chart of several lines over the last `window` seconds. `lines`: [{name, color}], color a class c1…c6. draw(times, series)
 * takes unix times and one list of numbers or nulls a line.
 */
export class Chart {
  constructor(title, note, lines, format, window) {
    this.lines = lines;
    this.format = format;
    this.window = window;
    this.plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", "aria-hidden": "true" });
    this.values = lines.map(() => h("span", { class: "value" }, "–"));
    this.hover = null;
    this.plot.addEventListener("pointermove", (e) => {
      const box = this.plot.getBoundingClientRect();
      this.hover = ((e.clientX - box.left) / box.width) * WIDTH;
      this.render();
    });
    this.plot.addEventListener("pointerleave", () => { this.hover = null; this.render(); });
    const key = h("ul", { class: "key" }, lines.map((l, i) => h("li", {}, h("span", { class: `dot ${l.color}` }), h("span", {}, l.name), this.values[i])));
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, h("h2", {}, title), h("p", { class: "note" }, note)), this.plot, key);
    this.times = [];
    this.series = lines.map(() => []);
  }

  draw(times, series) {
    this.times = times;
    this.series = series;
    this.render();
  }

  render() {
    const end = this.times.at(-1) ?? Date.now() / 1000;
    const x = (t) => LEFT + (1 - (end - t) / this.window) * (WIDTH - LEFT - RIGHT);
    const all = this.series.flat().filter((v) => v !== null && Number.isFinite(v));
    const most = Math.max(0, ...all);
    const top = this.format === percent && most <= 1 ? Math.min(1, ceiling(most)) : ceiling(most);
    const y = (v) => TOP + (1 - v / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (let i = 0; i <= 4; ++i) {
      const v = (top * i) / 4;
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(v), y2: y(v) }));
      if (i % 2 === 0) parts.push(svg("text", { class: "tick", x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, this.format(v)));
    }
    for (const back of [this.window, this.window / 2, 0])
      parts.push(svg("text", { class: "tick", x: x(end - back), y: HEIGHT - 5, "text-anchor": back === this.window ? "start" : back ? "middle" : "end" }, back ? `−${back} s` : "now"));
    this.series.forEach((values, i) => parts.push(...this.line(values, i, x, y)));
    let at = this.times.length - 1;
    if (this.hover !== null && this.times.length) {
      at = this.times.reduce((best, t, i) => (Math.abs(x(t) - this.hover) < Math.abs(x(this.times[best]) - this.hover) ? i : best), at);
      parts.push(svg("line", { class: "cross", x1: x(this.times[at]), x2: x(this.times[at]), y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    this.lines.forEach((_, i) => {
      const v = this.series[i]?.[at];
      this.values[i].textContent = v === null || v === undefined ? "–" : this.format(v);
    });
    show(this.plot, parts);
  }

  line(values, i, x, y) {
    const runs = [];
    let run = [];
    values.forEach((v, k) => {
      if (v === null || !Number.isFinite(v) || this.times.at(-1) - this.times[k] > this.window) {
        if (run.length) runs.push(run);
        run = [];
      } else run.push([x(this.times[k]), y(v)]);
    });
    if (run.length) runs.push(run);
    return runs.map((points) => (points.length === 1
      ? svg("circle", { class: `point ${this.lines[i].color}`, cx: points[0][0], cy: points[0][1], r: 2.2 })
      : svg("polyline", { class: `line ${this.lines[i].color}`, points: points.map((p) => p.map((c) => c.toFixed(1)).join(",")).join(" ") })));
  }
}
