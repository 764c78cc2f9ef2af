// What every page does: announcements, dialogs, copying, and counting selected rows.

const ANNOUNCEMENT_MS = 6000;
let announcementTimer;

function announce(text) {
  const region = document.getElementById("announcement");
  region.textContent = text;
  clearTimeout(announcementTimer);
  announcementTimer = setTimeout(() => region.replaceChildren(), ANNOUNCEMENT_MS);
}

// The server sends this event with the answer to a change (HX-Trigger).
document.addEventListener("muster:announce", (event) => {
  document.getElementById("problem").replaceChildren();
  announce(event.detail.value);
  for (const part of document.querySelectorAll("[data-live]")) htmx.trigger(part, "live");
});

document.addEventListener("htmx:sendError", () => announce("The server does not answer. Try again later."));

// A button or a form with data-confirm has its question answered first. The answer repeats what the button says.
document.addEventListener("htmx:confirm", (event) => {
  const requester = event.detail.triggeringEvent?.submitter ?? event.detail.elt;
  const question = requester.dataset.confirm;
  if (!question) return;
  event.preventDefault();
  const confirmDialog = document.getElementById("confirm");
  document.getElementById("confirm-text").textContent = question;
  const action = requester.dataset.action ?? requester.textContent.trim();
  document.getElementById("confirm-yes").textContent = action;
  // Beside “Cancel session”, a button that says only “Cancel” could mean either.
  document.getElementById("confirm-no").textContent = action.startsWith("Cancel") ? "Go back" : "Cancel";
  confirmDialog.returnValue = "no";
  const proceed = () => confirmDialog.returnValue === "yes" && event.detail.issueRequest(true);
  confirmDialog.addEventListener("close", proceed, { once: true });
  confirmDialog.showModal();
});

// The dialog opens when content is swapped into it. A button in it with data-close closes it.
const dialog = document.getElementById("dialog");
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target === dialog && !dialog.open && dialog.childElementCount) dialog.showModal();
});
dialog.addEventListener("close", () => dialog.replaceChildren());

// While the dialog is open, nobody who cannot see the page behind it hears of that page's alerts.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (!dialog.open || event.detail.target.id !== "problem") return;
  let region = dialog.querySelector(":scope > [role=alert]");
  if (!region) {
    region = document.createElement("div");
    region.setAttribute("role", "alert");
    dialog.prepend(region);
  }
  event.detail.target = region;
});

document.addEventListener("click", async (event) => {
  if (event.target.closest("[data-close]")) event.target.closest("dialog")?.close();
  const copyButton = event.target.closest("[data-copy]");
  if (!copyButton) return;
  const original = document.getElementById(copyButton.dataset.copy);
  const text = original.value ?? original.textContent;
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied");
  } catch {
    // Browsers allow the clipboard to pages with TLS only.
    getSelection().selectAllChildren(original);
    announce("Selected. Copy it with your keyboard.");
  }
});

function checkboxesNamed(name) {
  return [...document.querySelectorAll(`input[type=checkbox][name="${name}"]`)];
}

function updateSelection() {
  for (const button of document.querySelectorAll("[data-needs]")) {
    button.disabled = !checkboxesNamed(button.dataset.needs).some((box) => box.checked);
  }
  for (const selectAll of document.querySelectorAll("[data-all]")) {
    const boxes = checkboxesNamed(selectAll.dataset.all);
    const checked = boxes.filter((box) => box.checked).length;
    selectAll.checked = boxes.length > 0 && checked === boxes.length;
    selectAll.indeterminate = checked > 0 && checked < boxes.length;
  }
  const region = document.getElementById("selected-count");
  const count = checkboxesNamed("selected").filter((box) => box.checked).length;
  for (const shown of document.querySelectorAll("[data-selected-count]")) shown.textContent = `${count} selected`;
  const text = count ? `${count} selected` : "none selected";
  // A screen reader announces each change of the region, also one to the same text.
  if (region && region.textContent !== text) region.textContent = text;
}

document.addEventListener("change", (event) => {
  const { all } = event.target.dataset;
  if (all) for (const box of checkboxesNamed(all)) box.checked = event.target.checked;
  updateSelection();
});
document.addEventListener("htmx:afterSettle", updateSelection);
updateSelection();
// Now all scripts have run, and htmx knows the page: muster.css lets its buttons be pressed.
document.addEventListener("DOMContentLoaded", () => {
  document.documentElement.dataset.ready = "";
});
