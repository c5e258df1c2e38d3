"""Multilayer perceptrons with a hand-written derivative, which avoids autograd overhead.

States are columns with a row of ones appended, (features + 1, samples), so that an affine layer is one matrix [W b];
the last one has a row of zeros appended, since the ones do not change.  Products of small matrices with many columns
are faster than those with many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten
FEW = 16  # columns; products with so few are slow


class TensorActivation(NamedTuple):
    """s(x), the same into a given tensor, and the pullback into one, from the gradient of s and either s or x."""

    plain: Callable[[Tensor], Tensor]
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    keeps_result: bool = False


ACTIVATIONS = {
    "elu": TensorActivation(
        aten.elu.default,
        aten.elu.out,
        lambda bar, x, *, grad_input: aten.elu_backward.grad_input(bar, 1.0, 1.0, 1.0, False, x, grad_input=grad_input),
    ),
    "gelu": TensorActivation(aten.gelu.default, aten.gelu.out, aten.gelu_backward.grad_input),
    "relu": TensorActivation(
        aten.relu.default,
        aten.relu.out,
        lambda bar, y, *, grad_input: aten.threshold_backward.grad_input(bar, y, 0, grad_input=grad_input),
        keeps_result=True,
    ),
    "sigmoid": TensorActivation(torch.sigmoid, torch.sigmoid, aten.sigmoid_backward.grad_input, keeps_result=True),
    "silu": TensorActivation(aten.silu.default, aten.silu.out, aten.silu_backward.grad_input),
    "softplus": TensorActivation(
        aten.softplus.default,
        aten.softplus.out,
        lambda bar, x, *, grad_input: aten.softplus_backward.grad_input(bar, x, 1.0, 20.0, grad_input=grad_input),
    ),
    "tanh": TensorActivation(torch.tanh, torch.tanh, aten.tanh_backward.grad_input, keeps_result=True),
}


def build_matrix(weight: Tensor, bias: Tensor | None, is_last: bool) -> Tensor:
    """[W b], with a row of zeros appended if it is the last matrix."""
    column = weight.new_zeros(len(weight), 1) if bias is None else bias[:, None]
    whole = torch.cat((weight, column), dim=1)
    return torch.cat((whole, whole.new_zeros(1, whole.shape[1]))) if is_last else whole


@dataclass(frozen=True)
class Perceptron:
    """The field y' = M_n s(... s(M_1 y)), with an activation between every two matrices."""

    activations: tuple[str, ...]
    matrices: tuple[Tensor, ...]

    def __call__(self, t: Tensor | None, x: Tensor) -> Tensor:
        first, *others = self.matrices
        x = torch.mm(first, x)
        for name, matrix in zip(self.activations, others, strict=True):
            x = ACTIVATIONS[name].plain(x)
            x = torch.mm(matrix, torch.cat((x, x.new_ones(1, x.shape[1]))))
        return x


class _HiddenLayer(NamedTuple):
    """A hidden layer: values before and after the activation, the latter with ones appended, and gradients, by call."""

    activation: TensorActivation
    before: Sequence[Tensor]
    after: Sequence[Tensor]
    with_ones: Sequence[Tensor]
    bar: Sequence[Tensor]
    scratch: Tensor


class PerceptronWorkspace:
    """Stores the calls of a perceptron in one step as adjacent columns, and pulls back through them.

    `totals` are the gradients of its matrices over all steps; those with few columns are stored transposed.
    """

    def __init__(self, field: Perceptron, n_calls: int, n_samples: int):
        self.matrices, self.n_calls, self.n, first = field.matrices, n_calls, 0, field.matrices[0]
        self.transposed = [first.t(), *(matrix[:, :-1].t() for matrix in field.matrices[1:])]
        self.are_lying = [matrix.shape[1] < min(FEW, matrix.shape[0]) for matrix in field.matrices]
        self.totals = [
            first.new_zeros(m.shape[::-1] if lies else m.shape)
            for m, lies in zip(field.matrices, self.are_lying, strict=True)
        ]
        new: Callable[[int], Tensor] = lambda n: first.new_empty(n, n_calls * n_samples)
        by_call: Callable[[Tensor], tuple[Tensor, ...]] = lambda whole: whole.split(n_samples, dim=1)
        self.hidden, self.inputs, self.bars = [], [new(first.shape[1])], []
        for name, matrix in zip(field.activations, field.matrices, strict=False):
            activation, after, bar = ACTIVATIONS[name], new(len(matrix) + 1), new(len(matrix))
            after[-1] = 1.0
            before = by_call(after[:-1] if activation.keeps_result else new(len(matrix)))
            places = before, by_call(after[:-1]), by_call(after), by_call(bar)
            self.hidden.append(_HiddenLayer(activation, *places, matrix.new_empty(len(matrix), n_samples)))
            self.inputs.append(after)
            self.bars.append(bar)
        self.bars.append(new(first.shape[1]))
        self.x, self.slope_bar = by_call(self.inputs[0]), by_call(self.bars[-1])

    def write(self, x: Tensor, out: Tensor) -> None:
        """Evaluate the field at x and store the call in the next position."""
        self.x[self.n].copy_(x)
        self.n += 1
        self.call(x, out)

    def call(self, x: Tensor, out: Tensor) -> None:
        """Evaluate the field at x, storing hidden layers at the position of the last call."""
        i = self.n - 1
        for matrix, layer in zip(self.matrices, self.hidden, strict=False):
            torch.mm(matrix, x, out=layer.before[i])
            layer.activation.forward(layer.before[i], out=layer.after[i])
            x = layer.with_ones[i]
        torch.mm(self.matrices[-1], x, out=out)

    def backward(self, bar: Tensor, out: Tensor) -> None:
        """The gradient of the argument of the last call that has not been pulled back."""
        i = self.n = self.n - 1
        self.slope_bar[i].copy_(bar)
        for transposed, layer in zip(reversed(self.transposed), reversed(self.hidden), strict=False):
            torch.mm(transposed, bar, out=layer.scratch)
            kept = layer.after[i] if layer.activation.keeps_result else layer.before[i]
            bar = layer.activation.backward(layer.scratch, kept, grad_input=layer.bar[i])
        torch.mm(self.transposed[0], bar, out=out)

    def sum_up(self) -> None:
        """Add the gradients of the matrices for this step to the totals."""
        for lies, total, x, bar in zip(self.are_lying, self.totals, self.inputs, self.bars, strict=True):
            total.addmm_(*((x, bar.t()) if lies else (bar, x.t())))

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of all matrices."""
        return [total.t() if lies else total for lies, total in zip(self.are_lying, self.totals, strict=True)]
