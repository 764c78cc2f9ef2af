// The terminal page: xterm.js on one side, the server's WebSocket on the other. The protocol stands in muster/web/streams/terminal.py.

const WINDOW_BYTES = 64 * 1024;
const FRAME_BYTES = 16 * 1024;
const TELL_BYTES = 32 * 1024;
const READER_KEY = "muster-terminal-reader";
const COLOURS = {
  foreground: "--text", background: "--surface", cursor: "--accent", cursorAccent: "--surface", black: "--text",
  red: "--bad", green: "--good", yellow: "--warn", blue: "--info", magenta: "--series-5", cyan: "--series-6",
  white: "--muted", brightBlack: "--muted", brightRed: "--bad", brightGreen: "--good", brightYellow: "--warn",
  brightBlue: "--info", brightMagenta: "--series-5", brightCyan: "--series-6", brightWhite: "--text",
};

const byId = (id) => document.getElementById(id);
const place = byId("terminal");
const encoder = new TextEncoder();

// A variable may be light-dark() or in any colour space: a pixel of it is not.
function theme() {
  const probe = document.createElement("span");
  place.append(probe);
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const hex = (variable) => {
    probe.style.color = `var(${variable})`;
    pixel.fillStyle = getComputedStyle(probe).color;
    pixel.fillRect(0, 0, 1, 1);
    const [red, green, blue] = pixel.getImageData(0, 0, 1, 1).data;
    return `#${[red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("")}`;
  };
  const made = Object.fromEntries(Object.entries(COLOURS).map(([name, variable]) => [name, hex(variable)]));
  made.selectionBackground = `${made.cursor}55`;
  probe.remove();
  return made;
}

class Connection {
  constructor(terminal, ended) {
    this.terminal = terminal;
    this.waiting = [];
    this.sent = this.taken = this.shown = this.told = 0;
    this.isOpen = false;
    const url = new URL(`/sessions/${place.dataset.session}/terminal`, location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    url.searchParams.set("kernel", place.dataset.kernel);
    this.socket = new WebSocket(url);
    this.socket.binaryType = "arraybuffer";
    this.socket.addEventListener("open", () => this.opened());
    this.socket.addEventListener("message", (event) => this.heard(event.data));
    this.socket.addEventListener("close", (event) => ended(event, this.isOpen));
  }

  opened() {
    this.isOpen = true;
    this.resize();
  }

  heard(data) {
    if (typeof data === "string") {
      this.taken = JSON.parse(data).taken;
      this.send();
      return;
    }
    this.terminal.write(new Uint8Array(data), () => {
      this.shown += data.byteLength;
      if (this.shown - this.told >= TELL_BYTES) {
        this.told = this.shown;
        this.tell({ taken: this.told });
      }
    });
  }

  resize() {
    this.tell({ columns: this.terminal.cols, rows: this.terminal.rows });
  }

  type(bytes) {
    for (let start = 0; start < bytes.length; start += FRAME_BYTES) {
      this.waiting.push(bytes.subarray(start, start + FRAME_BYTES));
    }
    this.send();
  }

  send() {
    while (this.waiting.length && this.sent - this.taken < WINDOW_BYTES && this.socket.readyState === WebSocket.OPEN) {
      const bytes = this.waiting.shift();
      this.sent += bytes.length;
      this.socket.send(bytes);
    }
  }

  tell(message) {
    if (this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify(message));
    }
  }
}

function begin() {
  const shape = getComputedStyle(place);
  const reader = byId("terminal-reader");
  reader.checked = localStorage.getItem(READER_KEY) === "yes";
  const terminal = new window.Terminal({
    cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
    fontFamily: shape.fontFamily,
    fontSize: parseFloat(shape.fontSize),
    // Some fonts have the underscore below the line that xterm makes room for.
    lineHeight: 1.2,
    minimumContrastRatio: 4.5,
    screenReaderMode: reader.checked,
    scrollback: 10_000,
    theme: theme(),
  });
  const fit = new window.FitAddon.FitAddon();
  terminal.loadAddon(fit);
  terminal.open(place);
  fit.fit();

  const status = byId("terminal-status");
  const again = byId("terminal-again");
  let connection = null;

  const ended = (event, wasOpen) => {
    const reason = event.reason || (wasOpen ? "the connection is lost" : "no connection: load the page again to sign in, if the server is there");
    connection = null;
    status.textContent = `Closed: ${reason}`;
    again.hidden = false;
    terminal.write(`\r\n\x1b[0m[${reason}; press Enter to connect again]\r\n`);
  };

  const connect = () => {
    status.textContent = "Connecting";
    again.hidden = true;
    connection = new Connection(terminal, ended);
    connection.socket.addEventListener("open", () => {
      status.textContent = `Connected to ${place.dataset.kernel}`;
    });
    terminal.focus();
  };

  const type = (bytes) => {
    if (connection) {
      connection.type(bytes);
    } else if (bytes.length === 1 && bytes[0] === 13) {
      connect();
    }
  };
  terminal.onData((text) => type(encoder.encode(text)));
  terminal.onBinary((text) => type(Uint8Array.from(text, (character) => character.charCodeAt(0))));
  terminal.onResize(() => connection?.resize());

  const copy = async () => {
    const text = terminal.getSelection();
    if (!text) {
      status.textContent = "Nothing is selected";
      return;
    }
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
    } else {
      // Without TLS there is no clipboard for scripts; xterm.js answers the browser's own copying.
      terminal.focus();
      document.execCommand("copy");
    }
    status.textContent = "Copied";
  };
  const paste = async () => {
    try {
      terminal.paste(await navigator.clipboard.readText());
    } catch {
      status.textContent = "The browser does not let the page paste: use Ctrl+Shift+V";
    }
    terminal.focus();
  };
  terminal.attachCustomKeyEventHandler((event) => {
    if (event.type !== "keydown" || !event.ctrlKey) {
      return true;
    }
    if (event.shiftKey && event.code === "KeyC") {
      event.preventDefault();
      copy();
      return false;
    }
    if (event.key === "F6") {
      byId("terminal-kernel").focus();
      return false;
    }
    // The browser pastes; as a control character it would be typed besides.
    return !(event.shiftKey && event.code === "KeyV");
  });

  byId("terminal-copy").addEventListener("click", copy);
  byId("terminal-paste").addEventListener("click", paste);
  again.addEventListener("click", connect);
  byId("terminal-kernel").addEventListener("change", (event) => {
    location.search = new URLSearchParams({ kernel: event.target.value });
  });
  reader.addEventListener("change", () => {
    localStorage.setItem(READER_KEY, reader.checked ? "yes" : "no");
    terminal.options.screenReaderMode = reader.checked;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    terminal.options.theme = theme();
  });
  new ResizeObserver(() => requestAnimationFrame(() => fit.fit())).observe(place);
  connect();
}

begin();
