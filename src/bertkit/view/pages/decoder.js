// How a decoder writes: its text grows token by token, and with each what it looks at.

import "./ask.js";
import { largest, numbers, part, read } from "./data.js";
import { el, fixed, sources, table } from "./dom.js";
import { overview } from "./heads.js";
import { between } from "./lines.js";
import { figure } from "./picture.js";
import { slider } from "./slider.js";
import { square } from "./square.js";
import { bar } from "./steps.js";
import { tree } from "./tree.js";

const MATRIX = "A row is a token that is written, a column one that was read.";
const ALL = "The weights of each head and of the mean of a layer; the stronger the color, the larger.";
const LINES = "From each token that is written to those that were read; the last one’s are strong.";
const TREE =
  "A column is a step, its likeliest text above. Each box is a text by its last token, and the sum " +
  "of its tokens’ log-probabilities: the nearer to 0, the likelier. The frames and the blue line are " +
  "the text that won; what is struck out was dropped, and green texts are complete.";
const ONE = "One beam was kept, so that there is no tree. Ask with more beams to see one.";

await decoder(read());

async function decoder(found) {
  const { layers, heads } = found.model;
  const [source, target] = [found.source, found.target].map((all) => all.map((piece) => ({ piece })));
  const maps = await Promise.all(
    found.attention.map(async (each, layer) => {
      const all = await numbers(each);
      const own = Array.from({ length: heads }, (_, head) => part(all, head));
      return [...own, await numbers(found.mean[layer])];
    }),
  );
  const at = { step: 0, key: null, layer: layers - 1, column: heads };
  const weights = () => maps[at.layer][at.column];
  const title = (layer, column) =>
    `Layer ${layer + 1}, ${column < heads ? `head ${column + 1}` : "mean of its heads"}`;

  const player = slider(
    "Step",
    target.length,
    (step) => show({ step, key: null }),
    (step) => `${step + 1} of ${target.length}`,
    (step) => `step ${step + 1}, ${target[step].piece}`,
  );
  const text = el("div", { class: "flow", dir: "auto" });
  const lines = between(target, source, (step) => show({ step, key: null }), {
    label: "The token that is written",
    grows: true,
  });
  const next = el("div");
  const [heading, chosen] = [el("span"), el("span", { "aria-live": "polite" })];
  const names = Array.from({ length: heads }, (_, head) => String(head + 1));
  const all = overview(layers, [...names, "mean"], title, (layer, column) => show({ layer, column }));
  const matrix = square(
    "Attention to the source",
    target,
    source,
    (row, column) =>
      `“${target[row].piece}” takes ${fixed(weights().at(row * source.length + column), 3)} ` +
      `from “${source[column].piece}”`,
    (step, key) => show({ step, key }),
  );
  const beams = found.beams.length ? tree(found.beams) : null;

  head(found);
  append("steps", [player.element, figure("The text so far", "What is written up to this step.", text), el(
    "div",
    { class: "beside" },
    figure("What it looks at", el("span", {}, heading, ` ${LINES}`), lines.element),
    figure("What may come next", chosen, next),
  )]);
  append("heads", [
    figure("All heads", ALL, all.element),
    figure("Attention as a matrix", MATRIX, matrix.element),
  ]);
  append("beams", [beams ? figure("Beams", TREE, beams.element) : el("p", { class: "note" }, ONE)]);

  function show(change) {
    Object.assign(at, change);
    const row = part(weights(), at.step);
    const [most, mostOfAll] = [largest(row), largest(weights())];
    player.show(at.step);
    text.replaceChildren(...target.slice(0, at.step + 1).map(({ piece }, place) =>
      el("span", place === at.step ? { "aria-current": "step" } : {}, piece),
    ));
    heading.textContent = `${title(at.layer, at.column)}.`;
    lines.show(weights(), at.step);
    const { piece } = target[at.step];
    chosen.textContent = `The likeliest tokens at step ${at.step + 1}; “${piece}” was written.`;
    next.replaceChildren(likeliest(found, at.step));
    all.mark(at.layer, at.column);
    const key = at.key ?? source.findIndex((_, place) => row.at(place) === most);
    matrix.show(weights(), (weight) => Math.sqrt(weight / mostOfAll), at.step, key);
    beams?.show(at.step);
  }
  show({});
  maps.forEach((each, layer) => all.draw(layer, each, () => () => true));
  document.documentElement.dataset.ready = "true";

  function append(id, parts) {
    const names = { steps: ["steps"], heads: ["attention"], beams: ["beams"] }[id];
    document.getElementById(id).append(...parts, sources(found, names));
  }
}

function head({ text, written, cut, model, source, target }) {
  const named = { "It read": text, "It wrote": written };
  for (const [name, one] of Object.entries(named)) {
    const said = el("p", { dir: "auto" }, el("span", { class: "small" }, `${name} `), one);
    document.getElementById("text").append(said);
  }
  document.getElementById("shape").append(
    el("strong", {}, model.name),
    ` (${model.family}) read ${source.length} tokens and wrote ${target.length}: a decoder of ` +
      `${model.layers} layers of ${model.heads} heads.${cut ? " The text was cut here." : ""}`,
  );
}

/** The candidates of a step, and which of them was written. */
function likeliest({ candidates, target, scores }, step) {
  const rows = candidates[step].map(({ token, score }) => {
    const own = token === target[step];
    return [token, bar(score, own ? "own" : ""), own ? "written" : ""];
  });
  const absent = candidates[step].every(({ token }) => token !== target[step]);
  const foot = absent ? [[target[step], bar(scores[step], "own"), "written"]] : [];
  return table("The likeliest tokens of this step", ["token", "probability", ""], rows, foot);
}
