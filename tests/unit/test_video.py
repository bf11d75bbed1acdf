"""Frames from files and into files, files that are damaged, and disks that are full."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from diagonal.media import video
from diagonal.media.video import VideoArray


def moving(frames: int, height: int, width: int) -> VideoArray:
    """A smooth picture that drifts: every frame differs, and an encoder keeps it well."""
    t, y, x = np.ogrid[:frames, :height, :width]
    waves = [
        np.sin(x / 9 + t / 3) + np.cos(y / 7),
        np.sin(x / 11) + np.cos(y / 9 - t / 4),
        np.sin((x + y) / 13 + t / 5),
    ]
    return np.stack([np.broadcast_to(128 + 50 * wave, (frames, height, width)) for wave in waves], -1).astype(np.uint8)


def save(path: Path, frames: VideoArray) -> Path:
    with video.writer(path, 20) as file:
        file.write(frames)
    return path


def save_moov_first(path: Path, frames: VideoArray) -> Path:
    """As cameras and sites write it: the index comes first, so that a cut file still opens."""
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=20)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    assert path.read_bytes().index(b"moov") < path.read_bytes().index(b"mdat")
    return path


def cut(path: Path, part: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    return path


def difference(first: VideoArray, second: VideoArray) -> float:
    return float(np.abs(first.astype(float) - second.astype(float)).mean())


# Writing and reading back


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".MP4"])
def test_a_written_clip_reads_back_with_its_length_size_and_pixels(tmp_path, suffix):
    frames = moving(7, 64, 96)
    back = video.read(save(tmp_path / f"clip{suffix}", frames))
    assert back.shape == frames.shape and back.dtype == np.uint8
    assert difference(back, frames) < 4
    assert difference(back[0], frames[-1]) > 10  # the frames really differ, so their order is tested


@pytest.mark.parametrize("size", [(63, 96), (64, 95), (31, 33), (1, 1)])
def test_odd_sizes_are_written_as_they_are(tmp_path, size):
    frames = moving(3, *size)
    back = video.read(save(tmp_path / "clip.mp4", frames))
    assert back.shape == frames.shape
    assert difference(back, frames) < 4


@pytest.mark.parametrize("size", [(64, 64), (63, 64)])
@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (200, 50, 50), (50, 200, 50), (30, 220, 240)])
def test_colours_come_back_as_they_were(tmp_path, size, colour):
    frames = np.broadcast_to(np.array(colour, dtype=np.uint8), (2, *size, 3))
    back = video.read(save(tmp_path / "clip.mp4", frames))
    assert np.abs(back.astype(int) - frames).max() <= 4


def test_frames_can_be_written_one_by_one(tmp_path):
    frames = moving(5, 32, 48)
    with video.writer(tmp_path / "clip.mp4", 20) as file:
        for index, frame in enumerate(frames):
            assert file.count == index
            file.write(frame)
    back = video.read(tmp_path / "clip.mp4")
    assert back.shape == frames.shape
    assert all(difference(got, wanted) < 4 for got, wanted in zip(back, frames, strict=True))


def test_the_same_frames_make_the_same_file(tmp_path):
    """Many times: x264 can make another one in some of a hundred, on machines with AVX-512 (`Writer`)."""
    frames = np.random.default_rng(0).integers(0, 256, (12, 64, 96, 3), dtype=np.uint8)
    files = {save(tmp_path / "clip.mp4", frames).read_bytes() for _ in range(150)}
    assert len(files) == 1


def test_a_clip_has_the_frame_rate_it_was_given(tmp_path):
    with video.writer(tmp_path / "clip.mp4", 12) as file:
        file.write(moving(4, 32, 32))
    with av.open(str(tmp_path / "clip.mp4")) as container:
        assert container.streams.video[0].average_rate == 12


def test_frames_that_are_not_contiguous_are_written_right(tmp_path):
    frames = moving(3, 48, 32).transpose(0, 2, 1, 3)
    back = video.read(save(tmp_path / "clip.mp4", frames))
    assert back.shape == (3, 32, 48, 3) and difference(back, frames) < 4


def test_the_clip_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "clip.mp4"
    with video.writer(path, 20) as file:
        file.write(moving(3, 32, 32))
        assert not path.exists()
    assert os.listdir(tmp_path) == ["clip.mp4"]


def test_a_body_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError, match="halfway"), video.writer(tmp_path / "clip.mp4", 20) as file:
        file.write(moving(3, 32, 32))
        raise RuntimeError("halfway")
    assert os.listdir(tmp_path) == []


def test_a_body_that_fails_leaves_the_older_clip(tmp_path):
    path = save(tmp_path / "clip.mp4", moving(3, 32, 32))
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), video.writer(path, 20) as file:
        file.write(moving(9, 48, 48))
        raise KeyboardInterrupt
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["clip.mp4"]


def test_a_clip_without_frames_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="no frames"), video.writer(tmp_path / "clip.mp4", 20):
        pass
    assert os.listdir(tmp_path) == []


def test_a_frame_of_another_size_is_refused_not_scaled(tmp_path):
    with pytest.raises(ValueError, match="32x64"), video.writer(tmp_path / "clip.mp4", 20) as file:
        file.write(moving(2, 64, 64))
        file.write(moving(1, 32, 64))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("frames", [np.zeros((2, 32, 32, 3)), np.zeros((2, 32, 32, 4), dtype=np.uint8)])
def test_what_is_not_8_bit_rgb_is_refused(tmp_path, frames):
    with pytest.raises(ValueError, match=r"uint8|shape"):
        save(tmp_path / "clip.mp4", frames)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["clip.gif", "clip", "clip.mp4.txt", ".mp4"])
def test_a_name_that_is_no_video_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"must end in \.mp4, \.mov, \.mkv"), video.writer(tmp_path / name, 20):
        pass
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_named(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist"),
        video.writer(tmp_path / "nowhere" / "clip.mp4", 20),
    ):
        pass
    assert os.listdir(tmp_path) == []


# Reading


@pytest.mark.parametrize("most", [1, 3, 6])
def test_only_as_many_frames_are_read_as_asked_for(tmp_path, most):
    path = save(tmp_path / "clip.mp4", moving(6, 32, 48))
    np.testing.assert_array_equal(video.read(path, most), video.read(path)[:most])


def test_asking_for_more_frames_than_there_are_gives_all(tmp_path):
    assert len(video.read(save(tmp_path / "clip.mp4", moving(6, 32, 48)), most=99)) == 6


@pytest.mark.parametrize("most", [1, 3, 6, 99, None])
def test_the_last_frames_are_read_where_they_are_asked_for(tmp_path, most):
    path = save(tmp_path / "clip.mp4", moving(6, 32, 48))
    np.testing.assert_array_equal(video.read(path, most, last=True), video.read(path)[-(most or 6) :])


@pytest.mark.parametrize("most", [0, -1])
def test_asking_for_no_frames_is_refused(tmp_path, most):
    path = save(tmp_path / "clip.mp4", moving(3, 32, 48))
    with pytest.raises(ValueError, match="at least 1"):
        video.read(path, most)


@pytest.mark.parametrize("name", ["one.png", "one.PNG", "one.bmp"])
def test_a_picture_is_a_clip_of_one_frame(tmp_path, name):
    pixels = moving(1, 20, 30)
    Image.fromarray(pixels[0]).save(tmp_path / name)
    np.testing.assert_array_equal(video.read(tmp_path / name), pixels)


@pytest.mark.parametrize("name", ["one.jpg", "one.webp"])
def test_compressed_pictures_are_read_too(tmp_path, name):
    pixels = moving(1, 64, 96)
    Image.fromarray(pixels[0]).save(tmp_path / name, quality=95)
    assert difference(video.read(tmp_path / name), pixels) < 4


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_pictures_of_any_kind_become_rgb(tmp_path, mode):
    suffix = ".jpg" if mode == "CMYK" else ".png"
    Image.new("RGB", (30, 20), (255, 255, 255)).convert(mode).save(tmp_path / f"one{suffix}")
    frames = video.read(tmp_path / f"one{suffix}")
    assert frames.shape == (1, 20, 30, 3) and frames.dtype == np.uint8 and frames.min() > 250


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of one colour each, written out of order, beside a file that is none."""
    path = tmp_path / "pictures"
    path.mkdir()
    for index in (2, 0, 3, 1):
        Image.new("RGB", (30, 20), (index * 60, 0, 0)).save(path / f"frame{index:03}.png")
    (path / "notes.txt").write_text("not a picture")
    return path


