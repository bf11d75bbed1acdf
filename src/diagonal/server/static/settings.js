/** What is chosen beside the game: the world, its start view, the order of decoding, seed and pace. */

import { address } from "./api.js";
import { Choices } from "./choices.js";

const NOTES = {
  raster: "One token a model call, row by row.",
  diagonal: "A diagonal of tokens a model call.",
  window: "A window of tokens a model call.",
  lossless: "Raster's very tokens, in fewer model calls.",
};
const at = (id) => document.getElementById(id);

/** How a schedule is written in the page. */
export function title(schedule) {
  return schedule.replace(":", " ");
}

/** The picture of a start view. */
export function picture(world, start) {
  return address(`/v1/models/${world.id}/starts/${start}`);
}

export class Settings {
  /** `changed` has a function for each of world, start, schedule, seed and pace. */
  constructor(worlds, changed) {
    this.worlds = worlds;
    this.changed = changed;
    this.starts = new Choices(at("starts"), () => changed.start());
    this.schedules = new Choices(at("schedules"), (value) => {
      this.describe();
      changed.schedule(value);
    });
    at("model").replaceChildren(...worlds.map((world) => new Option(world.id)));
    at("model").addEventListener("change", () => changed.world(this.find(at("model").value)));
    at("seed").addEventListener("change", () => changed.seed());
    at("dice").addEventListener("click", () => {
      at("seed").value = Math.floor(Math.random() * 100_000);
      changed.seed();
    });
    at("fast").addEventListener("change", () => changed.pace());
  }

  /** The world of a name, or the first. */
  find(name) {
    return this.worlds.find((world) => world.id === name) ?? this.worlds[0];
  }

  /** Offer what a world has. */
  show(world) {
    at("model").value = world.id;
    this.starts.show(world.starts.map((name) => ({ value: name, text: name, picture: picture(world, name) })), world.starts[0]);
    this.schedules.show(world.schedules.map((name) => ({ value: name, text: title(name) })), world.default_schedule);
    this.describe();
  }

  /** Show what a session goes on with. */
  follow({ seed, schedule }) {
    at("seed").value = seed;
    this.schedules.value = schedule;
    this.describe();
  }

  /** The one that is chosen. */
  get world() {
    return this.find(at("model").value);
  }

  get start() {
    return this.starts.value;
  }

  get schedule() {
    return this.schedules.value;
  }

  get seed() {
    return at("seed").valueAsNumber || 0;
  }

  /** Whether frames come at most at the world's own rate. */
  get pace() {
    return !at("fast").checked;
  }

  describe() {
    at("schedule-note").textContent = NOTES[(this.schedule ?? "").split(":")[0]] ?? "";
  }
}
