/** Numbers of play: frames a second, model calls, the time from a key to the frame that shows it, dropped images. */

const KEPT = 200; // answers to keys that the quantiles are of
const SPAN = 3000; // ms that the frame rate is of

/** The smallest of the values that a share of them does not exceed; null where there are none. */
export function quantile(values, share) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

export class Meters {
  constructor() {
    this.shown = []; // times of the newest frames
    this.answers = []; // ms from a key to its frame
    this.waiting = new Map(); // seq of a control with a key pressed, and when
    this.calls = null; // of the newest frame
    this.dropped = 0;
  }

  /** A key was pressed, and told to the server as control number `seq`. */
  pressed(seq, at) {
    this.waiting.set(seq, at);
  }

  /** A frame is on the screen. */
  drawn(frame, at) {
    this.shown.push(at);
    while (this.shown[0] < at - SPAN) this.shown.shift();
    this.calls = frame.calls || this.calls;
    this.dropped = frame.dropped;
    for (const [seq, since] of this.waiting) {
      if (seq > frame.seq) continue;
      this.waiting.delete(seq);
      this.answers.push(at - since);
      if (this.answers.length > KEPT) this.answers.shift();
    }
  }

  /** Time stood still: neither the pause nor what was pressed before it counts. */
  paused() {
    this.shown = [];
    this.waiting.clear();
  }

  /** Frames a second, lately. */
  get fps() {
    if (this.shown.length < 2) return null;
    return (1000 * (this.shown.length - 1)) / (this.shown.at(-1) - this.shown[0]);
  }

  /** What is shown: a name, a value and its unit. */
  rows() {
    const whole = (value) => (value === null ? "–" : Math.round(value).toString());
    return [
      ["Frames a second", this.fps === null ? "–" : this.fps.toFixed(1), ""],
      ["Model calls a frame", whole(this.calls), ""],
      ["Key to frame, median", whole(quantile(this.answers, 0.5)), "ms"],
      ["Key to frame, 95 %", whole(quantile(this.answers, 0.95)), "ms"],
      ["Images dropped", whole(this.dropped), ""],
    ];
  }
}

/** Write rows into a list of terms; its elements stay, so nothing flashes or moves. */
export function write(list, rows) {
  while (list.children.length < rows.length) {
    const row = document.createElement("div");
    row.append(document.createElement("dt"), document.createElement("dd"));
    list.append(row);
  }
  rows.forEach(([name, value, unit], index) => {
    const [term, detail] = list.children[index].children;
    const text = unit && value !== "–" ? `${value} ${unit}` : value;
    if (term.textContent !== name) term.textContent = name;
    if (detail.textContent !== text) detail.textContent = text;
  });
}
