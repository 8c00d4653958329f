// The frame of the page: navigation, theme, who is logged in.
import { h, show } from "./dom.js";
import * as api from "./api.js";
import launch from "./launch.js";
import running from "./running.js";
import chat from "./chat.js";
import cluster from "./cluster.js";
import traffic from "./traffic.js";
import login from "./login.js";

const VIEWS = { launch, running, chat, cluster, traffic };
const NAMES = { launch: "Launch", running: "Running", chat: "Chat", cluster: "Cluster", traffic: "Traffic" };
const ICONS = { dark: "☾", light: "☀", system: "◐" };
let leave = () => {};

/** A view is a function (main element, path behind its name, signal) that fills the element. The signal fires when it is left. */
function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const view = VIEWS[name] ? name : "launch";
  leave();
  const left = new AbortController();
  leave = () => left.abort();
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${NAMES[view]} – baton`;
  const main = document.getElementById("main");
  main.className = `view-${view}`;
  show(main);
  VIEWS[view](main, rest.map(decodeURIComponent), left.signal);
}

function show_login() {
  leave();
  const left = new AbortController();
  leave = () => left.abort();
  const main = document.getElementById("main");
  main.className = "view-login";
  show(main);
  document.title = "Log in – baton";
  login(main, () => { show_logout(); route(); });
}

function show_logout() { document.getElementById("logout").hidden = !api.token(); }

function set_theme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("baton.theme", theme);
  const button = document.getElementById("theme");
  button.textContent = ICONS[theme];
  button.setAttribute("aria-label", `Colours: ${theme}. Change`);
  button.title = `Colours: ${theme}`;
}

/** Says in the bar whether the server answers and has workers. */
async function watch_health() {
  const place = document.getElementById("health");
  let said = "";
  for (;;) {
    if (!document.hidden) {
      let state = "bad", word = "no answer", why = "";
      try {
        const workers = Object.keys((await (await fetch("/status")).json()).workers).length;
        state = workers ? "good" : "warn";
        word = workers ? `${workers} worker${workers > 1 ? "s" : ""}` : "no worker";
        why = workers ? "" : "No worker is registered: nothing can be launched.";
      } catch { /* it does not answer */ }
      if (said !== word) {
        said = word;
        place.className = `health ${state}`;
        place.title = why;
        show(place, h("span", { class: "lamp" }), h("span", { class: "word" }, word), why && h("span", { class: "visually-hidden" }, `: ${why}`));
      }
    }
    await new Promise((r) => setTimeout(r, 3000));
  }
}

show(document.getElementById("nav"), Object.keys(VIEWS).map((v) => h("li", {}, h("a", { href: `#/${v}`, "data-view": v }, NAMES[v]))));
document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); document.getElementById("main").focus(); });
set_theme(localStorage.getItem("baton.theme") || "system");
document.getElementById("theme").addEventListener("click", () => {
  const order = ["system", "light", "dark"];
  set_theme(order[(order.indexOf(localStorage.getItem("baton.theme") || "system") + 1) % 3]);
});
document.getElementById("logout").addEventListener("click", () => { api.set_token(null); show_logout(); show_login(); });
document.addEventListener("baton:login", () => { if (!document.querySelector(".view-login")) { api.set_token(null); show_logout(); show_login(); } });
window.addEventListener("hashchange", route);

async function start() {
  show_logout();
  watch_health();
  let auth = false;
  try { auth = (await api.get("/v1/cluster/auth")).auth; } catch { /* the health lamp says it */ }
  if (auth && !api.token()) show_login();
  else route();
}
start();
