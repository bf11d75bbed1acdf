/** Where frames are drawn: a canvas, two badges, and a cover with one button while nobody plays. */

export class Stage {
  constructor(root) {
    this.root = root;
    this.canvas = root.querySelector("canvas");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.button = root.querySelector(".cover button");
  }

  /** The size of a world's frames. Where it stays, what is drawn stays too. */
  resize(width, height) {
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
  }

  /** Draw a picture: an image, or a bitmap. */
  draw(picture) {
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(picture, 0, 0, this.canvas.width, this.canvas.height);
  }

  /** What the badges say; empty texts hide them. */
  label(frame, action) {
    this.badge(".badge.frame", frame);
    this.badge(".badge.action", action);
  }

  /** Cover the picture with a title, a button and a hint. */
  cover(title, button, hint = "") {
    this.root.classList.add("covered");
    this.root.querySelector(".title").textContent = title;
    this.button.textContent = button;
    this.button.hidden = !button;
    this.root.querySelector(".hint").textContent = hint;
  }

  /** Show the picture alone. */
  uncover() {
    this.root.classList.remove("covered");
  }

  badge(name, text) {
    const badge = this.root.querySelector(name);
    badge.hidden = !text;
    badge.textContent = text;
  }
}
