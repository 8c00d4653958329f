// The rules of a replica config, as the server has them, so that a mistake shows before anything is sent.

export const ROLES = [["prefill", "Prefill"], ["decode", "Decode"], ["hybrid", "Hybrid"]];

/** rows: [{role, worker, device, uid}] → list of [row or null, message]. `workers`: addresses that are registered. */
export function faults(rows, workers) {
  const found = [];
  if (!rows.length) found.push([null, "At least one replica is needed."]);
  const roles = new Set(rows.map((r) => r.role));
  const split = roles.has("prefill") || roles.has("decode");
  if (split && (roles.has("hybrid") || roles.size !== 2)) found.push([null, "PD separation requires both prefill and decode replicas, without hybrid replicas"]);
  const seen = new Map();
  rows.forEach((r, i) => {
    if (!r.worker) found.push([i, "No worker is registered."]);
    else if (!workers.includes(r.worker)) found.push([i, `The worker ${r.worker} is not in the cluster.`]);
    const uid = r.uid;
    if (uid === undefined || uid === "") return;
    if (!uid.trim()) found.push([i, `replica_config[${i}].replica_uid must not be empty or whitespace-only.`]);
    else if (/.+-rep\d+$/.test(uid.trim()) || uid.trim().endsWith("-rank0")) found.push([i, `replica_uid '${uid.trim()}' collides with a reserved internal replica/rank identifier; please choose another name.`]);
    else if (seen.has(uid.trim())) found.push([i, `Duplicate replica_uid '${uid.trim()}' in replica_config.`]);
    seen.set(uid.trim(), i);
  });
  const kinds = new Set(rows.map((r) => (r.device === "cpu" ? "cpu" : "gpu")));
  if (split && kinds.size > 1) found.push([null, "The prefill and decode replicas of a launch are all on GPUs or all on the CPU."]);
  return found;
}

/** device: "cpu", "auto" or the number of a GPU. */
export function replica_config(rows) {
  return rows.map((r) => {
    const device = { worker_ip: r.worker, n_gpu: "auto" };
    if (r.device === "cpu") device.n_gpu = 0;
    else if (r.device !== "auto") { device.n_gpu = 1; device.gpu_idx = [Number(r.device)]; }
    const entry = { role: r.role, devices: [device] };
    if (r.uid?.trim()) entry.replica_uid = r.uid.trim();
    return entry;
  });
}

/** prefill × decode, or hybrids, spread over the workers in turn. */
export function preset(name, workers, device) {
  const roles = { "1P1D": ["prefill", "decode"], "2P2D": ["prefill", "prefill", "decode", "decode"], "1 hybrid": ["hybrid"], "2 hybrids": ["hybrid", "hybrid"] }[name];
  return roles.map((role, i) => ({ role, worker: workers[i % Math.max(1, workers.length)] || "", device, uid: "" }));
}
