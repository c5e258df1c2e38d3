"""Steps of a scheme on a linear form as passes over memory, each with at most one stencil.

A slope begins a pass, the sums that follow it are computed point by point in the same pass, and sums at the beginning
of a step belong to the last pass of the step before.  So forward Euler takes one pass per step, Verlet's scheme too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepnet.schemes.step_program import Slope, StepProgram, Sum

SOURCE = -1  # the row of a source among the rows of a program


class Pass(NamedTuple):
    """Rows that one sweep computes: the slope of `source` (None: none) and sums; rows are those of the program."""

    source: int | None
    slope: int | None
    sums: tuple[tuple[int, tuple[tuple[int, float, int], ...]], ...]


class PlacedPass(NamedTuple):
    """A pass with the slots of what it reads and stores; `sums` are terms (value, weight, power).

    Values are ("input", k), ("sum", k) or "slope"; `stored` are the sums, or -1 for the slope, for the slots `outputs`.
    """

    source: int
    inputs: tuple[int, ...]
    sums: tuple[tuple[tuple[Any, float, int], ...], ...]
    stored: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class StepPasses:
    """The passes of `count` steps: `first` once, `body` count - 1 times, `last` once, exchanging slots after each step.

    The first slots hold the state; `n_slots` of them are needed, and the source has the one after them.
    """

    first: tuple[PlacedPass, ...]
    body: tuple[PlacedPass, ...]
    last: tuple[PlacedPass, ...]
    swaps: tuple[tuple[int, int], ...]
    last_swaps: tuple[tuple[int, int], ...]
    n_states: int
    n_slots: int


def plan_passes(program: StepProgram, has_source: bool) -> StepPasses | None:
    """The passes of a program of slopes and sums, None if it has other operations or passes states on unchanged."""
    if not all(isinstance(operation, (Slope, Sum)) for operation in program.operations):
        return None
    outputs = program.outputs
    is_moved = any(row < program.n_rows and row != i for i, row in enumerate(outputs))
    if is_moved or len(set(outputs)) < len(outputs) or not program.n_slopes:
        return None
    head, groups = _group(program, has_source)
    places = _Places(program, head, groups)
    first = (places.place(head, set(places.head_rows)),) if head.sums else ()
    body = [places.place(each, places.find_stored(i)) for i, each in enumerate(groups)]
    if not head.sums:
        swaps = places.end_step()
        return StepPasses((), tuple(body), tuple(body), swaps, swaps, program.n_rows, places.n_slots)
    last_swaps = places.end_step()
    merged, swaps = places.merge(groups[-1], head)
    if merged is None:
        return None
    return StepPasses(first, (*body[:-1], merged), tuple(body), swaps, last_swaps, program.n_rows, places.n_slots)


def _group(program: StepProgram, has_source: bool) -> tuple[Pass, list[Pass]]:
    """The sums before the first slope, and one pass for each slope."""
    groups: list[list] = [[None, None, []]]
    for i, operation in enumerate(program.operations):
        row = program.n_rows + i
        if isinstance(operation, Slope):
            groups.append([operation.row, row, []])
        else:
            groups[-1][2].append((row, tuple(tuple(term) for term in operation.terms)))
    if has_source:  # the slope with the source takes the place of the row
        for group in groups[1:]:
            group[2].insert(0, (group[1], ((None, 1.0, 0), (SOURCE, 1.0, 0))))
    head, *others = (Pass(source, slope, tuple(sums)) for source, slope, sums in groups)
    return head, others


@dataclass
class _Places:
    """The slots of the rows of a program, assigned pass by pass."""

    program: StepProgram
    head: Pass
    groups: list[Pass]
    slots: dict[int, int] = field(default_factory=dict)
    n_slots: int = 0

    def __post_init__(self):
        self.slots = {row: row for row in range(self.program.n_rows)}
        self.n_slots = self.program.n_rows
        computed = {row for row, _ in self.head.sums}
        self.head_rows = {row for row in computed if self._is_read_after(row, -1) or row in self.program.outputs}

    def _is_read_after(self, row: int, group: int) -> bool:
        later = self.groups[group + 1 :]
        return any(
            each.source == row or any(row == term[0] for _, terms in each.sums for term in terms) for each in later
        )

    def find_stored(self, group: int) -> set[int]:
        """The rows of a pass that later passes or the next step read."""
        each = self.groups[group]
        rows = {row for row, _ in each.sums} | {each.slope}
        return {row for row in rows if self._is_read_after(row, group) or row in self.program.outputs}

    def _new_slot(self) -> int:
        self.n_slots += 1
        return self.n_slots - 1

    def place(self, each: Pass, stored: set[int]) -> PlacedPass:
        """A pass with slots; a new state is written over the old one, unless the pass reads its neighbours."""
        source = -1 if each.source is None else self.slots[each.source]
        is_last = each is self.groups[-1]
        inputs: list[int] = []
        values: dict[int, Any] = {each.slope: "slope"}
        sums = []
        for k, (row, terms) in enumerate(each.sums):
            sums.append(tuple((self._find_value(term[0], values, inputs), *term[1:]) for term in terms))
            values[row] = ("sum", k)
        order = [each.slope] * (each.slope in stored) + [row for row, _ in each.sums if row in stored]
        order = list(dict.fromkeys(order))
        slots = []
        for row in order:
            state = self.program.outputs.index(row) if row in self.program.outputs else -1
            can_replace = is_last and state >= 0 and state != source and self.slots.get(state) == state
            self.slots[row] = state if can_replace else self._new_slot()
            slots.append(self.slots[row])
        stored_at = tuple(-1 if values[row] == "slope" else values[row][1] for row in order)
        return PlacedPass(source, tuple(inputs), tuple(sums), stored_at, tuple(slots))

    def _find_value(self, row: int | None, values: dict, inputs: list[int]):
        if row is None:
            return "slope"
        if row in values:
            return values[row]
        slot = SOURCE if row == SOURCE else self.slots[row]
        if slot not in inputs:
            inputs.append(slot)
        return ("input", inputs.index(slot))

    def end_step(self) -> tuple[tuple[int, int], ...]:
        """The exchanges that bring the new state to its slots."""
        pairs = ((i, self.slots[row]) for i, row in enumerate(self.program.outputs))
        return tuple((i, slot) for i, slot in pairs if i != slot)

    def merge(self, last: Pass, head: Pass) -> tuple[PlacedPass | None, tuple[tuple[int, int], ...]]:
        """The last pass together with the sums at the beginning of the next step, which replace those of this one.

        New states are stored only if passes other than the first sums read them; None if an earlier pass computed them.
        """
        after = dict(enumerate(self.program.outputs))
        shift = self.program.n_rows + len(self.program.operations)
        renamed = {row: shift + row for row, _ in head.sums} | after
        sums = [
            (shift + row, tuple((renamed.get(term[0], term[0]), *term[1:]) for term in terms))
            for row, terms in head.sums
        ]
        whole = Pass(last.source, last.slope, (*last.sums, *sums))
        placed = self.place(whole, set())
        made = {last.slope: -1} | {row: k for k, (row, _) in enumerate(whole.sums)}
        wanted = [(made[shift + row], self.slots[row]) for row in sorted(self.head_rows)]
        for state, row in after.items():
            if self._is_read_after(state, -1):
                if row not in made:
                    return None, ()
                wanted.append((made[row], state))
        stored, slots, swaps = [], [], []
        for value, slot in wanted:
            if slot == placed.source:
                swaps.append((slot, self._new_slot()))
                slot = swaps[-1][1]
            stored.append(value)
            slots.append(slot)
        return placed._replace(stored=tuple(stored), outputs=tuple(slots)), tuple(swaps)
