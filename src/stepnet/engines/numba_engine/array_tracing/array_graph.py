"""Expressions of long arrays: a graph in which one operation adds many nodes.

Node numbers are stored in integer arrays, so NumPy itself performs every rearrangement of entries (slices, `roll`,
`reshape`, `pad`, stores), and tracing costs about as much as one evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepnet.engines.numba_engine.tracing.graph import COMPOSED, EVALUATE, Graph, TooManyNodes
from stepnet.engines.numba_engine.tracing.symbols import CannotTrace

LEAVES = ("t", "y", "p", "const", "total")
OPERATIONS = (*LEAVES, *EVALUATE)
CODE = {name: i for i, name in enumerate(OPERATIONS)}
ARITY = 3
MOST_NODES = 12_000_000  # about 100 bytes each; a Laplacian of 1024 x 1024 points takes 8 million
MOST_TERMS = 1_000_000  # of reductions: a dense matrix with more entries is better left to BLAS
MOST_CALLS = 2000  # more calls indicate a Python loop over the unknowns, for which scalar nodes are better
UNSET = -1


@dataclass(frozen=True)
class NodeRange:
    """The nodes first, ..., stop - 1 of one operation."""

    operation: str
    first: int
    stop: int
    arity: int


@dataclass(frozen=True)
class NodeReduction:
    """The nodes first, first + 1, ...: sums (or maxima, minima) over the rows of `terms`, which holds node numbers."""

    operation: str
    first: int
    terms: np.ndarray


class ArrayGraph:
    """`operand[:, i]` are the nodes that node i reads, or the index in its array if it is a leaf."""

    def __init__(self):
        self.size = 0
        self.chunks: list[NodeRange] = []
        self.totals: dict[int, NodeReduction] = {}  # by the number of the first node
        self._operand = np.zeros((ARITY, 1024), np.int32)
        self._constants: list[np.ndarray] = []
        self._n_constants = 0
        self._known: dict[object, np.ndarray] = {}

    @property
    def operand(self) -> np.ndarray:
        return self._operand[:, : self.size]

    @property
    def table(self) -> np.ndarray:
        """The values of all constants."""
        return np.concatenate((*self._constants, np.empty(0)))

    @classmethod
    def of(cls, graph: Graph, outputs: list[int]) -> tuple[ArrayGraph, np.ndarray]:
        """Convert a graph of scalar nodes, grouped by operation and depth; returns the array graph and its outputs."""
        bulk, live = cls(), graph.live(outputs)
        depth: dict[int, int] = {}
        kinds: dict[tuple, list[int]] = {}
        for number in live:
            operands = graph.operands(number)
            depth[number] = 1 + max((depth[operand] for operand in operands), default=-1)
            kinds.setdefault((depth[number], graph.nodes[number][0]), []).append(number)
        made = np.zeros(len(graph.nodes), np.int32)
        for (_, operation), numbers in sorted(kinds.items()):
            rows = np.array([graph.nodes[number][1:] or (0,) for number in numbers])
            if operation == "const":
                made[numbers] = bulk.constant(np.array([graph.nodes[number][1] for number in numbers]))
            elif operation in LEAVES:
                made[numbers] = bulk.leaf(operation, rows[:, 0])
            else:
                made[numbers] = bulk.apply(operation, *made[rows].T)
        return bulk, made[outputs]

    def leaf(self, name: str, places: np.ndarray) -> np.ndarray:
        """Entries of an input."""
        return self._append(name, places)

    def constant(self, values) -> np.ndarray:
        """Numbers, one or many; booleans are comparisons of numbers with zero."""
        values = np.asarray(values)
        if values.dtype == bool:
            return self.apply("ne", self.constant(values.astype(float)), self.constant(0.0))
        if values.dtype.kind not in "iuf":
            raise CannotTrace(f"it mixes traced numbers with {values.dtype}")
        values = values.astype(float)
        if values.ndim > 0:
            return self._constants_of(values)
        key = values.tobytes()
        if key not in self._known:
            self._known[key] = self._constants_of(values)
        return self._known[key].copy()  # because the user may store into it

    def _constants_of(self, values: np.ndarray) -> np.ndarray:
        first, self._n_constants = self._n_constants, self._n_constants + values.size
        self._constants.append(values.ravel())
        return self._append("const", first + np.arange(values.size).reshape(values.shape))

    def apply(self, operation: str, *operands: np.ndarray) -> np.ndarray:
        """Apply an operation element by element, with NumPy's broadcasting."""
        if operation in COMPOSED:
            return COMPOSED[operation](self, *operands)
        operands = np.broadcast_arrays(*operands)
        key = (operation, operands[0].shape, *(hash(numbers.tobytes()) for numbers in operands))
        if key not in self._known:
            self._known[key] = self._append(operation, *operands)
        return self._known[key].copy()

    def total(self, operation: str, terms: np.ndarray) -> np.ndarray:
        """Reduce the last axis; short reductions are written out."""
        if terms.shape[-1] == 0:
            raise CannotTrace("it reduces an array without entries")
        if terms.size > MOST_TERMS:
            raise TooManyNodes(f"it adds more than {MOST_TERMS} numbers")
        if terms.shape[-1] <= 4 or operation not in ("add", "max", "min"):
            result = terms[..., 0]
            for k in range(1, self._check_count(terms.shape[-1], 64)):
                result = self.apply(operation, result, terms[..., k])
            return result
        self._require_set(terms)
        shape = terms.shape[:-1]
        made = self._append("total", np.arange(int(np.prod(shape))).reshape(shape))
        first = int(made.flat[0])
        self.totals[first] = NodeReduction(operation, first, terms.reshape(-1, terms.shape[-1]))
        return made

    def _check_count(self, count: int, most: int) -> int:
        if count > most:
            raise TooManyNodes("it multiplies or compares too many numbers one after the other")
        return count

    def _require_set(self, numbers: np.ndarray) -> None:
        if numbers.size and numbers.min() == UNSET:
            raise CannotTrace("it reads entries that it did not set")

    def _append(self, operation: str, *operands: np.ndarray) -> np.ndarray:
        shape, first = operands[0].shape, self.size
        stop = first + operands[0].size
        if stop > MOST_NODES or len(self.chunks) >= MOST_CALLS:
            raise TooManyNodes(f"it takes more than {MOST_NODES} operations, or {MOST_CALLS} one by one")
        while stop > self._operand.shape[1]:
            self._operand = np.concatenate((self._operand, np.zeros_like(self._operand)), axis=1)
        for row, numbers in zip(self._operand, operands, strict=False):
            if operation not in LEAVES:
                self._require_set(numbers)
            row[first:stop] = numbers.ravel()
        self.size = stop
        self.chunks.append(NodeRange(operation, first, stop, 0 if operation in LEAVES else len(operands)))
        return np.arange(first, stop, dtype=np.int32).reshape(shape)
