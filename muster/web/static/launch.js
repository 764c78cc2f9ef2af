// Rows that come and go, the slider beside its number, suggestions that fill in the form, and which fields are wrong.

const form = document.getElementById("launch-form");

function changed() {
  form.dispatchEvent(new Event("input", { bubbles: true }));
}

function put(name, value) {
  const field = form.elements.namedItem(name);
  if (!field) return;
  if (field.type === "checkbox") field.checked = value;
  else field.value = value;
  mirror(field);
}

function mirror(field) {
  for (const slider of form.querySelectorAll("[data-mirrors]")) {
    if (slider.dataset.mirrors === field.id) slider.value = field.value || 1;
  }
}

form.addEventListener("input", (event) => {
  const { mirrors } = event.target.dataset;
  if (mirrors) document.getElementById(mirrors).value = event.target.value;
  else mirror(event.target);
});

document.addEventListener("click", (event) => {
  const adding = event.target.closest("[data-add]");
  if (adding) {
    const rows = document.getElementById(`rows-${adding.dataset.add}`);
    rows.append(document.getElementById(`row-${adding.dataset.add}`).content.cloneNode(true));
    rows.lastElementChild.querySelector("input").focus();
  }
  const removing = event.target.closest("[data-remove]");
  if (removing) {
    const row = removing.closest(".line");
    const next = row.parentElement.parentElement.querySelector("[data-add]");
    row.remove();
    next.focus();
    changed();
  }
  const applying = event.target.closest("[data-apply]");
  if (applying) {
    for (const [name, value] of Object.entries(JSON.parse(applying.dataset.apply))) put(name, value);
    changed();
  }
});

// A field is told to be wrong by what stands beside it.
function mark() {
  for (const told of document.querySelectorAll("[id^='problem-']")) {
    for (const field of form.querySelectorAll(`:is(input, select, textarea)[aria-describedby~="${told.id}"]`)) {
      if (told.hidden) field.removeAttribute("aria-invalid");
      else field.setAttribute("aria-invalid", "true");
    }
  }
}

document.addEventListener("htmx:afterSettle", mark);
document.getElementById("refused")?.focus();
