"""Doom through ViZDoom (Kempka et al., 2016; MIT, with Freedoom's assets, BSD): gameplay with actions, recorded.

Frames are 96x128, rendered at twice that and averaged, one every four tics (35 tics are a second). There are eight
actions. `record` writes shards; each is a safetensors file with

    frames    (N, 96, 128, 3) uint8
    actions   (N,)            uint8   index into ACTIONS: taken on the frame, it leads to the next one
    episodes  (N,)            int32   frames of one episode follow each other

and the metadata `world`, `scenario`, `seed`, `episode_frames`. With `captions` it also has what captions.py needs,

    moved     (N,)            float32 how far the action moved the player, in units of the map
    seen      (N, things)     float32 the share of the screen of each of captions.THINGS

and the metadata `captions`: such a player holds every action for longer, so that there is something to say of it, and
cannot die. A shard depends on the metadata and its number alone, so a recording is the same whatever number of
processes makes it. Playing needs the extra: pip install 'diagonal[worlds]'.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from importlib import resources
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diagonal.media.files import atomic
from diagonal.media.video import VideoArray
from diagonal.worlds.captions import NAMES, THINGS, caption, describe
from diagonal.worlds.player import PATIENT, RESTLESS, Policy
from diagonal.worlds.recordings import Recorded
from diagonal.worlds.script import parse as parse_script

RECORDINGS = (".safetensors", "shards that `diagonal record` wrote")
ACTIONS = ("noop", "forward", "back", "left", "right", "forward+left", "forward+right", "attack")
NOOP = "noop"
HEIGHT, WIDTH = 96, 128
TICS = 4  # per frame
FPS = Fraction(35, TICS)
TURN = 2.5  # degrees per tic: ViZDoom's own turn buttons start slowly, which a frame does not show
EPISODE = 200  # frames: short, so that the random start visits all rooms
SHARD_FRAMES = 2048
SCENARIOS = (
    *("my_way_home", "deadly_corridor", "defend_the_center", "health_gathering_supreme", "basic"),
    *("defend_the_line", "health_gathering", "predict_position", "rocket_basic"),
)

# forward, back, turn in degrees per tic (left is negative), attack
BUTTONS = {
    "noop": (0, 0, 0.0, 0),
    "forward": (1, 0, 0.0, 0),
    "back": (0, 1, 0.0, 0),
    "left": (0, 0, -TURN, 0),
    "right": (0, 0, TURN, 0),
    "forward+left": (1, 0, -TURN, 0),
    "forward+right": (1, 0, TURN, 0),
    "attack": (0, 0, 0.0, 1),
}


STARTS = ("hall", "lamps", "gate", "doors", "steel", "bricks")
SCRIPT = "right*8,forward*8"
CONTROLS = {
    **dict.fromkeys(("w", "up"), "forward"),
    **dict.fromkeys(("s", "down"), "back"),
    **dict.fromkeys(("a", "left"), "left"),
    **dict.fromkeys(("d", "right"), "right"),
    "space": "attack",
}


def start(name: str) -> tuple[VideoArray, list[str]]:
    """A start view: four frames and the three actions between them."""
    from safetensors.numpy import load

    if name not in STARTS:
        raise ValueError(f"there is no start view {name!r}; known: {', '.join(STARTS)}")
    data = load((resources.files("diagonal") / "assets" / "starts" / "vizdoom.safetensors").read_bytes())
    return data[f"{name}.frames"], [ACTIONS[index] for index in data[f"{name}.actions"]]


def parse(text: str) -> list[str]:
    """Actions from the short form: 'forward*8, forward+left*3, noop'."""
    return parse_script(text, _parse_held)


def _parse_held(held: str) -> str:
    name = "+".join(sorted(part.strip() for part in held.split("+")))
    if name not in ACTIONS:
        raise ValueError(f"unknown action {held!r}; known: {', '.join(ACTIONS)}")
    return name


def read(path: str | Path) -> list[str]:
    """The actions of a jsonl file with lines {"action": "forward"}, one per frame."""
    actions = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            actions += parse(json.loads(line)["action"]) if line.strip() else []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f'{path}, line {number}: a line must be {{"action": "forward"}} ({error})') from error
    if not actions:
        raise ValueError(f"{path} holds no actions")
    return actions


def tokens(actions: Sequence[str], first_id: int) -> list[list[int]]:
    """One id per action, counted from `first_id`."""
    return [[first_id + ACTIONS.index(action)] for action in actions]


@dataclass(frozen=True, slots=True)
class Moment:
    """A frame and what belongs to it."""

    frame: VideoArray
    action: str
    episode: int
    moved: float  # how far the action led
    seen_T: npt.NDArray[np.float32]  # shares of the screen; zeros where no captions are asked for


def play(scenario: str, seed: int, episode_frames: int = EPISODE) -> Iterator[tuple[VideoArray, str, int]]:
    """Frames, the action taken on each, and the episode's number; without end, the same for the same seed."""
    moments = watch(scenario, seed, episode_frames)
    try:
        for moment in moments:
            yield moment.frame, moment.action, moment.episode
    finally:
        moments.close()  # type: ignore[attr-defined]


