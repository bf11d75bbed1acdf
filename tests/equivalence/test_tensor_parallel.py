"""A token model on two processes, each with half of the heads and columns, is the model on one.

Run as a program it is one of these processes: it computes every case and leaves what came out in a folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.checkpoints.state import InFile
from diagonal.engine.attention import Dense
from diagonal.engine.ranks import Ranks
from diagonal.generation.load import load
from diagonal.generation.world import World
from diagonal.models.layers import RowParallel
from diagonal.models.sharding import divide
from diagonal.planning.sampling import Sampling
from diagonal.scale.parallel import check_tensor_parallel, load_sharded, ranks_of
from tests.processes import launch
from tests.tiny import ALL_TINY, GREEDY, TINY

CPU = torch.device("cpu")
HF = [name for name in ALL_TINY if name.startswith("hf")]
NAMES = [name for name in ALL_TINY if name not in HF]
FILED = ("mcar/tiny", "wham/tiny", "cosmos/tiny-text", "videogpt/tiny-picture")


def bound(world: World) -> World:
    """With a text, a class or pictures, where the model has such."""
    config, noise = world.variant.config, torch.Generator().manual_seed(5)
    if world.variant.text:
        return world.guided(torch.randn(4, config.text, generator=noise))  # type: ignore[attr-defined]
    if not world.variant.steered:
        return world
    if config.classes:  # type: ignore[attr-defined]
        return world.steered(label=2)
    if config.given:  # type: ignore[attr-defined]
        pictures = torch.randint(256, (config.given, *world.size, 3), generator=noise, dtype=torch.uint8)  # type: ignore[attr-defined]
        return world.steered(pictures=pictures.numpy())
    return world


def prompt(world: World, frames: int) -> torch.Tensor | None:
    config = world.variant.config
    if world.name not in TINY:
        return None
    noise = torch.Generator().manual_seed(1)
    return torch.randint(1, config.codebook, (frames, config.rows, config.cols), generator=noise)


@torch.inference_mode()
def logits(world: World) -> torch.Tensor:
    """Of some tokens of a video, each seeing those before it."""
    tokens = torch.randint(world.variant.config.codebook, (2, 40), generator=torch.Generator().manual_seed(2))
    mask = Dense(torch.ones(40, 40, dtype=torch.bool).tril())
    made: torch.Tensor = world.runner(tokens, torch.arange(40), mask, torch.arange(20, 40))
    return made


def tokens(world: World, schedule: str, sampling: Sampling) -> torch.Tensor:
    frames = None if world.name not in TINY else 2 * int(world.tokenizer.stride)
    return world.generate(prompt(world, 2), frames=frames, schedule=schedule, sampling=sampling, seed=3).tokens


def cases(world: World) -> dict[str, torch.Tensor]:
    """Of every model, decoded by a wave; of the quickest one, all that a decoder can be asked for."""
    world = bound(world)
    made = {"logits": logits(world), "greedy": tokens(world, "diagonal:k=1", GREEDY)}
    if world.name == "doom/tiny":
        made["drawn"] = tokens(world, "diagonal:k=1", Sampling(top_p=0.9))
        made["raster"] = tokens(world, "raster", GREEDY)
        made["frames in parallel"] = tokens(world, "diagonal:k=2,d=4", GREEDY)
    return made


def from_file(world: World) -> dict[str, torch.Tensor]:
    return {"logits": logits(bound(world))}


def played(world: World) -> np.ndarray[Any, Any]:
    """Frames of a live session."""
    with_prompt = prompt(world, 2)
    assert with_prompt is not None
    session = world.play(with_prompt, sampling=GREEDY)
    return np.stack([session.step(action).frames for action in world.actions.parse("noop,noop,noop")])


def differ(ranks: Ranks) -> str:
    """What is said where ranks drew different tokens."""
    try:
        ranks.agree(torch.tensor([1, 2 + ranks.rank]), "tokens")
    except ValueError as error:
        return str(error)
    return ""


def compute(folder: Path) -> None:
    torch.set_num_threads(1)
    with ranks_of(CPU) as ranks:
        made: dict[str, Any] = {name: cases(load_sharded(name, "random", ranks)) for name in NAMES}
        made["files"] = {name: from_file(load_sharded(name, folder / name, ranks)) for name in FILED}
        made["pickled"] = logits(load_sharded("mcar/tiny", folder / "mcar.ckpt", ranks))
        made["played"] = torch.from_numpy(played(load_sharded("doom/tiny", "random", ranks)))
        made["int8"] = logits(load_sharded("mcar/tiny", "random", ranks).quantize("int8"))
        made["embedded"] = logits(load_sharded("doom", None, ranks))
        made["drawn in place"] = logits(load_sharded("mcar/tiny", "random", ranks, dtype=torch.bfloat16)).float()
        made["resized"] = logits(load_sharded("cosmos/tiny", "random", ranks).at(48, 64))
        world = load_sharded("mcar/tiny", "random", ranks)
        made["parameters"] = torch.tensor(sum(one.numel() for one in world.model.blocks.parameters()))
        made["cache"] = torch.tensor(world.model.cache_spec.kv_heads)
        made["weights"] = world.fingerprint()
        made["differ"] = differ(ranks)
        try:
            load_sharded("doom/tiny", folder / "broken", ranks)
        except FileNotFoundError as error:
            made["missing"] = str(error)
        torch.save(made, folder / f"{ranks.rank}.pt")


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    for name in FILED:
        load(name, "random", seed=4).save_pretrained(folder / name)
    whole = load("mcar/tiny", "random", seed=4)
    state = {f"transformer.{key}": value for key, value in whole.model.state_dict().items()}
    state |= {f"tokenizer.{key}": value for key, value in whole.tokenizer.state_dict().items()}
    torch.save(published(state), folder / "mcar.ckpt")
    load("doom/tiny", "random").save_pretrained(folder / "broken")
    (folder / "broken" / "model.safetensors").rename(folder / "broken" / "model-00002-of-00003.safetensors")
    launch("tests.equivalence.test_tensor_parallel", 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def published(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An MC-AR's matrices under the released names, where q, k and v, and gate and up, lie apart."""
    made = {}
    for key, value in state.items():
        if key.endswith("attention.qkv.weight"):
            base = key.replace("transformer.blocks.", "transformer.model.layers.").replace("attention.qkv.weight", "")
            for part, rows in zip("qkv", value.split([64, 32, 32]), strict=True):
                made[f"{base}self_attn.{part}_proj.weight"] = rows.clone()
        elif key.endswith("gate_up.weight"):
            base = key.replace("transformer.blocks.", "transformer.model.layers.").replace("gate_up.weight", "")
            for part, rows in zip(("gate", "up"), value.chunk(2), strict=True):
                made[f"{base}{part}_proj.weight"] = rows.clone()
        else:
            made[_published(key)] = value
    return made


