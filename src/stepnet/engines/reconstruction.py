"""How far a state that was found by undoing steps may miss the one they began with: one rule for all runs.

The drift is the largest error of the reconstructed state relative to its largest entry.  A batch of samples has the
largest drift of all of them, where a sample smaller than the median counts as if it had that size.
"""

from __future__ import annotations

import warnings

from stepnet.errors import AdjointWarning

TOLERATED = 0.1  # of the root of the machine epsilon: half of the digits, and one more


def drift_limit(eps: float) -> float:
    """The drift up to which gradients from reconstructed states count as exact, for a machine epsilon."""
    return TOLERATED * eps**0.5


def warn_of_drift(drift: float, limit: float) -> None:
    """Tell that states could not be reconstructed, and that the gradient was computed again."""
    warnings.warn(
        f"undoing the steps missed the beginning by {drift:.1e} (relative), more than {limit:.1e}, so the gradient "
        f"was computed again with checkpoints, which takes twice the time; use another `memory` than 'reversible' here",
        AdjointWarning,
        stacklevel=3,
    )
