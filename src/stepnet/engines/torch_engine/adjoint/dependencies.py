"""Tensors that a recorded computation depends on, found in its autograd graph.

A graph that was recorded after a mark ends at leaves and at nodes older than the mark.  All of these must be inputs
of the computation, otherwise their gradients are lost.  The nodes of a thread are numbered in increasing order, so a
mark is the number of a node.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

Edge = tuple[Node, int]
"""A node of the graph and the index of its result, by which `torch.autograd` identifies a tensor."""

AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
REMEDY = 'give them in `adjoint_params`, compute them inside `func`, or use `memory`="all"'


class AmbiguousTensors(Exception):
    """Tensors outside a function that cannot be identified as its inputs."""


class GraphSources(NamedTuple):
    """Where a recorded graph ends: leaf tensors, and edges to older nodes."""

    leaves: tuple[Tensor, ...]
    older: tuple[Edge, ...]

    def exclude(self, known: Sequence[Tensor]) -> GraphSources:
        """The sources that are not among the known tensors."""
        ids, edges = {id(x) for x in known}, {find_edge(x) for x in known if x.grad_fn is not None}
        return GraphSources(
            tuple(x for x in self.leaves if id(x) not in ids), tuple(edge for edge in self.older if edge not in edges)
        )

    def find_shared(self, other: GraphSources) -> GraphSources:
        """The sources that this graph shares with another one."""
        ids, edges = {id(x) for x in other.leaves}, set(other.older)
        return GraphSources(tuple(x for x in self.leaves if id(x) in ids), tuple(e for e in self.older if e in edges))

    def __bool__(self) -> bool:
        return bool(self.leaves or self.older)


def find_edge(x: Tensor) -> Edge:
    """The edge of a tensor that requires a gradient."""
    node, number = get_gradient_edge(x)[:2]
    return node, number


def mark() -> int:
    """A sequence number above those of all nodes recorded by this thread, and below those of later nodes."""
    with torch.enable_grad():
        return torch.empty(0, requires_grad=True).view(0).grad_fn._sequence_nr()  # type: ignore[union-attr]


def find_sources(outputs: Iterable[Tensor], since: int, known: Sequence[Tensor] = ()) -> GraphSources:
    """The sources of a graph recorded since a mark; it also ends at known tensors.

    A leaf without other references was created inside the computation, and its gradient cannot be read.
    """
    ends = {find_edge(x) for x in known if x.grad_fn is not None}
    leaves, older, seen = dict[int, Tensor](), dict[Edge, None](), set[Node]()
    stack: list[Sequence[tuple[Node | None, int]]] = [[find_edge(y) for y in outputs if y.requires_grad]]
    while stack:
        for edge in stack.pop():
            node = edge[0]
            if node is None or node in seen:
                continue
            if type(node) is AccumulateGrad:
                seen.add(node)
                if sys.getrefcount(node.variable) > _UNHELD:  # type: ignore[attr-defined]
                    leaves[id(node.variable)] = node.variable  # type: ignore[attr-defined]
            elif ends and edge in ends:
                continue
            elif node._sequence_nr() < since:
                older[edge] = None  # type: ignore[index]
            else:
                seen.add(node)
                stack.append(node.next_functions)
    return GraphSources(tuple(leaves.values()), tuple(older)).exclude(known)


def _count_of_unheld_leaf() -> int:
    """The reference count of a leaf that only a graph holds."""
    with torch.enable_grad():
        node = torch.empty(0, requires_grad=True).view(0).grad_fn
    return sys.getrefcount(node.next_functions[0][0].variable)  # type: ignore[union-attr]


_UNHELD = _count_of_unheld_leaf()


# ---- inputs ---------------------------------------------------------------------------------------------------------


def find_inputs(sources: GraphSources, known: Sequence[Tensor], run_again: Callable[[], object]) -> tuple[Tensor, ...]:
    """Known tensors and sources as independent inputs; `run_again` repeats the computation.

    Known tensors on which others depend, such as the parameters of an encoder whose result the function holds, are left
    out: their gradients follow from those of the others.
    """
    found = (*sources.leaves, *_find_tensors(sources.older, run_again))
    behind = _find_edges_behind([node for node, _ in sources.older])
    is_behind = lambda x: x.requires_grad and find_edge(x) in behind
    if any(map(is_behind, found)):
        raise AmbiguousTensors("tensors outside of `func` from which other tensors used by `func` were computed")
    return (*(x for x in known if not is_behind(x)), *found)


def _find_edges_behind(nodes: Sequence[Node]) -> set[Edge]:
    """The edges of all tensors on which the results of these nodes depend."""
    behind, stack, seen = set[Edge](), list(nodes), set(nodes)
    while stack:
        for node, number in stack.pop().next_functions:
            if node is None:
                continue
            behind.add((node, number))
            if node not in seen:
                seen.add(node)
                stack.append(node)
    return behind


def _find_tensors(edges: Sequence[Edge], run_again: Callable[[], object]) -> tuple[Tensor, ...]:
    """The tensors to which these edges belong, as they occur in a computation."""
    if not edges:
        return ()
    with _Collector(edges) as collector, torch.enable_grad():
        run_again()
    if len(collector.found) < len(edges):
        raise AmbiguousTensors("results of computations outside of `func` that no torch operation in it uses")
    return tuple(collector.found.values())


class _Collector(TorchFunctionMode):
    """Searches the arguments of all operations for the tensors of some edges."""

    def __init__(self, edges: Sequence[Edge]):
        super().__init__()
        self.edges, self.found = set(edges), dict[Edge, Tensor]()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._look_at((args, kwargs))
        return func(*args, **(kwargs or {}))

    def _look_at(self, arguments: Any) -> None:
        if isinstance(arguments, Tensor):
            with torch._C.DisableTorchFunction():
                edge = None if arguments.grad_fn is None else find_edge(arguments)
            if edge in self.edges:
                self.found[edge] = arguments
        elif isinstance(arguments, (tuple, list)):
            for each in arguments:
                self._look_at(each)
        elif isinstance(arguments, dict):
            self._look_at(tuple(arguments.values()))


def describe(sources: GraphSources) -> str:
    """Describe the sources for a message."""
    shapes = [f"a leaf {tuple(x.shape)}" for x in sources.leaves]
    return ", ".join([*shapes, *(f"a result of {node.name()}" for node, _ in sources.older)])
