/** One game as it is played: the states between nobody's and played, and what is kept of it.
 *
 * States: idle (no session), starting, playing, paused, ended. The session's snapshot is kept in the storage of the tab,
 * so a page that is loaded again goes on from it. */

import { address } from "./api.js";
import { Branches } from "./branch.js";
import { Game } from "./game.js";
import { isTyping, keyName, Keys } from "./keys.js";
import { write } from "./meters.js";
import { picture, Settings, title } from "./settings.js";
import { Stage } from "./stage.js";

const KEEP_EVERY = 3000; // ms between two snapshots for the next load of the page
const RETURNS = 12; // attempts to take up a session that was cut off, with longer and longer waits: a minute and a half
const PATIENCE = 10 * 60_000; // ms that a paused game keeps its seat
const at = (id) => document.getElementById(id);

export class Play {
  constructor(worlds, kept) {
    this.kept = kept;
    this.stage = new Stage(at("stage"));
    this.game = new Game(this.stage, {
      started: (message) => this.started(message),
      frame: (message, blob) => this.frame(message, blob),
      applied: (message) => this.applied(message),
      closing: (message) => message.snapshot && this.keep(message.snapshot),
      error: (message) => this.say(message.message),
      closed: (why) => this.closed(why),
    });
    this.keys = new Keys(document.querySelector("#world .caps"), (...what) => this.game.control(...what));
    this.keys.active = () => this.isShown && ["starting", "playing"].includes(this.state);
    this.settings = new Settings(worlds, {
      world: (world) => this.choose(world),
      start: () => (this.game.live ? this.beginAgain() : this.drawStart()),
      schedule: (schedule) => this.game.update({ schedule }),
      seed: () => this.game.live && this.beginAgain(),
      pace: () => this.game.update({ pace: this.settings.pace }),
    });
    this.branches = new Branches(this);
    this.listen();
    const before = kept.load();
    this.choose(this.settings.find(before?.model));
    if (before) this.goOn(before.snapshot);
  }

  /** Whether the game is what is seen. */
  get isShown() {
    return ["play", "branch"].includes(document.body.dataset.view);
  }

  /** The view was left, or is seen again. */
  show(isShown) {
    if (isShown) this.branches.follow();
    else this.pause();
  }

  /** Take up a world. Nothing is asked of the server before somebody plays. */
  choose(world) {
    this.game.end();
    this.world = world;
    this.keys.show(world.keys);
    this.settings.show(world);
    this.branches.clear();
    this.stage.resize(world.width, world.height);
    this.stage.label("", "");
    at("how").textContent = world.random_weights
      ? `${world.id} has random weights: nobody has trained it, and it shows noise.`
      : `The model ${world.id} makes up every frame from the ones before it and your keys. P pauses.`;
    this.drawStart();
    this.become("idle");
  }

  /** Play: from the beginning, from where the game was paused or left, or from the frame that is looked at. */
  async go() {
    if (this.state === "idle") {
      const { start, seed, schedule } = this.settings;
      this.begin({ start, seed, schedule });
    } else if (this.state === "ended") {
      this.goOn(this.kept.load()?.snapshot);
    } else if (this.state === "paused") {
      if (this.branches.looked) this.become("starting", "Going back to that frame");
      await this.branches.goOn();
      this.game.update({ paused: false });
      this.become("playing");
      this.keys.repeat(); // a server forgets what is held when a game is paused or goes back
    }
  }

  /** Stand still. */
  pause() {
    if (this.state !== "playing") return;
    this.keys.release();
    this.game.update({ paused: true });
    this.become("paused");
    this.remember();
  }

  /** Take up a session from its snapshot, and wait. */
  goOn(snapshot) {
    if (snapshot) this.begin({ snapshot, paused: true });
    else this.become("idle");
  }

  beginAgain() {
    this.branches.clear();
    this.game.reset({ seed: this.settings.seed, start: this.settings.start });
    this.say(`Begun again with seed ${this.settings.seed}`);
    if (this.state === "paused") this.go();
    else this.keys.repeat();
  }

  /** Take the session up that was cut off, at any server that finds it: whether that is tried. */
  comeBack(why) {
    if (!why.isCut || !this.resume || this.returns >= RETURNS) return false;
    this.become("starting", "Connection lost: taking the session up");
    const wait = Math.min(10_000, 250 * 2 ** this.returns) * (0.5 + Math.random());
    this.returns += 1;
    const { id, paused } = this.resume;
    this.returning = setTimeout(() => this.begin({ resume: id, paused }), wait);
    return true;
  }