def test_a_folder_of_pictures_is_read_in_the_order_of_names(folder):
    frames = video.read(folder)
    assert frames.shape == (4, 20, 30, 3)
    assert frames[:, 0, 0, 0].tolist() == [0, 60, 120, 180]


def test_only_the_first_pictures_of_a_folder_are_read_when_asked(folder):
    (folder / "frame003.png").write_text("broken, but not needed")
    assert video.read(folder, most=3)[:, 0, 0, 0].tolist() == [0, 60, 120]


def test_only_the_last_pictures_of_a_folder_are_read_when_asked(folder):
    whole = video.read(folder)
    min(folder.iterdir()).write_text("broken, but not needed")
    np.testing.assert_array_equal(video.read(folder, most=2, last=True), whole[-2:])


def test_pictures_of_mixed_sizes_are_refused_with_both_sizes(folder):
    Image.new("RGB", (31, 22)).save(folder / "frame002.png")
    with pytest.raises(ValueError, match="frame 2 is 22x31, the first is 20x30"):
        video.read(folder)


def test_a_folder_without_pictures_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="holds no pictures"):
        video.read(tmp_path)


def test_a_clip_too_long_for_memory_is_refused_and_a_part_of_it_is_not(tmp_path, monkeypatch):
    path = save(tmp_path / "clip.mp4", moving(6, 32, 48))
    monkeypatch.setattr(video, "MAX_BYTES", 3 * 32 * 48 * 3)
    with pytest.raises(ValueError, match="too long to hold in memory"):
        video.read(path)
    assert len(video.read(path, most=3)) == 3


