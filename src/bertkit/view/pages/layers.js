// Similarity by layer: cosines of states, and words that occur more than once.

import { numbers } from "./data.js";
import { choice, el, fixed, flow, table } from "./dom.js";
import { color } from "./paint.js";
import { figure } from "./picture.js";
import { slider } from "./slider.js";
import { square } from "./square.js";

const AROUND = 4; // Number of context words on each side of an occurrence.
const NONE = "No word occurs more than once. Try a text with one word in two meanings.";
const PLACES =
  "The occurrences of the word are compared with each other in each layer. Their embeddings differ only by " +
  "their positions. If the occurrences have different meanings, their states differ in higher layers.";

export async function layers(found, section) {
  if (found.off_change) changes(found, section);
  await similarities(found, section);
  if (found.repeats.length) repeats(found, section);
  else section.append(el("p", { class: "note" }, NONE));
}

async function similarities(found, section) {
  const { tokens, similarity } = found;
  const last = similarity.length - 1;
  const at = { layer: last, token: tokens.findIndex((t) => t.word !== null), other: null };
  let turn = 0;
  let cosines = null;
  const cosine = (row, column) => cosines.at(row * tokens.length + column);
  const player = slider("Layer of the states", last + 1, (layer) => show({ layer }), called);
  const matrix = square(
    "Cosines of the tokens’ states",
    tokens,
    tokens,
    (row, column) =>
      `“${tokens[row].piece}” and “${tokens[column].piece}”: ${fixed(cosine(row, column), 3)}`,
    (token, other) => show({ token, other }),
  );
  const nearest = el("div");
  section.append(
    player.element,
    el(
      "div",
      { class: "beside" },
      figure("Similarity at a layer", "Blue is similar, orange is opposite.", matrix.element),
      figure("The chosen token and the others", "The most similar tokens come first.", nearest),
    ),
  );

  async function show(change) {
    Object.assign(at, change);
    const mine = ++turn;
    const array = await numbers(similarity[at.layer]);
    if (mine !== turn) return;
    cosines = array;
    player.show(at.layer);
    const others = tokens.map((_, place) => place).filter((place) => place !== at.token);
    others.sort((a, b) => cosine(at.token, b) - cosine(at.token, a));
    matrix.show(cosines, (cosine) => cosine, at.token, at.other ?? others[0]);
    const rows = others.slice(0, 20).map((place) => [
      tokens[place].piece,
      String(place + 1),
      shaded(cosine(at.token, place), 3),
    ]);
    const names = [`${tokens[at.token].piece} and`, "token", "cosine"];
    nearest.replaceChildren(table("Cosines of the chosen token", names, rows));
  }
  await show({});
}

/** Show how much the states change because some heads are switched off. */
function changes({ tokens, off, off_change }, section) {
  const rows = tokens.map(({ piece }, place) => [
    piece,
    ...off_change.map((layer) => shaded(layer[place], 2)),
  ]);
  const names = ["token", ...off_change.map((_, layer) => (layer ? String(layer) : "embedding"))];
  const caption = `Without ${off.join(", ")}: the cosine of each state with the state of the unchanged model.`;
  const shown = table("Cosines with the states of the unchanged model, by layer", names, rows);
  section.append(figure("Heads switched off", caption, shown));
}

function repeats(found, section) {
  const words = flow(found.repeats.map(({ text }) => ({ piece: text, word: text })));
  const mark = choice(words.element, "The repeated word", show);
  const places = el("ol", { class: "places" });
  const cosines = el("div");
  section.append(
    el("h3", {}, "Repeated words"),
    el("p", {}, PLACES),
    words.element,
    places,
    figure("A word layer by layer", "The cosine of the states of two occurrences of the word.", cosines),
  );

  function show(chosen) {
    const { words: own, more, cosines: layers } = found.repeats[chosen];
    mark(chosen);
    places.replaceChildren(...own.map((word) => context(found.words, word)));
    if (more) places.append(el("li", { class: "note" }, `${more} more occurrences are not compared`));
    const pairs = own.flatMap((_, a) => own.slice(a + 1).map((_, b) => [a, a + 1 + b]));
    const rows = pairs.map(([a, b]) => [
      `${a + 1} and ${b + 1}`,
      ...layers.map((layer) => shaded(layer[a][b], 2)),
    ]);
    const names = ["occurrences", ...layers.map((_, layer) => (layer ? String(layer) : "embedding"))];
    cosines.replaceChildren(table("Cosines of two occurrences of the word, by layer", names, rows));
  }
  show(0);
}

/** Show a word with its context. */
function context(words, place) {
  const { sequence, text } = words[place];
  const near = (from, to) => {
    const same = words.slice(Math.max(0, from), to).filter((word) => word.sequence === sequence);
    return same.map((word) => word.text).join(" ");
  };
  const [before, after] = [near(place - AROUND, place), near(place + 1, place + 1 + AROUND)];
  return el("li", {}, `${before} `, el("mark", {}, text), ` ${after}`);
}

function called(layer) {
  return layer ? String(layer) : "0, the embedding";
}

/** Create a cell with a cosine and its color. */
function shaded(cosine, digits) {
  const cell = el("td", { class: "shaded" }, fixed(cosine, digits));
  cell.style.backgroundColor = color(0.6 * cosine);
  return cell;
}
