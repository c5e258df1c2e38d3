"""Several steps in one sweep over a plane: the passes of these steps as levels of a wavefront.

Level s computes its rows a few rows behind level s - 1.  What a level stores for later levels lies in a ring of rows,
of which only the last few are kept; the state after all steps goes to whole planes.  So the planes are read and written
once for many passes, and the rings stay in the second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from stepnet.engines.numba_engine.stencils.step_passes import PlacedPass, StepPasses

RING_BYTES = 600_000  # of all rings, so that they stay in a second-level cache of 1 MiB, or share one of 2 MiB
MOST_LEVELS = 8  # more of them save little: the planes are read an eighth as often
BLOCK_ROWS = (6, 2)  # rows that a level computes at a time, the best first: rows that lie between them are read once
LINE = 64  # bytes of a cache line
SAME_SETS, APART = 4096, 4 * LINE  # addresses that differ by multiples of the former share their places in caches


class Reach(NamedTuple):
    """The rows that a slope reads before and behind its own, the number of rows of the plane, and bytes of one."""

    behind: int
    ahead: int
    n_rows: int
    row_bytes: int


class Place(NamedTuple):
    """Where rows are: a slot, bytes behind its address, the rows of the ring less one, bytes from row to row.

    The slot -1 stands for the rings, -1 - k for the k-th further plane; a whole plane has the mask 0.
    """

    slot: int
    start: int
    mask: int
    pitch: int


class WavefrontLevel(NamedTuple):
    """A pass by its number in a step, and the places of what it reads and writes."""

    number: int
    source: Place
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


@dataclass(frozen=True)
class Wavefront:
    """The levels of `n_steps` steps, `block_rows` rows at a time; afterwards slots are exchanged.

    It needs `n_planes` further slots and `ring_bytes` of memory for rings.
    """

    n_steps: int
    block_rows: int
    levels: tuple[WavefrontLevel, ...]
    swaps: tuple[tuple[int, int], ...]
    n_planes: int
    ring_bytes: int


@dataclass
class _Version:
    """Rows that one level computes, and which levels read them."""

    level: int
    last_read: int
    is_final: bool = False
    place: Place | None = None


@dataclass
class _Levels:
    """All passes of a few steps, with versions of slots in place of slots; an unchanged slot is its own number."""

    passes: StepPasses
    n_steps: int
    versions: list[_Version] = field(default_factory=list)
    levels: list[tuple] = field(default_factory=list)

    def __post_init__(self):
        now: dict[int, int | _Version] = {}
        for _ in range(self.n_steps):
            for number, each in enumerate(self.passes.body):
                self._add(number, each, now)
            for i, j in self.passes.swaps:
                now[i], now[j] = now.get(j, j), now.get(i, i)
        self.final = {slot: now.get(slot, slot) for slot in self._list_carried()}

    def _add(self, number: int, each: PlacedPass, now: dict) -> None:
        level = len(self.levels)
        slots = (self.passes.n_slots if slot < 0 else slot for slot in (each.source, *each.inputs))  # also of a source
        reads = [now.get(slot, slot) for slot in slots]
        for read in reads:
            if isinstance(read, _Version):
                read.last_read = level
        outputs = [_Version(level, level) for _ in each.outputs]
        self.versions += outputs
        now.update(zip(each.outputs, outputs, strict=True))
        self.levels.append((number, reads, outputs))

    def _list_carried(self) -> list[int]:
        """The slots whose rows a later step or the caller reads."""
        carried = set(range(self.passes.n_states))
        for passes in (self.passes.body, self.passes.last):
            written: set[int] = set()
            for each in passes:
                carried |= {slot for slot in (each.source, *each.inputs) if slot >= 0} - written
                written |= set(each.outputs)
        return sorted(carried)


def plan_wavefront(passes: StepPasses, reach: Reach, most_levels: int = MOST_LEVELS) -> Wavefront | None:
    """As many steps at once as their rings fit; None if that is not even two passes."""
    most = most_levels // len(passes.body) if passes.body else 0
    for n_steps in range(most, 0, -1):
        if n_steps * len(passes.body) < 2:
            break
        for rows in BLOCK_ROWS:
            found = _place(passes, reach, n_steps, rows)
            if found is not None and found.ring_bytes <= RING_BYTES:
                return found
    return None


def _place(passes: StepPasses, reach: Reach, n_steps: int, rows: int) -> Wavefront | None:
    """Rings for what only later levels read, planes for the rest; None if a slot ends as another one has begun."""
    found = _Levels(passes, n_steps)
    ends = [(slot, last) for slot, last in found.final.items() if last != slot]
    if not all(isinstance(last, _Version) for _, last in ends):
        return None
    free = [slot for slot in range(passes.n_slots) if slot not in found.final]
    swaps, n_planes = [], 0
    for slot, last in ends:
        if not free:
            n_planes += 1
        plane = free.pop(0) if free else -1 - n_planes
        last.place = Place(plane, 0, 0, reach.row_bytes)
        swaps.append((slot, plane))
    pitch, ring_bytes = _find_pitch(reach), 0
    for version in found.versions:
        if version.place is None:
            kept = rows + (version.last_read - version.level) * reach.ahead + reach.behind
            count = 1 << (kept - 1).bit_length()
            version.place = Place(-1, ring_bytes, count - 1, pitch)
            ring_bytes += count * pitch

    def locate(read) -> Place:
        return read.place if isinstance(read, _Version) else Place(read, 0, 0, reach.row_bytes)

    levels = tuple(
        WavefrontLevel(number, locate(reads[0]), tuple(map(locate, reads[1:])), tuple(map(locate, outputs)))
        for number, reads, outputs in found.levels
    )
    return Wavefront(n_steps, rows, levels, tuple(swaps), n_planes, ring_bytes)


def _find_pitch(reach: Reach) -> int:
    """The bytes from row to row of a ring such that rows that are read together do not share their places in caches."""
    pitch, distances = -(-reach.row_bytes // LINE) * LINE, range(1, reach.behind + reach.ahead + 2)
    if pitch < SAME_SETS // 2:
        return pitch
    for extra in range(0, SAME_SETS, LINE):
        moved = [k * (pitch + extra) % SAME_SETS for k in distances]
        if all(APART <= move <= SAME_SETS - APART for move in moved):
            return pitch + extra
    return pitch + LINE
