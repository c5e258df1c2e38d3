"""Losses of neural SDEs that compare sets of paths, or paths under two equations."""

from __future__ import annotations

import torch
from torch import Tensor

from stepnet.validation import check, instance, real


def _validate_samples(name: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[-2] < 2:
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"`{name}` must be a tensor (..., samples, n) with at least two samples, found {found}")
    return value


@check(samples=_validate_samples, data=_validate_samples)
def moment_matching(samples: Tensor, data: Tensor) -> Tensor:
    """|m - m'|^2 + |C - C'|^2 for the means and covariances of two sets of states, averaged over times.

    Parameters
    ----------
    samples, data : tensor
        States (..., samples, n) of the model and of the data, such as (times, batch, n); the numbers of samples may
        differ.

    Returns
    -------
    tensor
        One number.

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> y = torch.randn(5, 100, 2)
    >>> bool(snt.moment_matching(y, y) == 0)
    True
    """
    if samples.shape[:-2] != data.shape[:-2] or samples.shape[-1] != data.shape[-1]:
        raise ValueError(
            f"`samples` and `data` must have the same times and entries, found {tuple(samples.shape)} and "
            f"{tuple(data.shape)}"
        )
    (m, C), (m_data, C_data) = _find_moments(samples), _find_moments(data)
    return ((m - m_data).square().sum(-1) + (C - C_data).square().sum((-2, -1))).mean()


def _find_moments(y: Tensor) -> tuple[Tensor, Tensor]:
    rest = y - y.mean(-2, keepdim=True)
    return y.mean(-2), rest.mT @ rest / (y.shape[-2] - 1)


@check(ys=instance(Tensor), data=instance(Tensor), log_ratio=instance(Tensor), scale=real("(0, inf)"),
       weight=real("[0, inf)"))  # fmt: skip
def negative_elbo(ys: Tensor, data: Tensor, log_ratio: Tensor, scale: float = 1.0, weight: float = 1.0) -> Tensor:
    """The negative evidence lower bound of a latent SDE: -E log p(data | paths) + weight KL(posterior | prior).

    The observations are those of the states with normal errors; the divergence of the laws of the paths is the mean of
    int |u|^2 / 2 dt with g u = f - h (X. Li et al. 2020, AISTATS, Scalable gradients for stochastic differential
    equations).

    Parameters
    ----------
    ys, data : tensor
        Observed states of the paths of the posterior, decoded if necessary, and the observations: (times, batch, n).
    log_ratio : tensor
        (times - 1, batch), the second result of `sdeint(..., logqp=True)`.
    scale : float
        The standard deviation of the errors of observations.
    weight : float
        Factor of the divergence; it may grow from 0 to 1 during training.

    Returns
    -------
    tensor
        One number, for one sample of the batch.

    Raises
    ------
    ValueError
        If `ys` and `data` have different shapes, or `log_ratio` another batch.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> y = torch.zeros(3, 10, 1)
    >>> snt.negative_elbo(y, y, torch.ones(2, 10)).round(decimals=3)
    tensor(4.7570)
    """
    if ys.shape != data.shape or ys.ndim != 3:
        raise ValueError(
            f"`ys` and `data` must have one shape (times, batch, n), found {tuple(ys.shape)} and {tuple(data.shape)}"
        )
    if log_ratio.ndim != 2 or log_ratio.shape[1] != ys.shape[1]:
        raise ValueError(
            f"`log_ratio` must have the shape (times - 1, batch) with a batch of {ys.shape[1]}, found "
            f"{tuple(log_ratio.shape)}"
        )
    likelihood = torch.distributions.Normal(ys, scale).log_prob(data).sum((0, 2)).mean()
    return weight * log_ratio.sum(0).mean() - likelihood
