// Building elements.

/** h("button", {class: "plain", onclick: f, disabled: true}, "text", node, …). Text becomes text nodes, never markup. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Puts `children` in the place of all that `element` holds. */
export function show(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

let ids = 0;
/** An id that the page has not used. */
export const fresh = (prefix) => `${prefix}-${++ids}`;

/** A labelled form field. `control` gets the label's id; `hint` and the error's place are announced with it. */
export function field(label, control, { hint, wide } = {}) {
  control.id ||= fresh("f");
  const notes = [];
  const hint_line = hint && h("span", { class: "hint", id: control.id + "-hint" }, hint);
  if (hint_line) notes.push(hint_line.id);
  const error = h("span", { class: "error", id: control.id + "-error" });
  notes.push(error.id);
  control.setAttribute("aria-describedby", notes.join(" "));
  const box = h("div", { class: wide ? "field wide" : "field" }, h("label", { for: control.id }, label), control, hint_line, error);
  box.control = control;
  box.fault = (message) => {
    error.textContent = message || "";
    if (message) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  };
  return box;
}

/** options: texts, or [value, text] pairs. */
export function select(options, attributes = {}) {
  const element = h("select", attributes);
  set_options(element, options);
  return element;
}

export function set_options(element, options, keep = element.value) {
  show(element, options.map((o) => (Array.isArray(o) ? h("option", { value: o[0] }, o[1]) : h("option", { value: o }, o))));
  const values = [...element.options].map((o) => o.value);
  if (values.includes(keep)) element.value = keep;
}

export function checkbox(label, checked = false, attributes = {}) {
  const input = h("input", { type: "checkbox", ...attributes });
  input.checked = checked;
  const box = h("label", { class: "check" }, input, h("span", {}, label));
  box.input = input;
  return box;
}

/** A short message that goes away by itself. */
export function toast(message, kind = "info") {
  const note = h("div", { class: `toast ${kind}` }, message);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), 6000);
}

/** Asks in a dialog of the page; resolves to true or false. */
export function confirm_dialog(title, text, action) {
  return new Promise((resolve) => {
    const heading = fresh("dialog");
    const dialog = h("dialog", { "aria-labelledby": heading, onclose: () => { dialog.remove(); resolve(dialog.returnValue === "yes"); } },
      h("form", { method: "dialog" },
        h("h2", { id: heading }, title),
        h("p", {}, text),
        h("div", { class: "actions" },
          h("button", { class: "plain", value: "no" }, "Keep it"),
          h("button", { class: "danger", value: "yes" }, action))));
    document.body.append(dialog);
    dialog.showModal();
  });
}