def test_resizing_gives_the_size_asked_for_and_keeps_the_picture():
    frames = moving(2, 40, 60)
    small = video.resize(frames, 20, 30)
    assert small.shape == (2, 20, 30, 3) and small.dtype == np.uint8
    assert difference(small, frames.reshape(2, 20, 2, 30, 2, 3).mean(axis=(2, 4))) < 3
    np.testing.assert_array_equal(video.resize(frames, 40, 60), frames)


# Files that are wrong


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.mp4 does not exist"):
        video.read(tmp_path / "nowhere.mp4")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_clip_whose_tail_is_cut_is_refused(tmp_path, part):
    path = cut(save(tmp_path / "clip.mp4", moving(10, 64, 64)), part)
    with pytest.raises(ValueError, match=r"clip\.mp4 cannot be read as video: truncated"):
        video.read(path)


@pytest.mark.parametrize("part", [0.4, 0.7, 0.95])
def test_a_clip_that_opens_but_whose_frames_are_cut_is_refused(tmp_path, part):
    path = cut(save_moov_first(tmp_path / "clip.mp4", moving(30, 64, 64)), part)
    with pytest.raises(ValueError, match=r"clip\.mp4 .*truncated"):
        video.read(path)


def test_the_whole_frames_of_a_cut_clip_can_be_asked_for(tmp_path):
    whole = video.read(save_moov_first(tmp_path / "clip.mp4", moving(30, 64, 64)))
    path = cut(tmp_path / "clip.mp4", 0.95)
    np.testing.assert_array_equal(video.read(path, most=2), whole[:2])
    with pytest.raises(ValueError, match="truncated"):
        video.read(path, most=30)


def test_a_clip_that_ends_between_frames_is_refused(tmp_path):
    """The data stops where a frame would start: nothing is damaged, frames are only missing."""
    whole = save_moov_first(tmp_path / "clip.mp4", moving(30, 64, 64))
    with av.open(str(whole)) as container:
        starts = [packet.pos for packet in container.demux(video=0) if packet.pos is not None]
    whole.write_bytes(whole.read_bytes()[: starts[20]])
    with pytest.raises(ValueError, match="truncated"):
        video.read(whole)


