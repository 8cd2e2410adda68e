// A page with figures from the server: add a button to each figure.

import "./ask.js";
import { el } from "./dom.js";
import { figure } from "./picture.js";

for (const part of document.querySelectorAll("[data-figure]")) {
  const { figure: name, caption } = part.dataset;
  const said = el("span", {}, el("strong", {}, name), ` ${caption}`);
  part.replaceWith(figure(name, said, part.firstElementChild));
}
document.documentElement.dataset.ready = "true";
