"""Designs on the compiled layer kernels, for CPU tensors: one call per run, none per step.

Data are not copied: arrays are views of tensors, and parameters that are contiguous in memory form one vector, though
each has its own storage for saving and sharing.  In eager mode an autograd node holds the run between forward and
backward; under `torch.compile` it is a custom operator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from stepnet.checkpoints.budget import Memory
from stepnet.engines.torch_engine import (
    Differentiable,
    is_autocast,
    is_one_node,
    is_transformed,
    is_written_down,
    solve_differentiably,
)
from stepnet.nets.design import Design

if TYPE_CHECKING:
    from stepnet.nets.execution import Execution

ENGINES = ("auto", "numba", "torch")
DTYPES = {torch.float64: "float64", torch.float32: "float32"}
PLAIN = (Tensor, torch.nn.Parameter)  # other tensor types may have no data
_NUMBERS = count()
_KNOWN: WeakValueDictionary[int, Kernels] = WeakValueDictionary()

Tensors = Sequence[Tensor]
Reference = Callable[[Tensor, Tensors, Memory], Tensor]
"""Computes outputs by tensor operations from inputs, parameters and a memory policy."""


class Kernels:
    """A design, the memory policy of its gradients, and the kernels that run it.

    `number` identifies it to operators, which take only tensors and numbers; `names` are the parameter names.
    """

    def __init__(self, design: Design, engine: str, memory: Memory, names: Sequence[str], workers: int | None = None):
        if not isinstance(engine, str) or engine not in ENGINES:
            raise ValueError(f"`engine` must be one of {', '.join(map(repr, ENGINES))}, found {engine!r}")
        self.design, self.engine, self.memory, self.names, self.workers = design, engine, memory, names, workers
        self.number, self.n_out = next(_NUMBERS), design.n_out
        self.shapes = tuple(torch.Size(shape) for shape in design.shapes.values())
        self.lie_at(None)
        _KNOWN[self.number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy gets its own number."""
        return Kernels, (self.design, self.engine, self.memory, self.names, self.workers)

    @cached_property
    def executions(self) -> dict[torch.dtype, Execution]:
        from stepnet.nets.execution import Execution

        return {dtype: Execution(self.design, name, self.workers) for dtype, name in DTYPES.items()}  # type: ignore[arg-type]

    # ---- dispatch ---------------------------------------------------------------------------------------------------

    def take(self, x: Tensor, parameters: Tensors) -> bool:
        """Whether the kernels run these tensors; an error if they are required but cannot."""
        if torch.jit.is_tracing():  # where shapes are not integers
            return False
        self._require_match(x, parameters)
        if self.engine == "torch" or (self.engine == "auto" and self.design.is_implicit):
            return False
        reason = _find_obstacle((x, *parameters))
        if reason is not None and self.engine == "numba":
            raise ValueError(f"`engine`='numba' takes CPU tensors of one dtype, float64 or float32; found {reason}")
        if reason is not None or is_transformed() or is_written_down():
            return False
        return torch.compiler.is_compiling() or (len(x) > 0 and all(type(each) in PLAIN for each in (x, *parameters)))

    def _require_match(self, x: Tensor, parameters: Tensors) -> None:
        """Refuse parameters of other shapes than the design's, and inputs of another dtype than theirs."""
        if tuple([each.shape for each in parameters]) != self.shapes:
            self._complain(parameters)
        if parameters and x.dtype != parameters[0].dtype and not is_autocast(x.device.type):
            raise TypeError(
                f"the input `x` must be {parameters[0].dtype} as the parameters are, found {x.dtype}; cast one of them"
            )

    def _complain(self, parameters: Tensors) -> None:
        if len(parameters) != len(self.shapes):
            raise ValueError(f"there must be {len(self.shapes)} parameters, found {len(parameters)}")
        for name, shape, each in zip(self.names, self.shapes, parameters, strict=True):
            if each.shape != shape:
                raise ValueError(f"`{name}` must have the shape {tuple(shape)}, found {tuple(each.shape)}")

    def run(self, x: Tensor, parameters: Tensors, reference: Reference) -> Tensor:
        """`reference(x, ...)`, by the kernels where possible; transforms and higher derivatives call `reference`."""
        if not self.take(x, parameters):
            return reference(x, parameters, self.memory)
        if torch.compiler.is_compiling():
            return run_layers(x, list(parameters), self.number)
        if not is_one_node((x, *parameters)):
            return self.forward(x, parameters)
        is_x_wanted = x.requires_grad
        forward = lambda given: self._run_forward(given[0], parameters, is_x_wanted)
        pure: Callable[[Tensors], list[Tensor]] = lambda tensors: [reference(tensors[0], tensors[1:], "all")]
        on_tensors = lambda given: pure((*given, *parameters))
        return solve_differentiably(
            Differentiable(forward, self._run_backward, on_tensors, tuple(parameters), 1, pure), (x,)
        )[0]

    # ---- runs -------------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, parameters: Tensors) -> Tensor:
        """Outputs without a gradient."""
        if len(x) == 0:
            return x.new_empty(0, self.n_out)
        outputs = self.executions[x.dtype].forward(self.theta(parameters), x.detach().contiguous().numpy())
        return torch.from_numpy(outputs)

    def begin_sweep(
        self, x: Tensor, parameters: Tensors, is_x_wanted: bool = True
    ) -> tuple[Generator[Any, np.ndarray, None], Tensor]:
        """Start a sweep; return it with the outputs of its forward run."""
        theta, execution = self.theta(parameters), self.executions[x.dtype]
        sweep = execution.sweep(theta, x.detach().contiguous().numpy(), self.memory, is_x_wanted)
        return sweep, torch.from_numpy(next(sweep))

    def end_sweep(
        self, sweep: Generator[Any, np.ndarray, None], y_bar: Tensor, parameters: Tensors
    ) -> list[Tensor | None]:
        """Gradients of the inputs (None if not needed) and of the parameters, from that of the outputs."""
        theta_bar, x_bar = sweep.send(y_bar.detach().contiguous().numpy())
        pieces = torch.from_numpy(theta_bar).split([p.numel() for p in parameters])
        own = [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]
        return [None if x_bar is None else torch.from_numpy(x_bar), *own]

    def _run_forward(self, x: Tensor, parameters: Tensors, is_x_wanted: bool) -> tuple[_PausedRun, list[Tensor]]:
        sweep, y = self.begin_sweep(x, parameters, is_x_wanted)
        return _PausedRun(sweep, parameters, is_x_wanted), [y]

    def _run_backward(self, kept: _PausedRun, given: Tensors, bars: Sequence[Tensor | None]) -> list[Tensor | None]:
        (y_bar,) = bars
        if y_bar is None:
            return [None] * (1 + len(kept.parameters))
        if kept.sweep is None:  # a sweep can be reversed once; this graph was retained
            kept.sweep, _ = self.begin_sweep(given[0], kept.parameters, kept.is_x_wanted)
        sweep, kept.sweep = kept.sweep, None
        return self.end_sweep(sweep, y_bar, kept.parameters)

    # ---- parameters in memory ---------------------------------------------------------------------------------------

    def lie_at(self, flat: np.ndarray | None) -> None:
        """Expect parameters to be contiguous in this vector from now on."""
        sizes = [shape.numel() * (0 if flat is None else flat.itemsize) for shape in self.shapes]
        start = 0 if flat is None else flat.ctypes.data
        self.flat, self.places = flat, list(accumulate(sizes, initial=start))[:-1]

    def are_in_place(self, parameters: Tensors) -> bool:
        """Whether the parameters are still in the vector."""
        if self.flat is None or [p.data_ptr() for p in parameters] != self.places:
            return False
        return all(p.is_contiguous() for p in parameters)

    def theta(self, parameters: Tensors) -> np.ndarray:
        """All parameters in one vector, without a copy if they are contiguous."""
        return self.flat if self.are_in_place(parameters) else flatten(parameters).numpy()  # type: ignore[return-value]


