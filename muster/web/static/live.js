// Keeps what is marked data-live up to date: one stream tells which sessions change, and the parts that show them ask
// for themselves again; no oftener than once a second, and never so often that the server does little else.

const LEAST_MS = 1000;
const PATIENCE = 10;
const AGES_MS = 5000;
const waiting = new WeakMap();
let source = null;

// What a reader has opened stays open when the part that it is in refreshes: the server does not know of it.
const { callbacks } = Idiomorph.defaults;
const before = callbacks.beforeAttributeUpdated;
callbacks.beforeAttributeUpdated = (name, element, change) =>
  name === "open" && element.localName === "details" ? false : before(name, element, change);

function concerns(part, change) {
  const wanted = part.dataset.live;
  if (wanted === "all") return true;
  if (wanted === "rows") return change.membership || part.querySelector(`#session-${CSS.escape(change.id)}`) !== null;
  return wanted.split(" ").includes(change.id);
}

function refresh(part) {
  const state = waiting.get(part) ?? { timer: null, next: 0, began: 0 };
  waiting.set(part, state);
  if (state.timer !== null) return;
  state.timer = setTimeout(() => {
    state.timer = null;
    if (!part.isConnected || document.hidden) return;
    state.began = performance.now();
    state.next = state.began + LEAST_MS;
    state.asks = true;
    htmx.trigger(part, "live");
  }, Math.max(0, state.next - performance.now()));
}

document.addEventListener("htmx:afterRequest", (event) => {
  const state = waiting.get(event.detail.elt);
  // A part may ask for other reasons too, such as that somebody types.
  if (!state?.asks) return;
  state.asks = false;
  const now = performance.now();
  state.next = now + Math.max(LEAST_MS, PATIENCE * (now - state.began));
});

function refreshAll() {
  for (const part of document.querySelectorAll("[data-live], [data-every]")) refresh(part);
}

function listen() {
  if (source || document.hidden || !document.querySelector("[data-live]")) return;
  source = new EventSource("/live");
  let missed = false;
  source.addEventListener("open", () => {
    if (missed) refreshAll();
    missed = false;
  });
  source.addEventListener("error", () => {
    missed = true;
    // A browser gives up where the answer was an error; then it was a moment of the server's.
    if (source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(listen, 5000);
    }
  });
  source.addEventListener("session", (event) => {
    const change = JSON.parse(event.data);
    for (const part of document.querySelectorAll("[data-live]")) if (concerns(part, change)) refresh(part);
  });
}

function every() {
  if (document.hidden) return;
  const now = performance.now();
  for (const part of document.querySelectorAll("[data-every]")) {
    const state = waiting.get(part) ?? { timer: null, next: 0, began: now };
    waiting.set(part, state);
    if (now - state.began >= 1000 * Number(part.dataset.every)) refresh(part);
  }
}

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

function age(seconds) {
  const parts = [];
  for (const [unit, size] of UNITS) {
    const amount = Math.floor(seconds / size);
    seconds -= amount * size;
    if (amount) parts.push(`${amount}${unit}`);
  }
  return parts.slice(0, 2).join("") || "0s";
}

function ages() {
  if (document.hidden) return;
  for (const time of document.querySelectorAll("time[data-age]")) {
    const text = age(Math.max(0, Math.floor((Date.now() - Date.parse(time.dateTime)) / 1000)));
    if (time.textContent !== text) time.textContent = text;
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    source = null;
  } else {
    listen();
    refreshAll();
  }
});
addEventListener("pagehide", () => source?.close());
setInterval(every, 1000);
setInterval(ages, AGES_MS);
listen();
