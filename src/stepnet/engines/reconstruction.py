"""The largest admissible error of a state reconstructed by inverting steps: one rule for all runs.

The drift is the largest error of the reconstructed state relative to its largest entry.  The drift of a batch is the
largest drift of its samples, where a sample smaller than the median is measured relative to the median size.
"""

from __future__ import annotations

import warnings

from stepnet.errors import AdjointWarning

TOLERATED = 0.1  # times the square root of the machine epsilon: half of the digits, and one more


def drift_limit(eps: float) -> float:
    """The drift up to which gradients from reconstructed states count as exact, for a given machine epsilon."""
    return TOLERATED * eps**0.5


def warn_of_drift(drift: float, limit: float) -> None:
    """Warn that states could not be reconstructed and that the gradient was computed again."""
    warnings.warn(
        f"inverting the steps missed the initial state by {drift:.1e} (relative), more than {limit:.1e}, so the "
        f"gradient was computed again with checkpoints, which takes twice the time; choose another `memory`",
        AdjointWarning,
        stacklevel=3,
    )
