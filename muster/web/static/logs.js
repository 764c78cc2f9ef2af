// A container's log: shown as it comes, followed, and searched in the page.

const MAX_CHARACTERS = 20_000_000;
const MAX_LINE_LENGTH = 10_000;
const MAX_MATCHES = 5_000;
// Text that is received but not shown yet. Beyond it, the server has to wait.
const MAX_PENDING_CHARACTERS = 4_000_000;
const BLOCK_LINES = 500;
const SHOW_INTERVAL_MS = 100;
const SEARCH_INTERVAL_MS = 1000;
const NEAR_END_PX = 40;

// Control sequences of terminals (ECMA-48), such as colours, cursor movements and titles.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-Z\\^-~])/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f]/g;

function plainText(line) {
  const text = line.replace(ESCAPES, "").replace(/\r+$/, "");
  // A progress bar overwrites its line from the start after each carriage return.
  return text.slice(text.lastIndexOf("\r") + 1).replace(CONTROLS, "");
}

// The shown lines, in text nodes of some hundred lines each: the oldest are dropped node by node.
class LogLines {
  constructor(element, maxLines) {
    this.element = element;
    this.maxLines = maxLines;
    this.clear();
  }

  clear() {
    this.blocks = [];
    this.count = this.characters = 0;
    this.isCut = false;
    this.unfinishedLine = "";
    this.lastNode = document.createTextNode("");
    this.element.replaceChildren(this.lastNode);
  }

  add(text) {
    const lines = (this.unfinishedLine + text).split("\n");
    this.unfinishedLine = lines.pop();
    if (this.unfinishedLine.length > MAX_LINE_LENGTH) {
      const lineStart = this.unfinishedLine.lastIndexOf("\r", this.unfinishedLine.length - 2) + 1;
      if (lineStart) {
        this.unfinishedLine = this.unfinishedLine.slice(lineStart);
      } else {
        lines.push(this.unfinishedLine);
        this.unfinishedLine = "";
      }
    }
    for (let start = 0; start < lines.length; ) {
      const block = this.blockWithRoom();
      const added = lines.slice(start, start + BLOCK_LINES - block.lines);
      const addedText = added.map((line) => `${plainText(line)}\n`).join("");
      block.node.appendData(addedText);
      block.lines += added.length;
      this.count += added.length;
      this.characters += addedText.length;
      start += added.length;
    }
    // An escape sequence may not have been received to its end.
    this.lastNode.data = plainText(this.unfinishedLine).replace(/\x1b[\s\S]*$/, "");
    this.dropOldest();
  }

  nodes() {
    return [...this.blocks.map((block) => block.node), this.lastNode];
  }

  blockWithRoom() {
    let block = this.blocks.at(-1);
    if (!block || block.lines >= BLOCK_LINES) {
      block = { node: document.createTextNode(""), lines: 0 };
      this.blocks.push(block);
      this.lastNode.before(block.node);
    }
    return block;
  }

  dropOldest() {
    while (this.blocks.length > 1 && (this.count > this.maxLines || this.characters > MAX_CHARACTERS)) {
      const { node, lines } = this.blocks.shift();
      this.count -= lines;
      this.characters -= node.length;
      this.isCut = true;
      node.remove();
    }
  }
}

class SearchMatches {
  constructor() {
    this.clear();
  }

  clear() {
    this.ranges = [];
    this.currentIndex = -1;
    this.highlight();
  }

  // The current match stays current as long as its text is kept.
  find(query, nodes) {
    const previous = this.ranges[this.currentIndex];
    this.ranges = [];
    const pattern = new RegExp(query.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&"), "giu");
    for (const node of nodes) {
      for (const match of node.data.matchAll(pattern)) {
        if (this.ranges.length === MAX_MATCHES) break;
        const range = new Range();
        range.setStart(node, match.index);
        range.setEnd(node, match.index + match[0].length);
        this.ranges.push(range);
      }
    }
    this.currentIndex = previous === undefined ? -1 : this.ranges.findIndex((range) => (
      range.startContainer === previous.startContainer && range.startOffset === previous.startOffset
    ));
    this.highlight();
  }

  // Goes to the next match (1) or the previous one (-1), and from the last to the first.
  move(step) {
    if (!this.ranges.length) return null;
    const from = this.currentIndex < 0 && step < 0 ? 0 : this.currentIndex;
    this.currentIndex = (from + step + this.ranges.length) % this.ranges.length;
    this.highlight();
    return this.ranges[this.currentIndex];
  }

  get summary() {
    const count = this.ranges.length === MAX_MATCHES ? `${MAX_MATCHES} or more` : String(this.ranges.length);
    return this.currentIndex < 0 ? `${count} found` : `${this.currentIndex + 1} of ${count}`;
  }

  highlight() {
    const current = this.ranges[this.currentIndex];
    if (CSS.highlights) {
      CSS.highlights.set("log-match", new Highlight(...this.ranges.filter((range) => range !== current)));
      CSS.highlights.set("log-current", current ? new Highlight(current) : new Highlight());
    } else if (current) {
      const { startContainer, startOffset, endContainer, endOffset } = current;
      getSelection().setBaseAndExtent(startContainer, startOffset, endContainer, endOffset);
    }
  }
}

class MusterLog extends HTMLElement {
  connectedCallback() {
    this.text = this.control("log-text");
    this.lines = new LogLines(this.text, Number(this.dataset.maxLines));
    // Not `matches`: every element has that method, and htmx calls it.
    this.searchMatches = new SearchMatches();
    this.pendingText = "";
    this.followsEnd = true;
    for (const id of ["log-source", "log-tail", "log-follow", "log-timestamps"]) {
      this.control(id)?.addEventListener("change", () => this.load());
    }
    this.control("log-search").addEventListener("input", () => this.search());
    this.control("log-next").addEventListener("click", () => this.goToMatch(1));
    this.control("log-previous").addEventListener("click", () => this.goToMatch(-1));
    this.control("log-end").addEventListener("click", () => this.goToEnd());
    this.text.addEventListener("scroll", () => this.handleScroll());
    this.addEventListener("keydown", (event) => this.handleKey(event));
    this.text.focus();
    this.load();
  }

