"""The questions whose worlds are trained anew, as tables of runs: 1, 2, 5, 6 and 9.

At full size they train what `recipes/doom.py` trains. `cpu` is as much as one core does in the time that is predicted:
windows of six frames, few steps, and mostly from the shipped weights; `smoke` runs everything once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from diagonal.recipes import find
from diagonal.recipes.questions.jobs import Setting
from diagonal.recipes.questions.worlds import SHIPPED, Run, Size, Table, Worlds, fitted, seeded
from diagonal.training.loop import RunConfig
from diagonal.training.recipe import Mixture, WorldRecipe

RASTER, K1, K2, K4, OVERLAP = "raster", "diagonal:k=1", "diagonal:k=2", "diagonal:k=4", "diagonal:k=1,d=12"
WIDER = "diagonal:k=1,d=20"  # between overlapping fully and not at all, which is d=27
MIXTURE: Mixture = ((K1, 0.55), (K2, 0.15), (RASTER, 0.3))
OVERLAPPING: Mixture = ((K1, 0.3), (OVERLAP, 0.4), (RASTER, 0.3))

FULL = Size(frames=638_976, held_out=61_440, sequences=512, clips=256, minutes=3.0)
SIZES = {
    "full": FULL,
    "cpu": Size(frames=8_192, held_out=4_400, sequences=24, clips=0, minutes=4.0),
    "smoke": Size(frames=24, held_out=24, sequences=2, clips=2, context=2, clip_frames=1, seeds=1, minutes=0.1),
}


def _only(mixture: str) -> Mixture:
    return ((mixture, 1.0),)


def _how(setting: Setting, steps: int, mixture: Mixture, seed: int = 2, tuning: bool = False) -> WorldRecipe:
    """From scratch or by fine-tuning; steps are those of the full size."""
    recipe = find("doom")
    how = replace(recipe.finetune if tuning else recipe.base, mixture=mixture)
    if setting.size == "full":
        return replace(how, run=replace(how.run, steps=steps, seed=seed, evaluate_every=steps))
    steps = 2 if setting.size == "smoke" else max(40, steps // 12)
    run = RunConfig(steps=steps, seed=seed, warmup=steps // 10, log_every=max(1, steps // 10), evaluate_every=steps)
    batch = 1 if tuning or setting.size == "smoke" else 4
    how = replace(how, run=run, batch=batch, held_out_sequences=2, muon_lr=how.muon_lr and how.muon_lr / 4)
    return replace(how, lr=how.lr / 4) if tuning else how


def _minutes(setting: Setting, steps: int, size: str = "16m") -> float:
    """Predicted from docs/doom.md: 6,000 steps of 16 M parameters took 206 s on an H200; on one core of a CPU a step of
    one sequence of six frames takes about 8 s, and one of four of the smallest world 2 s."""
    share = {"2m": 0.4, "5m": 0.5, "50m": 2.7, "150m": 7.5}.get(size, 1.0)
    if setting.size == "full":
        return share * steps * 206 / 6000 / 60
    if setting.size == "smoke":
        return 0.2
    return max(40, steps // 12) * (8 if size == "16m" else 2) / 60


def _model(setting: Setting, full: str = "16m", cpu: str = "16m-6f") -> str:
    return f"doom/{full}" if setting.size == "full" else f"doom/{cpu if setting.size == 'cpu' else '1m-6f'}"


def _table(setting: Setting, asked: str, runs: Sequence[Run], measured: Mapping[str, tuple[str, ...]]) -> Table:
    return Table(asked, tuple(runs), measured, SIZES[setting.size])


def from_scratch(setting: Setting) -> Worlds:
    """Question 1: the same 7,000 steps, divided in four ways, with three seeds."""
    seeds, model = (2, 3, 4) if setting.size == "full" else (2,), _model(setting, cpu="1m-6f")

    def run(label: str, steps: int, mixture: Mixture, start: str = "") -> tuple[Run, ...]:
        how = _how(setting, steps, mixture, tuning=bool(start))
        return seeded(
            Run(label, model, how, _minutes(setting, steps, "16m" if setting.size == "full" else ""), start), seeds
        )

    runs = [
        *run("raster", 7000, _only(RASTER)),
        *run("raster, 6k", 6000, _only(RASTER)),
        *run("raster, then k=1", 1000, _only(K1), start="raster, 6k"),
        *run("raster, then the mixture", 1000, MIXTURE, start="raster, 6k"),
        *run("k=1 from the first step", 7000, _only(K1)),
        *run("the mixture from the first step", 7000, MIXTURE),
    ]
    asked = "From scratch or fine-tuned: which way to spend the same steps?"
    orders = (RASTER, K1) if setting.size == "smoke" else (RASTER, K2, K1)
    measured = {one.label: orders for one in runs if one.label != "raster, 6k"}
    return Worlds(setting, _table(setting, asked, runs, measured))


def sizes(setting: Setting) -> Worlds:
    """Question 2: the gap of each schedule against the size of the world, without training and after 1,000 steps."""
    named = {"full": ("2m", "5m", "16m", "50m", "150m")}.get(setting.size, ("1m-6f",))
    orders = (RASTER, K2, K1, OVERLAP)
    learnt: Mixture = ((K1, 1.0), (K2, 1.0), (OVERLAP, 1.0), (RASTER, 1.0))
    runs, measured = list[Run](), dict[str, tuple[str, ...]]()
    for size in named:
        base, tuned = size.upper(), f"{size.upper()} + 1k steps"
        runs.append(Run(base, f"doom/{size}", _how(setting, 6000, _only(RASTER)), _minutes(setting, 6000, size)))
        after = _how(setting, 1000, learnt, seed=3, tuning=True)
        runs.append(Run(tuned, f"doom/{size}", after, _minutes(setting, 1000, size), start=base))
        measured |= {base: orders, tuned: orders}
    asked = "How small may a world be before parallel decoding costs?"
    return Worlds(setting, replace(_table(setting, asked, runs, measured), finish=fitted))


def ways_to_align(setting: Setting) -> Worlds:
    """Question 5: full fine-tuning against adapters, norms and embeddings, and a curriculum, at the same steps. At
    full size raster's weights learn k=1; on a CPU the shipped ones learn overlapping frames, which they were never
    taught."""
    full, model = setting.size == "full", _model(setting)
    base, target = ("raster", K1) if full else (SHIPPED if setting.size == "cpu" else "raster", OVERLAP)
    tuning = _how(setting, 1000, _only(target), seed=3, tuning=True)
    small = replace(tuning, lr=tuning.lr * 2)  # adapters begin as zeros
    ways = {"all weights": tuning}
    ways |= {f"LoRA {rank}": replace(small, lora=rank) for rank in ((4, 16, 64) if full else (4, 16))}
    ways["norms and embeddings"] = replace(small, only=("norms", "embeddings"))
    steps = ((1 / 3, _only(K2)), (2 / 3, _only(K1))) if full else ((1 / 2, _only(OVERLAP)),)
    ways["curriculum"] = replace(tuning, mixture=_only(K4 if full else WIDER), later=steps)
    runs = [] if base == SHIPPED else [Run(base, model, _how(setting, 6000, _only(RASTER)), _minutes(setting, 6000))]
    runs += [Run(label, model, how, _minutes(setting, 1000), start=base) for label, how in ways.items()]
    measured = {base: (RASTER, target)} | dict.fromkeys(ways, (target, RASTER))
    return Worlds(setting, _table(setting, "Which part of a world must learn a diagonal?", runs, measured))


def overlapping(setting: Setting) -> Worlds:
    """Question 6: d below the height of a frame, taught with the actions that follow known ahead, against the same
    steps without it."""
    orders, model = (RASTER, K1, WIDER, OVERLAP), _model(setting)
    ways = {"as before": MIXTURE, "with d=12": OVERLAPPING}
    runs = []
    for label, mixture in ways.items():
        how = _how(setting, 4000, mixture, seed=4, tuning=True)
        start = SHIPPED if setting.size != "smoke" else ""
        runs.append(Run(f"+ 4k steps {label}", model, how, _minutes(setting, 4000), start=start))
    measured = {SHIPPED: orders} if setting.size != "smoke" else {}
    measured |= {one.label: orders for one in runs}
    return Worlds(
        setting, _table(setting, "What is left of the cost of overlapping frames after training?", runs, measured)
    )


def better_world(setting: Setting) -> Worlds:
    """Question 9: candidates for the shipped world: longer, with overlapping frames, and in one stage."""
    model = _model(setting)
    ways = {
        "mixture, 30k steps": (30_000, MIXTURE),
        "mixture with d=12, 30k steps": (30_000, ((K1, 0.4), (OVERLAP, 0.2), (K2, 0.1), (RASTER, 0.3))),
    }
    runs = [Run(label, model, _how(setting, *way, seed=5), _minutes(setting, way[0])) for label, way in ways.items()]
    orders = (RASTER, K2, K1, OVERLAP)
    measured = ({SHIPPED: orders} if setting.size == "full" else {}) | {one.label: orders for one in runs}
    return Worlds(setting, _table(setting, "Which embedded world is better than the shipped one?", runs, measured))
