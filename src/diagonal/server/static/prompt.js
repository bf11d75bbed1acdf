/** A video from words, streamed: prompts can follow while it is made, and each has a receipt.
 *
 * It speaks the dialect of vLLM-Omni: chunks of fragmented MP4, each announced by its metadata. */

import { Connection } from "./connection.js";
import { Film } from "./mp4.js";
import { download } from "./api.js";

const at = (id) => document.getElementById(id);

export class Prompt {
  constructor(models) {
    this.connection = null;
    this.film = null;
    at("video-model").replaceChildren(...models.map((model) => new Option(model.random_weights ? `${model.id} (random weights)` : model.id, model.id)));
    this.models = new Map(models.map((model) => [model.id, model]));
    at("video-model").addEventListener("change", () => this.stop());
    at("words").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.connection) this.change(at("text").value);
      else this.start(at("text").value);
    });
    at("stop").addEventListener("click", () => this.connection?.send("session.stop"));
    at("film-save").addEventListener("click", () => this.film && download(this.film.file, "diagonal.mp4"));
    this.become(false);
  }

  /** The view was left: what is being made goes on. */
  show() {}

  start(prompt) {
    const model = at("video-model").value;
    this.film = new Film(at("film"));
    this.receipts = new Map();
    this.chunks = 0;
    this.frames = 0;
    at("receipts").replaceChildren();
    this.receipt("first", prompt).applied.textContent = "from chunk 0 on";
    this.say("Waiting for the first chunk");
    this.become(true);
    this.connection = new Connection(model, { prompt, format: "m4s" }, {
      "video.chunk_metadata": (message, bytes) => this.chunk(message, bytes),
      "session.interaction.queued": (message) => this.queued(message.event_id),
      "session.applied": (message) => this.applied(message.event_id, message.chunk),
      "session.done": (message) => this.done(message),
      error: (message) => this.failed(message),
      closed: (why) => this.closed(why),
    });
  }

  /** Ask for something else from the next chunk on. */
  change(prompt) {
    const id = `prompt-${this.receipts.size}`;
    this.receipt(id, prompt).asked = performance.now();
    this.connection.send("session.interaction", { interaction: { event_id: id, event: { prompt } } });
  }

  stop() {
    this.connection?.close();
    this.connection = null;
    this.become(false);
  }

  async chunk(message, bytes) {
    for (const id of message.started_event_ids ?? []) this.applied(id, message.generation_chunk_index);
    const plays = await this.film.add(new Uint8Array(bytes));
    if (message.kind === "media") {
      this.chunks += 1;
      this.frames += message.num_frames;
    }
    document.body.dataset.film = "shown";
    at("film-note").textContent = "";
    this.say(plays
      ? `${this.frames} frames in ${this.chunks} chunks`
      : `${this.frames} frames in ${this.chunks} chunks. This browser cannot play H.264 as it comes: save the video at the end.`);
  }

  queued(id) {
    const receipt = this.receipts.get(id);
    receipt.received.textContent = `received after ${Math.round(performance.now() - receipt.asked)} ms`;
  }

  applied(id, chunk) {
    const receipt = this.receipts.get(id);
    if (receipt) receipt.applied.textContent = `seen from chunk ${chunk} on`;
  }

  failed(message) {
    const receipt = this.receipts.get(message.event_id);
    if (receipt) receipt.received.textContent = `refused: ${message.message}`;
    else this.say(message.message);
  }

  done(message) {
    this.film.end();
    this.say(`${message.stopped ? "Stopped" : "Done"}: ${this.frames} frames in ${this.chunks} chunks`);
  }

  closed(why) {
    this.connection = null;
    this.film.end();
    if (why.reason) this.say(why.reason);
    this.become(false);
  }

  receipt(id, prompt) {
    const row = document.createElement("li");
    const parts = ["q", "span", "span"].map((name) => document.createElement(name));
    row.append(...parts);
    const [quote, received, applied] = parts;
    quote.textContent = prompt;
    received.className = "received";
    applied.className = "applied";
    at("receipts").append(row);
    const receipt = { received, applied, asked: performance.now() };
    this.receipts.set(id, receipt);
    return receipt;
  }

  become(isRunning) {
    at("send").textContent = isRunning ? "Change the prompt" : "Start the video";
    at("stop").disabled = !isRunning;
    at("film-save").setAttribute("aria-disabled", isRunning || !this.film?.chunks.length);
  }

  say(text) {
    at("film-state").textContent = text;
  }
}
