// Forms: what is too long for an address goes as a body.

const LONGEST = 4000; // characters, as they are written in an address

for (const form of document.forms) {
  form.addEventListener("submit", () => {
    const query = new URLSearchParams(new FormData(form)).toString();
    form.method = query.length > LONGEST ? "post" : "get";
  });
}
