"""Blocks of steps: what a gradient stores at one time, and pulls back through at one go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.fields import State
from stepnet.engines.torch_engine.fixed import Fixed, Reading


class Course(NamedTuple):
    """A run, what is read on the way, and the tensors that its functions depend on and whose gradients are wanted."""

    run: Fixed
    readings: tuple[Reading, ...]
    parameters: tuple[Tensor, ...]

    @property
    def first(self) -> int:
        """The first unit; an opening that does nothing is none."""
        return 0 if self.run.motion.opening.operations else 1

    @property
    def end(self) -> int:
        """The number after the last unit."""
        return self.run.place_of(self.readings[-1].step)

    def inside(self, first: int, last: int) -> slice:
        """Which of the states that are read belong to the units first..last."""
        counts = [(self.run.place_of(reading.step), reading.n) for reading in self.readings]
        is_last = last == self.end
        begin = sum(n for place, n in counts if place < first)
        return slice(begin, sum(n for place, n in counts if place < last or is_last))

    def through(self, run: Fixed, rows: tuple, first: int, last: int) -> tuple[tuple, list[State]]:
        """The rows after the units first..last of a run, and what is read before each of them, and at the end."""
        reads = {self.run.place_of(reading.step): reading.read for reading in self.readings}
        found: list[State] = []
        for unit in range(first, last):
            found += reads[unit](run.own(rows)) if unit in reads else []
            rows = run.unit(rows, unit)
        found += reads[last](run.own(rows)) if last == self.end else []
        return rows, found


class Graph(NamedTuple):
    """A block that autograd has written down: the rows and nodes it began with, what it ended with, what was read."""

    before: tuple
    nodes: Tensor | None
    after: tuple
    found: list[State]


def leaf(x: Tensor | None) -> Tensor | None:
    """The same numbers as the beginning of a graph."""
    return None if x is None else x.detach().requires_grad_()


def detached(rows: tuple) -> tuple:
    return tuple(None if row is None else row.detach() for row in rows)


def graph_of(course: Course, rows: tuple, first: int, last: int) -> Graph:
    """Run the units first..last from these rows and write them down."""
    before = tuple(leaf(row) for row in rows)
    nodes = course.run.grid.nodes
    return extended(course, Graph(before, leaf(nodes), before, []), first, last)


def extended(course: Course, graph: Graph, first: int, last: int) -> Graph:
    """A graph with the units first..last appended, if there are any."""
    if first == last:
        return graph
    with torch.enable_grad():
        after, found = course.through(course.run.over(graph.nodes, first, last), graph.after, first, last)
    return graph._replace(after=after, found=[*graph.found, *found])


class Bars:
    """Gradients on the way back: of the current rows, and sums of those of the parameters and the nodes."""

    def __init__(self, course: Course):
        self.course = course
        self.rows: tuple = (None,) * len(course.run.motion.step.outputs)
        self.parameters: list[Tensor | None] = [None] * len(course.parameters)
        self.nodes: Tensor | None = None

    def pull(self, graph: Graph, seeds: Sequence[Sequence[Tensor | None]]) -> None:
        """Through a block; `seeds` are the gradients with respect to what is read in it."""
        ends = list(zip(graph.after, self.rows, strict=True))
        for state, bars in zip(graph.found, seeds, strict=True):
            ends += zip(state, bars, strict=True)
        known = [(end, bar) for end, bar in ends if bar is not None and end.requires_grad]
        n, inputs = len(graph.before), (*graph.before, graph.nodes, *self.course.parameters)
        found = pulled([end for end, _ in known], inputs, [bar for _, bar in known])
        self.rows, self.nodes = found[:n], added(self.nodes, found[n])
        self.parameters = [added(a, b) for a, b in zip(self.parameters, found[n + 1 :], strict=True)]


def pulled(outputs: Sequence[Tensor], inputs: Sequence[Tensor | None], bars: Sequence, **how) -> tuple:
    """`torch.autograd.grad`, None for inputs that are None or that nothing depends on."""
    wanted = [x for x in inputs if x is not None]
    if not outputs or not wanted:
        return (None,) * len(inputs)
    found = iter(torch.autograd.grad(outputs, wanted, bars, allow_unused=True, **how))
    return tuple(None if x is None else next(found) for x in inputs)


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


@contextmanager
def weighing(known: Sequence[Tensor]) -> Iterator[dict[int, int]]:
    """Bytes, by address, of all that autograd keeps meanwhile, but not of these tensors."""
    sizes: dict[int, int] = {}
    strange = {x.untyped_storage().data_ptr() for x in known}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in strange:
            sizes[storage.data_ptr()] = storage.nbytes()
        return x.detach()  # the tensor itself would hold its own graph in a circle

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield sizes
