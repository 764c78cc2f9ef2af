// Keeps the parts of a page that are marked data-live up to date. One event stream says which sessions change. The
// parts that show them request themselves again: at most once a second, and less often while the server is slow.

const MIN_INTERVAL_MS = 1000;
// The pause between two refreshes of a part, in multiples of what the last one took.
const PAUSE_FACTOR = 10;
const AGES_INTERVAL_MS = 5000;
const RECONNECT_MS = 5000;
const refreshStates = new WeakMap();
let source = null;
// Of the stream, also of one that ended for good: whatever happened until there is another was missed.
let wasInterrupted = false;

// The server does not know which details a reader has opened. They stay open when their part is refreshed.
const { callbacks } = Idiomorph.defaults;
const mayUpdateAttribute = callbacks.beforeAttributeUpdated;
callbacks.beforeAttributeUpdated = (name, element, mutation) =>
  name === "open" && element.localName === "details" ? false : mayUpdateAttribute(name, element, mutation);

function shows(part, change) {
  const scope = part.dataset.live;
  if (scope === "all") return true;
  if (scope === "rows") return change.membership || part.querySelector(`#session-${CSS.escape(change.id)}`) !== null;
  return scope.split(" ").includes(change.id);
}

function refreshStateOf(part, beganAt = 0) {
  const state = refreshStates.get(part) ?? { timer: null, nextAt: 0, beganAt, isRefreshing: false };
  refreshStates.set(part, state);
  return state;
}

function refresh(part) {
  const state = refreshStateOf(part);
  if (state.timer !== null) return;
  state.timer = setTimeout(() => {
    state.timer = null;
    // A page that is left while it loads may have run this and never loaded htmx.
    if (!part.isConnected || document.hidden || !window.htmx) return;
    state.beganAt = performance.now();
    state.nextAt = state.beganAt + MIN_INTERVAL_MS;
    state.isRefreshing = true;
    htmx.trigger(part, "live");
  }, Math.max(0, state.nextAt - performance.now()));
}

document.addEventListener("htmx:afterRequest", (event) => {
  const state = refreshStates.get(event.detail.elt);
  // A part sends requests for other reasons too, such as input in a form.
  if (!state?.isRefreshing) return;
  state.isRefreshing = false;
  const now = performance.now();
  state.nextAt = now + Math.max(MIN_INTERVAL_MS, PAUSE_FACTOR * (now - state.beganAt));
});

// An answer that was requested before the reader selected something does not know that, and would undo it.
document.addEventListener("change", (event) => {
  const part = event.target.closest("[data-live].htmx-request");
  if (!part) return;
  htmx.trigger(part, "htmx:abort");
  refresh(part);
});

function refreshAll() {
  for (const part of document.querySelectorAll("[data-live], [data-every]")) refresh(part);
}

function listen() {
  if (source || document.hidden || !document.querySelector("[data-live]")) return;
  source = new EventSource("/live");
  source.addEventListener("open", () => {
    if (wasInterrupted) refreshAll();
    wasInterrupted = false;
  });
  source.addEventListener("error", () => {
    wasInterrupted = true;
    // A browser does not reconnect by itself after an error status, such as that of a server that is starting.
    if (source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(listen, RECONNECT_MS);
    }
  });
  source.addEventListener("session", (event) => {
    const change = JSON.parse(event.data);
    for (const part of document.querySelectorAll("[data-live]")) if (shows(part, change)) refresh(part);
  });
}

function refreshPeriodically() {
  if (document.hidden) return;
  const now = performance.now();
  for (const part of document.querySelectorAll("[data-every]")) {
    if (now - refreshStateOf(part, now).beganAt >= 1000 * Number(part.dataset.every)) refresh(part);
  }
}

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

// As format_duration of the server: the largest unit and the next one.
function durationText(seconds) {
  let first = UNITS.findIndex(([, size]) => seconds >= size);
  if (first < 0) first = UNITS.length - 1;
  const [[unit, size], next] = [UNITS[first], UNITS[first + 1]];
  const text = `${Math.floor(seconds / size)}${unit}`;
  const rest = next ? Math.floor((seconds % size) / next[1]) : 0;
  return rest ? `${text}${rest}${next[0]}` : text;
}

function updateAges() {
  if (document.hidden) return;
  for (const time of document.querySelectorAll("time[data-age]")) {
    const text = durationText(Math.max(0, Math.floor((Date.now() - Date.parse(time.dateTime)) / 1000)));
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
setInterval(refreshPeriodically, 1000);
setInterval(updateAges, AGES_INTERVAL_MS);
listen();