  disconnectedCallback() {
    this.loading?.abort();
    clearTimeout(this.showTimer);
    clearTimeout(this.searchTimer);
    this.searchMatches.clear();
  }

  control(id) {
    return this.querySelector(`#${id}`);
  }

  showStatus(text) {
    this.control("log-status").textContent = text;
  }

  // The URL of the chosen lines; the link of the download follows the same choices.
  chosenUrl() {
    const source = this.control("log-source").selectedOptions[0];
    const timestamps = this.control("log-timestamps");
    const isAppLog = source.dataset.app !== undefined;
    const url = new URL(source.value, location.href);
    // Lines of apps have no timestamps.
    if (timestamps) timestamps.disabled = isAppLog;
    if (timestamps?.checked && !isAppLog) url.searchParams.set("timestamps", "true");
    const downloadUrl = new URL(url);
    downloadUrl.searchParams.set("download", "true");
    this.control("log-download").href = downloadUrl;
    url.searchParams.set("tail", this.control("log-tail").value);
    if (this.control("log-follow")?.checked) url.searchParams.set("follow", "true");
    return url;
  }

  async load() {
    this.loading?.abort();
    const loading = new AbortController();
    this.loading = loading;
    this.showPending();
    this.lines.clear();
    this.searchMatches.clear();
    this.followsEnd = true;
    const url = this.chosenUrl();
    const follows = url.searchParams.has("follow");
    this.showStatus(follows ? "Following." : "Loading.");
    try {
      const response = await fetch(url, { signal: loading.signal });
      if (!response.ok || response.redirected) {
        this.showStatus(response.redirected ? "You are signed out. Reload the page." : await response.text());
        return;
      }
      await this.receive(response.body.pipeThrough(new TextDecoderStream()).getReader(), loading.signal);
      if (loading.signal.aborted) return;
      this.showPending();
      this.showStatus(follows ? "The log has ended." : "This is the log so far.");
    } catch {
      if (loading.signal.aborted) return;
      this.showStatus("The connection was lost. Change a choice above to load the log again.");
    }
  }

  async receive(reader, signal) {
    for (;;) {
      const { done, value } = await reader.read();
      if (done || signal.aborted) return;
      this.pendingText += value;
      this.showTimer ??= setTimeout(() => this.showPending(), SHOW_INTERVAL_MS);
      if (this.pendingText.length > MAX_PENDING_CHARACTERS) this.showPending();
    }
  }

  showPending() {
    clearTimeout(this.showTimer);
    this.showTimer = null;
    if (!this.pendingText) return;
    this.lines.add(this.pendingText);
    this.pendingText = "";
    const { count, isCut } = this.lines;
    const rest = isCut ? "; older ones are in the download" : "";
    this.control("log-lines").textContent = `${count.toLocaleString()} lines are shown${rest}.`;
    if (this.followsEnd) this.text.scrollTop = this.text.scrollHeight;
    if (this.control("log-search").value) this.searchTimer ??= setTimeout(() => this.search(), SEARCH_INTERVAL_MS);
  }

  search() {
    clearTimeout(this.searchTimer);
    this.searchTimer = null;
    const query = this.control("log-search").value;
    if (query) {
      this.searchMatches.find(query, this.lines.nodes());
    } else {
      this.searchMatches.clear();
    }
    this.showMatchCount(query);
  }

  showMatchCount(query) {
    const text = query ? this.searchMatches.summary : "";
    const region = this.control("log-matches");
    if (region.textContent !== text) region.textContent = text;
  }

  goToMatch(step) {
    if (this.searchTimer) this.search();
    const range = this.searchMatches.move(step);
    if (!range) return;
    this.setFollowsEnd(false);
    const match = range.getBoundingClientRect();
    const view = this.text.getBoundingClientRect();
    this.text.scrollTop += match.top - view.top - view.height / 2;
    this.showMatchCount(this.control("log-search").value);
  }

  goToEnd() {
    this.text.scrollTop = this.text.scrollHeight;
    this.text.focus();
  }

  handleScroll() {
    this.setFollowsEnd(this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < NEAR_END_PX);
  }

  setFollowsEnd(followsEnd) {
    this.followsEnd = followsEnd;
    this.control("log-end").hidden = followsEnd;
  }

  handleKey(event) {
    const search = this.control("log-search");
    if ((event.key === "f" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && event.target !== search)) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Enter" && event.target === search) {
      event.preventDefault();
      this.goToMatch(event.shiftKey ? -1 : 1);
    }
  }
}

customElements.define("muster-log", MusterLog);
