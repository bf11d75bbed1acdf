"""Start the server on Ray: by options, or by a config file of Serve's, on this machine or on a cluster.

Both ways end in the same config and the same call. Given again to a cluster that runs already, a config is an update:
numbers of replicas change in place, and what replaces replicas replaces one after the other, with sessions handed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagonal.scale.cluster import MISSING, check_gpus, connected

IMPORT_PATH = "diagonal.scale.ray:app"
APPLICATION, DEPLOYMENT = "diagonal", "worlds"
POLL = 0.5  # seconds
READY_SECONDS = 600.0  # for all replicas to load their models
MOST_CONFIG = 2**20  # bytes of a config file


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """How many there are, and what each of them has."""

    count: int = 1
    most: int | None = None  # with more players there are more of them; None: always as many
    gpus: float = 0.0
    cpus: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 1 or self.gpus < 0 or self.cpus < 0:
            raise ValueError(f"{self.count} replicas with {self.gpus:g} GPUs and {self.cpus:g} CPUs each given")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"{self.gpus:g} GPUs for a replica given; take a part of one (0.5), or whole ones")
        if self.most is not None and self.most < self.count:
            raise ValueError(f"at most {self.most} replicas, and {self.count} to begin with: that cannot be")

    def deployment(self) -> dict[str, Any]:
        """As a config file says it."""
        actor = {"num_gpus": self.gpus, "num_cpus": self.cpus}
        found: dict[str, Any] = {"name": DEPLOYMENT, "ray_actor_options": actor}
        if self.most is None:
            return found | {"num_replicas": self.count}
        policy = {"policy_function": "diagonal.scale.seats:by_seats"}
        limits = {"min_replicas": self.count, "max_replicas": self.most}
        return found | {"autoscaling_config": limits | {"upscale_delay_s": 10.0, "policy": policy}}


def config_of(args: Mapping[str, Any], replicas: Replicas, host: str, port: int) -> dict[str, Any]:
    """A config of Serve's for one application."""
    application = {
        "name": APPLICATION,
        "route_prefix": "/",
        "import_path": IMPORT_PATH,
        "args": dict(args) | {"host": host},
        "deployments": [replicas.deployment()],
    }
    return {"http_options": {"host": host, "port": port}, "applications": [application]}


def read_config(path: Path) -> dict[str, Any]:
    """A config file, its own part of it checked, or why it cannot be used."""
    import yaml
    from pydantic import ValidationError

    try:
        from ray.serve.schema import ServeDeploySchema

        from diagonal.scale.replica import ServeArgs
    except ImportError as error:
        raise ValueError(MISSING.format(error=error)) from error
    if path.stat().st_size > MOST_CONFIG:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; a config file has at most {MOST_CONFIG}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    if not isinstance(content, dict) or not content.get("applications"):
        raise ValueError(f"{path} is no config file of Ray Serve: it has no applications. docs/scale.md shows one")
    try:
        ServeDeploySchema.model_validate(content)
        for application in content["applications"]:
            if application["import_path"] == IMPORT_PATH:
                ServeArgs.model_validate(application.get("args", {}))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path}: {where}: {first['msg']}") from error
    return content


def check_fits(ray: Any, config: Mapping[str, Any]) -> None:
    """Refuse more replicas than the GPUs of the cluster can hold."""
    for application in config["applications"]:
        for one in application.get("deployments", []):
            scaled = one.get("autoscaling_config") or {}
            count = scaled.get("min_replicas", one.get("num_replicas", 1))
            each = float((one.get("ray_actor_options") or {}).get("num_gpus") or 0)
            if isinstance(count, int):
                check_gpus(ray, count, each, "replicas")


def deploy(config: Mapping[str, Any]) -> None:
    """Start, or update, what a config says, and wait until all of it runs. Serve has no public function that does what
    its command `serve run FILE` does, so this takes the same ones as that."""
    from ray.serve._private.api import serve_start
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(config)
    client = serve_start(http_options=schema.http_options.model_dump(), proxy_location=schema.proxy_location)
    client.deploy_apps(schema)
    _wait([application.name for application in schema.applications])


def _wait(names: list[str]) -> None:
    """Until all applications run; what failed is an error in words."""
    from ray import serve

    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        applications = serve.status().applications
        states = {name: applications[name] for name in names if name in applications}
        for name, state in states.items():
            if state.status == "DEPLOY_FAILED":  # what is unhealthy is being replaced
                raise ValueError(f"{name} did not start: {_reason(state)}")
        settled = len(states) == len(names) and all(state.status == "RUNNING" for state in states.values())
        if settled and all(_settled(state) for state in states.values()):
            return
        time.sleep(POLL)
    raise TimeoutError(f"the replicas were not ready within {READY_SECONDS:g} seconds; `serve status` says more")


def _settled(state: Any) -> bool:
    """Whether no replica starts or stops."""
    return all(one.status == "HEALTHY" and set(one.replica_states) <= {"RUNNING"} for one in state.deployments.values())


def _reason(state: Any) -> str:
    """The last line that an error of a replica has, or all that Serve says."""
    said = [state.message, *(one.message for one in state.deployments.values())]
    lines = [line.strip() for text in said for line in text.splitlines() if "Error: " in line]
    return lines[-1] if lines else " ".join(filter(None, said))


def run(config: Mapping[str, Any], address: str | None, on_ready: Callable[[str], object]) -> None:
    """Deploy to the cluster that is named, where it then runs without this process; or to a local one, and stay until
    SIGINT or SIGTERM, which end all of it after sessions are kept."""
    with connected(address) as ray:
        check_fits(ray, config)
        try:
            deploy(config)
            on_ready(_address(config))
            while address is None:
                time.sleep(3600)
        finally:
            if address is None:
                from ray import serve

                serve.shutdown()  # type: ignore[no-untyped-call]


def _address(config: Mapping[str, Any]) -> str:
    """Where the page is."""
    options = config.get("http_options", {})
    host = str(options.get("host", "0.0.0.0"))
    return f"http://{f'[{host}]' if ':' in host else host}:{options.get('port', 8000)}"