@pytest.mark.parametrize("content", [b"", b"this is no video\n", b"\x00" * 5000, bytes(range(256)) * 40])
def test_a_file_that_is_no_video_is_refused(tmp_path, content):
    (tmp_path / "clip.mp4").write_bytes(content)
    with pytest.raises(ValueError, match=r"clip\.mp4 cannot be read as video"):
        video.read(tmp_path / "clip.mp4")


def test_a_text_file_is_not_shown_as_video(tmp_path):
    (tmp_path / "notes.txt").write_text("a line of notes\n" * 100)
    with pytest.raises(ValueError, match=r"notes\.txt"):
        video.read(tmp_path / "notes.txt")


def test_a_clip_with_sound_only_is_refused(tmp_path):
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.sample_rate = 44100
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    with pytest.raises(ValueError, match=r"sound\.mp4 has no video stream"):
        video.read(path)


def broken_pictures() -> dict[str, bytes]:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 20)).save(buffer, format="PNG")
    data = buffer.getvalue()
    start = data.index(b"IDAT")
    return {
        "empty": b"",
        "text": b"hello",
        "cut": data[: start + 10],
        "wrong chunk length": data[: start - 4] + b"\x00\x00\x00\x01" + data[start:],
    }


@pytest.mark.parametrize("kind", broken_pictures())
def test_a_damaged_picture_is_refused_with_its_name(tmp_path, kind):
    (tmp_path / "one.png").write_bytes(broken_pictures()[kind])
    with pytest.raises(ValueError, match=r"one\.png is not a readable picture"):
        video.read(tmp_path / "one.png")


# Streaming to stdout

STREAM = """
import sys
import numpy as np
from diagonal.media import video

with video.writer("-", 20) as file:
    for index in range(6):
        file.write(np.full((32, 48, 3), 40 * index, dtype=np.uint8))
        if "wait" in sys.argv:
            sys.stdin.readline()
"""


def decoded(data: bytes) -> list[int]:
    """Brightness of the frames in a stream, as far as it goes."""
    frames: list[int] = []
    try:
        with av.open(io.BytesIO(data), "r") as container:
            frames += [int(frame.to_ndarray(format="rgb24").mean()) for frame in container.decode(video=0)]
    except av.FFmpegError:
        pass
    return frames


def test_a_dash_streams_every_frame_to_stdout():
    done = subprocess.run([sys.executable, "-c", STREAM], capture_output=True, timeout=120, check=True)
    assert decoded(done.stdout) == pytest.approx([0, 40, 80, 120, 160, 200], abs=3)


def test_a_streamed_frame_is_out_before_the_video_ends():
    command = [sys.executable, "-c", STREAM, "wait"]
    received = b""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        for written in range(1, 4):
            deadline = time.monotonic() + 30
            # A fragment closes as the next frame opens its own: one frame of delay.
            while len(decoded(received)) < written - 1 and time.monotonic() < deadline:
                received += process.stdout.read() or b""
                time.sleep(0.01)
            assert len(decoded(received)) >= written - 1
            process.stdin.write(b"\n")
            process.stdin.flush()
        process.stdin.close()


# Full disks

FULL = """
import resource, signal, sys
import numpy as np
from diagonal.media import video

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
noise = np.random.default_rng(0).integers(0, 255, (int(sys.argv[2]), 128, 128, 3), dtype=np.uint8)
try:
    with video.writer(sys.argv[1], 20) as file:
        file.write(noise)
except OSError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.parametrize("frames", [2, 60])  # written at the end; written while frames still come
def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path, frames):
    command = [sys.executable, "-c", FULL, str(tmp_path / "clip.mp4"), str(frames)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("refused: ")
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_an_error_on_a_full_disk_names_the_file_that_was_asked_for(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path / "clip.mp4"), "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert str(tmp_path / "clip.mp4") in done.stderr


def test_a_full_disk_leaves_the_older_clip(tmp_path):
    path = save(tmp_path / "clip.mp4", moving(2, 32, 32))
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", FULL, str(path), "60"], capture_output=True, timeout=120)
    assert done.returncode == 1
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["clip.mp4"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_streaming_to_a_device_without_space_is_an_error():
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", STREAM], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
