// The table that says where each replica runs, and as what.
import { h, select, set_options, show } from "./dom.js";
import { ROLES, faults, preset, replica_config } from "./topology.js";

const PRESETS = ["1P1D", "2P2D", "1 hybrid", "2 hybrids"];

export class Placement {
  constructor() {
    this.workers = [];  // [{address, gpus}]
    this.rows = [];
    this.touched = false;
    this.body = h("tbody");
    this.error = h("p", { class: "error", role: "alert", id: "placement-error" });
    this.presets = h("div", { class: "presets", role: "group", "aria-label": "Usual topologies" },
      PRESETS.map((name) => h("button", { type: "button", class: "plain", onclick: () => { this.use(name); } }, name)));
    this.element = h("fieldset", { class: "placement", "aria-describedby": "placement-error" },
      h("legend", {}, "Replicas"),
      this.presets,
      h("table", {}, h("caption", { class: "visually-hidden" }, "Role and place of each replica"),
        h("thead", {}, h("tr", {}, ["Role", "Worker", "Device", "Name", ""].map((t) => h("th", { scope: "col" }, t || h("span", { class: "visually-hidden" }, "Remove"))))),
        this.body),
      h("button", { type: "button", class: "plain", onclick: () => this.add() }, "Add a replica"),
      this.error);
  }

  /** `workers`: [{address, gpus}] as registered now. */
  set_workers(workers) {
    const changed = JSON.stringify(workers) !== JSON.stringify(this.workers);
    this.workers = workers;
    if (!this.touched && workers.length && !this.rows.length) return this.use("1P1D", false);
    if (changed) this.draw();
  }

  use(name, touched = true) {
    this.touched = touched;
    this.rows = preset(name, this.workers.map((w) => w.address), this.workers.every((w) => w.gpus > 0) && this.workers.length ? "auto" : "cpu");
    this.draw();
  }

  add() {
    this.touched = true;
    const last = this.rows.at(-1);
    this.rows.push({ role: last?.role === "hybrid" ? "hybrid" : "decode", worker: last?.worker || this.workers[0]?.address || "", device: last?.device || "cpu", uid: "" });
    this.draw();
    this.body.lastElementChild.querySelector("select").focus();
  }

  /** Shows what is wrong; true where nothing is. */
  check() {
    const found = faults(this.rows, this.workers.map((w) => w.address));
    this.error.textContent = found.filter(([row]) => row === null).map(([, m]) => m).join(" ");
    [...this.body.children].forEach((tr, i) => {
      const mine = found.filter(([row]) => row === i).map(([, m]) => m).join(" ");
      tr.querySelector(".row-error").textContent = mine;
      tr.classList.toggle("wrong", mine !== "");
    });
    return found.length === 0;
  }

  config() { return replica_config(this.rows); }

  draw() {
    show(this.body, this.rows.map((row, i) => this.row(row, i)));
    this.check();
    this.element.dispatchEvent(new Event("change", { bubbles: true }));
  }

  row(row, i) {
    const edit = (name) => (e) => { this.touched = true; row[name] = e.target.value; if (name === "worker") this.draw(); else this.check(); };
    const of = (what) => `${what} of replica ${i}`;
    const role = select(ROLES, { "aria-label": of("Role"), onchange: edit("role") });
    role.value = row.role;
    const addresses = this.workers.map((w) => w.address);
    const worker = select(addresses.includes(row.worker) || !row.worker ? addresses : [row.worker, ...addresses], { "aria-label": of("Worker"), onchange: edit("worker") });
    worker.value = row.worker;
    const gpus = this.workers.find((w) => w.address === row.worker)?.gpus || 0;
    const device = select([], { "aria-label": of("Device"), onchange: edit("device") });
    set_options(device, [["cpu", "CPU"], ...(gpus ? [["auto", "GPU, least used"]] : []), ...Array.from({ length: gpus }, (_, g) => [String(g), `GPU ${g}`])]);
    if (![...device.options].some((o) => o.value === row.device)) row.device = gpus ? "auto" : "cpu";
    device.value = row.device;
    const uid = h("input", { "aria-label": of("Name"), placeholder: "by number", maxlength: 100, value: row.uid, oninput: edit("uid") });
    const remove = h("button", { type: "button", class: "icon-button", "aria-label": `Remove replica ${i}`, title: "Remove",
      onclick: () => { this.touched = true; this.rows.splice(i, 1); this.draw(); } }, "✕");
    return h("tr", { class: row.role },
      h("td", { "data-label": "Role" }, role), h("td", { "data-label": "Worker" }, worker), h("td", { "data-label": "Device" }, device),
      h("td", { "data-label": "Name" }, uid, h("span", { class: "error row-error" })), h("td", { class: "end" }, remove));
  }
}
