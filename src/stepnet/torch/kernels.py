"""Designs on the compiled layer kernels, for CPU tensors: one call for a whole run, none for a step.

Numbers are not copied on their way: arrays are views of tensors, and parameters that lie behind each other in memory
are one vector already.  Eager mode has a node of autograd that holds the run between its halves; compilers see an
operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from stepnet.engines.torch_engine.blocks import pulled
from stepnet.engines.torch_engine.gradients import Way, is_one_node, is_transformed, solved
from stepnet.nets.design import Design

ENGINES = ("auto", "numba", "torch")
DTYPES = {torch.float64: "float64", torch.float32: "float32"}
PLAIN = (Tensor, torch.nn.Parameter)  # other kinds of tensors may have no numbers at all
_NUMBERS = count()
_KNOWN: WeakValueDictionary[int, Kernels] = WeakValueDictionary()


class Kernels:
    """A design, the memory that its gradients may take, and the kernels that run it.

    `number` is how operators know it, which take nothing but tensors and numbers.
    """

    def __init__(self, design: Design, engine: str, memory):
        if engine not in ENGINES:
            raise ValueError(f"`engine` must be one of {', '.join(map(repr, ENGINES))}, found {engine!r}")
        self.design, self.engine, self.memory, self.number = design, engine, memory, next(_NUMBERS)
        self.n_out = design.n_out
        _KNOWN[self.number] = self

    def __reduce__(self):
        return Kernels, (self.design, self.engine, self.memory)  # a copy has a number of its own

    @cached_property
    def executions(self) -> dict:
        from stepnet.nets.execution import Execution

        return {dtype: Execution(self.design, name) for dtype, name in DTYPES.items()}  # type: ignore[arg-type]

    def take(self, x: Tensor, parameters: Sequence[Tensor]) -> bool:
        """Whether the kernels run these tensors; a complaint if they must and cannot."""
        if self.engine == "torch":
            return False
        reason = _obstacle((x, *parameters))
        if reason is not None and self.engine == "numba":
            raise ValueError(f"`engine`='numba' takes CPU tensors of one dtype, float64 or float32; found {reason}")
        return reason is None

    def run(self, x: Tensor, parameters: Sequence[Tensor], plainly: Callable[[Tensor], Tensor]) -> Tensor:
        """`plainly(x)`, by the kernels if they can; second derivatives and transformations see `plainly` itself."""
        if not self.take(x, parameters):
            return plainly(x)
        if torch.compiler.is_compiling():
            return layers(x, list(parameters), self.number)
        if is_transformed() or not all(type(each) in PLAIN for each in (x, *parameters)):
            return plainly(x)
        if not is_one_node((x, *parameters)):
            return self.forward(x, parameters)
        there = lambda given: self._there(given[0], parameters, plainly)
        return solved(Way(there, self._back, lambda given: [plainly(given[0])], tuple(parameters), 1), (x,))[0]

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Outputs without a gradient."""
        theta, execution = vector(parameters), self.executions[x.dtype]
        return torch.from_numpy(execution.forward(theta.numpy(), x.detach().contiguous().numpy()))

    def begun(self, x: Tensor, parameters: Sequence[Tensor]):
        """A sweep, and the outputs to which it has come."""
        theta, execution = vector(parameters), self.executions[x.dtype]
        sweep = execution.sweep(theta.numpy(), x.detach().contiguous().numpy(), self.memory)
        return sweep, torch.from_numpy(next(sweep))

    def ended(self, sweep, y_bar: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the inputs and of the parameters from that of the outputs."""
        theta_bar, x_bar = sweep.send(y_bar.detach().contiguous().numpy())
        pieces = torch.from_numpy(theta_bar).split([p.numel() for p in parameters])
        return [torch.from_numpy(x_bar), *(piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True))]

    def _there(self, x: Tensor, parameters: Sequence[Tensor], plainly: Callable[[Tensor], Tensor]):
        sweep, y = self.begun(x, parameters)
        return _Kept(sweep, parameters, plainly), [y]

    def _back(self, kept: _Kept, given: Sequence[Tensor], bars: Sequence[Tensor | None]) -> list[Tensor | None]:
        (y_bar,) = bars
        if y_bar is None:
            return [None] * (1 + len(kept.parameters))
        if torch._C._functorch.is_legacy_batchedtensor(y_bar):  # many at once
            with torch.enable_grad():
                x = given[0].detach().requires_grad_()
                y = kept.plainly(x)
            return list(pulled([y], (x, *kept.parameters), [y_bar]))
        if kept.sweep is None:  # a sweep goes back once; this graph was retained
            kept.sweep, _ = self.begun(given[0], kept.parameters)
        sweep, kept.sweep = kept.sweep, None
        return list(self.ended(sweep, y_bar, kept.parameters))


class _Kept:
    """A run that stands at its turn."""

    def __init__(self, sweep, parameters: Sequence[Tensor], plainly: Callable[[Tensor], Tensor]):
        self.sweep, self.parameters, self.plainly = sweep, parameters, plainly


def _obstacle(tensors: Sequence[Tensor]) -> str | None:
    """Why kernels do not run these tensors."""
    devices, dtypes = {x.device.type for x in tensors}, {x.dtype for x in tensors}
    if devices != {"cpu"}:
        return f"tensors on {', '.join(sorted(devices))}"
    if len(dtypes) > 1 or not dtypes <= DTYPES.keys():
        return f"tensors of {', '.join(sorted(map(str, dtypes)))}"
    return "autocast" if torch.is_autocast_enabled("cpu") else None


def vector(parameters: Sequence[Tensor]) -> Tensor:
    """All numbers in one vector: a view if they lie behind each other, else a copy."""
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
def layers(x: Tensor, parameters: list[Tensor], number: int) -> Tensor:
    """Outputs of the design with this number."""
    return _KNOWN[number].forward(x, parameters)


@torch.library.custom_op("stepnet::layers_back", mutates_args=())
def layers_back(x: Tensor, parameters: list[Tensor], y_bar: Tensor, number: int) -> list[Tensor]:
    """Gradients of the inputs and of the parameters; the way there is run again, as an operator keeps nothing."""
    kernels = _KNOWN[number]
    sweep, _ = kernels.begun(x, parameters)
    return [each.clone() for each in kernels.ended(sweep, y_bar, parameters)]


@layers.register_fake
def _(x, parameters, number):
    return x.new_empty(x.shape[0], _KNOWN[number].n_out)


@layers_back.register_fake
def _(x, parameters, y_bar, number):
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (x, *parameters)]


def _keep(ctx, inputs, output):
    x, parameters, ctx.number = inputs
    ctx.save_for_backward(x, *parameters)


def _pull(ctx, y_bar):
    x, *parameters = ctx.saved_tensors
    x_bar, *bars = layers_back(x, parameters, y_bar, ctx.number)
    return x_bar, bars, None


layers.register_autograd(_pull, setup_context=_keep)
