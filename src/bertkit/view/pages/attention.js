// Attention: an overview of all heads, one head as a matrix and as lines, and one row step by step.

import { again, asked } from "./ask.js";
import { largest, numbers, part, sees } from "./data.js";
import { choice, el, fixed, flow } from "./dom.js";
import { overview } from "./heads.js";
import { between } from "./lines.js";
import { color } from "./paint.js";
import { clearest, filter, told } from "./patterns.js";
import { figure } from "./picture.js";
import { slider } from "./slider.js";
import { square } from "./square.js";
import { steps } from "./steps.js";
import { walk } from "./walk.js";

const LOOKER = "The query token";
const LOOKS = "Choose a query token. Stronger colors mean larger attention weights.";
const MATRIX = "Rows are query tokens, and columns are key tokens.";
const NAMED =
  "A head is named after the pattern that receives more than half of its attention weight in this text, " +
  "averaged over the words. The weights of a broad head are almost equal (Clark et al. 2019, section 3). " +
  "Choose a name to show the heads with this name. At first, a word is selected that attends strongly " +
  "to a word that is not adjacent.";
const UNSEEN = " Gray cells are masked.";

export async function attention(found, section) {
  const { layers, heads } = found.model;
  const { tokens, patterns, begin } = found;
  const unseen = found.causal || found.windows.some((one) => one !== null) ? UNSEEN : "";
  const switched = found.off.at(-1)?.split(".").map((number) => number - 1);
  const [layer, column] = switched ?? [begin.layer, begin.head];
  const at = { layer, column, query: begin.token, key: null };
  let turn = 0;

  const off = (layer, column) => found.off.includes(`${layer + 1}.${column + 1}`);
  const numbered = Array.from({ length: heads }, (_, head) => String(head + 1));
  const all = overview(
    layers,
    [...numbered, "mean", "rollout"],
    (layer, column) => title(layer, column, heads) + (off(layer, column) ? ", switched off" : ""),
    (layer, column) => show({ layer, column }),
    off,
    (layer, column) => title(layer, column, heads) + pattern(layer, column),
  );
  const kinds = filter(patterns, (kind) => {
    kinds.mark(kind);
    all.keep((layer, column) => kind === null || patterns[layer][column]?.kind === kind);
    if (kind && patterns[at.layer][at.column]?.kind !== kind) show(clearest(patterns, kind));
  });
  const which = (layer) => `${layer + 1} of ${layers}`;
  const player = slider("Layer", layers, (layer) => show({ layer }), which);
  const seen = (layer, column) => (query, key) =>
    sees(found, column > heads ? null : layer, query, key);

  const text = flow(tokens);
  const markQuery = choice(text.element, LOOKER, look);
  let weights = null;
  const matrix = square(
    "Attention of one head",
    tokens,
    tokens,
    (row, column) => {
      const [query, key] = [row, column].map((place) => `“${tokens[place].piece}”`);
      if (!seen(at.layer, at.column)(row, column)) return `${query} cannot attend to ${key}`;
      return `${query} attends to ${key} with weight ${fixed(weights.at(row * tokens.length + column), 3)}`;
    },
    (query, key) => show({ query, key }),
  );
  const lines = between(tokens, tokens, look, { label: LOOKER });
  const [table, way] = [el("div"), el("div")];
  const [heading, named, said, walked] = Array.from({ length: 4 }, () => el("span"));
  const power = toggle(found);

  section.append(
    el("p", {}, NAMED),
    kinds.element,
    figure("Attention of all heads", overviewCaption(found) + unseen, all.element),
    el("h3", { "aria-live": "polite" }, heading, named),
    power.element,
    player.element,
    figure("Attention of one token", LOOKS, text.element),
    el(
      "div",
      { class: "beside" },
      figure("Attention as a matrix", MATRIX + unseen, matrix.element),
      figure("Attention as lines", lines.caption, lines.element),
    ),
    figure("Attention step by step", said, table),
    el("h3", {}, "Through the layer"),
    figure("A state through the layer", walked, way),
  );

  function look(query) {
    show({ query, key: null });
  }

  async function show(change) {
    Object.assign(at, change);
    const mine = ++turn;
    const maps = await mapsOf(found, at.layer);
    const made = await steps(found, at, maps[at.column]);
    const gone = await walk(found, at);
    if (mine !== turn) return; // The selection has changed.
    weights = maps[at.column];
    const row = part(weights, at.query);
    const [most, mostOfAll] = [largest(row), largest(weights)];
    all.mark(at.layer, at.column);
    markQuery(at.query);
    heading.textContent = title(at.layer, at.column, heads);
    named.textContent = pattern(at.layer, at.column);
    player.show(at.layer);
    power.show(at.column < heads ? `${at.layer + 1}.${at.column + 1}` : null);
    text.chips.forEach((chip, key) => {
      chip.style.backgroundColor = color((0.6 * row.at(key)) / most);
      chip.classList.toggle("unseen", !seen(at.layer, at.column)(at.query, key));
    });
    const key = at.key ?? tokens.findIndex((_, place) => row.at(place) === most);
    const shade = (weight) => Math.sqrt(weight / mostOfAll);
    matrix.show(weights, shade, at.query, key, seen(at.layer, at.column));
    lines.show(weights, at.query);
    said.textContent = made.caption;
    table.replaceChildren(made.table);
    walked.textContent = gone.caption;
    way.replaceChildren(gone.table);
  }

  function pattern(layer, column) {
    const one = patterns[layer][column];
    return one ? `: ${told(one)}` : "";
  }

  kinds.mark(null);

  await show({});
  for (let layer = 0; layer < layers; layer++) {
    all.draw(layer, await mapsOf(found, layer), (column) => seen(layer, column));
    await new Promise(requestAnimationFrame); // Keep the page responsive.
  }
}

/** Create a button that requests the page without a head, or with the head again. */
function toggle(found) {
  const field = asked("off");
  let name = null;
  const element = el("button", { type: "button", class: "quiet", hidden: "", onclick: ask });

  function ask() {
    const others = found.off.filter((other) => other !== name);
    const left = others.length < found.off.length ? others : [...others, name];
    again(field, left.join(" "), "attention");
  }

  function show(head) {
    name = head;
    element.hidden = !field || name === null;
    element.textContent = found.off.includes(name) ? "Switch this head on" : "Switch this head off";
  }

  return { element, show };
}

/** Return the matrices of a layer: each head, the mean of the heads, and the rollout. */
async function mapsOf(found, layer) {
  const [each, mean, rollout] = await Promise.all(
    [found.attention, found.mean, found.rollout].map((layers) => numbers(layers[layer])),
  );
  const heads = Array.from({ length: found.model.heads }, (_, head) => part(each, head));
  return [...heads, mean, rollout];
}

function title(layer, column, heads) {
  if (column < heads) return `Layer ${layer + 1}, head ${column + 1}`;
  return column === heads
    ? `Layer ${layer + 1}, mean of its heads`
    : `Rollout from layer ${layer + 1} to the tokens`;
}

function overviewCaption(found) {
  const bytes = found.attention[0].type === "uint8";
  const rounded = bytes
    ? " For long texts, weights are rounded to 256 values, which are closer together near zero."
    : "";
  return `Attention weights of each head in each layer. Stronger colors mean larger weights.${rounded}`;
}
