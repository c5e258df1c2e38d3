"""The options of `odeint`: which there are, and what they may be."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil, inf, isfinite

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators.explicit_rk import error_power
from stepnet.engines.torch_engine.integrators.step_control import ControlSettings
from stepnet.errors import UnknownName
from stepnet.records import validate_number
from stepnet.schemes.conditions import is_pair
from stepnet.schemes.controllers import I, controller
from stepnet.torch.states import TensorProblem

BOTH = ("field_dtype", "norm")
FIXED = ("step_size", "grid_constructor", "interp", "perturb", *BOTH)
ADAPTIVE = (
    "first_step", "min_step", "max_step", "max_num_steps", "step_t", "jump_t", "grid_points", "eps", "controller",
    "safety", "ifactor", "dfactor", "dtype", *BOTH,
)  # fmt: skip


EVENT = ("max_num_steps", "t_max")
"""Options of the search for an event."""

MAX_STEPS = 100_000
"""Attempts from one time of `t` to the next, or to an event, unless `max_num_steps` says otherwise."""

SHARED = ("step_t", "jump_t", "grid_points", "eps", "min_step")
"""Options of steps that are the same for a whole batch."""


def is_fixed(scheme, options: dict) -> bool:
    """Whether steps are given: for a scheme without an error estimate, or where a step size or a grid is."""
    return not is_pair(scheme) or "step_size" in options or "grid_constructor" in options


def checked_dict(name: str, options) -> dict:
    """A dictionary; None stands for an empty one."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise TypeError(f"`{name}` must be a dictionary, found {type(options).__name__}")
    return options


def validate_options(scheme, options, *more: str) -> dict:
    """The options, every one of them known to this kind of steps, or among some more."""
    options = checked_dict("options", options)
    known = FIXED if is_fixed(scheme, options) else ADAPTIVE
    for name in options:
        if name not in (*known, *more):
            kind = "given steps" if known is FIXED else "adaptive steps"
            raise UnknownName(f"option for the {kind} of {scheme.name}", name, (*known, *more))
    if "step_size" in options and "grid_constructor" in options:
        raise ValueError("`step_size` and `grid_constructor` exclude each other; leave one of them out")
    if options.get("interp", "linear") not in ("linear", "cubic"):
        raise UnknownName("interpolation", options["interp"], ("linear", "cubic"))
    return options


def read_numbers(t: Tensor) -> list[float]:
    """Times as numbers, strictly monotone."""
    times = t.tolist()
    if not all(map(isfinite, times)):
        raise ValueError(f"`t` must be finite, found {times[:6]}; for a solve of unknown length take `odeint_event`")
    steps = [b - a for a, b in pairwise(times)]
    if not (all(step > 0 for step in steps) or all(step < 0 for step in steps)):
        raise ValueError(f"`t` must be strictly increasing or decreasing, found {times[:6]}")
    return times


def validate_times(t) -> Tensor:
    """Times of any number: a tensor with one dimension."""
    if not isinstance(t, Tensor):
        raise TypeError(f"`t` must be a tensor of times, found {type(t).__name__}")
    if t.ndim != 1 or len(t) == 0 or not t.is_floating_point():
        raise ValueError(f"`t` must be floating-point with one dimension, found {t.dtype} of shape {tuple(t.shape)}")
    return t


def move_times(t: Tensor, device: torch.device) -> Tensor:
    """Times on the device of the state."""
    if t.is_meta and device.type != "meta":
        raise ValueError(f"`t` must be on {device}, where `y0` is, or hold numbers elsewhere, found {t.device}")
    return t.to(device)


def build_even_grid(times: list[float], step_size) -> list[float]:
    """Steps of one size from the first time on, the last one shorter, as torchdiffeq has them."""
    h = float(step_size)
    if not h > 0:
        raise ValueError(f"`step_size` must be positive, found {step_size}")
    span = times[-1] - times[0]
    n = ceil(abs(span) / h)
    signed = h if span > 0 else -h
    return [*(times[0] + i * signed for i in range(n)), times[-1]]


def build_control_settings(posed: TensorProblem, scheme, rtol, atol, options: dict) -> ControlSettings:
    """Tolerances and controller; `safety`, `ifactor` and `dfactor` change the numbers of a controller."""
    chosen = controller(options.get("controller", I))
    changes = {"safety": "safety", "grow": "ifactor", "shrink": "dfactor"}
    numbers = {ours: float(options[theirs]) for ours, theirs in changes.items() if theirs in options}
    first = options.get("first_step")
    stops, jumps = _validate_stops(options)
    return ControlSettings(
        rtol=_validate_tolerance("rtol", rtol, posed),
        atol=_validate_tolerance("atol", atol, posed),
        norm=posed.norm(options.get("norm")),
        controller=replace(chosen, **numbers),  # type: ignore[arg-type]
        power=error_power(scheme),
        first_step=None if first is None else abs(float(first)),
        min_step=float(options.get("min_step", 0.0)),
        max_step=float(options.get("max_step", inf)),
        max_steps=int(options.get("max_num_steps", MAX_STEPS)),
        stops=stops,
        jumps=jumps,
    )


def _validate_stops(options: dict) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times at which steps end, and those of them where `func` jumps; `grid_points` and `eps` are their older names."""
    times = lambda name: tuple(torch.as_tensor(options.get(name, ()), dtype=torch.float64).reshape(-1).tolist())
    older = "jump_t" if options.get("eps", 0.0) > 0 else "step_t"
    found = {name: times(name) + (times("grid_points") if name == older else ()) for name in ("step_t", "jump_t")}
    both = set(found["step_t"]) & set(found["jump_t"])
    if both:
        raise ValueError(f"`step_t` and `jump_t` must not share times, found {sorted(both)} in both")
    return found["step_t"] + found["jump_t"], found["jump_t"]


def _validate_tolerance(name: str, value, posed: TensorProblem):
    """A number, or a tensor; a tuple has one for every tensor of a tuple state."""
    if isinstance(value, (tuple, list)):
        if posed.shapes is None or len(value) != len(posed.shapes):
            raise ValueError(f"`{name}` must be a number, or have an entry for each tensor of `y0`, found {len(value)}")
        like = posed.state[0].real
        pieces = [torch.as_tensor(v).to(like).expand(s).reshape(-1) for v, s in zip(value, posed.shapes, strict=True)]
        return torch.cat(pieces)
    if isinstance(value, Tensor):
        return value.to(posed.state[0].device)
    found = validate_number(name, value, "[-inf, inf]")
    if found < 0:
        raise ValueError(f"`{name}` must not be negative, found {found}")
    return found
