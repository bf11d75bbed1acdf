/** Two games under the same keys: raster, and another order of decoding. Each on its own socket. */

import { Game } from "./game.js";
import { Keys } from "./keys.js";
import { write } from "./meters.js";
import { picture, title } from "./settings.js";
import { Stage } from "./stage.js";

const at = (id) => document.getElementById(id);
const mean = (lane, what) => (lane.frames ? lane[what] / lane.frames : null);

export class Race {
  /** `settings` says which world is raced in, and from which start view. */
  constructor(settings) {
    this.settings = settings;
    this.running = false;
    at("rival").addEventListener("change", () => this.lay());
    at("race-start").addEventListener("click", () => (this.running ? this.stop() : this.start()));
    this.keys = new Keys(document.querySelector("#race .caps"), (...what) => {
      for (const lane of this.lanes) lane.game.control(...what);
    });
    this.keys.active = () => document.body.dataset.view === "race" && this.running;
    this.lanes = [];
    setInterval(() => this.running && this.report(), 250);
  }

  /** The view was left: the seats are others'. */
  show(isShown) {
    if (!isShown) this.stop();
    else if (this.world !== this.settings.world || this.begun !== this.settings.start) this.take(this.settings.world);
  }

  /** Race in a world. */
  take(world) {
    this.world = world;
    this.keys.show(world.keys);
    const others = world.schedules.filter((schedule) => schedule !== "raster");
    at("rival").replaceChildren(...others.map((schedule) => new Option(title(schedule), schedule)));
    at("rival").value = others.includes("diagonal:k=1") ? "diagonal:k=1" : others[0];
    this.lay();
  }

  /** Two empty lanes. */
  lay() {
    this.stop();
    this.begun = this.settings.start;
    this.lanes = ["raster", at("rival").value].map((schedule) => this.lane(schedule));
    at("lanes").replaceChildren(...this.lanes.map((lane) => lane.root));
    this.report();
    const image = new Image();
    image.addEventListener("load", () => this.lanes.forEach((lane) => lane.frames || lane.stage.draw(image)));
    image.src = picture(this.world, this.begun);
  }

  start() {
    this.lay();
    this.running = true;
    at("race-start").textContent = "Stop";
    const seed = Math.floor(Math.random() * 100_000);
    for (const lane of this.lanes) {
      lane.stage.cover("Starting", "");
      lane.game.begin(this.world.id, { start: this.begun, seed, schedule: lane.schedule, pace: false });
    }
  }

  stop() {
    this.running = false;
    at("race-start").textContent = "Start the race";
    for (const lane of this.lanes) {
      lane.game.end();
      lane.stage.uncover();
    }
  }

  lane(schedule) {
    const root = at("lane").content.firstElementChild.cloneNode(true);
    root.dataset.schedule = schedule;
    root.querySelector("h2").textContent = title(schedule);
    const stage = new Stage(root.querySelector(".stage"));
    stage.resize(this.world.width, this.world.height);
    const lane = { schedule, root, stage, frames: 0, calls: 0, milliseconds: 0 };
    lane.game = new Game(stage, {
      started: () => stage.uncover(),
      frame: (message) => this.frame(lane, message),
      closed: (why) => this.closed(lane, why),
    });
    return lane;
  }

  frame(lane, message) {
    if (!message.calls) return; // of the start view
    lane.frames += 1;
    lane.calls += message.calls;
    lane.milliseconds += message.decode_ms;
    lane.stage.label(`frame ${message.frame}`, message.action ?? "");
  }

  closed(lane, why) {
    this.stop();
    lane.stage.cover(why.reason || "The session ended.", "");
  }

  report() {
    for (const lane of this.lanes) {
      const time = mean(lane, "milliseconds");
      write(lane.root.querySelector("dl"), [
        ["Frames made", `${lane.frames}`, ""],
        ["Model calls a frame", lane.frames ? mean(lane, "calls").toFixed(0) : "–", ""],
        ["Time a frame", time === null ? "–" : time.toFixed(0), "ms"],
      ]);
    }
    const [raster, rival] = this.lanes;
    if (!raster.frames || !rival.frames) {
      at("verdict").textContent = this.running ? "Raster makes its first frame …" : "Two orders of decoding, one model, your keys";
      return;
    }
    const calls = mean(raster, "calls") / mean(rival, "calls");
    const time = mean(raster, "milliseconds") / mean(rival, "milliseconds");
    at("verdict").textContent = `${title(rival.schedule)}: ${calls.toFixed(1)} times fewer model calls, ${time.toFixed(1)} times as fast`;
  }
}
