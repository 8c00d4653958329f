// Doing something again and again while a view is shown.

/** Calls `step` now and then every `ms` after it is done, while the page is visible, until the signal fires. */
export async function repeat(signal, ms, step) {
  while (!signal.aborted) {
    if (!document.hidden) await step();
    await new Promise((r) => {
      const timer = setTimeout(r, ms);
      signal.addEventListener("abort", () => { clearTimeout(timer); r(); }, { once: true });
    });
  }
}
