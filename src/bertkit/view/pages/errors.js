// The list of errors. A click on a number lists only the errors that it counts.

const rows = [...document.querySelectorAll("#errors tbody tr")];
const buttons = [...document.querySelectorAll("button[data-pair]")];
const all = document.getElementById("all");
const said = document.getElementById("shown");

/** Return whether a row has a pair of labels, such as "0-2". "*" matches every label. */
function has(row, pair) {
  const [expected, answered] = pair.split("-");
  return (row.dataset.pairs ?? "").split(" ").some((one) => {
    const [first, second] = one.split("-");
    return (expected === "*" || expected === first) && (answered === "*" || answered === second);
  });
}

/** List the errors of a button. Without a button, list the worst errors. */
function list(chosen) {
  let listed = 0;
  for (const row of rows) {
    row.hidden = chosen ? !has(row, chosen.dataset.pair) : "more" in row.dataset;
    listed += row.hidden ? 0 : 1;
  }
  for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
  all.hidden = !chosen;
  said.textContent = chosen
    ? `${listed} listed of ${chosen.getAttribute("aria-label")}; errors.jsonl contains all`
    : `${listed} listed`;
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    list(button);
    said.scrollIntoView({ block: "center" });
  });
}
all.addEventListener("click", () => list(null));
list(null);
