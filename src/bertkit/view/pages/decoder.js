// Decoder inspector: generation step by step, cross-attention, and beams.

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

const MATRIX = "Rows are generated tokens, and columns are source tokens.";
const ALL = "Attention weights of each head and their mean in each layer. Stronger colors mean larger weights.";
const LINES =
  "Lines are attention weights from generated tokens to source tokens. The lines of the last token are strongest.";
const TREE =
  "Columns are steps, with the most probable text at the top. Each box shows the last token of a text " +
  "and the sum of the text’s log-probabilities; values closer to 0 are more probable. Frames and the blue " +
  "line mark the result. Texts that are struck through were dropped, and green texts are complete.";
const ONE = "There was only one beam, so there is no tree. Use more beams to see a tree.";

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
    label: "The generated token",
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
      `“${target[row].piece}” attends to “${source[column].piece}” with weight ` +
      `${fixed(weights().at(row * source.length + column), 3)}`,
    (step, key) => show({ step, key }),
  );
  const beams = found.beams.length ? tree(found.beams) : null;

  head(found);
  append("steps", [player.element, figure("Generated text", "The text up to this step.", text), el(
    "div",
    { class: "beside" },
    figure("Cross-attention", el("span", {}, heading, ` ${LINES}`), lines.element),
    figure("Next token", chosen, next),
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
    chosen.textContent = `The most probable tokens at step ${at.step + 1}; “${piece}” was generated.`;
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
  for (const [name, value] of Object.entries({ Source: text, Generated: written })) {
    const line = el("p", { dir: "auto" }, el("span", { class: "small" }, `${name} `), value);
    document.getElementById("text").append(line);
  }
  document.getElementById("shape").append(
    el("strong", {}, model.name),
    ` (${model.family}): ${source.length} source tokens, ${target.length} generated tokens, decoder with ` +
      `${model.layers} layers of ${model.heads} heads.${cut ? " The generated text was truncated." : ""}`,
  );
}

/** Create a table of the candidates of a step, with the generated token. */
function likeliest({ candidates, target, scores }, step) {
  const rows = candidates[step].map(({ token, score }) => {
    const own = token === target[step];
    return [token, bar(score, own ? "own" : ""), own ? "generated" : ""];
  });
  const absent = candidates[step].every(({ token }) => token !== target[step]);
  const foot = absent ? [[target[step], bar(scores[step], "own"), "generated"]] : [];
  return table("The most probable tokens of this step", ["token", "probability", ""], rows, foot);
}
