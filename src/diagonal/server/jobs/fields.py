"""What a job may be asked for: the fields of a request, whether they came as a form or as JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diagonal.server.video_wire import Count, Prompt
from diagonal.server.wire import CODES, Number, RefusedError, Text, printable

Size = Annotated[str, Field(pattern=r"^[0-9]{1,5}x[0-9]{1,5}$", examples=["384x288"])]
Actions = Annotated[str, Field(max_length=100_000, examples=["forward*8,left*4"])]


class Fields(BaseModel):
    """A video that is asked for. What is None was not said; a field that is not listed here is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: Text | None = Field(None, description="One of `/v1/models`. Default: the first of them.")
    prompt: Prompt = Field("", description="What is to be seen. Of a world: its actions, such as 'forward*8,left*4'.")
    seconds: Annotated[float, Field(gt=0, le=100_000)] | None = Field(None, description="How long, or num_frames.")
    size: Size | None = Field(None, description="WIDTHxHEIGHT of the video, or width and height.")
    width: Count | None = None
    height: Count | None = None
    num_frames: Count | None = Field(None, description="All frames of a video; of a world the new ones.")
    seed: Number | None = Field(None, description="The same seed gives the same video. Default: a new one.")
    schedule: Text | None = Field(None, description="Of a world raster, diagonal:k=1, ...; else steps such as 4322222.")
    fit: Literal["crop", "resize"] | None = Field(None, description="How input_reference is fitted to the frames.")
    # Of worlds:
    start: Text | None = Field(None, description="A start view of a world.")
    actions: Actions | list[Text] | None = Field(None, description="Of a world, one for each new frame.")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Count | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    # Of diffusion models:
    negative_prompt: Prompt | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=100)] | None = None
    num_inference_steps: Annotated[int, Field(ge=1, le=100)] | None = None

    def given(self) -> dict[str, Any]:
        """What was said, as JSON."""
        return self.model_dump(exclude_defaults=True)


WORLD = ("start", "actions", "temperature", "top_k", "top_p")
DIFFUSION = ("negative_prompt", "guidance_scale", "num_inference_steps")


def checked(found: dict[str, Any]) -> Fields:
    """The fields, or the name of the first that is wrong. `extra_params` is a second place for any of them."""
    extra = found.pop("extra_params", None)
    if extra is not None:
        if not isinstance(extra, dict):
            raise FieldError("extra_params", "bad_value", "an object is needed")
        twice = sorted(set(extra) & set(found))
        if twice:
            raise FieldError(twice[0], "bad_value", "given twice: as a field and in extra_params")
        found = found | extra
    try:
        return Fields.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"][:1])
        code = CODES.get(first["type"], "bad_value")
        text = f"there is no such field; known: {', '.join(Fields.model_fields)}, input_reference"
        raise FieldError(name, code, text if code == "unknown_field" else first["msg"]) from error
    except RecursionError as error:
        raise FieldError("", "bad_value", "the request is nested too deeply") from error


class FieldError(RefusedError):
    """A field that is wrong; `param` is its name."""

    def __init__(self, param: str, code: str, why: str) -> None:
        self.param = printable(param[:100])
        super().__init__(code, f"{self.param}: {why}" if param else why)


class MissingError(FieldError):
    """What a field names is not there."""