def watch(scenario: str, seed: int, episode_frames: int = EPISODE, captions: bool = False) -> Iterator[Moment]:
    """The same with all that captions are made of; `captions` is said at the top."""
    game = _game(scenario, seed, episode_frames, captions)
    rng = np.random.default_rng(seed)
    episode = 0
    try:
        while True:
            game.new_episode()
            if captions:
                game.send_game_command("god")
            policy, moved = Policy(rng, habits=PATIENT if captions else RESTLESS), 100.0
            state = game.get_state()
            while state is not None:
                here, frame = np.asarray(state.game_variables), halve(state.screen_buffer)
                action, seen_T = policy.next(state.depth_buffer, moved), _seen(state)
                game.make_action(list(BUTTONS[action]), TICS)
                state = game.get_state()  # None: the episode is over, and the last step is taken for one like before
                moved = moved if state is None else float(np.hypot(*(np.asarray(state.game_variables) - here)))
                yield Moment(frame, action, episode, moved, seen_T)
            episode += 1
    finally:
        game.close()


def _seen(state: Any) -> npt.NDArray[np.float32]:
    """The share of the screen that each kind of thing takes."""
    seen_T = np.zeros(len(THINGS), dtype=np.float32)
    for label in state.labels or ():
        if label.object_name in NAMES:
            seen_T[THINGS.index(NAMES[label.object_name])] += float((state.labels_buffer == label.value).mean())
    return seen_T


def halve(picture: VideoArray) -> VideoArray:
    """Average of 2x2 pixels, rounded to the nearest."""
    rows = picture[0::2].astype(np.uint16) + picture[1::2]
    half: VideoArray = ((rows[:, 0::2] + rows[:, 1::2] + 2) >> 2).astype(np.uint8)
    return half


def _game(scenario: str, seed: int, episode: int, captions: bool) -> Any:
    _check(scenario)
    vizdoom = _vizdoom()
    game = vizdoom.DoomGame()
    game.load_config(os.path.join(vizdoom.scenarios_path, f"{scenario}.cfg"))
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_256X192)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_depth_buffer_enabled(True)
    if captions:
        game.set_labels_buffer_enabled(True)
        game.set_doom_skill(4)  # the hardest, 5, has no immortal players
    game.set_render_hud(False)
    game.set_render_crosshair(False)
    game.set_render_decals(False)
    game.set_render_particles(False)
    game.set_render_messages(False)
    game.set_render_screen_flashes(False)
    button, variable = vizdoom.Button, vizdoom.GameVariable
    game.set_available_buttons([button.MOVE_FORWARD, button.MOVE_BACKWARD, button.TURN_LEFT_RIGHT_DELTA, button.ATTACK])
    game.set_available_game_variables([variable.POSITION_X, variable.POSITION_Y])
    game.set_episode_timeout(episode * TICS)
    game.set_seed(seed)
    game.init()
    return game


def _check(scenario: str) -> None:
    if scenario not in SCENARIOS:
        raise ValueError(f"unknown scenario {scenario!r}; known: {', '.join(SCENARIOS)}")


def _vizdoom() -> Any:
    try:
        import vizdoom
    except ImportError as error:
        raise ValueError(
            "playing Doom needs ViZDoom: pip install 'diagonal[worlds]'. All else works without"
        ) from error
    return vizdoom


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a recording."""

    scenario: str
    seed: int
    number: int
    frames: int
    folder: str
    episode_frames: int
    captions: bool = False

    @property
    def path(self) -> Path:
        return Path(self.folder) / f"shard-{self.number:05d}.safetensors"

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says about itself."""
        numbers = {"seed": str(self.seed), "episode_frames": str(self.episode_frames)}
        said = {"captions": "1"} if self.captions else {}
        return {"world": "vizdoom", "scenario": self.scenario} | numbers | said

    def record(self) -> int:
        """Play and write; a shard that is there already is kept."""
        from safetensors.numpy import save_file

        if self.path.exists():
            return self.frames
        game_seed = int(np.random.SeedSequence([self.seed, self.number]).generate_state(1)[0] >> 1)
        content: dict[str, npt.NDArray[Any]] = {
            "frames": np.empty((self.frames, HEIGHT, WIDTH, 3), dtype=np.uint8),
            "actions": np.empty(self.frames, dtype=np.uint8),
            "episodes": np.empty(self.frames, dtype=np.int32),
            "moved": np.empty(self.frames, dtype=np.float32),
            "seen": np.empty((self.frames, len(THINGS)), dtype=np.float32),
        }
        # ViZDoom writes into its working directory; processes that share one disturb each other.
        with tempfile.TemporaryDirectory() as work:
            before = Path.cwd()
            os.chdir(work)
            try:
                source = watch(self.scenario, game_seed, self.episode_frames, self.captions)
                for index, moment in zip(range(self.frames), source, strict=False):
                    action = ACTIONS.index(moment.action)
                    row = (moment.frame, action, moment.episode, moment.moved, moment.seen_T)
                    for values, value in zip(content.values(), row, strict=True):
                        values[index] = value
                source.close()  # type: ignore[attr-defined]
            finally:
                os.chdir(before)
        with atomic(self.path) as temporary:
            kept = content if self.captions else {name: content[name] for name in ("frames", "actions", "episodes")}
            save_file(kept, temporary, self.metadata)
        return self.frames


