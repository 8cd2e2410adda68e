// Predictions for masked words, or for next tokens of a causal model.

import { again, asked } from "./ask.js";
import { choice, el, flow, table } from "./dom.js";
import { figure } from "./picture.js";
import { bar } from "./steps.js";

const MASKED = {
  name: "Masked words",
  word: "The masked word",
  choose: "Choose the word that is masked.",
  of: (text, count) =>
    count > 1
      ? `The ${count} tokens of “${text}” are masked together. Each token has its own table.`
      : `“${text}” is masked.`,
};
const NEXT = {
  name: "Next tokens",
  word: "The next word",
  choose: "Choose a word. The model predicts it from the previous tokens.",
  of: (text, count) =>
    count > 1
      ? `Predictions for each of the ${count} tokens of “${text}”, from the tokens before it.`
      : `Predictions for “${text}”, from the tokens before it.`,
};

export function masked(found, section) {
  if (found.masked === null) {
    const why = "This model has no trained head for masked words. Use a pretrained model.";
    section.append(el("p", { class: "note" }, why));
    return;
  }
  const shown = found.words.slice(0, found.masked.length);
  const says = found.causal ? NEXT : MASKED;
  const text = flow(shown.map(({ text }) => ({ piece: text, word: text })));
  const mark = choice(text.element, says.word, show);
  const answers = el("div", { class: "candidates" });
  const left = found.words.length - shown.length;
  const caption = left
    ? `Only the first ${shown.length} of ${found.words.length} words have predictions, to limit the computing time.`
    : says.choose;
  const said = el("span", { "aria-live": "polite" });
  const several = !found.causal && asked("hide") ? together(found, tell, () => show(chosen)) : null;
  let chosen = begins(found, shown);
  section.append(
    ...(several ? [several.mode] : []),
    figure(says.name, caption, el("div", {}, ...[text.element, several?.element].filter(Boolean))),
    figure("Predictions", said, answers),
  );

  function show(place) {
    const { text: word, first, end } = shown[place];
    chosen = place;
    mark(place);
    tell(says.of(word, end - first), tables(found, place, found.masked[place]));
  }
  function tell(sentence, made) {
    said.textContent = sentence;
    answers.replaceChildren(...made);
    text.element.hidden = several?.on() ?? false;
  }
  if (found.hidden && several) several.show();
  else show(chosen);
}

/** Return the initial word: the longest word, or in a causal model the second word. */
function begins({ causal }, words) {
  if (causal) return Math.min(1, words.length - 1);
  const longest = Math.max(...words.map(({ text }) => text.length));
  return words.findIndex(({ text }) => text.length === longest);
}

/**
 * Create the controls for words that a server masks together: a checkbox, the words as buttons, on(),
 * whether it is checked, and show(). tell(sentence, tables) shows predictions, and `alone` shows the
 * words that are masked one by one.
 */
function together(found, tell, alone) {
  const hidden = new Set(found.hidden?.words);
  const box = el("input", { type: "checkbox", onchange: () => (box.checked ? show() : back()) });
  box.checked = found.hidden !== null;
  const chips = found.words.map(({ text }, place) =>
    el("button", { type: "button", onclick: () => press(place) }, text),
  );
  const chosen = () => [...hidden].sort((a, b) => a - b);
  const send = () => again(asked("hide"), chosen().join(" "), "masked");
  const ask = el("button", { type: "button", class: "quiet", onclick: send });
  const words = el("div", { class: "flow", role: "group", "aria-label": "The masked words" }, ...chips);
  const element = el("div", { hidden: "" }, words, el("p", {}, ask));

  function press(place) {
    if (!hidden.delete(place)) hidden.add(place);
    show();
  }
  function back() {
    element.hidden = true;
    alone();
  }
  function show() {
    element.hidden = false;
    chips.forEach((chip, place) => chip.setAttribute("aria-pressed", hidden.has(place)));
    const places = chosen();
    const known = found.hidden !== null && found.hidden.words.join() === places.join();
    ask.hidden = known || !places.length;
    const these = places.length === 1 ? "this word" : `these ${places.length} words`;
    ask.textContent = `Run the model with ${these} masked`;
    if (!known) return tell("Choose the words to mask, then run the model.", []);
    const { candidates } = found.hidden;
    const names = places.map((place) => `“${found.words[place].text}”`);
    const all = `${names.slice(0, -1).join(", ")} and ${names.at(-1)} are masked together`;
    const sentence = names.length > 1 ? `${all}.` : `${names[0]} is masked.`;
    tell(sentence, places.flatMap((place, at) => tables(found, place, candidates[at])));
  }
  const mode = el("p", {}, el("label", {}, box, " Mask several words together"));
  return { mode, element, on: () => box.checked, show };
}

/** Create the tables of a word, one per token. */
function tables(found, place, candidates) {
  const { first, end } = found.words[place];
  return found.tokens.slice(first, end).map(({ piece }, at) => instead(piece, candidates[at]));
}

/** Create a table of candidates with the original token. The first token of a text has no candidates. */
function instead(own, candidates) {
  if (!candidates.length) return el("p", { class: "note" }, "There are no tokens before it.");
  const rows = candidates.map(({ token, score }) => {
    const same = token === own;
    return [token, bar(score, same ? "own" : ""), same ? "original" : ""];
  });
  const absent = candidates.every(({ token }) => token !== own);
  const foot = absent ? [[own, "not in the list", "original"]] : [];
  const names = [`instead of ${own}`, "probability", ""];
  return table(`The most probable tokens for ${own}`, names, rows, foot);
}
