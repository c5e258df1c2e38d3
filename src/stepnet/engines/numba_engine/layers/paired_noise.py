"""Brownian increments for neighbouring columns whose paths share a draw of two normal numbers."""

from __future__ import annotations

from stepnet.engines.numba_engine.codegen.intrinsics.exact_arithmetic import exact_function
from stepnet.engines.numba_engine.codegen.intrinsics.normals import ZERO, U, convert_to_normals, draw_words
from stepnet.engines.numba_engine.codegen.intrinsics.wide_vectors import prefer_wide_vectors
from stepnet.engines.numba_engine.random.increments import pack_last_word, quantise
from stepnet.noise.counters import CELL_INCREMENT

COMPONENTS = 8  # whose words are drawn at once, which stay in the first-level cache


@exact_function
def draw_for_pairs(seed, pairs, cell, component, scale, rounder, is_added, rows, words):
    """Increments of a cell, `rows` = or += them: components from `component` on, each for all pairs of columns.

    Columns 2 j and 2 j + 1 are the two paths of pair j.  Words are drawn first, into `words` (2, pairs of all rows),
    and converted in a separate loop, which takes less time than a single loop.
    """
    prefer_wide_vectors()
    n = pairs.size
    for i in range(rows.size // (2 * n)):
        first = i * n
        for j in range(n):
            pair = U(pairs[j])
            words[0, first + j], words[1, first + j] = draw_words(
                ZERO, U(cell), pair, pack_last_word(CELL_INCREMENT, component + i, pair), seed
            )
    for k in range(rows.size >> 1):
        x, y = convert_to_normals(words[0, k], words[1, k])
        first, second = quantise(scale * x, rounder), quantise(scale * y, rounder)
        if is_added:
            rows[2 * k], rows[2 * k + 1] = rows[2 * k] + first, rows[2 * k + 1] + second
        else:
            rows[2 * k], rows[2 * k + 1] = first, second
