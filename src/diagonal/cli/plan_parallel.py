"""The part of `diagonal plan` that is about several GPUs: what they sum in a step, and how long it should take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from diagonal.catalog.variants import Variant
    from diagonal.planning.plan import Plan


def predict(
    name: str, variant: Variant, plans: list[Plan], how: tuple[int, str, float | None, int], measured: Path | None
) -> dict[str, Any]:
    """What GPUs that share a model sum in a step, of mean width. Of a measured step: what it should take on several."""
    import numpy as np

    from diagonal.generation.devices import find_dtype
    from diagonal.scale import prediction

    batch, dtype, _, gpus = how
    inputs = batch * float(np.concatenate([plan.widths[1:] for plan in plans]).mean())

    def on(world: int) -> prediction.Divided:
        return prediction.divided(name, variant, inputs, find_dtype(dtype, "cpu"), world)

    found: dict[str, Any] = {}
    if gpus > 1:
        sums = on(gpus).sums
        found |= {"gpus": gpus, "sums_per_step": sums.count, "bytes_reduced_per_step": sums.bytes_in_all}
    if measured is None:
        return found
    alone = prediction.measured(measured, name, str(plans[0].order))
    worlds = [world for world in prediction.GPUS if _fits(name, world)]
    return found | {"alone_ms": alone, "computed_ms": {str(world): on(world).step_ms(alone) for world in worlds}}


def _fits(name: str, world: int) -> bool:
    from diagonal.scale.parallel import check_tensor_parallel

    try:
        check_tensor_parallel(name, world)
    except ValueError:
        return False
    return True


def add_predicted(table: Table, found: dict[str, Any]) -> None:
    """The same as rows of a table."""
    if "gpus" in found:
        whole, count = found["bytes_reduced_per_step"], found["sums_per_step"]
        words = f"{whole / 1e6:.2f} MB a step, in {count} sums of {whole / count / 1e3:.0f} KB"
        table.add_row(f"all-reduced on {found['gpus']} GPUs", words)
    for world, computed in found.get("computed_ms", {}).items():
        table.add_row(f"computed for {world} GPUs", f"{computed:.2f} ms a step, {found['alone_ms'] / computed:.2f}x")
    if "alone_ms" in found:
        table.add_row("measured on one", f"{found['alone_ms']:.2f} ms a step; nothing was measured on several")
