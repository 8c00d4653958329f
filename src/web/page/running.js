// Deployments and their replicas.
import { h, show, confirm_dialog, toast } from "./dom.js";
import * as api from "./api.js";
import * as f from "./format.js";
import { repeat } from "./poll.js";

const EVENTS_SHOWN = 8;

function replica_row(r) {
  const where = r.gpu_idx?.length ? `GPU ${r.gpu_idx.join(", ")}` : "CPU";
  return h("tr", {},
    h("th", { scope: "row" }, h("span", { class: `chip ${r.role}` }, r.role), " ", h("span", { class: "id" }, r.replica_uid)),
    h("td", { "data-label": "State" }, h("span", {}, h("span", { class: `state ${r.status}` }, r.status), r.error_message && h("span", { class: "error" }, r.error_message))),
    h("td", { "data-label": "Device" }, h("span", {}, where, h("span", { class: "note" }, ` ${r.worker_address ?? ""}`))),
    h("td", { "data-label": "Process", class: "num" }, r.pid ?? "–"),
    h("td", { "data-label": "Memory", class: "num", title: r.gpu_idx?.length ? "all that it took of its GPU" : "its KV cache; weights are shared by replicas of one model" }, r.memory_bytes ? f.bytes(r.memory_bytes) : "–"),
    h("td", { "data-label": "Running", class: "num" }, f.number(r.running)),
    h("td", { "data-label": "Waiting", class: "num" }, f.number(r.waiting)),
    h("td", { "data-label": "KV in use", class: "num", title: r.kv_blocks ? `${r.kv_blocks_held} of ${r.kv_blocks} blocks` : undefined }, r.kv_blocks ? f.percent(r.kv_blocks_held / r.kv_blocks) : "–"));
}

class Deployment {
  constructor(uid, reload) {
    this.uid = uid;
    this.title = h("h2", {}, uid, " ");
    this.state = h("span", { class: "state" });
    this.title.append(this.state);
    this.about = h("p", { class: "note" });
    this.rows = h("tbody");
    this.events = h("ol", { class: "events" });
    this.end = h("button", { class: "danger plain", type: "button", onclick: () => this.terminate(reload) }, "Terminate");
    this.chat = h("a", { class: "button plain", href: `#/chat/${api.segment(uid)}` }, "Chat");
    const heads = ["Replica", "State", "Device", "Process", "Memory", "Running", "Waiting", "KV in use"];
    this.element = h("article", { class: "card deployment" },
      h("div", { class: "head" }, this.title, h("div", { class: "actions" }, this.chat, this.end)),
      this.about,
      h("table", {}, h("caption", { class: "visually-hidden" }, `Replicas of ${uid}`), h("thead", {}, h("tr", {}, heads.map((t) => h("th", { scope: "col" }, t)))), this.rows),
      h("details", {}, h("summary", {}, "Events"), this.events));
  }

  async terminate(reload) {
    if (!(await confirm_dialog("Terminate the model?", `${this.uid} ends with all its replicas. Requests that run are aborted.`, "Terminate"))) return;
    this.end.disabled = true;
    this.end.textContent = "Ending…";
    try {
      await api.call("DELETE", `/v1/models/${api.segment(this.uid)}`);
      toast(`${this.uid} has ended.`);
    } catch (fault) {
      toast(fault.message, "bad");
      this.end.disabled = false;
      this.end.textContent = "Terminate";
    }
    reload();
  }

  update(instance, events) {
    this.state.className = `state ${instance.status}`;
    this.state.textContent = instance.status;
    this.chat.hidden = instance.status !== "READY" || !instance.model_ability.includes("chat");
    const roles = {};
    for (const r of instance.replica_statuses) roles[r.role] = (roles[r.role] || 0) + 1;
    const layout = roles.hybrid ? `${roles.hybrid} hybrid` : `${roles.prefill || 0}P${roles.decode || 0}D`;
    this.about.textContent = `${instance.model_name} · ${layout} · up for ${f.ago(instance.instance_created_ts)}`;
    show(this.rows, instance.replica_statuses.map(replica_row));
    show(this.events, events.slice(-EVENTS_SHOWN).reverse().map((e) =>
      h("li", { class: e.event_type }, h("time", {}, f.clock(e.event_ts)), ` ${e.event_content}`)));
  }
}

export default function running(main, path, signal) {
  const list = h("div", { class: "stack" });
  const note = h("p", { class: "error", role: "alert" });
  main.append(h("h1", {}, "Running"), note, list);
  const known = new Map();
  const refresh = async () => {
    try {
      const instances = await api.get("/v1/models/instances", signal);
      const events = await Promise.all(instances.map((i) => api.get(`/v1/models/${api.segment(i.model_uid)}/events`, signal).catch(() => [])));
      note.textContent = "";
      for (const [uid, d] of known) if (!instances.some((i) => i.model_uid === uid)) { d.element.remove(); known.delete(uid); }
      list.querySelector(".empty")?.remove();
      instances.forEach((instance, i) => {
        if (!known.has(instance.model_uid)) {
          known.set(instance.model_uid, new Deployment(instance.model_uid, refresh));
          list.append(known.get(instance.model_uid).element);
        }
        known.get(instance.model_uid).update(instance, events[i]);
      });
      if (!instances.length) list.append(h("p", { class: "empty" }, "No model is running. ", h("a", { href: "#/launch" }, "Launch one"), "."));
    } catch (fault) {
      if (fault.name !== "AbortError") note.textContent = fault.message;
    }
  };
  repeat(signal, 1500, refresh);
}
