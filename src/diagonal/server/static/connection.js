/** One socket of the realtime protocol: JSON texts both ways; a text with `byte_length` announces one binary message.
 *
 * What comes in is handed to `handlers[type]`, in its order, and each is awaited before the next: a picture that takes
 * long to unpack is never overtaken. `handlers.closed` is called once, whatever ended it. */

import { socketAddress } from "./api.js";

const PING_EVERY = 30_000; // ms: a server takes a page that says nothing for gone

export class Connection {
  constructor(model, start, handlers) {
    this.handlers = handlers;
    this.announced = null;
    this.queue = Promise.resolve();
    this.error = null; // what the server told last, if it is one: the reason of a close that follows
    this.socket = new WebSocket(socketAddress("/v1/realtime/video", { model }));
    this.socket.binaryType = "arraybuffer";
    this.socket.addEventListener("open", () => this.send("session.start", { model, ...start }));
    this.socket.addEventListener("message", (event) => this.receive(event.data));
    this.socket.addEventListener("close", (event) => this.closed(event));
    this.pings = setInterval(() => this.send("session.ping"), PING_EVERY);
  }

  /** Whether messages reach the server. */
  get open() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  /** Send a message, if there is still anybody to read it. */
  send(type, fields = {}) {
    if (this.open) this.socket.send(JSON.stringify({ type, ...fields }));
  }

  /** Leave: the seat is free at once. */
  close() {
    this.handlers = {};
    this.send("session.stop");
    this.socket.close(1000);
  }

  receive(data) {
    if (typeof data !== "string") {
      const about = this.announced;
      this.announced = null;
      this.hand(about.type, about, data);
      return;
    }
    const message = JSON.parse(data);
    if (message.byte_length !== undefined) {
      this.announced = message;
      return;
    }
    this.error = message.type === "error" ? message : null;
    this.hand(message.type, message);
  }

  hand(type, message, bytes) {
    this.queue = this.queue.then(() => this.handlers[type]?.(message, bytes));
  }

  closed(event) {
    clearInterval(this.pings);
    const reason = this.error?.message || CLOSED[event.code] || event.reason;
    this.hand("closed", { code: this.error?.code ?? event.code, reason, isCut: CUT.includes(event.code) });
  }
}

// A session may go on elsewhere: its server is gone, or goes, or has no seat yet for who comes back.
const CUT = [1001, 1006, 1012, 1013];

const CLOSED = {
  1006: "The server cannot be reached.",
  1008: "The server refused this page.",
  1012: "The server is being restarted.",
  1013: "All seats are taken.",
};
