// Forms. Long values are sent with POST. Examples and buttons fill in a form and submit it.

const LONGEST = 4000; // Maximum length of a query string in characters.

for (const form of document.forms) {
  form.addEventListener("submit", () => {
    const query = new URLSearchParams(new FormData(form)).toString();
    form.method = query.length > LONGEST ? "post" : "get";
  });
}

for (const link of document.querySelectorAll(".examples a")) {
  link.addEventListener("click", (event) => {
    const form = document.querySelector("form");
    if (!form || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { pathname, searchParams, hash } = new URL(link.href);
    for (const field of form.querySelectorAll("textarea, input, select")) {
      // Keep the selected model.
      const fallback = field instanceof HTMLSelectElement ? field.value : "";
      field.value = searchParams.get(field.name) ?? fallback;
    }
    form.action = pathname + hash;
    form.requestSubmit();
  });
}

/** Return a field of the form that created this page, or null if the page is a file. */
export function asked(name) {
  return document.getElementById(`ask-${name}`);
}

/** Submit the form of this page again with another value of a field, and scroll to a section. */
export function again(field, value, part) {
  field.form.reset(); // Discard what the user is typing.
  const before = field.value;
  field.value = value;
  field.form.action = `#${part}`;
  field.form.requestSubmit();
  field.value = before; // reset() does not change hidden fields.
}
