// Each word masked once, and what the model would put in its place.

import { choice, el, flow, table } from "./dom.js";
import { figure } from "./picture.js";
import { bar } from "./steps.js";

export function masked(found, section) {
  if (found.masked === null) {
    const why = "This model has no trained head for masked words; a pretrained one has.";
    section.append(el("p", { class: "note" }, why));
    return;
  }
  const shown = found.words.slice(0, found.masked.length);
  const text = flow(shown.map(({ text }) => ({ piece: text, word: text })));
  const mark = choice(text.element, "The masked word", show);
  const answers = el("div", { class: "candidates" });
  const left = found.words.length - shown.length;
  const caption = left
    ? `Of ${found.words.length} words the first ${shown.length}: more would take long.`
    : "Choose the word that is masked.";
  const said = el("span", { "aria-live": "polite" });
  section.append(
    figure("Masked words", caption, text.element),
    figure("What the model would put there", said, answers),
  );

  function show(place) {
    const { text, first, end } = shown[place];
    mark(place);
    const pieces = found.tokens.slice(first, end).map(({ piece }) => piece);
    said.textContent =
      pieces.length > 1
        ? `“${text}” is masked, its ${pieces.length} pieces at once; a table for each.`
        : `“${text}” is masked.`;
    const tables = pieces.map((own, at) => instead(own, found.masked[place][at]));
    answers.replaceChildren(...tables);
  }
  show(0);
}

/** The candidates of a place, and which of them stood there. */
function instead(own, candidates) {
  const rows = candidates.map(({ token, score }) => {
    const stood = token === own;
    return [token, bar(score, stood ? "own" : ""), stood ? "stood there" : ""];
  });
  const absent = candidates.every(({ token }) => token !== own);
  const foot = absent ? [[own, "not among them", "stood there"]] : [];
  const names = [`instead of ${own}`, "probability", ""];
  return table(`The likeliest pieces for ${own}`, names, rows, foot);
}
