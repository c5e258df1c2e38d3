"""Designs on the compiled layer kernels, for CPU tensors: one call for a whole run, none for a step.

Numbers are not copied on their way: arrays are views of tensors, and parameters that lie behind each other in memory
are one vector already, though each has a storage of its own for those who save or share it.  Eager mode has a node of
autograd that holds the run between its halves; compilers see an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, count
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from stepnet.engines.torch_engine.adjoint.autograd_node import Differentiable, is_one_node, solve_differentiably
from stepnet.engines.torch_engine.runs.rng_and_autocast import is_autocast, is_transformed, is_written_down
from stepnet.nets.design import Design

ENGINES = ("auto", "numba", "torch")
DTYPES = {torch.float64: "float64", torch.float32: "float32"}
PLAIN = (Tensor, torch.nn.Parameter)  # other kinds of tensors may have no numbers at all
_NUMBERS = count()
_KNOWN: WeakValueDictionary[int, Kernels] = WeakValueDictionary()

Tensors = Sequence[Tensor]
Plainly = Callable[[Tensor, Tensors, object], Tensor]
"""Outputs by operations of tensors from inputs, parameters and a memory."""


class Kernels:
    """A design, the memory that its gradients may take, and the kernels that run it.

    `number` is how operators know it, which take nothing but tensors and numbers, `names` how people know parameters.
    """

    def __init__(self, design: Design, engine: str, memory, names: Sequence[str], workers: int | None = None):
        if not isinstance(engine, str) or engine not in ENGINES:
            raise ValueError(f"`engine` must be one of {', '.join(map(repr, ENGINES))}, found {engine!r}")
        self.design, self.engine, self.memory, self.names, self.workers = design, engine, memory, names, workers
        self.number, self.n_out = next(_NUMBERS), design.n_out
        self.shapes = tuple(torch.Size(shape) for shape in design.shapes.values())
        self.lie_at(None)
        _KNOWN[self.number] = self

    def __reduce__(self):
        """A copy has a number of its own."""
        return Kernels, (self.design, self.engine, self.memory, self.names, self.workers)

    @cached_property
    def executions(self) -> dict:
        from stepnet.nets.execution import Execution

        return {dtype: Execution(self.design, name, self.workers) for dtype, name in DTYPES.items()}  # type: ignore[arg-type]

    # ---- where tensors go -------------------------------------------------------------------------------------------

    def take(self, x: Tensor, parameters: Tensors) -> bool:
        """Whether the kernels run these tensors; a complaint if they must and cannot."""
        if torch.jit.is_tracing():  # where shapes are no numbers
            return False
        self._require_match(x, parameters)
        if self.engine == "torch":
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

    def run(self, x: Tensor, parameters: Tensors, plainly: Plainly) -> Tensor:
        """`plainly(x, ...)`, by the kernels if they can; transformations and further derivatives see it itself."""
        if not self.take(x, parameters):
            return plainly(x, parameters, self.memory)
        if torch.compiler.is_compiling():
            return run_layers(x, list(parameters), self.number)
        if not is_one_node((x, *parameters)):
            return self.forward(x, parameters)
        is_x_wanted = x.requires_grad
        there = lambda given: self._run_forward(given[0], parameters, is_x_wanted)
        purely = lambda tensors: [plainly(tensors[0], tensors[1:], "all")]
        on_tensors = lambda given: purely((*given, *parameters))
        return solve_differentiably(
            Differentiable(there, self._run_backward, on_tensors, tuple(parameters), 1, purely), (x,)
        )[0]

    # ---- runs -------------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, parameters: Tensors) -> Tensor:
        """Outputs without a gradient."""
        if len(x) == 0:
            return x.new_empty(0, self.n_out)
        outputs = self.executions[x.dtype].forward(self.theta(parameters), x.detach().contiguous().numpy())
        return torch.from_numpy(outputs)

    def begun(self, x: Tensor, parameters: Tensors, is_x_wanted: bool = True):
        """A sweep, and the outputs to which it has come."""
        theta, execution = self.theta(parameters), self.executions[x.dtype]
        sweep = execution.sweep(theta, x.detach().contiguous().numpy(), self.memory, is_x_wanted)
        return sweep, torch.from_numpy(next(sweep))

    def ended(self, sweep, y_bar: Tensor, parameters: Tensors) -> list[Tensor | None]:
        """Gradients of the inputs, None if nobody wants it, and of the parameters from that of the outputs."""
        theta_bar, x_bar = sweep.send(y_bar.detach().contiguous().numpy())
        pieces = torch.from_numpy(theta_bar).split([p.numel() for p in parameters])
        own = [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]
        return [None if x_bar is None else torch.from_numpy(x_bar), *own]

    def _run_forward(self, x: Tensor, parameters: Tensors, is_x_wanted: bool):
        sweep, y = self.begun(x, parameters, is_x_wanted)
        return _PausedRun(sweep, parameters, is_x_wanted), [y]

    def _run_backward(self, kept: _PausedRun, given: Tensors, bars: Sequence[Tensor | None]) -> list[Tensor | None]:
        (y_bar,) = bars
        if y_bar is None:
            return [None] * (1 + len(kept.parameters))
        if kept.sweep is None:  # a sweep goes back once; this graph was retained
            kept.sweep, _ = self.begun(given[0], kept.parameters, kept.is_x_wanted)
        sweep, kept.sweep = kept.sweep, None
        return self.ended(sweep, y_bar, kept.parameters)

    # ---- parameters in memory ---------------------------------------------------------------------------------------

    def lie_at(self, flat: np.ndarray | None) -> None:
        """From now on parameters are expected behind each other in this vector."""
        sizes = [shape.numel() * (0 if flat is None else flat.itemsize) for shape in self.shapes]
        start = 0 if flat is None else flat.ctypes.data
        self.flat, self.places = flat, list(accumulate(sizes, initial=start))[:-1]

    def are_in_place(self, parameters: Tensors) -> bool:
        """Whether they lie there still."""
        if self.flat is None or [p.data_ptr() for p in parameters] != self.places:
            return False
        return all(p.is_contiguous() for p in parameters)

    def theta(self, parameters: Tensors) -> np.ndarray:
        """All numbers in one vector: no copy if they lie behind each other."""
        return self.flat if self.are_in_place(parameters) else vector(parameters).numpy()  # type: ignore[return-value]


class _PausedRun:
    """A run that stands at its turn."""

    def __init__(self, sweep, parameters: Tensors, is_x_wanted: bool):
        self.sweep, self.parameters, self.is_x_wanted = sweep, parameters, is_x_wanted


def _find_obstacle(tensors: Tensors) -> str | None:
    """Why kernels do not run these tensors."""
    devices, dtypes = {x.device.type for x in tensors}, {x.dtype for x in tensors}
    if devices != {"cpu"}:
        return f"tensors on {', '.join(sorted(devices))}"
    if len(dtypes) > 1 or not dtypes <= DTYPES.keys():
        return f"tensors of {', '.join(sorted(map(str, dtypes)))}"
    return "autocast" if torch.is_autocast_enabled("cpu") else None


def vector(parameters: Tensors) -> Tensor:
    """All numbers in one vector: a view if they lie behind each other in one storage, else a copy."""
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
    """Gradients of the inputs and of the parameters; the way there is run again, as an operator keeps nothing."""
    kernels = _find_kernels(number, parameters)
    if len(x) == 0:
        return [torch.zeros_like(each, memory_format=torch.contiguous_format) for each in (x, *parameters)]
    sweep, _ = kernels.begun(x, parameters)
    return [each.clone() for each in kernels.ended(sweep, y_bar, parameters) if each is not None]


def _find_kernels(number: int, parameters: Tensors) -> Kernels:
    """The kernels with this number, if these can be their parameters."""
    if number not in _KNOWN:
        raise RuntimeError(
            f"no net of this process has the number {number}; operators of kernels live as long as the module that "
            "they were compiled from, and in its process"
        )
    kernels = _KNOWN[number]
    kernels._complain(parameters)
    return kernels


@run_layers.register_fake
def _(x, parameters, number):
    return x.new_empty(x.shape[0], _find_kernels(number, parameters).n_out)


@pull_back_layers.register_fake
def _(x, parameters, y_bar, number):
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (x, *parameters)]


def _keep(ctx, inputs, output):
    x, parameters, ctx.number = inputs
    ctx.save_for_backward(x, *parameters)


def _pull(ctx, y_bar):
    x, *parameters = ctx.saved_tensors
    x_bar, *bars = pull_back_layers(x, parameters, y_bar, ctx.number)
    return x_bar, bars, None


run_layers.register_autograd(_pull, setup_context=_keep)
