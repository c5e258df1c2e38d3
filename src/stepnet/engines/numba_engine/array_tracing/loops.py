"""A trace of long arrays as loops.

Slopes with equal formulas are grouped, and the indices they read are folded into loop nests.  Reductions, and costly
values that several slopes need, are computed first and stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepnet.engines.numba_engine.array_tracing.array_graph import CODE, LEAVES, OPERATIONS, ArrayGraph
from stepnet.engines.numba_engine.array_tracing.loop_nests import LoopNest, fold, group_equal, hash_rows
from stepnet.engines.numba_engine.tracing.graph import BOOLEAN, ELEMENTARY, Graph
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace

NOT_ALIKE = "it has too many operations for straight-line code, and its slopes do not have a common form"
MOST_NODES_OF_A_LOOP = 40_000  # enough for the pullback of hundreds of single entries, as on a small 3-D grid
MOST_LOOPS = 400
COST = {"div": 4, "sqrt": 4, "pow": 20, "erf": 20, "erfc": 20, "arctan2": 20, "hypot": 20, "fmod": 20} | {
    name: 20 for name in ELEMENTARY if name != "sqrt"
}
WORTH_KEEPING = 16  # operations above which a value is stored: a store and a load cost about two
MIX = np.random.default_rng(0).integers(1, 2**63, len(OPERATIONS) + 1, np.uint64) | np.uint64(1)
KEPT = len(OPERATIONS)


@dataclass(frozen=True)
class LoopBody:
    """One loop nest: what it computes and the indices (base, strides) at which it stores the results."""

    counts: tuple[int, ...]
    graph: Graph
    outputs: list[int] = field(default_factory=list)
    places: list[tuple] = field(default_factory=list)


@dataclass(frozen=True)
class LoopPhase:
    """Loops that fill an array from `first` on, or accumulate reductions in it (`operation`)."""

    array: str
    operation: str
    first: int
    count: int
    bodies: list[LoopBody]


@dataclass(frozen=True)
class Loops:
    """The phases of a right-hand side in order; the last one computes its slopes."""

    phases: list[LoopPhase]
    n_kept: int
    table: np.ndarray


def build_loops(bulk: ArrayGraph, outputs: np.ndarray) -> Loops:
    """The loops that compute the nodes `outputs`; raises `CannotTrace` if there are too many loops."""
    lowest, highest = _find_users(bulk, outputs)
    formulas = _Formulas(bulk, lowest, highest)
    phases = []
    for chunk in formulas.kept:
        numbers = np.arange(chunk.first, chunk.stop)[highest[chunk.first : chunk.stop] >= 0]
        places, total = formulas.place[numbers], bulk.totals.get(chunk.first)
        if total is not None:
            terms = total.terms[numbers - chunk.first]
            numbers, places_of_terms = terms.ravel(), np.repeat(places, terms.shape[1])
        else:
            places_of_terms = places
        operation = total.operation if total else ""
        bodies = formulas.bodies(numbers, places_of_terms, is_inside=total is None)
        phases.append(LoopPhase("kept", operation, int(places[0]), len(places), bodies))
    phases.append(LoopPhase("dy", "", 0, len(outputs), formulas.bodies(outputs, np.arange(len(outputs)))))
    if sum(len(body.outputs) for phase in phases for body in phase.bodies) > MOST_LOOPS:
        raise CannotTrace(NOT_ALIKE)
    return Loops(phases, formulas.n_kept, bulk.table)


def _find_users(bulk: ArrayGraph, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every node the lowest and highest index of the slopes (or terms of reductions) that need it, or -1."""
    lowest, highest = np.full(bulk.size, np.iinfo(np.int64).max), np.full(bulk.size, -1)

    def need(nodes, low, high):
        np.minimum.at(lowest, nodes, low)
        np.maximum.at(highest, nodes, high)

    count = len(outputs)
    need(outputs, np.arange(count), np.arange(count))
    for chunk in reversed(bulk.chunks):
        here = slice(chunk.first, chunk.stop)
        is_live = highest[here] >= 0
        if not is_live.any():
            continue
        if chunk.operation == "total":
            terms = bulk.totals[chunk.first].terms[is_live].ravel()
            need(terms, np.arange(count, count + terms.size), np.arange(count, count + terms.size))
            count += terms.size
        for nodes in bulk.operand[: chunk.arity, here]:
            need(nodes[is_live], lowest[here][is_live], highest[here][is_live])
    return lowest, highest


