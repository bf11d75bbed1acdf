"""What a stream of video says of who made it. Credentials are a signature of a whole file, which a stream is not; so
it has a watermark in its frames, and its first message says what credentials would say, unsigned."""

from __future__ import annotations

from typing import Any

from diagonal.generation.origin import of_request
from diagonal.generation.request import Request
from diagonal.generation.video import VideoModel
from diagonal.media.provenance.watermark import LIVE
from diagonal.media.provenance.writing import Marking, watermark_statement
from diagonal.media.video import VideoArray


class StreamMarks:
    """Of one stream."""

    def __init__(self, model: VideoModel, request: Request, marking: Marking) -> None:
        self._origin, self._marking = of_request(model, request), marking
        self._watermark = marking.watermark_for(self._origin, from_text=True, every=LIVE)

    def mark(self, frames: VideoArray) -> VideoArray:
        """The next frames, marked."""
        return frames if self._watermark is None else self._watermark.mark(frames)

    def statement(self) -> dict[str, Any]:
        """What the first message says: that a machine makes this, which one, and how."""
        about = watermark_statement(self._watermark, from_text=True)
        said = self._origin.statement(self._marking.private) | {"watermark": about}
        return said | {"signed": False, "digital_source_type": "trainedAlgorithmicMedia"}
