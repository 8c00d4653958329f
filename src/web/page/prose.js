// A model's text as elements: code blocks, inline code and bold; all else as it is. Nothing of it is ever read as HTML.
import { h } from "./dom.js";

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return h("strong", {}, part.slice(2, -2));
    return part;
  });
}

export function prose(text) {
  const parts = text.split(/^```[^\n]*\n?/m);
  return parts.map((part, i) => (i % 2 ? h("pre", { tabindex: 0, "aria-label": "Code" }, h("code", {}, part.replace(/\n$/, ""))) : h("span", {}, inline(part))));
}