def shards(
    scenario: str,
    frames: int,
    seed: int,
    folder: str | Path,
    episode_frames: int = EPISODE,
    captions: bool = False,
) -> list[Shard]:
    """The files that a recording of so many frames consists of."""
    _check(scenario)
    if frames < 2:
        raise ValueError(f"{frames} frames asked for; a recording needs at least 2")
    counts = [min(SHARD_FRAMES, frames - start) for start in range(0, frames, SHARD_FRAMES)]
    where = str(Path(folder).resolve())
    return [
        Shard(scenario, seed, number, count, where, episode_frames, captions) for number, count in enumerate(counts)
    ]


def record(planned: Sequence[Shard], workers: int = 1) -> Iterator[int]:
    """Write the shards, of one recording or of several in folders of their own, with several processes, no more than
    there are new shards; yields the frames of each as it is done, in their order."""
    workers = min(workers, len(prepare(planned)))
    if workers < 2:
        yield from (shard.record() for shard in planned)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(shard.record) for shard in planned]:
            yield done.result()


def prepare(planned: Sequence[Shard]) -> list[Shard]:
    """Make the folders of shards, or refuse them, and give those shards that are not there yet."""
    folders = dict.fromkeys(shard.folder for shard in planned)
    for folder in folders:
        check_folder([shard for shard in planned if shard.folder == folder])
    new = [shard for shard in planned if not shard.path.exists()]
    if new:
        _vizdoom()  # refused before a folder is made
    for folder in folders:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return new


def read_recording(path: Path, size: tuple[int, int]) -> Recorded:
    """A shard; its frames are never resized, for it was recorded for one model."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        data = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no shard of a recording: {error}") from error
    missing = {"frames", "actions", "episodes"} - data.keys()
    if missing:
        raise ValueError(f"{path} is no shard of a recording: it lacks {', '.join(sorted(missing))}")
    if data["frames"].shape[1:3] != size:
        raise ValueError(f"{path} has frames of {data['frames'].shape[1:3]}, the tokenizer takes {size}")
    if data["actions"].max(initial=0) >= len(ACTIONS):
        raise ValueError(f"{path} has action {data['actions'].max()}; there are {len(ACTIONS)}")
    return Recorded(data["frames"], tokens([ACTIONS[index] for index in data["actions"]], 0), data["episodes"])


def check_folder(planned: Sequence[Shard]) -> None:
    """Refuse a folder whose shards are of another recording than the planned one."""
    from safetensors import SafetensorError, safe_open

    expected = {shard.path: shard for shard in planned}
    for path in sorted(Path(planned[0].folder).glob("[!.]*.safetensors")):
        shard = expected.get(path)
        if shard is None:
            raise ValueError(f"{path} is not part of a recording of {_total(planned)} frames; choose another folder")
        try:
            with safe_open(path, "numpy") as file:
                found, frames = file.metadata() or {}, file.get_slice("frames").get_shape()[0]
        except SafetensorError as error:
            raise ValueError(f"{path} is no shard of a recording: {error}") from error
        asked = shard.metadata | {"frames": str(shard.frames)}
        has = found | {"frames": str(frames)}
        other = [f"{key} {has.get(key, 'unknown')}" for key in asked | has if asked.get(key) != has.get(key)]
        if other:
            raise ValueError(
                f"{path} is of another recording ({', '.join(other)}); asked for: "
                f"{', '.join(f'{key} {value}' for key, value in asked.items())}. Choose another folder"
            )


def _total(planned: Sequence[Shard]) -> int:
    return sum(shard.frames for shard in planned)


def summary(planned: Sequence[Shard]) -> tuple[int, dict[str, float]]:
    """How many episodes a recording has, and the share of frames on which each action was taken."""
    from safetensors import safe_open

    episodes, counts = 0, np.zeros(len(ACTIONS), dtype=np.int64)
    for shard in planned:
        with safe_open(shard.path, "numpy") as file:
            episodes += len(np.unique(file.get_tensor("episodes")))
            counts += np.bincount(file.get_tensor("actions"), minlength=len(ACTIONS))
    shares = (counts / counts.sum()).tolist()
    return episodes, dict(zip(ACTIONS, shares, strict=True))


def examples(planned: Sequence[Shard], frames: int = 41, count: int = 4) -> list[str]:
    """Captions of the first clips of a recording that was made with them."""
    from safetensors.numpy import load_file

    data = load_file(planned[0].path)
    starts = [
        at for at in range(0, len(data["actions"]) - 1, frames) if len({*data["episodes"][at : at + frames]}) == 1
    ]
    clips = [[data[name][at : at + frames] for name in ("actions", "moved", "seen")] for at in starts[:count]]
    return [caption(describe(planned[0].scenario, *clip), seed) for seed, clip in enumerate(clips)]
