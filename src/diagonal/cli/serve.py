"""`diagonal serve`: worlds that are played in a browser, and the page that plays them."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from diagonal.cli import app, err, load_world
from diagonal.cli.options import Computing, WorldSource, flat, given, refuse
from diagonal.cli.serve_ray import OnRay, config_of, serve_on_ray
from diagonal.cli.signing import Watermarking

if TYPE_CHECKING:
    from diagonal.media.video import VideoArray
    from diagonal.server.settings import Settings
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
        Path | None, typer.Option(help="Folder of all that is kept. Default: one that goes when the server ends.")
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


@app.command()
@flat
def serve(
    served: Served, computing: Computing, reached: Reached, kept: Kept, signing: Watermarking, on_ray: OnRay
) -> None:
    """Serve worlds to a browser: a page, a WebSocket to play on, and what docs/serving.md says."""
    if on_ray.ray:
        groups = (served, computing, reached, kept, signing)
        serve_on_ray(on_ray, config_of(on_ray, groups))
        return
    refuse(given(on_ray), "a server of one process, without --ray")
    try:
        from diagonal.server.app import create_app
        from diagonal.server.run import serve as run
        from diagonal.server.store import SnapshotStore
    except ImportError as error:
        raise ValueError(f"serving needs more packages ({error}): pip install 'diagonal[serve]'") from error
    names, settings = served.names, _settings(served, reached, kept, signing)
    if settings.store is not None:
        SnapshotStore(settings.store, settings.keep).check()
    models = {name: _open(name, served, computing, settings) for name in names}

    def ready(address: str) -> None:
        err.print(f"{', '.join(names)} at {address}  (Ctrl-C ends it)")
        if reached.open_page:
            webbrowser.open(address if reached.token is None else f"{address}/?token={reached.token}")

    run(create_app(settings, models), settings, ready)


def _settings(served: Served, reached: Reached, kept: Kept, signing: Watermarking) -> Settings:
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
