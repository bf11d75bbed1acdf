"""`diagonal models`: what can be loaded."""

from __future__ import annotations

from rich.table import Table

from diagonal.cli import app, err, out, print_json
from diagonal.cli.options import Json


@app.command()
def models(as_json: Json = False) -> None:
    """List the models that can be loaded, with the licence and the source of their weights."""
    import torch

    from diagonal.catalog.names import broken, find, listing
    from diagonal.catalog.variants import Variant

    for family, reason in broken("models").items():
        err.print(f"{family} cannot be imported and is left out: {reason}", markup=False)
    rows = []
    for name in listing("models"):
        variant, config = find("models", name), find("models", name).config
        tokens = isinstance(variant, Variant)  # a diffusion model takes any size, and a text instead of actions
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in config.build().parameters())
        rows.append(
            {
                "name": name,
                "parameters": size,
                "grid": f"{config.frames}x{config.rows}x{config.cols}" if tokens else "any",
                "actions": variant.actions if tokens else "prompt",
                "licence": variant.licence,
                "source": variant.source,
                "card": variant.card or None,
            }
        )
    if as_json:
        print_json(rows)
        return
    table = Table("model", "parameters", "grid", "actions", "licence", "weights", box=None)
    table.columns[0].no_wrap = True
    for row in rows:
        size = f"{row['parameters'] / 1e6:,.1f} M"
        table.add_row(row["name"], size, row["grid"], row["actions"], row["licence"], row["source"])
    out.print(table)
    cards = ", ".join(row["card"] for row in rows if row["card"])
    out.print(f"[dim]model cards of what is shipped: {cards}; what to use them for: RESPONSIBLE_USE.md[/]")