def _published(key: str) -> str:
    if not key.startswith("transformer."):
        return key
    key = key.replace("blocks.", "model.layers.").replace("attention_norm", "input_layernorm")
    key = key.replace("attention.out", "self_attn.o_proj").replace("mlp_norm", "post_attention_layernorm")
    key = key.replace("mlp.down", "mlp.down_proj").replace("head.", "lm_head.")
    return key.replace("transformer.norm", "transformer.model.norm").replace(
        "transformer.embed", "transformer.model.embed_tokens"
    )


def same(ours: dict[str, torch.Tensor], one: dict[str, torch.Tensor]) -> None:
    """Logits to 1e-5, tokens exactly."""
    assert ours.keys() == one.keys()
    torch.testing.assert_close(ours["logits"], one["logits"], atol=1e-5, rtol=1e-5)
    for case in ours.keys() - {"logits"}:
        assert torch.equal(ours[case], one[case]), case


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_give_the_logits_and_tokens_of_one(computed: list[dict[str, Any]], name: str) -> None:
    one = cases(load(name, "random"))
    for rank in computed:
        same(rank[name], one)


@pytest.mark.parametrize("name", FILED)
def test_shards_that_are_read_from_a_file_are_those_of_the_whole(computed: list[dict[str, Any]], name: str) -> None:
    one = from_file(load(name, "random", seed=4))
    for rank in computed:
        same(rank["files"][name], one)


def test_shards_of_a_released_checkpoint_are_cut_inside_each_matrix(computed: list[dict[str, Any]]) -> None:
    one = logits(load("mcar/tiny", "random", seed=4))
    torch.testing.assert_close(computed[1]["pickled"], one, atol=1e-5, rtol=1e-5)


def test_a_rank_has_half_of_the_blocks_and_of_the_cache(computed: list[dict[str, Any]]) -> None:
    whole = load("mcar/tiny", "random").model
    matrices = sum(one.numel() for one in whole.blocks.parameters() if one.ndim == 2)
    norms = sum(one.numel() for one in whole.blocks.parameters() if one.ndim == 1)
    assert int(computed[0]["parameters"]) == matrices // 2 + norms
    assert int(computed[0]["cache"]) == whole.cache_spec.kv_heads // 2


def test_weights_have_one_fingerprint_however_they_are_divided(computed: list[dict[str, Any]]) -> None:
    """So a session that was saved on two GPUs goes on on one."""
    one = load("mcar/tiny", "random").fingerprint()
    assert [rank["weights"] for rank in computed] == [one, one]


