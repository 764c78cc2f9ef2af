// The launch form: rows that are added and removed, the slider beside its number, suggestions that fill in fields, and
// marks on fields with problems.

const form = document.getElementById("launch-form");

// The preview listens for input, which scripts do not cause by setting values.
function requestPreview() {
  form.dispatchEvent(new Event("input", { bubbles: true }));
}

function fillField(name, value) {
  const field = form.elements.namedItem(name);
  if (!field) return;
  if (field.type === "checkbox") field.checked = value;
  else field.value = value;
  updateSlider(field);
}

function updateSlider(field) {
  for (const slider of form.querySelectorAll("[data-mirrors]")) {
    if (slider.dataset.mirrors === field.id) slider.value = Number.parseInt(field.value, 10) || 1;
  }
}

form.addEventListener("input", (event) => {
  const { mirrors } = event.target.dataset;
  if (mirrors) document.getElementById(mirrors).value = event.target.value;
  else updateSlider(event.target);
});

document.addEventListener("click", (event) => {
  const addButton = event.target.closest("[data-add]");
  if (addButton) {
    const rows = document.getElementById(`rows-${addButton.dataset.add}`);
    rows.append(document.getElementById(`row-${addButton.dataset.add}`).content.cloneNode(true));
    rows.lastElementChild.querySelector("input").focus();
  }
  const removeButton = event.target.closest("[data-remove]");
  if (removeButton) {
    const row = removeButton.closest(".line");
    const focusNext = row.parentElement.parentElement.querySelector("[data-add]");
    row.remove();
    focusNext.focus();
    requestPreview();
  }
  const applyButton = event.target.closest("[data-apply]");
  if (applyButton) {
    for (const [name, value] of Object.entries(JSON.parse(applyButton.dataset.apply))) fillField(name, value);
    requestPreview();
  }
});

// A field is invalid while the problem that describes it is shown.
function markInvalidFields() {
  for (const problem of document.querySelectorAll("[id^='problem-']")) {
    for (const field of form.querySelectorAll(`:is(input, select, textarea)[aria-describedby~="${problem.id}"]`)) {
      if (problem.hidden) field.removeAttribute("aria-invalid");
      else field.setAttribute("aria-invalid", "true");
    }
  }
}

document.addEventListener("htmx:afterSettle", markInvalidFields);
document.getElementById("refused")?.focus();
