/** A video from words, streamed: prompts can follow while it is made, and each has a receipt.
 *
 * It speaks the dialect of vLLM-Omni: chunks of fragmented MP4, each announced by its metadata. A chunk that is on the
 * screen is acknowledged; so the server is never far ahead of what is seen. */

import { Connection } from "./connection.js";
import { Film } from "./mp4.js";
import { download } from "./api.js";

const COLOURS = 4; // that tell prompts apart
const at = (id) => document.getElementById(id);

export class Prompt {
  constructor(models) {
    this.connection = null;
    this.film = null;
    at("video-model").replaceChildren(...models.map((model) => new Option(model.random_weights ? `${model.id} (random weights)` : model.id, model.id)));
    this.models = new Map(models.map((model) => [model.id, model]));
    at("video-model").addEventListener("change", () => this.choose());
    at("words").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.connection) this.change(at("text").value);
      else this.start(at("text").value);
    });
    at("text").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      at("words").requestSubmit();
    });
    at("stop").addEventListener("click", () => this.connection?.send("session.stop"));
    at("film-save").addEventListener("click", () => download(this.film.file, "diagonal.mp4"));
    this.choose();
  }

  /** The view was left: what is being made goes on. */
  show() {}

  /** Take up a model: its prompts to try. */
  choose() {
    this.stop();
    const { examples } = this.models.get(at("video-model").value);
    at("examples").replaceChildren(...examples.map((text) => this.example(text)));
    at("text").value = examples[0] ?? "";
  }

  example(text) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    button.addEventListener("click", () => {
      at("text").value = text;
      at("text").focus();
    });
    return button;
  }

  start(prompt) {
    const model = at("video-model").value;
    this.film = new Film(at("film"), (seconds) => this.played(seconds));
    this.receipts = new Map();
    this.chunks = []; // when each begins, in seconds of the video
    this.seen = -1; // the newest chunk that was on the screen
    this.frames = 0;
    this.isDone = false;
    at("receipts").replaceChildren();
    at("chunks").replaceChildren();
    this.current = this.receipt("first", prompt);
    this.applied("first", 0);
    this.say("Waiting for the first chunk");
    const start = { prompt, format: "m4s", extra_params: { acknowledge: true } };
    this.connection = new Connection(model, start, {
      "video.start": (message) => (this.fps = message.config.fps),
      "video.chunk_metadata": (message, bytes) => this.chunk(message, bytes),
      "session.interaction.queued": (message) => this.queued(message.event_id),
      "session.applied": (message) => this.applied(message.event_id, message.chunk),
      "session.done": (message) => this.done(message),
      error: (message) => this.failed(message),
      closed: (why) => this.closed(why),
    });
    this.become(true);
  }

  /** Ask for something else from the next chunk on. */
  change(prompt) {
    const id = `prompt-${this.receipts.size}`;
    this.receipt(id, prompt).received.textContent = "on its way";
    this.connection.send("session.interaction", { interaction: { event_id: id, event: { prompt } } });
  }

  stop() {
    this.connection?.close();
    this.connection = null;
    this.become(false);
  }

  async chunk(message, bytes) {
    const mark = document.createElement("li");
    mark.dataset.colour = this.current.number % COLOURS;
    mark.title = `chunk ${this.chunks.length}, ${message.num_frames} frames`;
    at("chunks").append(mark);
    this.chunks.push(this.frames / this.fps);
    this.frames += message.num_frames;
    const plays = await this.film.add(new Uint8Array(bytes));
    document.body.dataset.film = "shown";
    const made = `${this.frames} frames in ${this.chunks.length} chunks`;
    this.say(plays ? made : `${made}. This browser cannot play H.264 as it comes: save the video at the end.`);
    if (!plays) this.played(Infinity);
  }

  /** The video was played up to a time. */
  played(seconds) {
    const seen = this.chunks.findLastIndex((begins) => begins <= seconds);
    if (seen <= this.seen) return;
    this.seen = seen;
    this.connection?.send("session.ack", { chunk: seen });
    [...at("chunks").children].slice(0, seen + 1).forEach((mark) => mark.classList.add("seen"));
    for (const receipt of this.receipts.values()) {
      if (receipt.chunk === undefined || receipt.chunk > seen || receipt.screen.textContent) continue;
      receipt.screen.textContent = `on the screen after ${since(receipt)}`;
    }
  }

  queued(id) {
    const receipt = this.receipts.get(id);
    receipt.received.textContent = `received after ${since(receipt)}`;
  }

  applied(id, chunk) {
    const receipt = this.receipts.get(id);
    this.current = receipt;
    receipt.chunk = chunk;
    receipt.applied.textContent = chunk ? `applied from chunk ${chunk} on, after ${since(receipt)}` : "applied from chunk 0 on";
  }

  failed(message) {
    const id = message.event_id ?? (this.frames ? null : "first");
    const receipt = this.receipts.get(id);
    if (!receipt) return this.say(message.message);
    this.isDone = id === "first"; // its receipt says why
    const [first, ...rest] = message.message.split(". ");
    receipt.received.textContent = `refused: ${first}`;
    receipt.applied.textContent = "";
    if (!rest.length) return;
    const more = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = "more";
    more.append(summary, rest.join(". "));
    receipt.received.append(more);
  }

  done(message) {
    this.isDone = true;
    this.film.end();
    this.say(`${message.stopped ? "Stopped" : "Done"}: ${this.frames} frames in ${this.chunks.length} chunks`);
  }

  closed(why) {
    this.connection = null;
    this.film.end();
    if (!this.isDone) this.say(why.reason);
    this.become(false);
  }

  receipt(id, prompt) {
    const row = document.createElement("li");
    const [quote, received, applied, screen] = ["q", "span", "span", "span"].map((name) => document.createElement(name));
    row.append(quote, received, applied, screen);
    quote.textContent = prompt;
    Object.assign(received, { className: "received" });
    Object.assign(applied, { className: "applied" });
    Object.assign(screen, { className: "screen" });
    const receipt = { number: this.receipts.size, received, applied, screen, asked: performance.now() };
    row.dataset.colour = receipt.number % COLOURS;
    this.receipts.set(id, receipt);
    at("receipts").append(row);
    return receipt;
  }

  become(isRunning) {
    at("send").textContent = isRunning ? "Change prompt" : "Start video";
    at("stop").disabled = !isRunning;
    at("film-save").disabled = isRunning || !this.film?.chunks.length;
  }

  say(text) {
    at("film-state").textContent = text;
  }
}

function since(receipt) {
  const waited = performance.now() - receipt.asked;
  return waited < 1000 ? `${Math.round(waited)} ms` : `${(waited / 1000).toFixed(1)} s`;
}
