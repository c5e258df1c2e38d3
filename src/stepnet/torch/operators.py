"""Operators of PDEs as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from stepnet import validation
from stepnet.engines.torch_engine import TENSOR_FUNCTIONS
from stepnet.operators import (
    ComposedOperator,
    ConservationLaw,
    SpectralOperator,
    StackedOperator,
    StencilOperator,
    SummedOperator,
    Upwind,
    VariableDiffusion,
)

OPERATORS = (
    StencilOperator,
    StackedOperator,
    SummedOperator,
    ComposedOperator,
    VariableDiffusion,
    Upwind,
    ConservationLaw,
    SpectralOperator,
)


@validation.check(operator=validation.instance(*OPERATORS, what="an operator of `stepnet.operators`"))
def tensor_operator(operator: Any) -> Callable[..., torch.Tensor]:
    """An operator as a function of tensors of any device and floating-point type, which autograd differentiates.

    Parameters
    ----------
    operator : record
        An operator of `stepnet.operators`.  Boundary values that are functions of
        time must work with tensors.

    Returns
    -------
    callable
        With the arguments of the operator, on tensors.

    Examples
    --------
    >>> import torch
    >>> from stepnet.torch import tensor_operator
    >>> import stepnet as sn
    >>> tensor_operator(sn.operators.laplacian(sn.operators.Grid(4)))(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([-32.,  16.,   0.,  16.])
    """
    return partial(operator, functions=TENSOR_FUNCTIONS)
