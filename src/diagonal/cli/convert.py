"""`diagonal convert`: a published checkpoint becomes a folder of safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from diagonal.cli import Json, app, out, print_json, progress_bar, refuse


@app.command()
def convert(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A name from `diagonal models`.")],
    weights: Annotated[str, typer.Option(help="Checkpoint file, folder or hub id.")],
    out_path: Annotated[Path, typer.Option("--out", help="Folder to write; it must hold no checkpoint.")],
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint of the tokenizer, if it is apart.")] = None,
    vae: Annotated[str | None, typer.Option(help="VAE of a diffusion model, if apart; 'none' for none.")] = None,
    lora: Annotated[list[str] | None, typer.Option(help="A LoRA to merge into a diffusion model.")] = None,
    part: Annotated[str | None, typer.Option(help="Of a .pt of one: generator, generator_ema, ...")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float32, or auto: as it is stored.")] = "auto",
    as_json: Json = False,
) -> None:
    """Read a checkpoint strictly and write model and tokenizer as safetensors: `--weights FOLDER` then loads them."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.checkpoints import check_free, files
    from diagonal.generation.components import Weights
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.load import load, load_video_model
    from diagonal.generation.video import VideoModel
    from diagonal.generation.world import World

    # All that can be refused is refused before a large model is loaded.
    check_free(out_path)
    wanted = None if dtype == "auto" else find_dtype(dtype, "cpu")
    # With no dtype to convert to, what is stored stays mapped from its file, and shards are converted one by one.
    if isinstance(find("models", model), DiffusionVariant):
        refuse(context, ("tokenizer",), model)
        source = Weights(weights, vae=vae, lora=lora or (), part=part)
        made: World | VideoModel = load_video_model(model, source, dtype=None)
    else:
        refuse(context, ("vae", "lora", "part"), f"{model}, which has tokens")
        made = load(model, weights, tokenizer=tokenizer, dtype=None)
    modules = (made.model, made.tokenizer if isinstance(made, World) else made.vae)
    tensors = [tensor for module in filter(None, modules) for tensor in module.state_dict().values()]
    with progress_bar("files") as progress:
        task = progress.add_task(model, total=None, note="")
        made.save_pretrained(out_path, wanted, lambda done, total: progress.update(task, completed=done, total=total))
    written = files(out_path)
    dtypes = {str(wanted or tensor.dtype).removeprefix("torch.") for tensor in tensors}
    numbers = {
        "model": model,
        "out": str(out_path),
        "files": [file.name for file in written],
        "parameters": sum(tensor.numel() for tensor in tensors),
        "bytes": sum(file.stat().st_size for file in written),
        "dtype": ", ".join(sorted(dtypes)),
    }
    if as_json:
        print_json(numbers)
        return
    table = Table("model", "files", "parameters", "GB", "numbers", box=None)
    size = f"{numbers['bytes'] / 1e9:.2f}"
    table.add_row(model, f"{len(written)}", f"{numbers['parameters']:,}", size, f"{numbers['dtype']}")
    out.print(table)
    out.print(f"in {out_path}; load it with --weights {out_path}", markup=False)
