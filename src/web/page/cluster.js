// Workers, their GPUs and memory.
import { h, show } from "./dom.js";
import * as api from "./api.js";
import * as f from "./format.js";
import { repeat } from "./poll.js";

const meter = (label, used, total) => h("div", { class: "meter-row" },
  h("div", { class: "meter-text" }, h("span", {}, label), h("span", {}, `${f.bytes(used)} of ${f.bytes(total)}`)),
  h("meter", { min: 0, max: total || 1, value: used || 0, high: (total || 1) * 0.9, "aria-label": label }));

function load(node) {
  const share = Math.min(1, Math.max(0, 1 - node.cpu_available / Math.max(1, node.cpu_count)));
  return h("div", { class: "meter-row" },
    h("div", { class: "meter-text" }, h("span", {}, "Processors"), h("span", {}, `${f.percent(share)} of ${Math.round(node.cpu_count)}`)),
    h("meter", { min: 0, max: 1, value: share, "aria-label": "Processors" }));
}

function card(node, worker, replicas) {
  const is_worker = node.node_type === "Worker";
  return h("article", { class: "card" },
    h("h2", {}, node.node_type, " ", h("code", {}, node.ip_address)),
    worker && h("p", { class: "note" }, `registered ${f.ago(worker.registered_ts)} ago`),
    load(node),
    meter("Memory", node.mem_used, node.mem_total),
    node.gpu_count > 0 && meter(`${node.gpu_count} GPU${node.gpu_count > 1 ? "s" : ""}`, node.gpu_vram_total - node.gpu_vram_available, node.gpu_vram_total),
    node.gpu_count > 0 && node.gpu_utilization !== null && h("p", { class: "note" }, `GPU load ${f.percent(node.gpu_utilization > 1 ? node.gpu_utilization / 100 : node.gpu_utilization)}`),
    is_worker && node.gpu_count === 0 && h("p", { class: "note" }, "No GPU: replicas run on the CPU."),
    is_worker && (replicas.length
      ? h("ul", { class: "chips" }, replicas.map((r) => h("li", { class: `chip ${r.role}` }, `${r.model} · ${r.role} ${r.replica_id}${r.gpu_idx?.length ? ` · GPU ${r.gpu_idx.join(", ")}` : ""}`)))
      : h("p", { class: "note" }, "No replica.")));
}

export default function cluster(main, path, signal) {
  const nodes = h("div", { class: "cards" });
  const note = h("p", { class: "error", role: "alert" });
  const version = h("p", { class: "note" });
  main.append(h("h1", {}, "Cluster"), version, note, nodes);
  api.get("/v1/cluster/version", signal).then((v) => { version.textContent = `baton ${v.version}`; }, () => {});
  repeat(signal, 2000, async () => {
    try {
      const [info, workers, instances] = await Promise.all([api.get("/v1/cluster/info?detailed=true", signal), api.get("/v1/workers", signal), api.get("/v1/models/instances", signal)]);
      note.textContent = "";
      const replicas = instances.flatMap((i) => i.replica_statuses.map((r) => ({ ...r, model: i.model_uid })));
      show(nodes, info.map((n) => card(n, workers.find((w) => w["work-ip"] === n.ip_address), replicas.filter((r) => r.worker_address === n.ip_address))));
      if (!info.some((n) => n.node_type === "Worker")) nodes.append(h("p", {}, "No worker is registered."));
    } catch (fault) {
      if (fault.name !== "AbortError") note.textContent = fault.message;
    }
  });
}
