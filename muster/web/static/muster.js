// What every page does: messages, the dialogs, copying, and how many are selected.

const SHOWN_MS = 6000;
let shown;

export function say(text) {
  const region = document.getElementById("said");
  region.textContent = text;
  clearTimeout(shown);
  shown = setTimeout(() => region.replaceChildren(), SHOWN_MS);
}

document.addEventListener("muster:said", (event) => {
  document.getElementById("problem").replaceChildren();
  say(event.detail.value);
  for (const part of document.querySelectorAll("[data-live]")) htmx.trigger(part, "live");
});

document.addEventListener("htmx:sendError", () => say("The server does not answer; trying again helps when it is back."));

// A change may have to be confirmed: by the button that was pressed, or by what asks.
document.addEventListener("htmx:confirm", (event) => {
  const asking = event.detail.triggeringEvent?.submitter ?? event.detail.elt;
  const text = asking.dataset.confirm;
  if (!text) return;
  event.preventDefault();
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-text").textContent = text;
  dialog.returnValue = "no";
  dialog.addEventListener("close", () => dialog.returnValue === "yes" && event.detail.issueRequest(true), { once: true });
  dialog.showModal();
});

// What is swapped into the dialog opens it; what is in it with data-close closes it.
const dialog = document.getElementById("dialog");
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target === dialog && !dialog.open && dialog.childElementCount) dialog.showModal();
});
dialog.addEventListener("close", () => dialog.replaceChildren());

document.addEventListener("click", async (event) => {
  if (event.target.closest("[data-close]")) event.target.closest("dialog")?.close();
  const copying = event.target.closest("[data-copy]");
  if (!copying) return;
  const from = document.getElementById(copying.dataset.copy);
  const text = from.value ?? from.textContent;
  try {
    await navigator.clipboard.writeText(text);
    say("Copied");
  } catch {
    // A page that came without TLS may not use the clipboard.
    getSelection().selectAllChildren(from);
    say("Selected; copy it with your keyboard");
  }
});

function boxes(name) {
  return [...document.querySelectorAll(`input[type=checkbox][name="${name}"]`)];
}

function count() {
  for (const button of document.querySelectorAll("[data-needs]")) {
    button.disabled = !boxes(button.dataset.needs).some((box) => box.checked);
  }
  for (const all of document.querySelectorAll("[data-all]")) {
    const rows = boxes(all.dataset.all);
    const checked = rows.filter((box) => box.checked).length;
    all.checked = rows.length > 0 && checked === rows.length;
    all.indeterminate = checked > 0 && checked < rows.length;
  }
  const told = document.getElementById("selected-count");
  const number = boxes("selected").filter((box) => box.checked).length;
  const text = number ? `${number} selected` : "none selected";
  if (told && told.textContent !== text) told.textContent = text;
}

document.addEventListener("change", (event) => {
  const { all } = event.target.dataset;
  if (all) for (const box of boxes(all)) box.checked = event.target.checked;
  count();
});
document.addEventListener("htmx:afterSettle", count);
count();
