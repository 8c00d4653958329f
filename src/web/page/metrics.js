// What /metrics says, and what two readings of it say of the time between them.

/** Prometheus text → Map of name → [{labels, value}]. Lines that are none are left out. */
export function parse(text) {
  const all = new Map();
  for (const line of text.split("\n")) {
    const m = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!m) continue;
    const labels = {};
    if (m[2]) for (const [, name, value] of m[2].matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    if (!all.has(m[1])) all.set(m[1], []);
    all.get(m[1]).push({ labels, value: Number(m[3].replace("Inf", "Infinity")) });
  }
  return all;
}

const fits = (labels, where) => Object.entries(where).every(([k, v]) => v === undefined || labels[k] === v);

/** The sum of a metric's samples whose labels have these values; null where there is none. */
export function sum(reading, name, where = {}) {
  let total = null;
  for (const s of reading?.get(name) || []) if (fits(s.labels, where)) total = (total ?? 0) + s.value;
  return total;
}

/** Growth of a counter between two readings. A counter that went back (its process is new) counts from zero. */
export function growth(before, now, name, where = {}) {
  const a = sum(before, name, where), b = sum(now, name, where);
  if (b === null) return null;
  return b >= (a ?? 0) ? b - (a ?? 0) : b;
}

/** Quantile q of what a histogram took in between two readings, within its buckets linear; null where nothing came. */
export function quantile(before, now, name, q, where = {}) {
  const by_bound = (reading) => {
    const counts = new Map();
    for (const s of reading?.get(`${name}_bucket`) || []) {
      if (!fits(s.labels, where)) continue;
      const bound = Number(s.labels.le.replace("+Inf", "Infinity"));
      counts.set(bound, (counts.get(bound) || 0) + s.value);
    }
    return counts;
  };
  const old = by_bound(before), fresh = by_bound(now);
  const bounds = [...fresh.keys()].sort((x, y) => x - y);
  if (!bounds.length) return null;
  const counts = bounds.map((b) => Math.max(0, fresh.get(b) - (old.get(b) || 0)));
  const all = counts.at(-1);
  if (!all) return null;
  const at = q * all;
  for (let i = 0; i < bounds.length; ++i) {
    if (counts[i] < at) continue;
    const low = i ? bounds[i - 1] : 0, below = i ? counts[i - 1] : 0;
    if (bounds[i] === Infinity) return low;
    return low + ((bounds[i] - low) * (at - below)) / Math.max(1, counts[i] - below);
  }
  return bounds.at(-2) ?? null;
}
