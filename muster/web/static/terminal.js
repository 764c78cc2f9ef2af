// The terminal page: connects xterm.js to the server's WebSocket. Its protocol is described in
// muster/web/streams/terminal.py.

const WINDOW_BYTES = 64 * 1024;
const FRAME_BYTES = 16 * 1024;
const ACKNOWLEDGE_BYTES = 32 * 1024;
const SCREEN_READER_KEY = "muster-terminal-reader";
const COLOUR_VARIABLES = {
  foreground: "--text", background: "--surface", cursor: "--accent", cursorAccent: "--surface", black: "--text",
  red: "--bad", green: "--good", yellow: "--warn", blue: "--info", magenta: "--series-5", cyan: "--series-6",
  white: "--muted", brightBlack: "--muted", brightRed: "--bad", brightGreen: "--good", brightYellow: "--warn",
  brightBlue: "--info", brightMagenta: "--series-5", brightCyan: "--series-6", brightWhite: "--text",
};

const byId = (id) => document.getElementById(id);
const container = byId("terminal");
const encoder = new TextEncoder();

// The colours as #RRGGBB, which xterm.js needs. A variable may be light-dark() or in any colour space, so each one is
// drawn and its pixel read.
function theme() {
  const probe = document.createElement("span");
  container.append(probe);
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const hex = (variable) => {
    probe.style.color = `var(${variable})`;
    pixel.fillStyle = getComputedStyle(probe).color;
    pixel.fillRect(0, 0, 1, 1);
    const [red, green, blue] = pixel.getImageData(0, 0, 1, 1).data;
    return `#${[red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("")}`;
  };
  const entries = Object.entries(COLOUR_VARIABLES).map(([name, variable]) => [name, hex(variable)]);
  const colours = Object.fromEntries(entries);
  colours.selectionBackground = `${colours.cursor}55`;
  probe.remove();
  return colours;
}

class Connection {
  constructor(terminal, onClose) {
    this.terminal = terminal;
    this.queue = [];
    // Bytes of input that were sent, and that the server has taken.
    this.sentBytes = this.takenBytes = 0;
    // Bytes of output that the terminal has shown, and that the server knows of.
    this.shownBytes = this.acknowledgedBytes = 0;
    this.isOpen = false;
    const url = new URL(`/sessions/${container.dataset.session}/terminal`, location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    url.searchParams.set("kernel", container.dataset.kernel);
    this.socket = new WebSocket(url);
    this.socket.binaryType = "arraybuffer";
    this.socket.addEventListener("open", () => this.handleOpen());
    this.socket.addEventListener("message", (event) => this.receive(event.data));
    this.socket.addEventListener("close", (event) => onClose(event, this.isOpen));
  }

  handleOpen() {
    this.isOpen = true;
    this.sendSize();
  }

  receive(data) {
    if (typeof data === "string") {
      this.takenBytes = JSON.parse(data).taken;
      this.sendQueue();
      return;
    }
    this.terminal.write(new Uint8Array(data), () => {
      this.shownBytes += data.byteLength;
      if (this.shownBytes - this.acknowledgedBytes >= ACKNOWLEDGE_BYTES) {
        this.acknowledgedBytes = this.shownBytes;
        this.sendJson({ taken: this.acknowledgedBytes });
      }
    });
  }

  sendSize() {
    this.sendJson({ columns: this.terminal.cols, rows: this.terminal.rows });
  }

  sendInput(bytes) {
    for (let start = 0; start < bytes.length; start += FRAME_BYTES) {
      this.queue.push(bytes.subarray(start, start + FRAME_BYTES));
    }
    this.sendQueue();
  }

  sendQueue() {
    const hasRoom = () => this.sentBytes - this.takenBytes < WINDOW_BYTES;
    while (this.queue.length && hasRoom() && this.socket.readyState === WebSocket.OPEN) {
      const bytes = this.queue.shift();
      this.sentBytes += bytes.length;
      this.socket.send(bytes);
    }
  }

  sendJson(message) {
    if (this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify(message));
    }
  }
}

function start() {
  const style = getComputedStyle(container);
  const screenReader = byId("terminal-reader");
  screenReader.checked = localStorage.getItem(SCREEN_READER_KEY) === "yes";
  const terminal = new window.Terminal({
    cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
    fontFamily: style.fontFamily,
    fontSize: parseFloat(style.fontSize),
    // In some fonts the underscore lies below the line height that xterm.js assumes.
    lineHeight: 1.2,
    minimumContrastRatio: 4.5,
    screenReaderMode: screenReader.checked,
    scrollback: 10_000,
    theme: theme(),
  });
  const fitAddon = new window.FitAddon.FitAddon();
  terminal.loadAddon(fitAddon);
  terminal.open(container);
  fitAddon.fit();

  const status = byId("terminal-status");
  const connectButton = byId("terminal-connect");
  let connection = null;

  const handleClose = (event, wasOpen) => {
    const cause = wasOpen ? "the connection was lost" : "no connection; reload the page to sign in again";
    const reason = event.reason || cause;
    connection = null;
    status.textContent = `Closed: ${reason}`;
    connectButton.hidden = false;
    terminal.write(`\r\n\x1b[0m[${reason}; press Enter to connect again]\r\n`);
  };

  const connect = () => {
    status.textContent = "Connecting";
    connectButton.hidden = true;
    connection = new Connection(terminal, handleClose);
    connection.socket.addEventListener("open", () => {
      status.textContent = `Connected to ${container.dataset.kernel}`;
    });
    terminal.focus();
  };

  const handleInput = (bytes) => {
    if (connection) {
      connection.sendInput(bytes);
    } else if (bytes.length === 1 && bytes[0] === 13) {
      connect();
    }
  };
  terminal.onData((text) => handleInput(encoder.encode(text)));
  terminal.onBinary((text) => handleInput(Uint8Array.from(text, (character) => character.charCodeAt(0))));
  terminal.onResize(() => connection?.sendSize());

  const copy = async () => {
    const text = terminal.getSelection();
    if (!text) {
      status.textContent = "Nothing is selected";
      return;
    }
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
    } else {
      // Browsers allow the clipboard to pages with TLS only. xterm.js handles the browser's own copy command.
      terminal.focus();
      document.execCommand("copy");
    }
    status.textContent = "Copied";
  };
  const paste = async () => {
    try {
      terminal.paste(await navigator.clipboard.readText());
    } catch {
      status.textContent = "The browser does not allow this page to paste. Use Ctrl+Shift+V.";
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
    // The browser pastes. xterm.js would send a control character as well.
    return !(event.shiftKey && event.code === "KeyV");
  });

  byId("terminal-copy").addEventListener("click", copy);
  byId("terminal-paste").addEventListener("click", paste);
  connectButton.addEventListener("click", connect);
  byId("terminal-kernel").addEventListener("change", (event) => {
    location.search = new URLSearchParams({ kernel: event.target.value });
  });
  screenReader.addEventListener("change", () => {
    localStorage.setItem(SCREEN_READER_KEY, screenReader.checked ? "yes" : "no");
    terminal.options.screenReaderMode = screenReader.checked;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    terminal.options.theme = theme();
  });
  new ResizeObserver(() => requestAnimationFrame(() => fitAddon.fit())).observe(container);
  connect();
}

start();
