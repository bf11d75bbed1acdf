"""Do clips of Doom show what their captions say? Our own network reads them; a caption is understood word by word.

scenario      share of clips that play where the caption says
first_motion  share whose first motion is the caption's
motions       share whose motions are all those of the caption, in their order
"""

from __future__ import annotations

import numpy as np
import torch

from diagonal.evaluation.metrics import About, Beside, Metric, Setting, UnfitError, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray
from diagonal.networks.caption_reader import Answers, Config, read, right
from diagonal.networks.opening import opened
from diagonal.worlds.captions import understood

WEIGHTS = WeightsFile(
    "reader.safetensors", "our own: benchmarks/distillation.py trains it, RUN/reader/model.safetensors"
)


class CaptionAgreement(Metric):
    """Share of clips that show what their captions say, for prompts in the words of `doom-t2v` alone."""

    about = About(
        "our own",
        beside=Beside.PROMPT,
        variants=("motions", "first_motion", "scenario"),
        files=(WEIGHTS,),
        frames=6,
        side=64,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(Config().build, setting.path(WEIGHTS), setting.device)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        assert made.prompt is not None
        try:
            told = Answers.of([understood(made.prompt)], self.setting.device)
        except ValueError as error:
            raise UnfitError(str(error)) from error
        seen = read(self.network, made.frames_TCHW[None].to(self.setting.device))
        return np.array([float(torch.as_tensor(right(seen, told)[self.setting.variant])[0])])
