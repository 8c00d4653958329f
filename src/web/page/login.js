// Logging in, where the server asks for keys.
import { h, field } from "./dom.js";
import * as api from "./api.js";

export default function login(main, done) {
  const user = h("input", { autocomplete: "username" });
  const password = h("input", { type: "password", autocomplete: "current-password" });
  const key = h("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const error = h("p", { class: "error", role: "alert" });

  async function enter(attempt) {
    error.textContent = "";
    try {
      await attempt();
      done();
    } catch (fault) {
      api.set_token(null);
      error.textContent = fault.message;
    }
  }
  const by_password = async () => api.set_token((await api.call("POST", "/token", { username: user.value, password: password.value })).access_token);
  const by_key = async () => {
    if (!key.value.trim()) throw new Error("The key is empty.");
    api.set_token(key.value.trim());
    await api.get("/v1/models");
  };
  main.append(
    h("div", { class: "card narrow" },
      h("h1", {}, "Log in"),
      error,
      h("form", { onsubmit: (e) => { e.preventDefault(); enter(by_password); } },
        field("User", user), field("Password", password),
        h("div", { class: "actions" }, h("button", { class: "primary" }, "Log in"))),
      h("p", { class: "or" }, "or"),
      h("form", { onsubmit: (e) => { e.preventDefault(); enter(by_key); } },
        field("API key", key, { hint: "Kept until this tab is closed. A key that may only use models sees part of the page." }),
        h("div", { class: "actions" }, h("button", { class: "plain" }, "Use the key")))));
  user.focus();
}
