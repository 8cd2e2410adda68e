// The page: its head, then one section after the other, each in a frame of its own.

import "./ask.js";
import { attention } from "./attention.js";
import { read } from "./data.js";
import { el, sources } from "./dom.js";
import { embeddings } from "./embeddings.js";
import { layers } from "./layers.js";
import { masked } from "./masked.js";

const SECTIONS = { embeddings, attention, masked, layers };
const COMPUTED = {
  embeddings: ["tokens", "embeddings"],
  attention: ["attention", "patterns", "rollout", "steps", "walk"],
  masked: ["masked"],
  layers: ["states", "similarity"],
};

await page(read());

async function page(found) {
  let still = true; // whoever moves the page meanwhile stays there
  for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"]) {
    window.addEventListener(kind, () => (still = false), { once: true, passive: true });
  }
  head(found);
  for (const [id, fill] of Object.entries(SECTIONS)) {
    const section = document.getElementById(id);
    const body = section.appendChild(el("div"));
    section.append(sources(found, COMPUTED[id]));
    await new Promise(requestAnimationFrame); // what is ready is seen already
    await fill(found, body);
  }
  // sections above the one that was asked for have grown
  if (location.hash && still) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  document.documentElement.dataset.ready = "true";
}

function head({ text, pair, truncated, off, model, words, tokens }) {
  const put = (id, ...parts) => document.getElementById(id).replaceChildren(...parts);
  const texts = [text, pair].filter((one) => one !== null);
  const without = off.length ? ` Switched off: ${off.join(", ")} (LAYER.HEAD).` : "";
  const cut = truncated ? ` The text is longer and was cut after ${tokens.length} tokens.` : "";
  put("text", ...texts.map((one) => el("p", { dir: "auto" }, one)));
  put(
    "shape",
    el("strong", {}, model.name),
    ` (${model.family}): ${model.layers} layers of ${model.heads} heads, ${model.hidden} numbers a ` +
      `state. The text: ${words.length} words, ${tokens.length} tokens.${cut}${without}`,
  );
}
