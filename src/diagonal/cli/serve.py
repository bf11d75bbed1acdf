"""`diagonal serve`: worlds that are played in a browser, and the page that plays them."""

from __future__ import annotations

import os
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from diagonal.cli import app, err, load_world
from diagonal.cli.options import Computing, WorldSource, flat, given, refuse
from diagonal.cli.serve_ray import OnRay, config_of, serve_on_ray
from diagonal.cli.signing import Watermarking

if TYPE_CHECKING:
    from diagonal.media.video import VideoArray
    from diagonal.server.settings import Limits, Settings
    from diagonal.server.video_models import ServedVideo
    from diagonal.server.world_models import ServedWorld

DEFAULT = ("doom", "doom-t2v")


@dataclass(frozen=True, kw_only=True)
class Served:
    """What is served, and where its weights are."""

    panel: ClassVar[str] = "Model"

    model: Annotated[
        list[str] | None,
        typer.Option(help=f"From `diagonal models`; may be repeated. Default: {', '.join(DEFAULT)}."),
    ] = None
    weights: Annotated[
        str | None, typer.Option(help="Checkpoint of the one model; 'random': untrained. Default: the shipped ones.")
    ] = None
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint of its tokenizer, if it is apart.")] = None
    prompt: Annotated[
        str | None, typer.Option(help="Picture or clip to begin with, for a world without start views.")
    ] = None
    seats: Annotated[int, typer.Option(min=1, help="Sessions of each world at a time.")] = 8

    @property
    def names(self) -> list[str]:
        """The models, each once."""
        names = list(dict.fromkeys(self.model or DEFAULT))
        one = {"--weights": self.weights, "--tokenizer": self.tokenizer, "--prompt": self.prompt}
        given = [option for option, value in one.items() if value is not None]
        if len(names) > 1 and given:
            raise ValueError(f"{given[0]} is for one model, and {len(names)} are named: {', '.join(names)}")
        return names


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where the server listens, and who may come."""

    panel: ClassVar[str] = "Server"

    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs --token.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 8000
    token: Annotated[
        str | None, typer.Option(envvar="DIAGONAL_TOKEN", help="Without it nobody may use the server.")
    ] = None
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Pages of other hosts that may use it, such as https://example.org.")
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of all that is kept, videos too. Default: one that goes with the server."),
    ] = None
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser, where there is one.")] = False


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Where sessions outlive the process that they are played in."""

    panel: ClassVar[str] = "Sessions"

    snapshots: Annotated[
        str | None,
        typer.Option(help="Folder, or address such as s3://bucket/sessions, to keep sessions in. Default: in --data."),
    ] = None
    snapshot_every: Annotated[int, typer.Option(min=1, help="Frames between two snapshots of a session.")] = 16


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """What videos of /v1/videos may take."""

    panel: ClassVar[str] = "Jobs"

    queue: Annotated[int, typer.Option(min=1, help="Jobs that may wait.")] = 16
    frames: Annotated[int, typer.Option("--max-frames", min=1, help="Of one video.")] = 2000
    upload: Annotated[int, typer.Option("--max-upload", min=1, help="MiB of a picture or clip that is sent.")] = 32
    keep: Annotated[float, typer.Option("--keep-hours", min=0.01, help="Hours that a finished video is kept.")] = 168.0
    disk: Annotated[float, typer.Option("--max-disk", min=0.001, help="GiB of all videos together.")] = 8.0

    def limits(self) -> Limits:
        """The limits of a server."""
        from diagonal.server.settings import Limits

        return Limits(
            jobs=self.queue,
            video_frames=self.frames,
            upload_bytes=self.upload * 2**20,
            keep_seconds=self.keep * 3600,
            disk_bytes=int(self.disk * 2**30),
        )


@app.command()
@flat
def serve(
    served: Served,
    computing: Computing,
    reached: Reached,
    kept: Kept,
    jobs: Jobs,
    signing: Watermarking,
    on_ray: OnRay,
) -> None:
    """Serve worlds to a browser: a page, a WebSocket to play on, and what docs/serving.md says."""
    if on_ray.ray:
        groups = (served, computing, reached, kept, jobs, signing)
        serve_on_ray(on_ray, config_of(on_ray, groups))
        return
    refuse(given(on_ray), "a server of one process, without --ray")
    try:
        from diagonal.server.app import create_app
        from diagonal.server.jobs.store import check_folder
        from diagonal.server.run import serve as run
        from diagonal.server.store import SnapshotStore
    except ImportError as error:
        raise ValueError(f"serving needs more packages ({error}): pip install 'diagonal[serve]'") from error
    names, settings = served.names, _settings(served, reached, kept, jobs, signing)
    if settings.store is not None:
        SnapshotStore(settings.store, settings.keep).check()
    if settings.data is not None:
        check_folder(settings.data)
    models = {name: _open(name, served, computing, settings) for name in names}

    def ready(address: str) -> None:
        err.print(f"{', '.join(names)} at {address}  (Ctrl-C ends it)")
        if reached.open_page and _has_screen():
            page = address if reached.token is None else f"{address}/?token={reached.token}"
            Thread(target=webbrowser.open, args=[page], daemon=True).start()  # who waits for the browser

    run(create_app(settings, models), settings, ready)


def _has_screen() -> bool:
    """Whether a browser would have a window; one in text would take the terminal."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _settings(served: Served, reached: Reached, kept: Kept, jobs: Jobs, signing: Watermarking) -> Settings:
    from diagonal.server.settings import Settings
    from diagonal.server.store import StoreLimits

    return Settings(
        host=reached.host,
        port=reached.port,
        token=reached.token,
        origins=tuple(reached.allow_origin or ()),
        seats=served.seats,
        data=reached.data,
        snapshots=kept.snapshots,
        keep=StoreLimits(every=kept.snapshot_every),
        marking=signing.marking(None),
        limits=jobs.limits(),
    )


def _open(name: str, served: Served, computing: Computing, settings: Settings) -> ServedWorld | ServedVideo:
    """Load a model."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.cli.video import VideoSource, load_video
    from diagonal.server.video_models import serve_video
    from diagonal.server.world_models import serve_world

    if isinstance(find("models", name), DiffusionVariant):
        refused = {"--tokenizer": served.tokenizer, "--prompt": served.prompt}
        refuse({option: option for option, value in refused.items() if value is not None}, f"{name}, a diffusion model")
        return serve_video(load_video(name, VideoSource(weights=served.weights).source(), computing), settings.seats)
    world = load_world(WorldSource(model=name, weights=served.weights, tokenizer=served.tokenizer), computing)
    return serve_world(world, settings.seats, settings.limits, _prompt(served.prompt, world.variant.prompt_frames))


def _prompt(path: str | None, frames: int) -> VideoArray | None:
    from diagonal.media import video

    return None if path is None else video.read(Path(path), most=frames)