def test_a_live_session_on_two_ranks_gives_the_frames_of_one(computed: list[dict[str, Any]]) -> None:
    one = played(load("doom/tiny", "random"))
    assert all(np.array_equal(rank["played"].numpy(), one) for rank in computed)


def test_shipped_weights_random_ones_in_place_and_other_sizes(computed: list[dict[str, Any]]) -> None:
    for rank in computed:
        torch.testing.assert_close(rank["embedded"], logits(load("doom")), atol=1e-4, rtol=1e-5)
        small = logits(load("mcar/tiny", "random", dtype=torch.bfloat16)).float()
        torch.testing.assert_close(rank["drawn in place"], small, atol=0.1, rtol=0.05)
        resized = logits(load("cosmos/tiny", "random").at(48, 64))
        torch.testing.assert_close(rank["resized"], resized, atol=1e-5, rtol=1e-5)


def test_rows_of_int8_are_rounded_by_each_rank(computed: list[dict[str, Any]]) -> None:
    """Rows of a part have scales of their own, so they are a little nearer than those of the whole."""
    exact = logits(load("mcar/tiny", "random"))
    whole = logits(load("mcar/tiny", "random").quantize("int8"))
    found = computed[0]["int8"]
    assert 0 < float((found - exact).abs().mean()) < 1.5 * float((whole - exact).abs().mean())


def test_ranks_that_drew_different_tokens_are_told_so(computed: list[dict[str, Any]]) -> None:
    assert all("tokens differ on 1 of 2 ranks" in rank["differ"] for rank in computed)


def test_a_missing_shard_file_is_named(computed: list[dict[str, Any]]) -> None:
    assert "model-00001-of-00003.safetensors, model-00003-of-00003.safetensors" in computed[0]["missing"]


def test_a_rank_reads_its_shard_of_a_file_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("wham/tiny", "random").save_pretrained(tmp_path)
    config = find("models", "wham/tiny").config
    part, whole, read = InFile.__getitem__, InFile.whole, list[int]()

    def counted(made: torch.Tensor) -> torch.Tensor:
        read.append(made.numel())
        return made

    monkeypatch.setattr(InFile, "__getitem__", lambda self, index: counted(part(self, index)))
    monkeypatch.setattr(InFile, "whole", lambda self: counted(whole(self)))
    with torch.device("meta"):
        model = config.build()
    every = sum(one.numel() for one in model.parameters())
    shard = divide(model, "wham/tiny", Ranks(1, 2, CPU))
    stored = {key: one for key, one in checkpoints.read_stored(tmp_path).items() if key.startswith("transformer.")}
    checkpoints.load(model, stored, "wham/tiny", shard)
    assert sum(read) == sum(one.numel() for one in model.parameters()) < 0.75 * every


def test_a_group_of_one_has_the_plain_model() -> None:
    """Nothing is cut and nothing is summed: the very modules of `load`."""
    with ranks_of(CPU) as ranks:
        world = load_sharded("mcar/tiny", "random", ranks)
    assert world.ranks is None and not any(isinstance(one, RowParallel) for one in world.model.modules())
    assert [*map(type, world.model.modules())] == [*map(type, load("mcar/tiny", "random").model.modules())]


@pytest.mark.parametrize(
    ("name", "world", "says"),
    [
        ("mcar/700m", 3, "heads=32, kv_heads=4, mlp=4096, which 3 GPUs cannot share evenly.* 2 or 4 of them"),
        ("doom", 4, "kv_heads=2.* 2 of them"),
        ("wham/1.6b", 4, "heads=18.* 2 or 3 or 6 or 9 or 18"),
        ("hf:some/model", 2, "model of transformers"),
        ("wan/tiny", 2, "needs a token model"),
    ],
)
def test_heads_that_do_not_divide_are_refused_before_anything_is_loaded(name: str, world: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_tensor_parallel(name, world)


def test_a_divided_model_is_not_saved(tmp_path: Path) -> None:
    world = load("mcar/tiny", "random")
    world.divide(Ranks(0, 2, CPU))
    with pytest.raises(ValueError, match="divided among 2 processes"):
        world.save_pretrained(tmp_path)


def test_parts_of_a_file_are_read_without_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    checkpoints.save_tensors({"a": torch.arange(12.0).view(3, 4), "b": torch.ones(2).half()}, path)
    stored = checkpoints.read_stored(path)
    assert stored["a"].shape == (3, 4) and stored["b"].dtype == torch.float16
    assert torch.equal(stored["a"][1:, 1:3], torch.tensor([[5.0, 6.0], [9.0, 10.0]]))


if __name__ == "__main__":
    compute(Path(sys.argv[1]))
