"""Validation of the options of `odeint`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from stepnet.engines.torch_engine import (
    MAX_STEPS,
    ControlSettings,
    TensorProblem,
    error_power,
)
from stepnet.errors import UnknownName
from stepnet.records import validate_number
from stepnet.schemes.conditions import is_pair
from stepnet.schemes.controllers import I, controller

Tolerance = float | Tensor | Sequence[float | Tensor]

BOTH = ("field_dtype", "norm")
FIXED = ("step_size", "grid_constructor", "interp", "perturb", *BOTH)
ADAPTIVE = (
    "first_step", "min_step", "max_step", "max_num_steps", "step_t", "jump_t", "grid_points", "eps", "controller",
    "safety", "ifactor", "dfactor", "dtype", *BOTH,
)  # fmt: skip


EVENT = ("max_num_steps", "t_max")
"""Options of the search for an event."""

SHARED = ("step_t", "jump_t", "grid_points", "eps", "min_step")
"""Options of steps that are the same for a whole batch."""


def is_fixed(scheme: Any, options: dict[str, Any]) -> bool:
    """Whether steps are fixed: for a scheme without an error estimate, or with a step size or a grid."""
    return not is_pair(scheme) or "step_size" in options or "grid_constructor" in options


def validate_dict(name: str, options: Any) -> dict[str, Any]:
    """Return a dictionary, empty for None."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise TypeError(f"`{name}` must be a dictionary, found {type(options).__name__}")
    return options


def validate_options(scheme: Any, options: Any, *more: str) -> dict[str, Any]:
    """Return the options; refuse any that is not defined for these steps or listed in `more`."""
    options = validate_dict("options", options)
    known = FIXED if is_fixed(scheme, options) else ADAPTIVE
    for name in options:
        if name not in (*known, *more):
            kind = "fixed steps" if known is FIXED else "adaptive steps"
            raise UnknownName(f"option for the {kind} of {scheme.name}", name, (*known, *more))
    if "step_size" in options and "grid_constructor" in options:
        raise ValueError("`step_size` and `grid_constructor` exclude each other; leave one of them out")
    if options.get("interp", "linear") not in ("linear", "cubic"):
        raise UnknownName("interpolation", options["interp"], ("linear", "cubic"))
    return options


def validate_times(t: Any) -> Tensor:
    """Return times as a one-dimensional tensor."""
    if not isinstance(t, Tensor):
        raise TypeError(f"`t` must be a tensor of times, found {type(t).__name__}")
    if t.ndim != 1 or len(t) == 0 or not t.is_floating_point():
        raise ValueError(f"`t` must be floating-point with one dimension, found {t.dtype} of shape {tuple(t.shape)}")
    return t


def move_times(t: Tensor, device: torch.device) -> Tensor:
    """Move times to the device of the state."""
    if t.is_meta and device.type != "meta":
        raise ValueError(f"`t` must be on {device}, where `y0` is, or hold numbers elsewhere, found {t.device}")
    return t.to(device)


def build_control_settings(
    posed: TensorProblem, scheme: Any, rtol: Tolerance, atol: Tolerance, options: dict[str, Any]
) -> ControlSettings:
    """Tolerances and controller; `safety`, `ifactor` and `dfactor` replace coefficients of the controller."""
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


def _validate_stops(options: dict[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times at which steps end, and those of them where `func` jumps; `grid_points` and `eps` are their older names."""
    times: Callable[[str], tuple[float, ...]] = lambda name: tuple(
        torch.as_tensor(options.get(name, ()), dtype=torch.float64).reshape(-1).tolist()
    )
    older = "jump_t" if options.get("eps", 0.0) > 0 else "step_t"
    found = {name: times(name) + (times("grid_points") if name == older else ()) for name in ("step_t", "jump_t")}
    both = set(found["step_t"]) & set(found["jump_t"])
    if both:
        raise ValueError(f"`step_t` and `jump_t` must not share times, found {sorted(both)} in both")
    return found["step_t"] + found["jump_t"], found["jump_t"]


def _validate_tolerance(name: str, value: Tolerance, posed: TensorProblem) -> float | Tensor:
    """Return a number or a tensor; a tuple has one per tensor of a tuple state."""
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
