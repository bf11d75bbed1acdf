"""What the server says of itself at /openapi.json."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 415, 429, 500, 503)


class Problem(BaseModel):
    """Why a request was refused."""

    message: str
    type: str
    code: str
    param: str | None


class Refusal(BaseModel):
    """All errors have this form, which is OpenAI's."""

    error: Problem


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": "Refused: its message says why."} for status in STATUSES
}


class Application(FastAPI):
    """FastAPI says of every route that wrong values are 422; here they are 400, in the form of all errors."""

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if self.openapi_schema is None:
            schema = super().openapi()
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(name, None)
        assert self.openapi_schema is not None
        return self.openapi_schema
