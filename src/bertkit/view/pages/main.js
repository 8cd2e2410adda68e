// The page: its header, then one section after another, each in a separate animation frame.

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
  let still = true; // Whether the user has not scrolled.
  for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"]) {
    window.addEventListener(kind, () => (still = false), { once: true, passive: true });
  }
  head(found);
  for (const [id, fill] of Object.entries(SECTIONS)) {
    const section = document.getElementById(id);
    const body = section.appendChild(el("div"));
    section.append(sources(found, COMPUTED[id]));
    await new Promise(requestAnimationFrame); // Show the sections that are ready.
    await fill(found, body);
  }
  // The target has moved, because the sections above it have grown.
  if (location.hash && still) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  document.documentElement.dataset.ready = "true";
}

function head({ text, pair, truncated, off, model, words, tokens }) {
  const put = (id, ...parts) => document.getElementById(id).replaceChildren(...parts);
  const texts = [text, pair].filter((one) => one !== null);
  const without = off.length ? ` Switched off: ${off.join(", ")} (LAYER.HEAD).` : "";
  const cut = truncated ? ` The text was truncated to ${tokens.length} tokens.` : "";
  put("text", ...texts.map((one) => el("p", { dir: "auto" }, one)));
  put(
    "shape",
    el("strong", {}, model.name),
    ` (${model.family}): ${model.layers} layers of ${model.heads} heads, hidden size ${model.hidden}. ` +
      `The text has ${words.length} words and ${tokens.length} tokens.${cut}${without}`,
  );
}
