/** Keys, key caps and fingers: which controls are held, and which were pressed since they were last told.
 *
 * A world says which key adds what: {"w": "forward", "up": "forward", "space": "attack"}. Caps light up at once, without
 * waiting for the server. */

const NAMES = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right", " ": "space" };
const GLYPHS = { up: "↑", down: "↓", left: "←", right: "→", space: "space" };
const CROSS = ["w", "a", "s", "d"];

/** The name of the key of an event, as worlds write it. */
export function keyName(event) {
  return NAMES[event.key] ?? event.key.toLowerCase();
}

/** Whether a key press belongs to the element that it happened in, and not to the game. */
export function isTyping(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return true;
  if (event.target.closest("input, textarea, select, [role=tab]")) return true;
  return [" ", "Enter"].includes(event.key) && event.target.closest("button, a, label") !== null;
}

export class Keys {
  /** `changed(held, pressed, at)` is called when that which is held changes; `at` is the time of the event. */
  constructor(root, changed) {
    this.root = root;
    this.changed = changed;
    this.map = {};
    this.down = new Map(); // what is down, a key or a finger, and its control
    this.active = () => false;
    addEventListener("keydown", (event) => this.key(event, true));
    addEventListener("keyup", (event) => this.key(event, false));
    addEventListener("blur", () => this.release());
  }

  /** Show the caps of a world: its keys in one button for each control. */
  show(map) {
    this.release();
    this.map = map;
    const caps = new Map();
    for (const [key, control] of Object.entries(map)) caps.set(control, [...(caps.get(control) ?? []), key]);
    this.root.replaceChildren(...[...caps].map(([control, keys]) => this.cap(control, keys)));
  }

  /** The controls that are held now. */
  get held() {
    return [...new Set(this.down.values())];
  }

  /** Tell again what is held, to somebody who has not heard of it. */
  repeat() {
    if (this.down.size) this.tell(this.held, performance.now());
  }

  /** Nothing is held any more. */
  release() {
    if (!this.down.size) return;
    this.down.clear();
    this.tell([], performance.now());
  }

  cap(control, keys) {
    const cap = document.createElement("button");
    cap.type = "button";
    cap.className = "cap";
    cap.dataset.control = control;
    const place = keys.find((key) => CROSS.includes(key));
    if (place !== undefined) cap.dataset.place = place;
    if (keys.includes("space")) cap.dataset.place = "space";
    cap.setAttribute("aria-label", `${control}, key ${keys.join(" or ")}`);
    const arrow = keys.find((key) => GLYPHS[key]);
    cap.append(line("big", GLYPHS[arrow] ?? keys[0].toUpperCase()));
    if (arrow && place) cap.append(line("small key", place.toUpperCase())); // of no use to fingers
    cap.append(line("small control", control));
    cap.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.active()) return;
      event.preventDefault();
      cap.setPointerCapture(event.pointerId);
      this.press(`pointer ${event.pointerId}`, control, event.timeStamp);
    });
    for (const type of ["pointerup", "pointercancel", "lostpointercapture"]) {
      cap.addEventListener(type, (event) => this.lift(`pointer ${event.pointerId}`, event.timeStamp));
    }
    cap.addEventListener("contextmenu", (event) => event.preventDefault());
    return cap;
  }

  key(event, isDown) {
    const name = keyName(event);
    const control = Object.hasOwn(this.map, name) ? this.map[name] : undefined;
    if (control === undefined) return;
    if (!isDown) {
      this.lift(name, event.timeStamp);
      return;
    }
    if (isTyping(event) || !this.active()) return;
    event.preventDefault(); // arrows and space would scroll
    if (!event.repeat) this.press(name, control, event.timeStamp);
  }

  press(source, control, at) {
    if (this.down.has(source)) return;
    const isNew = !this.held.includes(control);
    this.down.set(source, control);
    if (isNew) this.tell([control], at);
  }

  lift(source, at) {
    if (this.down.delete(source)) this.tell([], at);
  }

  tell(pressed, at) {
    const held = this.held;
    for (const cap of this.root.children) cap.classList.toggle("lit", held.includes(cap.dataset.control));
    this.changed(held, pressed, at);
  }
}

function line(name, text) {
  const span = document.createElement("span");
  span.className = name;
  span.textContent = text;
  return span;
}
