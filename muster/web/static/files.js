// Uploads files to a directory of a folder, one after another, and says how far each has come.

const form = document.getElementById("upload");
const list = document.getElementById("uploads");

function lineOf(file) {
  const item = document.createElement("li");
  item.textContent = `${file.name}: waits`;
  list.append(item);
  return item;
}

// fetch() says nothing of how far an upload has come.
function send(file, url, item) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("PUT", url);
    request.setRequestHeader("X-CSRF-Token", JSON.parse(document.body.getAttribute("hx-headers"))["X-CSRF-Token"]);
    request.setRequestHeader("HX-Request", "true");
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.addEventListener("progress", (event) => {
      const percent = event.total ? Math.floor((100 * event.loaded) / event.total) : 100;
      const text = `${file.name}: ${percent} %`;
      if (item.textContent !== text) item.textContent = text;
    });
    request.addEventListener("load", () => {
      const refused = new DOMParser().parseFromString(request.responseText, "text/html").body.textContent.trim();
      item.textContent = request.status === 204 ? `${file.name}: uploaded` : `${file.name}: ${refused}`;
      item.classList.toggle("problem", request.status !== 204);
      resolve();
    });
    request.addEventListener("error", () => {
      item.textContent = `${file.name}: the upload broke off; try again`;
      item.classList.add("problem");
      resolve();
    });
    request.send(file);
  });
}

async function upload(files, replaces) {
  const target = new URL(form.dataset.to, location.href);
  const waiting = files.map((file) => [file, lineOf(file)]);
  for (const [file, item] of waiting) {
    const url = new URL(target);
    url.searchParams.set("path", form.dataset.path ? `${form.dataset.path}/${file.name}` : file.name);
    if (replaces) url.searchParams.set("replace", "true");
    await send(file, url, item);
  }
  for (const part of document.querySelectorAll("[data-live]")) htmx.trigger(part, "live");
}

if (form) {
  const chosen = document.getElementById("chosen");
  const replace = document.getElementById("replace");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const files = [...chosen.files];
    chosen.value = "";
    await upload(files, replace.checked);
  });
  form.addEventListener("dragover", (event) => {
    event.preventDefault();
    form.dataset.dropping = "";
  });
  form.addEventListener("dragleave", () => delete form.dataset.dropping);
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    delete form.dataset.dropping;
    upload([...event.dataTransfer.files], replace.checked);
  });
}