class _Formulas:
    """The formula of every node: a signature, equal for equal formulas, and which nodes are stored and where."""

    def __init__(self, bulk: ArrayGraph, lowest: np.ndarray, highest: np.ndarray):
        self._bulk, self._table = bulk, bulk.table
        self._code = np.repeat(
            [CODE[chunk.operation] for chunk in bulk.chunks], [chunk.stop - chunk.first for chunk in bulk.chunks]
        )
        self._arity = {CODE[chunk.operation]: chunk.arity for chunk in bulk.chunks}
        self._signature = np.empty(bulk.size, np.uint64)
        self.place = np.full(bulk.size, -1)
        self.n_kept = 0
        self.kept: list[Any] = []
        cost = np.zeros(bulk.size)
        for chunk in bulk.chunks:
            here = slice(chunk.first, chunk.stop)
            operands = bulk.operand[: chunk.arity, here]
            cost[here] = (chunk.operation not in LEAVES) * COST.get(chunk.operation, 1) + cost[operands].sum(0)
            signature = np.full(chunk.stop - chunk.first, MIX[CODE[chunk.operation]])
            for operand in operands:
                signature = (signature ^ self._signature[operand]) * MIX[KEPT]
                signature ^= signature >> np.uint64(29)
            self._signature[here] = signature
            is_number = chunk.operation not in BOOLEAN  # only numbers can be stored
            if chunk.operation == "total" or (
                is_number and self._is_worth_keeping(cost[here], lowest[here], highest[here])
            ):
                self._keep(chunk, highest[here] >= 0, cost)

    @staticmethod
    def _is_worth_keeping(cost, lowest, highest) -> bool:
        """Whether most of the nodes are costly and needed by more than one slope."""
        is_costly = cost >= WORTH_KEEPING
        return bool(is_costly.any() and np.mean(is_costly & (lowest < highest)) > 0.5)

    def _keep(self, chunk, is_live: np.ndarray, cost: np.ndarray) -> None:
        numbers = np.arange(chunk.first, chunk.stop)[is_live]
        if numbers.size:
            self.place[numbers] = self.n_kept + np.arange(numbers.size)
            self._signature[numbers], cost[numbers] = MIX[KEPT], 0
            self.n_kept += numbers.size
            self.kept.append(chunk)

    def bodies(self, numbers: np.ndarray, places: np.ndarray, is_inside: bool = False) -> list[LoopBody]:
        """Loops that compute nodes and store them at `places`; `is_inside` if the nodes themselves are stored."""
        made: dict[tuple, LoopBody] = {}
        signatures = self._expand_nodes(numbers) if is_inside else self._signature[numbers]
        for rows in group_equal(signatures):
            steps, kinds, columns = self._formula(numbers[rows], is_inside)
            for nest in fold(np.stack((places[rows], *columns), axis=1)):
                body = made.setdefault(nest.counts, LoopBody(nest.counts, Graph(MOST_NODES_OF_A_LOOP)))
                body.outputs.append(self._write_formula(body.graph, steps, kinds, nest))
                body.places.append(_place(nest, 0))
                if len(body.outputs) > MOST_LOOPS or len(made) > MOST_LOOPS:
                    raise CannotTrace(NOT_ALIKE)
        return list(made.values())

    def _expand_nodes(self, numbers: np.ndarray) -> np.ndarray:
        """Signatures of stored nodes by the formulas that compute them."""
        arity = self._arity[self._code[numbers[0]]]
        return hash_rows(self._signature[self._bulk.operand[:arity, numbers]].T)

    def _formula(self, numbers: np.ndarray, is_inside: bool):
        """The operations of nodes with equal formulas, operands first, and the arrays and indices that they read."""
        weights = np.random.default_rng(1).integers(1, 2**63, len(numbers), np.uint64)
        known: dict[int, int] = {}
        steps: list[tuple] = []
        kinds: list[str] = []
        columns: list[np.ndarray] = []

        def key_of(nodes) -> int:
            return int(nodes.astype(np.uint64) @ weights)

        stack = [(numbers, key_of(numbers), is_inside)]
        while stack:
            nodes, key, is_opened = stack[-1]
            first = nodes[0]
            code = int(self._code[first])
            is_kept = self.place[first] >= 0 and not is_opened
            if key in known:
                stack.pop()
            elif is_kept or OPERATIONS[code] in LEAVES:
                known[key] = len(steps)
                steps.append(("leaf", len(columns)))
                kinds.append("kept" if is_kept else OPERATIONS[code])
                columns.append(self.place[nodes] if is_kept else self._bulk.operand[0][nodes].astype(np.int64))
            else:
                operands = self._bulk.operand[: self._arity[code]][:, nodes]
                keys = [key_of(operand) for operand in operands]
                missing = [(x, k, False) for x, k in zip(operands, keys, strict=True) if k not in known]
                stack.extend(missing)
                if not missing:
                    known[key] = len(steps)
                    steps.append((OPERATIONS[code], *(known[k] for k in keys)))
                    stack.pop()
        return steps, kinds, columns

    def _write_formula(self, graph: Graph, steps, kinds, nest: LoopNest) -> int:
        """Add the formula to a loop's graph, whose leaves are ("y", place) and similar; returns the last node."""
        values: list[int] = []
        for operation, *operands in steps:
            if operation != "leaf":
                values.append(graph.apply(operation, *(values[k] for k in operands)))
            else:
                values.append(self._leaf(graph, kinds[operands[0]], nest, 1 + operands[0]))
        return values[-1]

    def _leaf(self, graph: Graph, kind: str, nest: LoopNest, column: int) -> int:
        if kind == "t":
            return graph.node("t")
        if kind != "const":
            return graph.node(kind, _place(nest, column))
        values = self._table[list_places(_place(nest, column), nest.counts)]
        is_one = values.min() == values.max() and not np.signbit(values).any() ^ np.signbit(values).all()
        return graph.constant(values.flat[0]) if is_one else graph.node("table", _place(nest, column))


def list_places(place: tuple, counts: tuple[int, ...]) -> np.ndarray:
    """All indices base + sum_k i_k stride_k of a nest."""
    places = np.array(place[0])
    for count, stride in zip(counts, place[1], strict=True):
        places = np.add.outer(places, stride * np.arange(count))
    return places.ravel()


def _place(nest: LoopNest, column: int) -> tuple[int, tuple[int, ...]]:
    return int(nest.base[column]), tuple(int(stride[column]) for stride in nest.strides)
