"""VBench's aesthetic quality: LAION's linear head on the normalised features of CLIP ViT-L/14, divided by 10."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from diagonal.evaluation.metrics import About, Metric, Setting, Video, WeightsFile
from diagonal.evaluation.metrics.background_consistency import shown
from diagonal.evaluation.statistics import FloatArray
from diagonal.networks import clip
from diagonal.networks.opening import opened

WEIGHTS = WeightsFile("ViT-L-14.pt", "https://github.com/openai/CLIP (clip/clip.py names the address)")
HEAD = WeightsFile("sa_0_4_vit_l_14_linear.pth", "https://github.com/LAION-AI/aesthetic-predictor")


class AestheticQuality(Metric):
    """How much people would like the frames, about 0 to 1."""

    about = About("Huang et al., VBench, 2024; LAION aesthetic predictor", files=(WEIGHTS, HEAD))

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        head = setting.path(HEAD)
        self.network = opened(clip.L14.build, setting.path(WEIGHTS), setting.device)
        self.head = opened(clip.AestheticHead, head, setting.device)

    @torch.inference_mode()
    def look(self, made: Video, true: Video | None) -> FloatArray:
        scores = []
        for part in made.frames_TCHW.split(8):
            scores.append(self.head(F.normalize(self.network(shown(part.to(self.setting.device))), dim=-1))[:, 0])
        found: FloatArray = (torch.cat(scores) / 10).cpu().double().numpy()
        return found
