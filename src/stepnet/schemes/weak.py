"""Stochastic Runge-Kutta schemes of weak order two with stages for each component of the noise.

With stages H0_i of the drift, and H_i^k and G_i^k of component k of the noise, a step is

    H0_i  = y + h sum_j A0_ij f(t + c0_j h, H0_j) + sum_k sum_j B0_ij g^k(t + c1_j h, H_j^k) V_k
    H_i^k = y + h sum_j A1_ij f(t + c0_j h, H0_j) + sum_j B1_ij g^k(t + c1_j h, H_j^k) sqrt(h)
    G_i^k = y + sum_(l != k) sum_j B2_ij g^l(t + c1_j h, H_j^l) I_kl / sqrt(h)
    y_new = y + h sum_i alpha_i f(t + c0_i h, H0_i)
              + sum_k sum_i g^k(t + c1_i h, H_i^k) (beta1_i V_k + beta2_i I_kk / sqrt(h))
              + sum_k sum_i g^k(t, G_i^k) (beta3_i V_k + beta4_i sqrt(h))

with the three-point variables V_k and I_kl = (V_k V_l + U_kl) / 2; see `VARIABLES` in `schemes/stochastic.py`.

K. Debrabant, A. Roessler (2009), Appl. Numer. Math. 59:582.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from stepnet.errors import SchemeError
from stepnet.schemes.stochastic import NOISE_TYPES, Orders, Row, validate_rows
from stepnet.schemes.tableau import floats, freeze, require_finite
from stepnet.validation import check, text


@check(name=text, reference=text)
@dataclass(frozen=True)
class WeakRK:
    """A scheme of this class for Ito equations; `A0`, `A1`, `B0` and `B1` are strictly lower triangular.

    `B2` has a row of weights for each stage G, which depends on no other.
    """

    name: str
    orders: tuple[Orders, ...]
    alpha: Row
    beta1: Row
    beta2: Row
    beta3: Row
    beta4: Row
    A0: tuple[Row, ...]
    A1: tuple[Row, ...]
    B0: tuple[Row, ...]
    B1: tuple[Row, ...]
    B2: tuple[Row, ...]
    reference: str

    calculus = "ito"
    variables = ("sqrt(h)", "V", "V2")

    def __post_init__(self) -> None:
        s = len(self.alpha)
        for name in ("alpha", "beta1", "beta2", "beta3", "beta4"):
            freeze(self, **{name: floats(name, getattr(self, name))})
        for name in ("A0", "A1", "B0", "B1"):
            freeze(self, **{name: validate_rows(self.name, name, getattr(self, name), s)})
        freeze(self, B2=tuple(floats("B2", row) for row in self.B2), orders=tuple(self.orders))
        if (
            any(len(row) != s for row in (self.beta1, self.beta2, self.beta3, self.beta4, *self.B2))
            or len(self.B2) != s
        ):
            raise SchemeError(
                f"{self.name}: weights of noise and rows of `B2` must have {s} entries each, as `alpha` has"
            )
        if not self.orders:
            raise SchemeError(f"{self.name}: `orders` must list at least one type of noise")
        require_finite(self.name, B2=[w for row in self.B2 for w in row])
        self._require_consistency()

    def _require_consistency(self) -> None:
        for name, total in (("alpha", 1.0), ("beta1", 1.0), ("beta2", 0.0), ("beta3", 0.0), ("beta4", 0.0)):
            found = sum(getattr(self, name))
            if not abs(found - total) <= 1e-14:
                raise SchemeError(f"{self.name}: `{name}` must sum to {total:g}, found {found}")

    @property
    def c0(self) -> Row:
        """Times of the stages of the drift."""
        return tuple(map(sum, self.A0))

    @property
    def c1(self) -> Row:
        """Times of the stages of the diffusion."""
        return tuple(map(sum, self.A1))


def _build_dri1() -> WeakRK:
    r, w, v = 3 * sqrt(38 / 491), sqrt(491 / 38) / 6, sqrt(4955 / 221) / 8
    a, b = 214 / 513 * sqrt(1105 / 991), 491 / 513 * sqrt(221 / 4955)
    return WeakRK(
        "dri1", tuple(Orders(noise, 0, 2) for noise in NOISE_TYPES),
        alpha=(1 / 6, 2 / 3, 1 / 6), beta1=(193 / 684, 491 / 1368, 491 / 1368), beta2=(0, w, -w),
        beta3=(-4955 / 7072, 4955 / 14144, 4955 / 14144), beta4=(0, -v, v),
        A0=((), (1 / 2,), (-1, 2)), B0=((), ((6 - sqrt(6)) / 10,), ((3 + 2 * sqrt(6)) / 5,)),
        A1=((), (342 / 491,), (342 / 491,)), B1=((), (r,), (-r,)), B2=((0, 0, 0), (-a, -b, -b), (a, b, b)),
        reference="Debrabant & Roessler (2009), Appl. Numer. Math. 59:582",
    )  # fmt: skip


DRI1 = _build_dri1()
