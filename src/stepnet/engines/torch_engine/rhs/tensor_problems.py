"""The user's form of a state and that of schemes: a tensor, a pair (q, p), or a tuple flattened into one vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor

from stepnet.engines.torch_engine.integrators.step_control import rms
from stepnet.engines.torch_engine.rhs.tensor_fields import Field, Partitioned, SecondOrder, SingleField, Split, State


@dataclass(frozen=True)
class TensorProblem:
    """A field and its state; `shapes` are those of a tuple that was flattened into one vector, None otherwise."""

    field: Field
    state: State
    shapes: tuple[Size, ...] | None = None

    def trajectory(self, states: list[State]) -> Tensor | tuple[Tensor, ...]:
        """States at all times in the user's form: (times, *shape) each."""
        stacked = tuple(torch.stack(parts) for parts in zip(*states, strict=True))
        if self.shapes is not None:
            return split_parts(stacked[0], self.shapes)
        return stacked if self.field.n_states == 2 else stacked[0]

    def convert_function(self, function: Callable[..., Any]) -> Callable[[Tensor, Tensor], Tensor]:
        """Convert a function of (t, state in the user's form) to one of the tensor that schemes use."""
        if self.shapes is not None:
            shapes = self.shapes
            return lambda t, y: function(t, split_parts(y, shapes))
        return function if self.field.n_states == 1 else lambda t, y: function(t, y.unbind())

    def norm(self, chosen: Callable[..., Any] | None) -> Callable[[Tensor], Tensor]:
        """The norm of errors: root mean square, its maximum over the members of a tuple, or the user's norm."""
        shapes = self.shapes
        if shapes is None:
            return chosen or rms
        if chosen is not None:
            return lambda x: chosen(split_parts(x, shapes))
        return lambda x: torch.stack([rms(part) for part in split_parts(x, shapes)]).max()


def build_tensor_problem(func: Any, y0: Any) -> TensorProblem:
    """A problem from the arguments of `odeint`."""
    if isinstance(func, (Partitioned, SecondOrder)):
        return TensorProblem(func, _validate_pair(y0))
    if not callable(func) and not isinstance(func, Split):
        raise TypeError(f"`func` must be a function of (t, y), found {type(func).__name__}")
    field = func if isinstance(func, Split) else SingleField(func)
    if isinstance(y0, Tensor):
        return TensorProblem(field, (_require_floating(y0),))
    if not isinstance(y0, tuple) or not y0 or not all(isinstance(part, Tensor) for part in y0):
        raise TypeError(f"`y0` must be a tensor or a tuple of tensors, found {type(y0).__name__}")
    _require_one_device(y0)
    shapes = tuple(part.shape for part in y0)
    vector = torch.cat([_require_floating(part).reshape(-1) for part in y0])
    if isinstance(func, Split):
        return TensorProblem(Split(tuple(_wrap_on_vectors(part, shapes) for part in func.parts)), (vector,), shapes)
    return TensorProblem(SingleField(_wrap_on_vectors(func, shapes)), (vector,), shapes)


def build_tensor_batch(func: Any, y0: Any) -> TensorProblem:
    """A problem for a batch, (batch, *shape); tuples are joined sample by sample."""
    if not callable(func):
        raise TypeError(f"`func` must be a function of (t, y) for a batch, found {type(func).__name__}")
    parts = y0 if isinstance(y0, tuple) else (y0,)
    if not parts or not all(isinstance(part, Tensor) and part.ndim > 0 for part in parts):
        raise TypeError(f"`y0` must be a tensor (batch, *shape), or a tuple of them, found {type(y0).__name__}")
    if len({len(part) for part in parts}) > 1 or len(parts[0]) == 0:
        raise ValueError(f"`y0` must hold one batch of samples, found {[tuple(part.shape) for part in parts]}")
    if isinstance(y0, Tensor):
        return TensorProblem(SingleField(func), (_require_floating(y0),))
    _require_one_device(parts)
    shapes = tuple(part.shape[1:] for part in parts)
    rows = torch.cat([_require_floating(part).reshape(len(part), -1) for part in parts], dim=1)
    return TensorProblem(SingleField(_wrap_on_vectors(func, shapes)), (rows,), shapes)


def split_parts(x: Tensor, shapes: tuple[Size, ...]) -> tuple[Tensor, ...]:
    """A tuple from the last axis of a tensor."""
    pieces = x.split([shape.numel() for shape in shapes], dim=-1)
    return tuple(piece.reshape((*x.shape[:-1], *shape)) for piece, shape in zip(pieces, shapes, strict=True))


def _wrap_on_vectors(func: Callable[..., Any], shapes: tuple[Size, ...]) -> Callable[[Tensor, Tensor], Tensor]:
    def fun(t: Tensor, y: Tensor) -> Tensor:
        slopes, outer = func(t, split_parts(y, shapes)), y.shape[:-1]
        found, wanted = [getattr(slope, "shape", None) for slope in slopes], [(*outer, *shape) for shape in shapes]
        if found != wanted:
            raise ValueError(f"`func` must return tensors of the shapes {wanted}, found {found}")
        return torch.cat([slope.reshape(*outer, -1) for slope in slopes], dim=-1)

    return fun


def _require_one_device(parts: tuple[Tensor, ...]) -> None:
    """Refuse several devices; tensors of several dtypes are promoted to a common one, as in torchdiffeq."""
    devices = {part.device for part in parts}
    if len(devices) > 1:
        found = " and ".join(sorted(map(str, devices)))
        raise ValueError(f"`y0` must have tensors on one device, found {found}; move them")


def require_finite(y0: State) -> None:
    """Refuse non-finite states, from which adaptive steps cannot start."""
    if not all(bool(part.isfinite().all()) for part in y0):
        raise ValueError("`y0` must be finite, found NaN or infinity in it")


def explain(error: RuntimeError, func: object, state: State) -> None:
    """Add a note on dtypes and devices to the error if those of a module and the state differ."""
    parameters = list(func.parameters()) if isinstance(func, torch.nn.Module) else []
    kinds = {(p.dtype, p.device) for p in parameters if p.is_floating_point() or p.is_complex()}
    if kinds and (state[0].dtype, state[0].device) not in kinds:
        found = " and ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        error.add_note(f"`func` has parameters of {found}, `y0` is {state[0].dtype} on {state[0].device}")


def _require_floating(y: Tensor) -> Tensor:
    if not (y.is_floating_point() or y.is_complex()):
        raise TypeError(f"`y0` must hold floating-point or complex numbers, found {y.dtype}")
    return y


def _validate_pair(y0: Any) -> State:
    if not isinstance(y0, tuple) or len(y0) != 2 or not all(isinstance(half, Tensor) for half in y0):
        raise TypeError("`y0` must be two tensors (q, p) for a partitioned problem")
    q, p = y0
    if (q.shape, q.device) != (p.shape, p.device):
        raise ValueError(
            f"`y0` must have q and p of one shape on one device, found {tuple(q.shape)} on {q.device} and "
            f"{tuple(p.shape)} on {p.device}"
        )
    dtype = torch.promote_types(_require_floating(q).dtype, _require_floating(p).dtype)
    return q.to(dtype), p.to(dtype)
