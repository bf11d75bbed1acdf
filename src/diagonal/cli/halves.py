"""Which half a model belongs to: `generate` is for token worlds, `video` for diffusion models.

`generate` once did both. It still takes its old calls, says which command they are for now, and runs that one.
"""

from __future__ import annotations

from typing import Any

import typer

from diagonal.cli import app, err

GENERATE, VIDEO = "generate", "video"


def command_for(named: str, arguments: list[str]) -> str:
    """The command for the model that the arguments of `generate` or `video` name. Options of the other command are
    refused by their names."""
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    options = {name: _options(commands[name]) for name in (GENERATE, VIDEO)}
    given = _given(arguments, options[GENERATE] | options[VIDEO])
    if "--model" not in given and given.keys() <= options[named].keys():
        return named
    model = given.get("--model") or options[named]["--model"].default
    from diagonal.catalog.names import HF, find
    from diagonal.catalog.variants import DiffusionVariant

    diffusion = not model.startswith(HF) and isinstance(find("models", model), DiffusionVariant)
    right, other = (VIDEO, GENERATE) if diffusion else (GENERATE, VIDEO)
    foreign = [option for option in options[other] if option in given and option not in options[right]]
    if foreign:
        what = "which denoises latents" if diffusion else "which has tokens"
        raise ValueError(f"{', '.join(foreign)} cannot go with {model}, {what}; leave it out")
    if named == VIDEO and not diffusion:
        raise ValueError(f"{model} is a token world; write `diagonal generate --model {model}`")
    if right != named:
        err.print(f"[yellow]{model} is a diffusion model: its command is `diagonal {right} --model {model} ...`.[/]")
    return right


def _options(command: Any) -> dict[str, Any]:
    """The options of a command by all of their names, in the order of its --help."""
    return {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}


def _given(arguments: list[str], options: dict[str, Any]) -> dict[str, str]:
    """The options among these arguments, with their values; those that nobody knows are left to be refused later."""
    found, left = dict[str, str](), iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if name in options:
            found[name] = value if equals or options[name].is_flag else next(left, "")
    return found
