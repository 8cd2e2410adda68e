// Attention: all heads at a glance, one as a matrix and as lines, and one row step by step.

import { largest, numbers, part, sees } from "./data.js";
import { choice, el, fixed, flow } from "./dom.js";
import { overview } from "./heads.js";
import { between } from "./lines.js";
import { color } from "./paint.js";
import { figure } from "./picture.js";
import { square } from "./square.js";
import { steps } from "./steps.js";

const LOOKER = "The token that looks";
const LOOKS = "Choose the token that looks; the stronger the color, the more it takes from there.";
const MATRIX = "A row is a token that looks, a column one that is looked at.";
const UNSEEN = " Gray: what it cannot see.";

export async function attention(found, section) {
  const { layers, heads } = found.model;
  const { tokens } = found;
  const words = tokens.map((token) => token.word !== null);
  const first = found.causal ? words.lastIndexOf(true) : words.indexOf(true); // who sees most
  const unseen = found.causal || found.windows.some((one) => one !== null) ? UNSEEN : "";
  const [layer, head] = (found.off.at(-1) ?? "1.1").split(".").map((number) => number - 1);
  const at = { layer, column: head, query: first, key: null };
  let turn = 0;

  const off = (layer, column) => found.off.includes(`${layer + 1}.${column + 1}`);
  const numbered = Array.from({ length: heads }, (_, head) => String(head + 1));
  const all = overview(
    layers,
    [...numbered, "mean", "rollout"],
    (layer, column) => title(layer, column, heads) + (off(layer, column) ? ", switched off" : ""),
    (layer, column) => show({ layer, column }),
    off,
  );
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
      if (!seen(at.layer, at.column)(row, column)) return `${query} does not see ${key}`;
      return `${query} takes ${fixed(weights.at(row * tokens.length + column), 3)} from ${key}`;
    },
    (query, key) => show({ query, key }),
  );
  const lines = between(tokens, tokens, look, { label: LOOKER });
  const table = el("div");
  const [heading, said] = [el("span"), el("span")];
  const power = toggle(found);

  section.append(
    figure("Attention of all heads", overviewCaption(found) + unseen, all.element),
    el("h3", { "aria-live": "polite" }, heading),
    power.element,
    figure("What one token looks at", LOOKS, text.element),
    el(
      "div",
      { class: "beside" },
      figure("Attention as a matrix", MATRIX + unseen, matrix.element),
      figure("Attention as lines", lines.caption, lines.element),
    ),
    figure("Attention step by step", said, table),
  );

  function look(query) {
    show({ query, key: null });
  }

  async function show(change) {
    Object.assign(at, change);
    const mine = ++turn;
    const maps = await mapsOf(found, at.layer);
    const made = await steps(found, at, maps[at.column]);
    if (mine !== turn) return; // something else was chosen meanwhile
    weights = maps[at.column];
    const row = part(weights, at.query);
    const [most, mostOfAll] = [largest(row), largest(weights)];
    all.mark(at.layer, at.column);
    markQuery(at.query);
    heading.textContent = title(at.layer, at.column, heads);
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
  }

  await show({});
  for (let layer = 0; layer < layers; layer++) {
    all.draw(layer, await mapsOf(found, layer), (column) => seen(layer, column));
    await new Promise(requestAnimationFrame); // the page stays alive meanwhile
  }
}

/** A button that has the server compute the page again without a head, or with it once more. */
function toggle(found) {
  const field = document.getElementById("ask-off"); // there is none in a page that is a file
  let name = null;
  const element = el("button", { type: "button", class: "quiet", hidden: "", onclick: ask });

  function ask() {
    const others = found.off.filter((other) => other !== name);
    field.value = (others.length < found.off.length ? others : [...others, name]).join(" ");
    field.form.action = "#attention";
    field.form.requestSubmit();
  }

  function show(head) {
    name = head;
    element.hidden = !field || name === null;
    element.textContent = found.off.includes(name) ? "Switch it on again" : "Switch this head off";
  }

  return { element, show };
}

/** The matrices of a layer: of each head, their mean, and rollout. */
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
    : `Rollout from layer ${layer + 1} to the pieces`;
}

function overviewCaption(found) {
  const bytes = found.attention[0].type === "uint8";
  const rounded = bytes ? " Of a text this long they have 256 steps, finer near zero." : "";
  return `The weights of each layer and head; the stronger the color, the larger.${rounded}`;
}
