/** The timeline of a game: every frame as a picture, a row for each branch, all above each other by frame number.
 *
 * A click looks at a frame; playing on from there begins a branch. The branch that is left keeps the snapshot of its end,
 * from which it is taken up again. */

import { download } from "./api.js";
import { Tree } from "./tree.js";

const at = (id) => document.getElementById(id);

export class Branches {
  constructor(play) {
    this.play = play;
    this.tree = new Tree();
    this.looked = null; // the branch and frame that are looked at
    this.root = at("tree");
    this.root.addEventListener("click", (event) => this.look(event.target.closest("button")));
    this.root.addEventListener("keydown", (event) => this.key(event));
    at("save").addEventListener("click", () => this.save());
    at("open").addEventListener("change", (event) => this.open(event.target));
  }

  /** Forget all of it. */
  clear() {
    this.tree.clear();
    this.looked = null;
    this.root.replaceChildren();
    this.first = null;
    this.describe();
  }

  /** A frame was made. */
  add(frame, action, blob) {
    if (!this.tree.add(frame, blob)) return;
    this.first ??= frame;
    const branch = this.tree.current;
    const thumb = document.createElement("button");
    thumb.type = "button";
    thumb.tabIndex = this.root.children.length ? -1 : 0;
    thumb.title = `Frame ${frame} of branch ${branch.id + 1}${action ? `: ${action}` : ""}`;
    Object.assign(thumb.dataset, { branch: branch.id, frame, action: action ?? "" });
    thumb.style.gridColumn = frame - this.first + 1;
    thumb.style.gridRow = branch.id + 1;
    const image = Object.assign(new Image(), { src: branch.pictures.get(frame), alt: "" });
    const number = document.createElement("span");
    number.textContent = frame;
    thumb.append(image, number);
    if (frame === branch.fork + 1 && branch.parent) thumb.classList.add("forked");
    this.root.append(thumb);
    this.follow(thumb);
    this.describe();
  }

  /** Play on from the frame that is looked at, if it is not the newest one. */
  async goOn() {
    const looked = this.looked;
    this.mark(null);
    if (!looked) return;
    const { tree, play } = this;
    const { branch, frame } = looked;
    if (branch === tree.current && frame === play.game.newest.frame) return;
    const end = await play.game.snapshot();
    const isPast = tree.isPast(branch, frame);
    const from = branch.end;
    tree.fork(branch, frame, end);
    if (!isPast) await play.game.take(play.world.id, from);
    play.game.rewind(frame);
    this.dim();
  }

  /** Forget what the current branch shows after a frame. */
  cut(frame) {
    for (const thumb of [...this.root.children]) {
      const isLater = Number(thumb.dataset.branch) === this.tree.current.id && Number(thumb.dataset.frame) > frame;
      if (isLater && this.looked?.thumb === thumb) this.mark(null);
      if (isLater) thumb.remove();
    }
    this.tree.cut(frame);
    this.describe();
  }

  /** Scroll to the newest frame, but for somebody who looks around. */
  follow(thumb = this.root.lastElementChild) {
    if (!thumb || this.play.state !== "playing") return;
    this.root.scrollLeft = Math.max(0, thumb.offsetLeft - this.root.clientWidth + 3 * thumb.offsetWidth);
    this.root.scrollTop = thumb.offsetTop;
  }

  look(thumb) {
    if (!thumb || !["playing", "paused"].includes(this.play.state)) return;
    this.play.pause();
    const branch = this.tree.branches[thumb.dataset.branch];
    const frame = Number(thumb.dataset.frame);
    this.mark({ branch, frame, thumb });
    this.show();
  }

  /** Draw the frame that is looked at. */
  show() {
    const { frame, thumb } = this.looked;
    this.play.stage.draw(thumb.querySelector("img"));
    this.play.stage.label(`frame ${frame}`, "");
    this.play.stage.cover(`Frame ${frame}`, "Play on from here", "or press a key");
  }

  mark(looked) {
    this.looked?.thumb.classList.remove("looked");
    this.looked = looked;
    looked?.thumb.classList.add("looked");
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const thumbs = [...this.root.children];
    const next = thumbs[thumbs.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  /** Frames that are in no past of the current branch are dimmed. */
  dim() {
    for (const thumb of this.root.children) {
      const branch = this.tree.branches[thumb.dataset.branch];
      thumb.classList.toggle("left", !this.tree.isPast(branch, Number(thumb.dataset.frame)));
    }
  }

  describe() {
    const frames = this.root.children.length;
    const branches = this.tree.branches.length;
    at("branch-note").textContent = `${frames || "No"} frames${branches > 1 ? ` in ${branches} branches` : " so far"}`;
  }

  async save() {
    const snapshot = await this.play.game.snapshot();
    const file = new Blob([JSON.stringify(snapshot)], { type: "application/json" });
    download(file, `${this.play.world.id}-${snapshot.frame}.json`);
  }

  async open(input) {
    const [file] = input.files;
    input.value = "";
    try {
      const snapshot = JSON.parse(await file.text());
      this.clear();
      this.play.goOn(snapshot);
    } catch {
      this.play.say(`${file.name} is no session: Save session writes them.`);
    }
  }
}
