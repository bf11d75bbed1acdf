"""What scale-out decides without a cluster: lists of replicas, numbers of them, config files, workers."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagonal.scale.cluster import check_gpus, connect
from diagonal.scale.pool import Actors, Worker
from diagonal.scale.presence import Presence
from diagonal.scale.seats import by_seats
from diagonal.scale.serving import Replicas, config_of, read_config

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'diagonal[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns of itself


def test_a_replica_is_told_once_when_it_is_to_go_and_when_it_is_wanted_again() -> None:
    told: list[bool] = []
    presence = Presence("me", told.append)
    lists: list[set[str]] = [set(), {"other"}, {"other", "me"}, {"me"}, {"other"}, set(), {"me"}, {"me", "other"}]
    for replicas in lists:
        presence.heard(frozenset(replicas))
    assert told == [False, True]


@pytest.mark.parametrize(
    ("taken", "wanted"), [([0, 0], 1), ([6], 1), ([7], 2), ([8, 8], 3), ([8, 4, 0], 2), ([8] * 8, 10)]
)
def test_there_are_so_many_replicas_that_a_fifth_of_the_seats_is_free(taken: list[int], wanted: int) -> None:
    told = {"seats": dict.fromkeys(range(len(taken)), 8.0), "seats_taken": dict(enumerate(taken))}
    assert by_seats(SimpleNamespace(aggregated_metrics=told, target_num_replicas=1))[0] == wanted


def test_before_anything_is_told_the_number_of_replicas_stays() -> None:
    assert by_seats(SimpleNamespace(aggregated_metrics={}, target_num_replicas=5)) == (5, {})


def cluster(*gpus: float) -> Any:
    nodes = [{"Alive": True, "Resources": {"GPU": count} if count else {}} for count in gpus]
    return SimpleNamespace(nodes=lambda: nodes, cluster_resources=lambda: {"CPU": 8.0})


def test_more_replicas_than_gpus_are_refused_with_what_there_is() -> None:
    check_gpus(cluster(4, 4), 8, 1.0, "replicas")
    check_gpus(cluster(1), 2, 0.5, "replicas")
    check_gpus(cluster(), 100, 0.0, "replicas")
    for gpus, count, each in (((4, 4), 9, 1.0), ((1, 1), 1, 2.0), ((1,), 3, 0.5), ((0,), 1, 1.0)):
        with pytest.raises(ValueError, match=f"{count} replicas .* do not fit: the cluster has {sum(gpus)} GPUs"):
            check_gpus(cluster(*gpus), count, each, "replicas")


def test_actors_are_as_many_as_gpus_or_one_for_two_cores() -> None:
    assert Actors().of(cluster(2, 2), 100) == Actors(count=4, gpus=1.0, cpus=1.0)
    assert Actors().of(cluster(), 100) == Actors(count=4, gpus=0.0, cpus=1.0)
    assert Actors(count=6).of(cluster(), 3).count == 3
    assert Actors(gpus=0.5).of(cluster(2), 100).count == 4
    with pytest.raises(ValueError, match="9 actors with 1 CPUs each do not fit: the cluster has 8"):
        Actors(count=9).of(cluster(), 100)


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}"])
def test_a_cluster_that_cannot_be_reached_is_refused_at_once(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ValueError, match=r"cannot be reached.*Is it running"):
        connect(address.format(port=port))
    with pytest.raises(ValueError, match="no address of a Ray cluster"):
        connect("ray://:none")


def test_replicas_that_cannot_be_are_refused() -> None:
    for wrong, why in (
        ({"count": 0}, "0 replicas"),
        ({"gpus": 1.5}, "whole ones"),
        ({"count": 3, "most": 2}, "at most 2"),
    ):
        with pytest.raises(ValueError, match=why):
            Replicas(**wrong)


def test_options_give_a_config_that_a_file_could_have(tmp_path: Path) -> None:
    import yaml

    config = config_of({"models": ["doom"], "seats": 4}, Replicas(count=2, most=6, gpus=0.5), "127.0.0.1", 8000)
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    assert read_config(path) == config
    scaled = config["applications"][0]["deployments"][0]["autoscaling_config"]
    assert (scaled["min_replicas"], scaled["max_replicas"]) == (2, 6)


GOOD = "applications: [{name: diagonal, import_path: 'diagonal.scale.ray:app', args: {%s}}]"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "no YAML"),
        ("- 1", "no applications"),
        ("applications: []", "no applications"),
        ("applications: [{name: x}]", "import_path"),
        (GOOD % "seets: 3", "seets"),
        (GOOD % "seats: 0", "seats"),
        (GOOD % "models: []", "models"),
        ("x" * (2**20 + 1), "at most"),
    ],
)
def test_a_wrong_config_file_is_refused_with_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        read_config(path)


def told(worker: Worker, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(worker({"number": np.array([number])})["told"][0])
    return found


def test_a_worker_does_items_and_tells_errors_in_words() -> None:
    def open_() -> Any:
        def do(item: int) -> int:
            if item == 2:
                raise ValueError("two is bad")
            if item == 3:
                raise KeyError("three")
            return 10 * item

        return do

    worker = Worker(open_, [1, 2, 3])
    assert told(worker, 0) == {"result": 10, "error": None, "opened": True}
    assert told(worker, 1)["error"] == "two is bad"
    assert told(worker, 2)["error"] == "KeyError: 'three'"
    assert told(worker, 3) == {"result": None, "error": None, "opened": True}  # where there is nothing to do


def test_a_model_that_cannot_be_loaded_is_told_and_ends_no_actor() -> None:
    def open_() -> Any:
        raise OSError("no such weights")

    assert told(Worker(open_, [1]), 0) == {"result": None, "error": "no such weights", "opened": False}


SCALE = Path(__file__).parents[2] / "docs" / "scale"


def test_the_config_files_of_the_documents_are_taken(tmp_path: Path) -> None:
    import yaml

    assert read_config(SCALE / "serve.yaml")
    manifest = yaml.safe_load((SCALE / "kuberay.yaml").read_text())
    path = tmp_path / "serve.yaml"
    path.write_text(manifest["spec"]["serveConfigV2"])
    assert read_config(path)
    assert yaml.safe_load((SCALE / "cluster.yaml").read_text())["provider"]["type"] == "local"
