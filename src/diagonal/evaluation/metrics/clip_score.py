"""CLIP score (Hessel et al., 2021): 100 max(0, cosine) of a frame's and the prompt's features, the mean over frames.

Frames are shown to CLIP as VBench shows them. It is none of VBench's text dimensions, which look through ViCLIP.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.evaluation.metrics import (
    About,
    Beside,
    Metric,
    Setting,
    UnfitError,
    Video,
    WeightsFile,
    aesthetic_quality,
    background_consistency,
)
from diagonal.evaluation.statistics import FloatArray
from diagonal.networks import clip
from diagonal.networks.opening import opened
from diagonal.text import clip_words

MERGES = WeightsFile("bpe_simple_vocab_16e6.txt.gz", "https://github.com/openai/CLIP (clip/, in the repository itself)")
TOWERS = {"b32": (clip.B32, background_consistency.WEIGHTS), "l14": (clip.L14, aesthetic_quality.WEIGHTS)}


class ClipScore(Metric):
    """How well frames and prompt go together, 0 to 100; about 20 to 35 for pictures that fit."""

    about = About(
        "Hessel et al., CLIPScore, 2021; Radford et al., CLIP, 2021",
        beside=Beside.PROMPT,
        variants=tuple(TOWERS),
        files=(MERGES,),
        own_files={name: (file,) for name, (_, file) in TOWERS.items()},
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        config, file = TOWERS[setting.variant]
        path = setting.path(file)
        self.words = clip_words.load(setting.path(MERGES))
        self.pictures = opened(config.build, path, setting.device)
        self.texts = opened(config.text.build, path, setting.device)
        self.feature = cache(self._feature)

    @torch.inference_mode()
    def look(self, made: Video, true: Video | None) -> FloatArray:
        assert made.prompt is not None
        text_F = self.feature(made.prompt)
        shown = [background_consistency.shown(part.to(self.setting.device)) for part in made.frames_TCHW.split(8)]
        frames_TF = torch.cat([F.normalize(self.pictures(part), dim=-1) for part in shown])
        scores: FloatArray = (100 * (frames_TF @ text_F).clamp(min=0)).cpu().double().numpy()
        return scores

    def _feature(self, prompt: str) -> Tensor:
        try:
            numbers = torch.tensor([self.words.encode(prompt)], device=self.setting.device)
        except ValueError as error:
            raise UnfitError(str(error)) from error
        return F.normalize(self.texts(numbers)[0], dim=-1)