class _PausedRun:
    """A run between its forward and its reverse sweep."""

    def __init__(self, sweep: Generator[Any, np.ndarray, None] | None, parameters: Tensors, is_x_wanted: bool) -> None:
        self.sweep, self.parameters, self.is_x_wanted = sweep, parameters, is_x_wanted


def _find_obstacle(tensors: Tensors) -> str | None:
    """The reason why the kernels cannot run these tensors, or None."""
    devices, dtypes = {x.device.type for x in tensors}, {x.dtype for x in tensors}
    if devices != {"cpu"}:
        return f"tensors on {', '.join(sorted(devices))}"
    if len(dtypes) > 1 or not dtypes <= DTYPES.keys():
        return f"tensors of {', '.join(sorted(map(str, dtypes)))}"
    return "autocast" if torch.is_autocast_enabled("cpu") else None


def flatten(parameters: Tensors) -> Tensor:
    """All parameters in one vector: a view if they are contiguous in one storage, otherwise a copy."""
    pieces = [p.detach() for p in parameters]
    ends = [p.storage_offset() + p.numel() for p in pieces]
    if (
        len({p.untyped_storage().data_ptr() for p in pieces}) == 1
        and all(p.is_contiguous() for p in pieces)
        and all(p.storage_offset() == end for p, end in zip(pieces[1:], ends, strict=False))
    ):
        return pieces[0].as_strided((sum(p.numel() for p in pieces),), (1,))
    return torch.cat([p.reshape(-1) for p in pieces])


