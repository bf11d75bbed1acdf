/** The tree of branches: which frames were seen, and which branch went on from which. No session is known here. */

const KEPT = 3000; // pictures, the oldest of which go first

export class Tree {
  constructor() {
    this.clear();
  }

  /** Begin again with one empty branch. */
  clear() {
    for (const branch of this.branches ?? []) for (const url of branch.pictures.values()) URL.revokeObjectURL(url);
    this.branches = [];
    this.order = []; // of all pictures, oldest first
    this.current = this.grow(null, -1);
  }

  /** Keep the picture of a frame of the current branch; whether it is new. */
  add(frame, blob) {
    if (frame <= this.current.fork || this.current.pictures.has(frame)) return false;
    this.current.pictures.set(frame, URL.createObjectURL(blob));
    this.order.push([this.current, frame]);
    if (this.order.length > KEPT) {
      const [branch, oldest] = this.order.shift();
      URL.revokeObjectURL(branch.pictures.get(oldest));
      branch.pictures.delete(oldest);
    }
    return true;
  }

  /** Forget the pictures of the current branch after a frame. */
  cut(frame) {
    const { pictures } = this.current;
    for (const [number, url] of [...pictures]) {
      if (number <= frame) continue;
      URL.revokeObjectURL(url);
      pictures.delete(number);
    }
    this.order = this.order.filter(([branch, number]) => branch !== this.current || number <= frame);
  }

  /** Go on from a frame of a branch, which may be one of the branch that it grew from. `end` is the snapshot of where
   * the current branch was left. */
  fork(branch, frame, end) {
    this.current.end = end;
    while (frame <= branch.fork) branch = branch.parent;
    const isTip = branch.pictures.size > 0 && frame === Math.max(...branch.pictures.keys());
    this.current = isTip ? branch : this.grow(branch, frame);
  }

  /** Whether a frame of a branch is in the past of the current one. */
  isPast(branch, frame) {
    for (let one = this.current, last = Infinity; one !== null; last = Math.min(last, one.fork), one = one.parent) {
      if (one === branch) return frame <= last;
    }
    return false;
  }

  grow(parent, fork) {
    const branch = { id: this.branches.length, parent, fork, pictures: new Map(), end: null };
    this.branches.push(branch);
    return branch;
  }
}
