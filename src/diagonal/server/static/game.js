/** A world that is played over one connection: controls out, frames in, each drawn and then acknowledged. */

import { Connection } from "./connection.js";
import { Meters } from "./meters.js";

export class Game {
  /** `events` has what the view wants to know: started, frame, applied, closed; all may be left out. */
  constructor(stage, events = {}) {
    this.stage = stage;
    this.events = events;
    this.connection = null;
    this.forget();
  }

  /** Whether there is a session. */
  get live() {
    return this.session !== null && this.connection !== null;
  }

  /** Take a seat. `start` is what `session.start` takes: a start view or a snapshot, seed, schedule, pace, paused. */
  begin(model, start) {
    this.end();
    this.connection = new Connection(model, { format: "webp", quality: 90, ...start }, {
      "session.started": (message) => this.started(message),
      "session.applied": (message) => this.events.applied?.(message),
      "session.snapshot": (message) => this.snapshots.shift()?.(message.snapshot),
      "session.closing": (message) => this.events.closing?.(message),
      "video.frame": (message, bytes) => this.frame(message, bytes),
      error: (message) => this.events.error?.(message),
      closed: (why) => this.closed(why),
    });
  }

  /** Take a session up from its snapshot, and wait until it stands there. */
  async take(model, snapshot) {
    this.begin(model, { snapshot, paused: true });
    await new Promise((resolve) => (this.ready = resolve));
  }

  /** Leave the seat. */
  end() {
    this.connection?.close();
    this.connection = null;
    this.forget();
  }

  /** What is held now, and what was just pressed. */
  control(held, pressed, at) {
    if (!this.live) return;
    this.seq += 1;
    this.connection.send("session.control", { seq: this.seq, held, pressed });
    if (pressed.length) this.meters.pressed(this.seq, at);
  }

  /** Change schedule, pause or pace from the next frame on. */
  update(fields) {
    this.updates += 1;
    this.connection?.send("session.update", { update_id: `page-${this.updates}`, ...fields });
    if (fields.paused !== undefined) this.meters.paused();
  }

  /** Begin again, from the same start view or another one. */
  reset(fields) {
    this.connection?.send("session.reset", fields);
    this.meters.paused();
  }

  /** Play on from an earlier frame. */
  rewind(frame) {
    this.connection?.send("session.rewind", { frame });
    this.meters.paused();
  }

  /** The session as a small file's content; rejected if the connection ends before it comes. */
  snapshot() {
    if (!this.live) return Promise.reject(new Error("there is no session"));
    return new Promise((resolve, reject) => {
      this.snapshots.push((found) => (found ? resolve(found) : reject(new Error("the session ended"))));
      this.connection.send("session.snapshot");
    });
  }

  forget() {
    for (const answer of this.snapshots ?? []) answer(null);
    this.session = null; // what session.started said
    this.newest = null; // the newest frame's message
    this.snapshots = []; // who waits for one
    this.seq = 0;
    this.updates = 0;
    this.ready = () => {}; // called when the session stands
    this.meters = new Meters();
  }

  started(message) {
    this.session = message;
    this.stage.resize(message.width, message.height);
    this.events.started?.(message);
    this.ready();
  }

  async frame(message, bytes) {
    const connection = this.connection;
    const blob = new Blob([bytes], { type: message.mime });
    const bitmap = await createImageBitmap(blob);
    if (connection !== this.connection) return; // another session has begun meanwhile
    this.stage.draw(bitmap);
    bitmap.close();
    connection.send("session.ack", { frame: message.frame });
    this.newest = message;
    const meters = this.meters;
    requestAnimationFrame((now) => meters.drawn(message, now));
    this.events.frame?.(message, blob);
  }

  closed(why) {
    this.connection = null;
    this.events.closed?.({ ...why, hadBegun: this.session !== null });
    this.forget();
  }
}
