// A kernel's log: read as it comes, followed, searched in the page.

const MOST_CHARACTERS = 20_000_000;
const LONGEST_LINE = 10_000;
const BLOCK_LINES = 500;
const MOST_MATCHES = 5_000;
const MOST_WAITING = 4_000_000;
const SHOW_MS = 100;
const SEARCH_AGAIN_MS = 1000;
const NEAR_END_PX = 40;

// What terminals take for colours, movements of the cursor and titles (ECMA-48), and other control characters.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-Z\\^-~])/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f]/g;

function plain(line) {
  const text = line.replace(ESCAPES, "").replace(/\r+$/, "");
  // A progress bar goes back to the start of its line to write it anew.
  return text.slice(text.lastIndexOf("\r") + 1).replace(CONTROLS, "");
}

// The lines, in text nodes of some hundreds each: the oldest are dropped a node at a time.
class Lines {
  constructor(place, most) {
    this.place = place;
    this.most = most;
    this.clear();
  }

  clear() {
    this.blocks = [];
    this.count = this.characters = 0;
    this.isCut = false;
    this.open = "";
    this.last = document.createTextNode("");
    this.place.replaceChildren(this.last);
  }

  add(text) {
    const lines = (this.open + text).split("\n");
    this.open = lines.pop();
    if (this.open.length > LONGEST_LINE) {
      const back = this.open.lastIndexOf("\r", this.open.length - 2) + 1;
      if (back) {
        this.open = this.open.slice(back);
      } else {
        lines.push(this.open);
        this.open = "";
      }
    }
    for (let start = 0; start < lines.length; ) {
      const block = this.blockWithRoom();
      const some = lines.slice(start, start + BLOCK_LINES - block.lines);
      const shown = some.map((line) => `${plain(line)}\n`).join("");
      block.node.appendData(shown);
      block.lines += some.length;
      this.count += some.length;
      this.characters += shown.length;
      start += some.length;
    }
    this.last.data = plain(this.open).replace(/\x1b[^]*$/, "");
    this.drop();
  }

  nodes() {
    return [...this.blocks.map((block) => block.node), this.last];
  }

  blockWithRoom() {
    let block = this.blocks.at(-1);
    if (!block || block.lines >= BLOCK_LINES) {
      block = { node: document.createTextNode(""), lines: 0 };
      this.blocks.push(block);
      this.last.before(block.node);
    }
    return block;
  }

  drop() {
    while (this.blocks.length > 1 && (this.count > this.most || this.characters > MOST_CHARACTERS)) {
      const { node, lines } = this.blocks.shift();
      this.count -= lines;
      this.characters -= node.length;
      this.isCut = true;
      node.remove();
    }
  }
}

class Matches {
  constructor() {
    this.clear();
  }

  clear() {
    this.ranges = [];
    this.current = -1;
    this.show();
  }

  // The current match stays the current one while it is there.
  find(text, nodes) {
    const before = this.ranges[this.current];
    this.ranges = [];
    const wanted = new RegExp(text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&"), "giu");
    for (const node of nodes) {
      for (const match of node.data.matchAll(wanted)) {
        if (this.ranges.length === MOST_MATCHES) break;
        const range = new Range();
        range.setStart(node, match.index);
        range.setEnd(node, match.index + match[0].length);
        this.ranges.push(range);
      }
    }
    this.current = before === undefined ? -1 : this.ranges.findIndex((range) => (
      range.startContainer === before.startContainer && range.startOffset === before.startOffset
    ));
    this.show();
  }

  // To the next or the one before; from the last to the first.
  go(step) {
    if (!this.ranges.length) return null;
    const from = this.current < 0 && step < 0 ? 0 : this.current;
    this.current = (from + step + this.ranges.length) % this.ranges.length;
    this.show();
    return this.ranges[this.current];
  }

  get text() {
    const all = this.ranges.length === MOST_MATCHES ? `${MOST_MATCHES} or more` : String(this.ranges.length);
    return this.current < 0 ? `${all} found` : `${this.current + 1} of ${all}`;
  }

  show() {
    const found = this.ranges[this.current];
    if (CSS.highlights) {
      CSS.highlights.set("log-match", new Highlight(...this.ranges.filter((range) => range !== found)));
      CSS.highlights.set("log-current", found ? new Highlight(found) : new Highlight());
    } else if (found) {
      getSelection().setBaseAndExtent(found.startContainer, found.startOffset, found.endContainer, found.endOffset);
    }
  }
}

class MusterLog extends HTMLElement {
  connectedCallback() {
    this.text = this.querySelector("#log-text");
    this.lines = new Lines(this.text, Number(this.dataset.most));
    this.hits = new Matches();
    this.waiting = "";
    this.sticks = true;
    for (const id of ["log-source", "log-tail", "log-follow", "log-timestamps"]) {
      this.its(id)?.addEventListener("change", () => this.start());
    }
    this.its("log-search").addEventListener("input", () => this.search());
    this.its("log-next").addEventListener("click", () => this.go(1));
    this.its("log-previous").addEventListener("click", () => this.go(-1));
    this.its("log-end").addEventListener("click", () => this.toEnd());
    this.text.addEventListener("scroll", () => this.scrolled());
    this.addEventListener("keydown", (event) => this.pressed(event));
    this.text.focus();
    this.start();
  }

