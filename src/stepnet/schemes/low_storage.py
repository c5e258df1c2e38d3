"""Runge-Kutta schemes in the 2N form of Williamson, which needs two registers for any number of stages."""

from __future__ import annotations

from stepnet.schemes.tableau import LowStorageRK

WILLIAMSON3 = LowStorageRK(
    "williamson3", 3,
    A=(0.0, -5 / 9, -153 / 128),
    B=(1 / 3, 15 / 16, 8 / 15),
    reference="Williamson (1980), J. Comput. Phys. 35:48",
)  # fmt: skip

CARPENTER_KENNEDY = LowStorageRK(
    "carpenter_kennedy54", 4,
    A=(
        0.0,
        -567301805773 / 1357537059087,
        -2404267990393 / 2016746695238,
        -3550918686646 / 2091501179385,
        -1275806237668 / 842570457699,
    ),
    B=(
        1432997174477 / 9575080441755,
        5161836677717 / 13612068292357,
        1720146321549 / 2090206949498,
        3134564353537 / 4481467310338,
        2277821191437 / 14882151754819,
    ),
    reference="Carpenter & Kennedy (1994), NASA Tech. Memo. 109112",
)  # fmt: skip
