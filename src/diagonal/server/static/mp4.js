/** Fragmented MP4 as it arrives: its codec, and a player that takes it piece by piece. */

/** The codec of an H.264 track, read from its avcC box ("avc1.42c01e"); null where there is none in these bytes. */
export function codec(bytes) {
  for (let at = 0; at + 8 < bytes.length; at += 1) {
    if (bytes[at] !== 0x61 || bytes[at + 1] !== 0x76 || bytes[at + 2] !== 0x63 || bytes[at + 3] !== 0x43) continue;
    const numbers = bytes.slice(at + 5, at + 8); // profile, compatibility, level
    return `avc1.${[...numbers].map((number) => number.toString(16).padStart(2, "0")).join("")}`;
  }
  return null;
}

/** Whether this browser plays such a track as it comes. */
export function isPlayable(name) {
  return "MediaSource" in globalThis && MediaSource.isTypeSupported(`video/mp4; codecs="${name}"`);
}

export class Film {
  /** `played(seconds)` is called while it plays, with the time of the video that is on the screen. */
  constructor(video, played) {
    this.video = video;
    this.played = played;
    this.chunks = [];
    this.waiting = []; // not appended yet
    this.buffer = null;
    this.ended = false;
    this.watch();
    this.source = "MediaSource" in globalThis ? new MediaSource() : null;
    if (this.source) video.src = URL.createObjectURL(this.source);
    this.opened = new Promise((resolve) => this.source?.addEventListener("sourceopen", resolve, { once: true }));
  }

  /** Take the next bytes; false where the browser cannot play them, which are kept all the same. */
  async add(bytes) {
    this.chunks.push(bytes);
    const isFirst = this.chunks.length === 1;
    if (isFirst) {
      const name = codec(bytes);
      if (name === null || !isPlayable(name)) return false;
      await this.opened;
      this.buffer = this.source.addSourceBuffer(`video/mp4; codecs="${name}"`);
      this.buffer.addEventListener("updateend", () => this.feed());
    }
    if (!this.buffer) return false;
    this.waiting.push(bytes);
    this.feed();
    if (isFirst) this.video.play().catch(() => {}); // a browser may ask for a click first: there are controls
    return true;
  }

  watch() {
    if (!("requestVideoFrameCallback" in this.video)) {
      this.video.ontimeupdate = () => this.played(this.video.currentTime);
      return;
    }
    if (this.watching) this.video.cancelVideoFrameCallback(this.watching);
    const look = (now, frame) => {
      if (this.ended && this.video.ended) return;
      this.played(frame.mediaTime);
      this.watching = this.video.requestVideoFrameCallback(look);
    };
    this.watching = this.video.requestVideoFrameCallback(look);
  }

  /** Nothing more comes. */
  end() {
    this.ended = true;
    this.feed();
  }

  /** All of it as one file. */
  get file() {
    return new Blob(this.chunks, { type: "video/mp4" });
  }

  feed() {
    if (!this.buffer || this.buffer.updating || this.source.readyState !== "open") return;
    if (this.waiting.length) this.buffer.appendBuffer(this.waiting.shift());
    else if (this.ended) this.source.endOfStream();
  }
}
