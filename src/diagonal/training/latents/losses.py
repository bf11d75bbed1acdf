"""The terms of Diagonal Distillation's objective, as functions of tensors. What computes the tensors is not known here.

Latents are (B, F, C, H, W). `x` is what the generator made and the only thing that carries gradient; `real` and `fake`
are the clean latents that the teacher and the critic see in a noised copy of it.

A motion is a function from a video to how it moves: the difference of consecutive latents (`differences`), or a field
of displacements (`flow_field`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Motion = Callable[[Tensor], Tensor]
# Of latents with unit variance: added where a patch has too little structure to say in which direction it moved.
STIFFNESS = 0.01
REACH = 5  # cells along each side of the patches whose displacement is asked for


@dataclass(frozen=True, slots=True)
class LossWeights:
    """The weights of eq. 12: spatial * DMD + regression + motion * (flow * DMD of the flow + regression of the flow).

    The paper gives the two regressions the weight 1; they need videos of the teacher's own, and 0 does without.
    """

    spatial: float = 1.0  # lambda_spatial
    regression: float = 1.0
    motion: float = 1.0  # gamma
    flow: float = 1.0  # lambda_flow
    flow_regression: float = 1.0

    def __post_init__(self) -> None:
        values = (self.spatial, self.regression, self.motion, self.flow, self.flow_regression)
        if not all(0 <= value < float("inf") for value in values) or not any(values):
            raise ValueError(f"{self} given; weights must be 0 or more, and one of them above 0")

    def factors(self) -> dict[str, float]:
        """What each term is multiplied with; terms that do not count are left out."""
        every = {
            "dmd": self.spatial,
            "regression": self.regression,
            "flow_dmd": self.motion * self.flow,
            "flow_regression": self.motion * self.flow_regression,
        }
        return {name: factor for name, factor in every.items() if factor}


def total(terms: Mapping[str, Tensor], weights: LossWeights) -> Tensor:
    """Eq. 12, of exactly the terms that count."""
    factors = weights.factors()
    if terms.keys() != factors.keys():
        raise ValueError(f"terms {sorted(terms)} given; the weights count {sorted(factors)}")
    return torch.stack([factor * terms[name] for name, factor in factors.items()]).sum()


def flow_matching(velocity: Tensor, noise: Tensor, clean: Tensor) -> Tensor:
    """E |v - (noise - x0)|^2: what teaches a model the velocity of x_t = (1 - s) x0 + s noise."""
    return F.mse_loss(velocity, noise - clean)


def guided(with_it: Tensor, without: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: 1 is the prompt alone. The released code's w is a scale of w + 1."""
    return without + scale * (with_it - without)


def dmd_gradient(x: Tensor, real: Tensor, fake: Tensor) -> Tensor:
    """The direction of eq. 2 in terms of clean latents, (fake - real) / mean |x - real|, each sample by itself.

    Where x is the real video to the bit, 0 / 0 counts as 0, as in the released code.
    """
    for what, given in (("teacher", real), ("critic", fake)):
        if not bool(torch.isfinite(given).all()):
            raise ValueError(f"the {what} answered NaN or infinite; its weights or the latents are damaged")
    scale = (x - real).abs().flatten(1).mean(1).reshape(-1, *[1] * (x.ndim - 1))
    return torch.nan_to_num((fake - real) / scale)


def pull(x: Tensor, gradient: Tensor) -> Tensor:
    """A loss whose gradient is `gradient` over the number of entries: 0.5 * MSE(x, x - gradient), the latter fixed."""
    x = x.double()
    return 0.5 * F.mse_loss(x, (x - gradient.double()).detach())


def dmd(x: Tensor, real: Tensor, fake: Tensor) -> Tensor:
    """Distribution Matching Distillation (eq. 2): fewer of what the critic thinks likelier than the teacher does."""
    return pull(x, dmd_gradient(x.detach(), real, fake))


def flow_dmd(x: Tensor, real: Tensor, fake: Tensor, motion: Motion) -> Tensor:
    """Flow Distribution Matching (eq. 8 to 10): the same for motions. The gradient reaches x through its motion."""
    return dmd(motion(x), motion(real), motion(fake))


def regression(x: Tensor, teacher: Tensor) -> Tensor:
    """Eq. 3 with the squared distance: x against what the teacher made of the same noise."""
    return F.mse_loss(x.double(), teacher.double())


def flow_regression(x: Tensor, teacher: Tensor, motion: Motion) -> Tensor:
    """Eq. 11: the motion of x against that of the teacher's video."""
    return regression(motion(x), motion(teacher))


def differences(x: Tensor) -> Tensor:
    """How latents change from frame to frame, (B, F - 1, C, H, W)."""
    return x[:, 1:] - x[:, :-1]


def flow_field(x: Tensor) -> Tensor:
    """Displacements (B, F - 1, 2, H, W) in cells, down and to the right, by the method of Lucas and Kanade (1981).

    Brightness constancy, g . d + dx/dt = 0 with g the spatial gradient, is solved for d by least squares over all
    channels of a patch: (S + stiffness) d = -b with S = mean g g^T and b = mean g dx/dt. Good for displacements of
    about a cell, which is what latents move by; smooth in x everywhere, so that gradients are.
    """
    middle, change = (x[:, 1:] + x[:, :-1]) / 2, differences(x)
    down, right = _slope(middle, -2), _slope(middle, -1)
    dd, rr, dr, dt, rt = (
        _patches((one * other).mean(2))
        for one, other in ((down, down), (right, right), (down, right), (down, change), (right, change))
    )
    dd, rr = dd + STIFFNESS, rr + STIFFNESS
    area = dd * rr - dr.square()
    return torch.stack([dr * rt - rr * dt, dr * dt - dd * rt], dim=2) / area[:, :, None]


def _slope(x: Tensor, side: int) -> Tensor:
    """Central differences; one-sided at the edges."""
    size = x.shape[side]
    index = torch.arange(size, device=x.device)
    after, before = (index + 1).clamp(max=size - 1), (index - 1).clamp(min=0)
    width = (after - before).clamp(min=1).to(x.dtype).reshape([-1] + [1] * (-side - 1))
    return (x.index_select(side, after) - x.index_select(side, before)) / width


def _patches(x_BFHW: Tensor) -> Tensor:
    """Means over the patch around each cell, as far as it lies inside."""
    return F.avg_pool2d(x_BFHW, REACH, stride=1, padding=REACH // 2, count_include_pad=False)


MOTIONS: dict[str, Motion] = {"difference": differences, "field": flow_field}
