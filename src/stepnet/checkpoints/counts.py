"""Numbers of recomputed steps: closed forms in exact integers.

References: Griewank & Walther (2000), ACM Trans. Math. Softw. 26:19 (revolve), for kept states; the closed form for
slots that hold a state or the stages of a step is derived in docs/checkpoints.md and agrees with the dynamic
programmes of Zhang & Constantinescu (2023), arXiv:2106.13879, and Maddison (2023), arXiv:2305.09568.
"""

from __future__ import annotations

from math import comb
from typing import Any

from stepnet.records import validate_count

MOST_STEPS = 2**36  # an action takes 32 bytes


def validate_steps(name: str, value: Any, least: int = 0) -> int:
    """Return a number of steps to reverse."""
    return validate_count(name, value, least, MOST_STEPS, "no memory holds a schedule of more")


def longest(slots: int, repetitions: int) -> int:
    """beta(s, r) = C(s + r, s): the most steps that s slots reverse when no step is advanced over more than r times.

    Parameters
    ----------
    slots : int
        Maximum number of states kept at a time.
    repetitions : int
        How often a step may be advanced over.

    Returns
    -------
    int

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.longest(slots=3, repetitions=2)
    10
    """
    s, r = validate_count("slots", slots, 1), validate_count("repetitions", repetitions, 0)
    return comb(s + r, s)


def repetitions(n_steps: int, slots: int) -> int:
    """The smallest r with beta(s, r) >= n.

    Parameters
    ----------
    n_steps : int
        Steps to reverse.
    slots : int
        Maximum number of states kept at a time.

    Returns
    -------
    int

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.repetitions(10, slots=3)
    2
    """
    n, s = validate_count("n_steps", n_steps, 0), validate_count("slots", slots, 1)
    return _repetitions(n, s)


def binomial_advances(n_steps: int, slots: int) -> int:
    """t(n, s) = r n - C(s + r, s + 1): the fewest advances that reverse n steps; the initial state takes a slot.

    Parameters
    ----------
    n_steps : int
        Steps to reverse.
    slots : int
        Maximum number of states kept at a time.

    Returns
    -------
    int

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.binomial_advances(100, 10)
    222
    """
    n, s = validate_count("n_steps", n_steps, 0), validate_count("slots", slots, 1)
    return fewest_advances(n, s)


def mixed_evaluations(n_steps: int, slots: int) -> int:
    """t(n, s) + beta(s, r - 2) + k: the fewest evaluations of steps when a slot may hold the stages of a step.

    The evaluations inside the reversed steps count too; kept states alone need t(n, s) + n of them.  k is the number
    of blocks that the last n - beta(s, r - 1) steps are spread over, see `spread`.  For n <= s + 1 it is n.

    Parameters
    ----------
    n_steps : int
        Steps to reverse.
    slots : int
        Slots for states or stages.

    Returns
    -------
    int

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.mixed_evaluations(4, slots=3)
    4
    """
    n, s = validate_count("n_steps", n_steps, 0), validate_count("slots", slots, 1)
    if n <= s + 1:
        return n
    blocks, _ = spread(n, s)
    return fewest_advances(n, s) + comb(s + _repetitions(n, s) - 2, s) + blocks


def two_level_advances(n_steps: int, period: int, slots: int) -> int:
    """n - 1 forward, t(period, s + 1) for each whole period and t(rest, s + 1): the kept state is one more slot.

    Parameters
    ----------
    n_steps : int
        Steps to reverse.
    period : int
        Steps between states on disk.
    slots : int
        Slots in memory.

    Returns
    -------
    int

    Examples
    --------
    >>> from stepnet import checkpoints
    >>> checkpoints.two_level_advances(100, period=10, slots=10)
    188
    """
    n, s = validate_count("n_steps", n_steps, 0), validate_count("slots", slots, 1)
    period = validate_count("period", period, 1)
    if n < 2:
        return 0
    whole, rest = divmod(n - 1, period)
    return n - 1 + whole * fewest_advances(period, s + 1) + fewest_advances(rest, s + 1)


def fewest_advances(n: int, s: int) -> int:
    """`binomial_advances` without validation."""
    r = _repetitions(n, s)
    return r * n - comb(s + r, s + 1)


def balanced_split(n: int, s: int) -> int:
    """How far to advance before the next state is kept, so that t(n, s) = m + t(m, s) + t(n - m, s - 1).

    Of the optimal choices between beta(s, r - 2) and beta(s, r - 1), this one makes one of the two parts as long as its
    slots and repetitions allow, so that few different parts occur.
    """
    r = _repetitions(n, s)
    return min(comb(s + r - 1, s), n - comb(s + r - 2, s - 1))


def mixed_split(n: int, s: int) -> int:
    """How far to advance before anything else is kept, when slots may hold the stages of a step and n > s + 1."""
    _, left = spread(n, s)
    return left


def spread(n: int, s: int) -> tuple[int, int]:
    """Blocks that the last n - beta(s, r - 1) steps are spread over, and steps left of the first kept state.

    s slots reverse s + 1 steps at one evaluation each.  A full block reached by L restores with R slots taken is
    extended by up to s - R steps, at L + 2 evaluations each and one more for the block.  There are C(L + R, R) such
    blocks, those with the most free slots come first, and L = r - 2 for the last steps.
    """
    r = _repetitions(n, s)
    L, rest = r - 2, n - comb(s + r - 1, s)
    blocks, left = 0, comb(s + r - 2, s)
    for R in range(s):
        free = s - R
        taken = min(rest, comb(L + R, R) * free)
        on_the_left = comb(L - 1 + R, R) if L else int(R == 0)
        blocks += -(-taken // free)
        left += min(taken, on_the_left * free)
        rest -= taken
        if rest == 0:
            break
    return blocks, left


def _repetitions(n: int, s: int) -> int:
    if s == 1:
        return max(n - 1, 0)
    top = 1
    while comb(s + top, s) < n:
        top *= 2
    low = 0
    while low < top:  # `bisect_left` does not take integers beyond 64 bits
        middle = (low + top) // 2
        low, top = (middle + 1, top) if comb(s + middle, s) < n else (low, middle)
    return low