# ---- operators for compilers ----------------------------------------------------------------------------------------


@torch.library.custom_op("stepnet::layers", mutates_args=())
def run_layers(x: Tensor, parameters: list[Tensor], number: int) -> Tensor:
    """Outputs of the design with this number."""
    return _find_kernels(number, parameters).forward(x, parameters)


@torch.library.custom_op("stepnet::layers_back", mutates_args=())
def pull_back_layers(x: Tensor, parameters: list[Tensor], y_bar: Tensor, number: int) -> list[Tensor]:
    """Gradients of the inputs and parameters; the forward run is repeated, because operators store nothing."""
    kernels = _find_kernels(number, parameters)
    if len(x) == 0:
        return [torch.zeros_like(each, memory_format=torch.contiguous_format) for each in (x, *parameters)]
    sweep, _ = kernels.begin_sweep(x, parameters)
    return [each.clone() for each in kernels.end_sweep(sweep, y_bar, parameters) if each is not None]


def _find_kernels(number: int, parameters: Tensors) -> Kernels:
    """The kernels with this number, after a check of the parameters."""
    if number not in _KNOWN:
        raise RuntimeError(
            f"no net of this process has the number {number}; operators of kernels live as long as the module that "
            "they were compiled from, and in its process"
        )
    kernels = _KNOWN[number]
    kernels._complain(parameters)
    return kernels


@run_layers.register_fake
def _(x: Tensor, parameters: list[Tensor], number: int) -> Tensor:
    return x.new_empty(x.shape[0], _find_kernels(number, parameters).n_out)


@pull_back_layers.register_fake
def _(x: Tensor, parameters: list[Tensor], y_bar: Tensor, number: int) -> list[Tensor]:
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (x, *parameters)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, parameters, ctx.number = inputs
    ctx.save_for_backward(x, *parameters)


def _pull(ctx: Any, y_bar: Tensor) -> tuple[Tensor, list[Tensor], None]:
    x, *parameters = ctx.saved_tensors
    x_bar, *bars = pull_back_layers(x, parameters, y_bar, ctx.number)
    return x_bar, bars, None


run_layers.register_autograd(_pull, setup_context=_keep)
