"""Distances between two sets of features (N, F), in float64.

`frechet` with the features of networks/inverse_dynamics.py is reported as `frechet_idm`, never as FVD.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def frechet(first: Tensor, second: Tensor, correction: int = 1) -> float:
    """The Frechet distance of the Gaussians that two sets of features (N, F) suggest. Their covariances are divided by
    N - correction."""
    if min(len(first), len(second)) < 2:
        raise ValueError(f"a Frechet distance needs 2 features on each side; there are {len(first)} and {len(second)}")
    return Reference.of(*moments(second, correction)).distance(*moments(first, correction))


def moments(features: Tensor, correction: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and covariance of features (N, F)."""
    wide = features.double().cpu()
    return wide.mean(0), torch.cov(wide.T, correction=correction)


@dataclass(frozen=True, slots=True)
class Reference:
    """A Gaussian that many distances are taken to: its mean, covariance, and the covariance's root, computed once."""

    mean_F: Tensor
    covariance_FF: Tensor
    root_FF: Tensor

    @classmethod
    def of(cls, mean_F: Tensor, covariance_FF: Tensor) -> Reference:
        values, vectors = torch.linalg.eigh(covariance_FF)
        return cls(mean_F, covariance_FF, vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T)

    def distance(self, mean_F: Tensor, covariance_FF: Tensor) -> float:
        """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), with m2 and C2 those of the reference."""
        # tr sqrt(C1 C2) = sum of the square roots of the eigenvalues of C2^(1/2) C1 C2^(1/2), which is symmetric.
        cross = torch.linalg.eigvalsh(self.root_FF @ covariance_FF @ self.root_FF).clamp(min=0).sqrt().sum()
        apart = (mean_F - self.mean_F).square().sum()
        return float(apart + covariance_FF.trace() + self.covariance_FF.trace() - 2 * cross)


def polynomial_mmd(
    first: Tensor, second: Tensor, degree: int = 2, constant: float = 0.0, unbiased: bool = False
) -> float:
    """The squared maximum mean discrepancy with the kernel (x.y / F + constant)^degree, means over all pairs; unbiased:
    within a set over pairs of different samples, so that equal sets are 0 on average.

    It needs far fewer samples than a covariance does.
    """
    one, two = first.double().cpu(), second.double().cpu()

    def kernel(x_NF: Tensor, y_MF: Tensor) -> Tensor:
        return ((x_NF @ y_MF.T) / x_NF.shape[1] + constant).pow(degree)

    def within(x_NF: Tensor) -> float:
        pairs = kernel(x_NF, x_NF)
        count = len(pairs)
        return float((pairs.sum() - pairs.trace()) / (count * (count - 1)) if unbiased else pairs.mean())

    return within(one) + within(two) - 2 * float(kernel(one, two).mean())
