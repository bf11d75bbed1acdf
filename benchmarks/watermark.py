"""What the watermark survives, what it costs, and how often chance is taken for one.

    python benchmarks/watermark.py --clips clips --json benchmarks/results/DATE-cpu-watermark.json

Marked are videos of `doom-t2v` as `diagonal video` writes them, and the clips of the folder (any videos; at most 640
pixels wide, 32 frames of each). Chance is counted on frames without a mark: all frames of the clips, and of Doom from
the simulator until there are as many frames as asked for. Each stands for one file. `--only` does one of the parts;
what the file has of the others stays.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np

import diagonal
from diagonal.media.provenance import credentials
from diagonal.media.provenance.certificates import Identity, make_pair
from diagonal.media.provenance.payload import FALSE_ALARM, UNSURE, Payload, Soft, decode
from diagonal.media.provenance.watermark import EVERY, LOOKED_AT, SIZE, STRENGTHS, Watermark, read_frames
from diagonal.media.video import CONTAINERS, VideoArray, enlarge, read, resize, to_be_seen, writer
from diagonal.worlds import vizdoom

PROMPTS = (
    "walking through a brick corridor, turning left",
    "standing still in a green hall",
    "walking forward in a wide stone arena, turning right",
)
APART = 8  # frames of the simulator between two that chance is counted on
SCENARIOS = ("my_way_home", "deadly_corridor", "defend_the_center", "health_gathering")
PARTS = ("signing", "videos", "chance")
TURNS = 64  # other constants of the checksum, on each piece


def encoded(frames: VideoArray, crf: int) -> VideoArray:
    """Frames after x264, preset medium."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=16, options={"crf": str(crf)})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        container.mux(stream.encode())
    file.seek(0)
    with av.open(file, "r") as written:
        found: list[VideoArray] = [
            frame.to_ndarray(format="rgb24").astype(np.uint8) for frame in written.decode(video=0)
        ]
        return np.stack(found)


