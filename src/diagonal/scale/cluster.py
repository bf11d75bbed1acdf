"""A Ray cluster: the one that is named, or a local one for as long as the process lives."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 5.0  # seconds until a cluster that does not answer is given up
STARTS = 3
PORTS = {"": 6379, "ray": 10001}
MISSING = "Ray is not installed ({error}): pip install 'diagonal[ray]'"


def connect(address: str | None) -> Any:
    """Ray, connected to a cluster (`HOST:PORT`, `ray://HOST:PORT`, or `auto`: the one on this machine), or with a local
    cluster of this machine's CPUs and GPUs. What cannot be reached is refused in seconds."""
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # who asks for no GPU sees none
        import ray
    except ImportError as error:
        raise ValueError(MISSING.format(error=error)) from error
    if ray.is_initialized():
        return ray
    if address not in (None, "auto", "local"):
        _check_reachable(str(address))
    if address in (None, "local"):
        _start(ray)
        return ray
    try:
        with _own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "on this machine" if address == "auto" else f"at {address}"
        raise ValueError(f"no Ray cluster can be used {where}: {error}. `ray start --head` starts one") from error
    return ray


def _start(ray: Any) -> None:
    """A local cluster. Its processes have half a minute to come up, which a busy machine may need more than once."""
    for left in reversed(range(STARTS)):
        try:
            with _own_signals():
                ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            return
        except Exception as error:  # Ray raises nothing narrower
            ray.shutdown()
            if not left:
                raise ValueError(f"Ray did not start on this machine, {STARTS} times: {error}") from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray would answer SIGTERM by a stack trace; who asks politely gets an orderly end, as without Ray."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The same for a while: who was not connected before is not afterwards."""
    ray = connect(address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    scheme, separator, rest = address.rpartition("://")
    try:
        place = urlsplit(f"//{rest if separator else address}")
        host, port = place.hostname, place.port or PORTS.get(scheme)
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise ValueError(f"{address!r} is no address of a Ray cluster; write HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError as error:
        raise ValueError(
            f"the Ray cluster at {address} cannot be reached: {error.strerror or error}. Is it running, and is port "
            f"{port} open to this machine? `ray status` on its head node says"
        ) from error


def gpus_of(ray: Any) -> list[float]:
    """The GPUs of each machine that is alive."""
    return [float(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]


def check_gpus(ray: Any, count: int, each: float, what: str) -> None:
    """Refuse more of something than the GPUs of the cluster can hold: Ray would wait for more of them in silence."""
    if each <= 0:
        return
    machines = gpus_of(ray)
    room = sum(int(there / each + 1e-9) for there in machines)
    if count > room:
        total = f"{sum(machines):g} GPUs on {len(machines)} machine{'s' * (len(machines) != 1)}"
        raise ValueError(
            f"{count} {what} with {each:g} GPU{'s' * (each != 1)} each do not fit: the cluster has {total}, room for "
            f"{room}. Ask for fewer, or for a smaller part of a GPU each (0.5), or for none (0: they compute on CPUs)"
        )
