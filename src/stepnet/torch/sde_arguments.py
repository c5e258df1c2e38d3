"""Validation of the arguments of `sdeint`: the state, times and steps, the Brownian motion, options."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, inf, isfinite
from typing import Any

import torch
from torch import Tensor

from stepnet.engines.torch_engine import CalledNoise, NoiseSource, PathNoise, TensorNoise, build_from_constants
from stepnet.errors import UnknownName
from stepnet.noise import NoiseGrid
from stepnet.noise.grid import DEFAULT_LEVELS
from stepnet.records import validate_number
from stepnet.schemes.step_program import ELEMENTWISE, MATRIX, SCALAR
from stepnet.torch.brownian_motion import BrownianInterval, draw_seed
from stepnet.torch.options import validate_dict
from stepnet.torch.sde_functions import SDEFunctions

KINDS = {"diagonal": ELEMENTWISE, "scalar": SCALAR}
OPTIONS = ("grad_free",)
MOST_STEPS = 10**8
MOST_PLAIN = 2**53
ULPS = 8  # units in the last place, per step, by which times may differ from multiples of dt


def find_kind(noise: str) -> str:
    """How a diffusion is multiplied by noise of a type."""
    return KINDS.get(noise, MATRIX)


def validate_state(y0: Any) -> Tensor:
    """Return the initial state, (batch, n)."""
    if not isinstance(y0, Tensor):
        raise TypeError(f"`y0` must be a tensor (batch, n), found {type(y0).__name__}")
    if y0.ndim != 2 or 0 in y0.shape:
        raise ValueError(f"`y0` must have the shape (batch, n), found {tuple(y0.shape)}")
    if not y0.is_floating_point():
        raise TypeError(f"`y0` must hold real floating-point numbers, found {y0.dtype}")
    return y0


def read_save_times(ts: Any) -> tuple[list[float], float]:
    """Times as numbers, strictly increasing, and their relative resolution."""
    if isinstance(ts, Tensor):
        if ts.ndim != 1 or ts.is_complex() or ts.dtype == torch.bool:
            raise ValueError(f"`ts` must be times with one dimension, found {ts.dtype} of shape {tuple(ts.shape)}")
        if ts.requires_grad:
            raise ValueError("`ts` must not require a gradient: solutions of stochastic equations have none in time")
        times, eps = ts.tolist(), torch.finfo(ts.dtype).eps if ts.is_floating_point() else 0.0
    elif isinstance(ts, (list, tuple)):
        times, eps = [_read_number("ts", t) for t in ts], torch.finfo(torch.float64).eps
    else:
        raise TypeError(f"`ts` must be a tensor or a list of times, found {type(ts).__name__}")
    if not times or not all(map(isfinite, times)):
        raise ValueError(f"`ts` must hold at least one time, and finite ones, found {times[:6]}")
    if any(a >= b for a, b in pairwise(times)):
        raise ValueError(f"`ts` must be strictly increasing, found {times[:6]}")
    return [float(t) for t in times], eps


def validate_positive(name: str, value: Any) -> float:
    """Return a positive number, also from a tensor with one."""
    if isinstance(value, Tensor):
        if value.requires_grad or value.numel() != 1:
            raise ValueError(f"`{name}` must be one number without a gradient, found {tuple(value.shape)}")
        value = value.item()
    found = _read_number(name, value)
    if not 0 < found < inf:
        raise ValueError(f"`{name}` must be positive and finite, found {found:g}")
    return found


def _read_number(name: str, value: Any) -> float:
    """Return a number; compilers do not trace the validation of other types."""
    is_plain = type(value) is float or (type(value) is int and abs(value) < MOST_PLAIN)
    return float(value) if is_plain else validate_number(name, value, "[-inf, inf]")


def build_nodes(times: list[float], dt: float, eps: float) -> tuple[list[float], list[float], float]:
    """The ends of steps of size dt, the last one shorter, save times moved to them by rounding, and the end of the last
    step if it were not shorter.
    """
    t0, t1 = times[0], times[-1]
    if len(times) == 1:
        return times, times, t0
    if (t1 - t0) / dt > MOST_STEPS:
        raise ValueError(
            f"`dt` must be at least {(t1 - t0) / MOST_STEPS:g} for times from {t0:g} to {t1:g}, found {dt:g}"
        )
    scale = ULPS * eps * max(abs(t0), abs(t1)) / dt
    n = max(1, ceil((t1 - t0) / dt - scale))
    is_whole = abs(n - (t1 - t0) / dt) <= scale + 1e-9 * n
    h = (t1 - t0) / n if is_whole else dt
    nodes = [*[t0 + k * h for k in range(n)], t1]
    moved = []
    for t in times:
        k = min(n, max(0, round((t - t0) / h)))
        moved.append(nodes[k] if abs(nodes[k] - t) <= (scale + 1e-9) * h else t)
    return nodes, moved, t1 if is_whole else t0 + n * h


def validate_sde_options(options: Any) -> bool:
    """Whether a Milstein scheme is to be derivative-free, the only option."""
    found = validate_dict("options", options)
    for name in found:
        if name not in OPTIONS:
            raise UnknownName("option of `sdeint`", name, OPTIONS)
    value = found.get("grad_free", False)
    if not isinstance(value, bool):
        raise TypeError(f"`grad_free` in `options` must be True or False, found {value!r:.60}")
    return value


# ---- noise ----------------------------------------------------------------------------------------------------------


def count_components(sde: SDEFunctions, y0: Tensor, t0: float, bm: Any) -> int:
    """The components of the noise: from its type, from `bm`, or from a call of the diffusion."""
    shape = None if bm is None else _validate_motion(bm, y0)
    if sde.noise in KINDS:
        m = y0.shape[1] if sde.noise == "diagonal" else 1
        if shape is not None and shape[1] != m:
            raise ValueError(f"`bm` must have the shape ({len(y0)}, {m}) for {sde.noise} noise, found {tuple(shape)}")
        return m
    if shape is not None:
        return shape[1]
    t = torch.full((), t0, dtype=y0.dtype, device=y0.device)
    if sde.g is None and sde.f_and_g is None:
        raise ValueError("`bm` must be given where `sde` has no `g`, to know the number of components of the noise")
    with torch.no_grad():
        g = sde.g(t, y0) if sde.g is not None else sde.f_and_g(t, y0)[1]  # type: ignore[misc]
    if not isinstance(g, Tensor) or g.ndim != 3 or g.shape[:2] != y0.shape or g.shape[2] == 0:
        found = tuple(g.shape) if isinstance(g, Tensor) else type(g).__name__
        raise ValueError(
            f"`g` must return the shape ({len(y0)}, {y0.shape[1]}, m) for {sde.noise} noise, found {found}; "
            "for one value per entry of the state use noise_type='diagonal'"
        )
    return g.shape[2]


def _validate_motion(bm: Any, y0: Tensor) -> Any:
    if isinstance(bm, type) or not callable(bm) or not hasattr(bm, "shape"):
        raise TypeError(f"`bm` must be a Brownian motion: bm(ta, tb) with `shape`, found {type(bm).__name__}")
    if len(bm.shape) != 2 or bm.shape[0] != len(y0):
        raise ValueError(f"`bm` must have the shape ({len(y0)}, components), found {tuple(bm.shape)}")
    return bm.shape


def build_source(bm: Any, nodes: list[float], end: float, y0: Tensor, n_components: int, is_adaptive: bool) -> Any:
    """A function from the ends of steps to the source of their noise."""
    if bm is None:
        grid = _build_grid(nodes[0], end, 1 if is_adaptive else len(nodes) - 1)
        noise = TensorNoise(grid, draw_seed(y0), torch.arange(len(y0), device=y0.device), n_components)
    elif isinstance(bm, BrownianInterval):
        noise = bm.noise
        _require_inside(noise.grid, nodes, torch.finfo(bm.dtype).eps)
    else:
        return lambda nodes: CalledNoise(bm)
    is_conditional = getattr(bm, "levy_area_approximation", "foster") != "davie"
    t0, t1 = noise.grid.t_span

    def find_source(nodes: list[float] | None) -> NoiseSource:
        inside = None if nodes is None else [min(max(t, t0), t1) for t in nodes]
        return PathNoise(noise, inside, is_conditional)

    return find_source


@build_from_constants
def _build_grid(t0: float, t1: float, cells: int) -> NoiseGrid:
    return NoiseGrid((t0, t1), cells, DEFAULT_LEVELS)


def _require_inside(grid: NoiseGrid, nodes: list[float], eps: float) -> None:
    """Refuse times outside the Brownian motion, up to its resolution."""
    t0, t1 = grid.t_span
    slack = ULPS * eps * max(abs(t0), abs(t1))
    if nodes[0] < t0 - slack or nodes[-1] > t1 + slack:
        raise ValueError(
            f"`ts` must be within the interval [{t0:g}, {t1:g}] of `bm`, found {nodes[0]:g} to {nodes[-1]:g}"
        )
