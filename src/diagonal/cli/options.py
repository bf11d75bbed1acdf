"""Options of the commands as dataclasses. A command takes groups of them, and typer reads one flat signature:

    @dataclass(frozen=True, kw_only=True)
    class Drawing:
        panel: ClassVar[str] = "Sampling"
        seed: Annotated[int | None, typer.Option(help="Of sampling.")] = None

    @app.command()
    @flat
    def generate(drawing: Drawing) -> None: ...  # generate --seed 3

The fields of a group are shown together in `--help`, under its panel. What is None was not given: then the library's
own default holds, which stands nowhere here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from diagonal.planning.decoding import DEFAULT
from diagonal.planning.plan import Order, StandIn

if TYPE_CHECKING:
    from diagonal.media.video import VideoArray

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Lpips = Annotated[Path | None, typer.Option(help="LPIPS weights (safetensors); left out: no LPIPS.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]


class Group(Protocol):
    """A frozen dataclass of options; each field is annotated with its `typer.Option`."""

    panel: ClassVar[str]  # the heading in --help
    __dataclass_fields__: ClassVar[dict[str, Any]]


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its groups as parameters of its own, in the order of the groups."""
    groups = {name: hint for name, hint in get_type_hints(command).items() if name != "return"}
    parameters = [parameter for group in groups.values() for parameter in _parameters(group)]

    def run(**values: Any) -> None:
        built = {name: group(**{key: values[key] for key in _annotated(group)}) for name, group in groups.items()}
        command(**built)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(group: type[Group]) -> Iterator[inspect.Parameter]:
    defaults = {field.name: field.default for field in fields(group)}
    for name, hint in _annotated(group).items():
        kind, option = get_args(hint)
        option = copy(option)
        option.rich_help_panel = group.panel
        default = inspect.Parameter.empty if defaults[name] is MISSING else defaults[name]
        annotation = Annotated[kind, option]  # type: ignore[valid-type]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@cache
def _annotated(group: type[Group]) -> dict[str, Any]:
    """The type and the option of each field, by its name."""
    hints = get_type_hints(group, include_extras=True)
    return {field.name: hints[field.name] for field in fields(group)}


def given(*groups: Group) -> dict[str, str]:
    """The options that were given: names as they are typed, by field."""
    found = {}
    for group in groups:
        for field in fields(group):
            value = vars(group)[field.name]
            if value != field.default and value not in (None, [], ()):
                found[field.name] = _typed(field.name, get_args(_annotated(type(group))[field.name])[1])
    return found


def _typed(name: str, option: OptionInfo) -> str:
    declared = [option.default, *(option.param_decls or ())]
    first = next((one for one in declared if isinstance(one, str)), "--" + name.replace("_", "-"))
    return first.partition("/")[0]


def refuse(options: dict[str, str], why: str) -> None:
    """Options that were given but would have no effect are not taken silently."""
    if options:
        raise ValueError(f"{', '.join(options.values())} cannot go with {why}; leave it out")


def chosen(group: Group, *names: str) -> dict[str, Any]:
    """Those of these fields that are not None: for all others the library's defaults hold."""
    return {name: vars(group)[name] for name in names if vars(group)[name] is not None}


# Groups that several commands take.


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Where and in which dtype a model computes."""

    panel: ClassVar[str] = "Model"

    device: Device = "cpu"
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, or auto: what this machine computes fastest.")] = "auto"
    quantize: Annotated[
        str | None, typer.Option(help="int8 (token worlds): less memory; fp8: faster GEMMs on recent GPUs; or none.")
    ] = None

    @property
    def kind(self) -> str | None:
        """The kind of rows that weights are rounded to; None: they stay as they are."""
        return None if self.quantize == "none" else self.quantize


@dataclass(frozen=True, kw_only=True)
class WorldSource:
    """Which token world, and where its weights are."""

    panel: ClassVar[str] = "Model"

    model: Annotated[str, typer.Option(help="A token world from `diagonal models`.")] = "doom"
    weights: Annotated[
        str | None,
        typer.Option(help="Checkpoint file, folder or hub id; 'random': untrained. Default: the shipped ones."),
    ] = None
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint of the tokenizer, if it is apart.")] = None
    lora: Annotated[list[str] | None, typer.Option(help="Adapters of `finetune --lora` to merge; may be repeated.")] = (
        None
    )
    strict: Annotated[
        int | None,
        typer.Option(min=1, help="Inputs of every call: then lossless has raster's tokens in bfloat16 too. Try 64."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How pictures of another size are fitted into the frame."""

    panel: ClassVar[str] = "Prompt"

    resize: Annotated[bool, typer.Option("--resize", help="Stretch pictures to the frame size.")] = False
    crop: Annotated[bool, typer.Option("--crop", help="Scale them to cover the frame and cut their middle.")] = False

    def __post_init__(self) -> None:
        if self.resize and self.crop:
            raise ValueError("--resize and --crop both fit the prompt into the frame; give one")

    def fit(self, frames: VideoArray, size: tuple[int, int]) -> VideoArray:
        """The frames (T, H, W, 3) in this size, if either was asked for."""
        from diagonal.media.video import cover, resize

        return resize(frames, *size) if self.resize else cover(frames, *size) if self.crop else frames


@dataclass(frozen=True, kw_only=True)
class RowStarts:
    """What is fed where a row starts before the row above it is done."""

    panel: ClassVar[str] = "Schedule"

    stand_in: Annotated[
        StandIn | None, typer.Option(help="What is fed where a row starts before the row above is done.")
    ] = None
    refeed: Annotated[
        bool | None, typer.Option("--refeed/--no-refeed", help="Feed true row ends when they become known (default).")
    ] = None

    def order(self, schedule: str | None) -> Order:
        """The order of decoding under a schedule."""
        return replace(Order.of(schedule or DEFAULT), **chosen(self, "stand_in", "refeed"))