  disconnectedCallback() {
    this.reading?.abort();
    clearTimeout(this.showing);
    clearTimeout(this.searching);
    this.hits.clear();
  }

  // Not `part`, and above not `matches`: elements have these already, and htmx asks them.
  its(id) {
    return this.querySelector(`#${id}`);
  }

  say(text) {
    this.its("log-status").textContent = text;
  }

  address() {
    const chosen = this.its("log-source").selectedOptions[0];
    const times = this.its("log-timestamps");
    const ofApp = chosen.dataset.app !== undefined;
    const url = new URL(chosen.value, location.href);
    // Apps' lines carry none.
    if (times) times.disabled = ofApp;
    if (times?.checked && !ofApp) url.searchParams.set("timestamps", "true");
    const whole = new URL(url);
    whole.searchParams.set("download", "true");
    this.its("log-download").href = whole;
    url.searchParams.set("tail", this.its("log-tail").value);
    if (this.its("log-follow")?.checked) url.searchParams.set("follow", "true");
    return url;
  }

  async start() {
    this.reading?.abort();
    const reading = new AbortController();
    this.reading = reading;
    this.show();
    this.lines.clear();
    this.hits.clear();
    this.sticks = true;
    const address = this.address();
    const follows = address.searchParams.has("follow");
    this.say(follows ? "Following." : "Reading.");
    try {
      const answer = await fetch(address, { signal: reading.signal });
      if (!answer.ok || answer.redirected) {
        this.say(answer.redirected ? "You are not signed in any more; load the page again." : await answer.text());
        return;
      }
      await this.read(answer.body.pipeThrough(new TextDecoderStream()).getReader(), reading.signal);
      if (reading.signal.aborted) return;
      this.show();
      this.say(follows ? "The log has ended." : "That is the log so far.");
    } catch {
      if (!reading.signal.aborted) this.say("The connection is lost; choose again to go on.");
    }
  }

  async read(reader, signal) {
    for (;;) {
      const { done, value } = await reader.read();
      if (done || signal.aborted) return;
      this.waiting += value;
      this.showing ??= setTimeout(() => this.show(), SHOW_MS);
      // What comes faster than it can be shown waits at the server.
      if (this.waiting.length > MOST_WAITING) this.show();
    }
  }

  show() {
    clearTimeout(this.showing);
    this.showing = null;
    if (!this.waiting) return;
    this.lines.add(this.waiting);
    this.waiting = "";
    const { count, isCut } = this.lines;
    this.its("log-lines").textContent = `${count.toLocaleString()} lines are shown${isCut ? "; older ones are in the download" : ""}.`;
    if (this.sticks) this.text.scrollTop = this.text.scrollHeight;
    if (this.its("log-search").value) this.searching ??= setTimeout(() => this.search(), SEARCH_AGAIN_MS);
  }

  search() {
    clearTimeout(this.searching);
    this.searching = null;
    const text = this.its("log-search").value;
    if (text) {
      this.hits.find(text, this.lines.nodes());
    } else {
      this.hits.clear();
    }
    this.tellMatches(text);
  }

  tellMatches(text) {
    const told = text ? this.hits.text : "";
    const place = this.its("log-matches");
    if (place.textContent !== told) place.textContent = told;
  }

  go(step) {
    if (this.searching) this.search();
    const range = this.hits.go(step);
    if (!range) return;
    this.setSticks(false);
    const match = range.getBoundingClientRect();
    const place = this.text.getBoundingClientRect();
    this.text.scrollTop += match.top - place.top - place.height / 2;
    this.tellMatches(this.its("log-search").value);
  }

  toEnd() {
    this.text.scrollTop = this.text.scrollHeight;
    this.text.focus();
  }

  scrolled() {
    this.setSticks(this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < NEAR_END_PX);
  }

  setSticks(sticks) {
    this.sticks = sticks;
    this.its("log-end").hidden = sticks;
  }

  pressed(event) {
    const search = this.its("log-search");
    if ((event.key === "f" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && event.target !== search)) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Enter" && event.target === search) {
      event.preventDefault();
      this.go(event.shiftKey ? -1 : 1);
    }
  }
}

customElements.define("muster-log", MusterLog);