  begin(start) {
    this.isPaused = start.paused ?? false;
    const isOld = start.snapshot || start.resume;
    this.isBack = Boolean(start.resume);
    if (!this.isBack) this.resume = null;
    this.become("starting", isOld ? "Taking the session up: its frames are computed once more" : "Starting");
    this.game.begin(this.world.id, { pace: this.settings.pace, ...start });
  }

  listen() {
    this.stage.button.addEventListener("click", () => this.go());
    at("pause").addEventListener("click", () => (this.state === "playing" ? this.pause() : this.go()));
    at("reset").addEventListener("click", () => this.beginAgain());
    at("video").addEventListener("click", () => this.say("The video is being written: the download begins when it is"));
    addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => document.hidden && this.pause());
    // After a click beside the game, keys are the game's again.
    at("world").addEventListener("click", (event) => {
      const isOwn = event.target.closest("select, input[type=number], a, .tree");
      if (event.detail && !isOwn) this.stage.root.focus({ preventScroll: true });
    });
    setInterval(() => this.isShown && write(at("meters"), this.game.meters.rows()), 250);
  }

  key(event) {
    if (!this.isShown || event.repeat || isTyping(event)) return;
    const name = keyName(event);
    if (name === "p" && this.state === "playing") return this.pause();
    const isGo = name === "p" || name === "enter" || Object.hasOwn(this.keys.map, name);
    if (!isGo || !["idle", "paused"].includes(this.state)) return;
    event.preventDefault();
    this.go();
    this.keys.key(event, true); // it is the first key of the game, too
  }

  started(message) {
    this.settings.follow(message);
    at("video").href = address(`/v1/sessions/${message.session_id}/recording`);
    this.keptAt = performance.now();
    if (this.isBack) this.branches.cut(message.frame); // what was shown after it is made once more
    this.isBack = false;
    this.resume = message.kept_every ? { id: message.session_id, paused: false } : null;
    this.returns = 0;
    this.become(this.isPaused ? "paused" : "playing");
    this.keys.repeat(); // the key that began the game is down still
  }

  frame(message, blob) {
    this.stage.label(`frame ${message.frame}`, message.action ?? "");
    this.branches.add(message.frame, message.action, blob);
    if (this.branches.looked) this.branches.show(); // one that was on its way when the game was paused
    else if (this.state === "paused") this.become("paused");
    if (this.state === "playing" && performance.now() - this.keptAt > KEEP_EVERY) this.remember();
  }

  applied(message) {
    if (message.what === "schedule") this.say(`${title(this.settings.schedule)} from frame ${message.frame} on`);
  }

  closed(why) {
    this.keys.release();
    if (why.code === "bad_snapshot") this.kept.clear();
    if (this.comeBack(why)) return;
    if (this.resume && why.code === "not_kept") return this.goOn(this.kept.load()?.snapshot);
    this.become("ended", why.reason || "The session ended.");
  }

  async leave() {
    await this.remember();
    this.game.end();
    this.become("ended", "Paused for long: the seat went back to others");
  }

  async remember() {
    this.keptAt = performance.now();
    const snapshot = await this.game.snapshot().catch(() => null);
    if (snapshot) this.keep(snapshot);
  }

  keep(snapshot) {
    this.kept.save({ model: this.world.id, snapshot });
  }

  drawStart() {
    const image = new Image();
    image.addEventListener("load", () => this.state === "idle" && this.stage.draw(image));
    image.src = picture(this.world, this.settings.start);
  }

  become(state, why = "") {
    this.state = state;
    if (this.resume && state !== "starting") this.resume.paused = state === "paused";
    document.body.dataset.state = state;
    clearTimeout(this.leaving);
    clearTimeout(this.returning);
    if (state === "paused") this.leaving = setTimeout(() => this.leave(), PATIENCE);
    const hasSeat = ["playing", "paused"].includes(state);
    for (const id of ["pause", "reset", "save"]) at(id).disabled = !hasSeat;
    at("video").setAttribute("aria-disabled", !hasSeat);
    at("pause").textContent = state === "paused" ? "Go on" : "Pause";
    const cover = {
      idle: ["No game runs here: a model dreams it", "Play", "or press a key"],
      starting: [why, ""],
      paused: [`Paused at frame ${this.game.newest?.frame ?? 0}`, "Go on", "or press a key"],
      ended: [why, this.kept.load() ? "Go on" : "Begin"],
    }[state];
    if (cover) this.stage.cover(...cover);
    else this.stage.uncover();
    this.say(cover?.[0] ?? "Playing", false); // it can be seen in the picture
  }

  /** Tell it, in writing and to screen readers; `isWritten`: where it is not seen already. */
  say(text, isWritten = true) {
    if (at("said").textContent !== text) at("said").textContent = text;
    at("said").classList.toggle("unseen", !isWritten);
  }
}