def halved(frames: VideoArray) -> VideoArray:
    """Half as high and as wide."""
    return resize(frames, frames.shape[1] // 4 * 2, frames.shape[2] // 4 * 2)


def cropped(frames: VideoArray) -> VideoArray:
    """A tenth less of the height and of the width, from all sides."""
    top, left = frames.shape[1] // 40 * 2, frames.shape[2] // 40 * 2
    return np.ascontiguousarray(frames[:, top:-top, left:-left])


DAMAGE: dict[str, Callable[[VideoArray], VideoArray]] = {
    "as written": lambda frames: frames,
    "x264 crf 18": lambda frames: encoded(frames, 18),
    "x264 crf 23": lambda frames: encoded(frames, 23),
    "x264 crf 28": lambda frames: encoded(frames, 28),
    "half the size, crf 23": lambda frames: encoded(halved(frames), 23),
    "10 % cropped, crf 23": lambda frames: encoded(cropped(frames), 23),
    "crf 23, then crf 23": lambda frames: encoded(encoded(frames, 23), 23),
}


def videos(clips: list[Path], count: int) -> Iterator[tuple[str, VideoArray]]:
    """What is marked: generated videos, then real clips."""
    model = diagonal.load("doom-t2v")
    for seed, prompt in enumerate(PROMPTS):
        frames = model.generate(prompt, num_frames=model.variant.frames, seed=seed).frames[:count]
        yield f"doom-t2v, seed {seed}", enlarge(frames, to_be_seen(frames.shape[1]))
    for path in clips:
        frames = read(path, most=count)
        height, width = frames.shape[1:3]
        factor = max(1, -(-width // 640))
        yield path.name, resize(frames, height // factor // 2 * 2, width // factor // 2 * 2)


def survive(name: str, frames: VideoArray, run: int, folder: Path) -> dict[str, Any]:
    """Mark one video, write it, damage it, and read it."""
    payload = Payload.of("doom-t2v", run)
    mark = Watermark(payload)
    began = time.process_time()
    marked = mark.mark(frames)
    cpu = 1000 * (time.process_time() - began) / len(frames)
    error = ((marked.astype(np.float64) - frames) ** 2).mean()
    path = folder / f"watermark-{os.getpid()}.mp4"
    with writer(path, 16) as file:
        file.write(marked)
    written = read(path)
    path.unlink()
    step = max(1, (len(frames) // LOOKED_AT - 1) | 1)
    rows = {}
    for damage, apply in DAMAGE.items():
        logits = read_frames(apply(written)[::step][:LOOKED_AT])
        voted = (logits * np.abs(logits).mean(1, keepdims=True)).mean(0)
        rows[damage] = {
            "bits_of_one_frame": float(((logits > 0) == payload.bits()).mean()),
            "bits": float(((voted > 0) == payload.bits()).mean()),
            "found": decode(voted) == payload,
        }
    about = {"video": name, "frames": len(frames), "size": f"{frames.shape[1]}x{frames.shape[2]}"}
    return about | {"psnr": 10 * np.log10(255**2 / error), "cpu_ms_per_frame": cpu} | rows


def pieces(clips: list[Path], most: int) -> Iterator[tuple[str, VideoArray]]:
    """Frames without a mark: of the clips, then of the simulator, the same number of each scenario."""
    for path in clips:
        frames = read(path)
        most -= len(frames)
        yield from ((path.name, frame[None]) for frame in frames)
    for scenario in SCENARIOS:
        shown = islice(vizdoom.play(scenario, seed=9), 0, None, APART)
        yield from ((scenario, frame[None]) for frame, _, _ in islice(shown, max(0, -(-most // len(SCENARIOS)))))


def chance(clips: list[Path], count: int, share: slice) -> dict[str, Any]:
    """How many frames without a mark are taken for marked ones: of `count`, those of a share."""
    rng = np.random.default_rng(0)
    turns = [int(turn) for turn in rng.integers(0, 2**16, TURNS)]
    sources, taken, others, looked = dict[str, int](), 0, 0, 0
    for name, frames in islice(pieces(clips, count), share.start, share.stop):
        logits: Soft = read_frames(frames)
        voted = (logits * np.abs(logits).mean(1, keepdims=True)).mean(0)
        taken += decode(voted) is not None
        others += sum(decode(voted, turn) is not None for turn in turns)
        sources[name] = sources.get(name, 0) + 1
        looked += 1
    expected = {"expected_rate": FALSE_ALARM, "unsure_bits": UNSURE}
    rate = others / (looked * TURNS)
    about = {"frames": looked, "sources": sources, "taken_for_marked": taken}
    return about | {"with_other_constants": {"constants": TURNS, "taken": others, "rate": rate}} | expected


def signing(folder: Path) -> dict[str, float]:
    """Milliseconds of processor time to sign and to check a file of a few megabytes: the median of nine."""
    from datetime import timedelta

    from cryptography.hazmat.primitives.serialization import Encoding

    key, chain = make_pair("benchmark", timedelta(days=1))
    identity = Identity("".join(one.public_bytes(Encoding.PEM).decode() for one in chain), "ES256", key)
    plain, signed = (folder / f"{name}-{os.getpid()}.mp4" for name in ("plain", "signed"))
    with writer(plain, 16) as file:
        file.write(np.random.default_rng(0).integers(0, 256, (24, 288, 384, 3), dtype=np.uint8))
    took: dict[str, list[float]] = {"sign_ms": [], "read_ms": []}
    for _ in range(9):
        began = time.process_time()
        credentials.sign(plain, signed, {"model": "doom-t2v"}, identity)
        took["sign_ms"].append(1000 * (time.process_time() - began))
        began = time.process_time()
        assert credentials.read(signed).state == credentials.VALID
        took["read_ms"].append(1000 * (time.process_time() - began))
    sizes = {"plain_bytes": plain.stat().st_size, "added_bytes": signed.stat().st_size - plain.stat().st_size}
    plain.unlink()
    signed.unlink()
    return {name: float(np.median(values)) for name, values in took.items()} | sizes


def main() -> None:
    """Measure, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path, required=True, help="folder of real clips")
    parser.add_argument("--pieces", type=int, default=1000, help="frames without a mark")
    parser.add_argument("--first", type=int, default=0, help="of these, where other processes take the others")
    parser.add_argument("--last", type=int, help="likewise, the one behind the last")
    parser.add_argument("--frames", type=int, default=32, help="of each marked video")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--only", choices=PARTS, action="append", help="part to measure; may be repeated")
    asked = parser.parse_args()
    clips = sorted(path for path in asked.clips.iterdir() if path.suffix in CONTAINERS)
    for part in asked.only or PARTS:
        about: dict[str, Any] = {
            "load": os.getloadavg()[0],
            "cores": os.cpu_count(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
        }
        if part == "signing":
            about |= signing(asked.json.parent)
        elif part == "videos":
            settings = {"size": SIZE, "every": EVERY, "strengths": STRENGTHS, "looked_at": LOOKED_AT}
            about |= settings | {"rows": []}
            for run, (name, frames) in enumerate(videos(clips, asked.frames)):
                about["rows"].append(survive(name, frames, 257 * run + 11, asked.json.parent))
                sys.stdout.write(json.dumps(about["rows"][-1]) + "\n")
                sys.stdout.flush()
        else:
            about |= chance(clips, asked.pieces, slice(asked.first, asked.last or asked.pieces))
        known = json.loads(asked.json.read_text()) if asked.json.exists() else {}
        asked.json.write_text(json.dumps(known | {part: about}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
