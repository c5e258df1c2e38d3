"""The problems of `gradients.cases` on tensors."""

from __future__ import annotations

import torch
from gradients.cases import MATRIX, A, B, Kind

import stepnet as sn
import stepnet.torch as snt


def on_tensors(functions):
    """Functions of `gradients.cases`, which give lists of entries, as functions of tensors."""
    a, b = A, torch.tensor(B)
    return tuple(lambda t, *state, f=f: torch.stack(f(t, *state, a, b)) for f in functions)


def posed(kind: Kind):
    """The field of a kind of problem on tensors, and its initial state."""
    functions, y = on_tensors(kind.in_module(torch)), torch.tensor(kind.initial)
    halves = tuple(y.reshape(2, -1).unbind())
    match kind.name:
        case "ode":
            return functions[0], y
        case "partitioned":
            return snt.Partitioned(*functions), halves
        case "not separable":
            return snt.Partitioned(*functions, separable=False), halves
        case "second order":
            return snt.SecondOrder(*functions), halves
    if kind.name == "semilinear":
        return snt.Split((functions[0], sn.Linear(MATRIX))), y
    return snt.Split(functions), y
