"""`diagonal serve --ray`: the same server as replicas of Ray Serve, on this machine or on a cluster (docs/scale.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from diagonal.cli import err
from diagonal.cli.options import Group, given, refuse

# Options that replicas are told under the names that a config file has for them.
NAMES = {"model": "models", "allow_origin": "origins"}
# Those that replicas have no use for, or that one folder of one process is for.
REFUSED = ("open_page", "private", "watermark", "data", "queue", "frames", "upload", "keep", "disk")


@dataclass(frozen=True, kw_only=True)
class OnRay:
    """How many processes serve, and where."""

    panel: ClassVar[str] = "Ray"

    ray: Annotated[bool, typer.Option("--ray", help="Serve as replicas of Ray Serve, each with all models.")] = False
    replicas: Annotated[int | None, typer.Option(min=1, help="How many. Default: 1.")] = None
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="Up to so many when seats are taken. Default: always as many.")
    ] = None
    gpus_per_replica: Annotated[
        float | None, typer.Option(min=0, help="0.5: two share one. Default: 1 where there are GPUs, else 0.")
    ] = None
    cpus_per_replica: Annotated[float | None, typer.Option(min=0, help="Cores that are kept for each. Default: 1.")] = (
        None
    )
    config: Annotated[Path | None, typer.Option(help="Config file of Ray Serve, in place of all other options.")] = None
    ray_address: Annotated[
        str | None, typer.Option(help="HOST:PORT or 'auto': a cluster, where it goes on. Default: here, until Ctrl-C.")
    ] = None

    def __post_init__(self) -> None:
        if self.config is not None:
            sized = ("replicas", "max_replicas", "gpus_per_replica", "cpus_per_replica")
            refuse({name: option for name, option in given(self).items() if name in sized}, "--config, which says it")
        if self.max_replicas is not None and self.max_replicas < (self.replicas or 1):
            raise ValueError(f"--max-replicas {self.max_replicas} is less than --replicas {self.replicas}")


def config_of(on_ray: OnRay, groups: Sequence[Group]) -> dict[str, Any]:
    """What Serve is to run: the file, or these options as a file would have them."""
    from diagonal.scale.serving import Replicas, read_config
    from diagonal.scale.serving import config_of as config

    if on_ray.config is not None:
        refuse(given(*groups), "--config, a file that says it")
        return read_config(on_ray.config)
    args, where = _args(groups), {name: vars(group)[name] for group in groups for name in vars(group)}
    cpus = 1.0 if on_ray.cpus_per_replica is None else on_ray.cpus_per_replica
    sized = Replicas(count=on_ray.replicas or 1, most=on_ray.max_replicas, gpus=_gpus(on_ray), cpus=cpus)
    return config(args, sized, where["host"], where["port"])


def _args(groups: Sequence[Group]) -> dict[str, Any]:
    """The options that were given, as replicas take them, checked before anything starts."""
    from pydantic import ValidationError

    from diagonal.scale.replica import ServeArgs
    from diagonal.server.store import SnapshotStore

    options = given(*groups)
    refuse({name: options[name] for name in options if name in REFUSED}, "--ray")
    values = {name: vars(group)[name] for group in groups for name in vars(group) if name in options}
    args = {NAMES.get(name, name): _plain(value) for name, value in values.items() if name != "port"}
    args["device"] = values.get("device", "auto")
    try:
        settings = ServeArgs.model_validate(args).settings()
    except ValidationError as error:
        raise ValueError(str(error)) from error
    if settings.store is not None:
        SnapshotStore(settings.store, settings.keep).check()
    else:
        err.print("[yellow]no --snapshots: sessions end with their replica[/]")
    return args


def _plain(value: Any) -> Any:
    return str(value.resolve()) if isinstance(value, Path) else value


def _gpus(on_ray: OnRay) -> float:
    """As asked for; otherwise one each, where this machine or the cluster has any."""
    from diagonal.scale.cluster import connect, gpus_of

    if on_ray.gpus_per_replica is not None:
        return on_ray.gpus_per_replica
    return float(any(gpus_of(connect(on_ray.ray_address))))


def serve_on_ray(on_ray: OnRay, config: Mapping[str, Any]) -> None:
    """Run it: on a local cluster until it is stopped, on another one for good."""
    from diagonal.scale.serving import run

    def ready(address: str) -> None:
        stays = "  (Ctrl-C ends it)" if on_ray.ray_address is None else "; `serve shutdown` on the cluster ends it"
        err.print(f"{address}{stays}")

    run(config, on_ray.ray_address, ready)
