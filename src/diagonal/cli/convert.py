"""`diagonal convert`: a published checkpoint becomes a folder of safetensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, out, print_json, progress_bar
from diagonal.cli.options import Json, chosen, flat, given, refuse


@dataclass(frozen=True, kw_only=True)
class Published:
    """What is read."""

    panel: ClassVar[str] = "Model"

    model: Annotated[str, typer.Option(help="A name from `diagonal models`.")]
    weights: Annotated[str, typer.Option(help="Checkpoint file, folder or hub id.")]


@dataclass(frozen=True, kw_only=True)
class WorldParts:
    """Parts of token worlds."""

    panel: ClassVar[str] = "Token worlds"

    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint of the tokenizer, if it is apart.")] = None


@dataclass(frozen=True, kw_only=True)
class VideoParts:
    """Parts of diffusion models."""

    panel: ClassVar[str] = "Diffusion models"

    vae: Annotated[str | None, typer.Option(help="The VAE, if it is apart; 'none' for none.")] = None
    lora: Annotated[list[str] | None, typer.Option(help="A LoRA to merge; may be repeated.")] = None
    part: Annotated[str | None, typer.Option(help="Of a .pt: generator, generator_ema, ...")] = None


@dataclass(frozen=True, kw_only=True)
class Written:
    """What is written."""

    panel: ClassVar[str] = "Output"

    out_path: Annotated[Path, typer.Option("--out", help="Folder to write; it must hold no checkpoint.")]
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float32, or auto (default): as it is stored.")] = None
    as_json: Json = False


@app.command()
@flat
def convert(published: Published, world: WorldParts, video: VideoParts, target: Written) -> None:
    """Read a checkpoint strictly and write model and tokenizer as safetensors: `--weights FOLDER` then loads them."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.checkpoints import check_free, files
    from diagonal.generation.components import Weights
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.load import load, load_video_model
    from diagonal.generation.video import VideoModel
    from diagonal.generation.world import World

    model, weights, out_path, dtype = published.model, published.weights, target.out_path, target.dtype
    # All that can be refused is refused before a large model is loaded.
    check_free(out_path)
    wanted = None if dtype in (None, "auto") else find_dtype(dtype, "cpu")
    # With no dtype to convert to, what is stored stays mapped from its file, and shards are converted one by one.
    if isinstance(find("models", model), DiffusionVariant):
        refuse(given(world), model)
        source = Weights(weights, **chosen(video, "vae", "lora", "part"))
        made: World | VideoModel = load_video_model(model, source, dtype=None)
    else:
        refuse(given(video), f"{model}, which has tokens")
        made = load(model, weights, tokenizer=world.tokenizer, dtype=None)
    modules = (made.model, made.tokenizer if isinstance(made, World) else made.vae)
    tensors = [tensor for module in filter(None, modules) for tensor in module.state_dict().values()]
    with progress_bar("files") as progress:
        task = progress.add_task(model, total=None, note="")
        made.save_pretrained(out_path, wanted, lambda done, total: progress.update(task, completed=done, total=total))
    written = files(out_path)
    dtypes = {str(wanted or tensor.dtype).removeprefix("torch.") for tensor in tensors}
    result = {
        "model": model,
        "out": str(out_path),
        "files": [file.name for file in written],
        "parameters": sum(tensor.numel() for tensor in tensors),
        "bytes": sum(file.stat().st_size for file in written),
        "dtype": ", ".join(sorted(dtypes)),
    }
    if target.as_json:
        print_json(result)
        return
    table = Table("model", "files", "parameters", "GB", "dtype", box=None)
    size = f"{result['bytes'] / 1e9:.2f}"
    table.add_row(model, f"{len(written)}", f"{result['parameters']:,}", size, f"{result['dtype']}")
    out.print(table)
    out.print(f"in {out_path}; load it with --weights {out_path}", markup=False)
