"""Stabilised explicit schemes for diffusion: the Runge-Kutta-Chebyshev and Runge-Kutta-Legendre families."""

from __future__ import annotations

from collections.abc import Sequence

from stepnet.schemes.tableau import StabilisedRK
from stepnet.validation import check, real, whole

MOST_STAGES = 2**16  # rounding grows with their square
VERWER = "Verwer (1996), Appl. Numer. Math. 22:359"
SOMMEIJER = "Sommeijer, Shampine & Verwer (1998), J. Comput. Appl. Math. 88:315"
MEYER = "Meyer, Balsara & Aslam (2014), J. Comput. Phys. 257:594"


@check(stages=whole(1, MOST_STAGES), damping=real("[0, inf)"))
def rkc1(stages: int, damping: float = 0.05) -> StabilisedRK:
    """First-order Chebyshev scheme: the stability polynomial is T_s(w_0 + w_1 z) / T_s(w_0).

    Here w_0 = 1 + damping / s^2 and w_1 = T_s / T_s' at w_0.

    Parameters
    ----------
    stages : int
        Number of stages s.
    damping : float, optional
        Distance of the stability polynomial from 1 inside the interval.

    Returns
    -------
    StabilisedRK

    Examples
    --------
    >>> from stepnet import schemes
    >>> round(float(schemes.conditions.real_stability_limit(schemes.rkc1(10))), 1)
    193.7
    """
    w0 = 1 + damping / stages**2
    T, dT, _ = _chebyshev(stages, w0)
    w1 = T[stages] / dT[stages]
    mu = [0.0] + [2 * w0 * T[j - 1] / T[j] for j in range(2, stages + 1)]
    nu = [0.0] + [1 - x for x in mu[1:]]  # is -T_{j-2} / T_j, but keeps mu + nu = 1 exact
    mu_tilde = [w1 / w0] + [2 * w1 * T[j - 1] / T[j] for j in range(2, stages + 1)]
    return _scheme(f"rkc1({stages})", 1, mu, nu, mu_tilde, [0.0] * stages, VERWER)


@check(stages=whole(2, MOST_STAGES), damping=real("[0, inf)"))
def rkc2(stages: int, damping: float = 2 / 13) -> StabilisedRK:
    """Second-order Chebyshev scheme: stage j has the polynomial a_j + b_j T_j(w_0 + w_1 z).

    Here w_0 = 1 + damping / s^2, w_1 = T_s' / T_s'', b_j = T_j'' / T_j'^2 and a_j = 1 - b_j T_j, all at w_0.

    Parameters
    ----------
    stages : int
        Number of stages s, at least 2.
    damping : float, optional
        Distance of the stability polynomial from 1 inside the interval.

    Returns
    -------
    StabilisedRK

    Examples
    --------
    >>> from stepnet import schemes
    >>> schemes.conditions.order(schemes.rkc2(5))
    2
    """
    w0 = 1 + damping / stages**2
    T, dT, ddT = _chebyshev(stages, w0)
    w1 = dT[stages] / ddT[stages]
    b = [ddT[j] / dT[j] ** 2 for j in range(2, stages + 1)]
    b = [b[0], b[0], *b]
    a = [1 - b[j] * T[j] for j in range(stages + 1)]
    mu = [0.0] + [2 * w0 * b[j] / b[j - 1] for j in range(2, stages + 1)]
    nu = [0.0] + [-b[j] / b[j - 2] for j in range(2, stages + 1)]
    mu_tilde = [b[1] * w1] + [2 * w1 * b[j] / b[j - 1] for j in range(2, stages + 1)]
    gamma_tilde = [0.0] + [-a[j - 1] * mu_tilde[j - 1] for j in range(2, stages + 1)]
    return _scheme(f"rkc2({stages})", 2, mu, nu, mu_tilde, gamma_tilde, SOMMEIJER)


@check(stages=whole(1, MOST_STAGES))
def rkl1(stages: int) -> StabilisedRK:
    """First-order Legendre scheme: the stability polynomial is P_s(1 + w_1 z), w_1 = 2 / (s^2 + s).

    Parameters
    ----------
    stages : int
        Number of stages s.

    Returns
    -------
    StabilisedRK

    Examples
    --------
    >>> from stepnet import schemes
    >>> round(schemes.conditions.real_stability_limit(schemes.rkl1(5)))
    30
    """
    w1 = 2 / (stages**2 + stages)
    mu = [(2 * j - 1) / j for j in range(1, stages + 1)]
    nu = [1 - x for x in mu]  # is (1 - j) / j, but keeps mu + nu = 1 exact
    return _scheme(f"rkl1({stages})", 1, mu, nu, [w1 * x for x in mu], [0.0] * stages, MEYER)


@check(stages=whole(2, MOST_STAGES))
def rkl2(stages: int) -> StabilisedRK:
    """Second-order Legendre scheme: stage j has the polynomial 1 - b_j + b_j P_j(1 + w_1 z), w_1 = 4 / (s^2 + s - 2).

    Here b_j = (j^2 + j - 2) / (2 j (j + 1)) from j = 2 on and b_0 = b_1 = b_2.

    Parameters
    ----------
    stages : int
        Number of stages s, odd and at least 3.

    Returns
    -------
    StabilisedRK

    Examples
    --------
    >>> from stepnet import schemes
    >>> round(schemes.conditions.real_stability_limit(schemes.rkl2(5)))
    15
    """
    w1 = 4 / (stages**2 + stages - 2)
    b = [1 / 3, 1 / 3] + [(j**2 + j - 2) / (2 * j * (j + 1)) for j in range(2, stages + 1)]
    mu = [0.0] + [(2 * j - 1) / j * b[j] / b[j - 1] for j in range(2, stages + 1)]
    nu = [0.0] + [(1 - j) / j * b[j] / b[j - 2] for j in range(2, stages + 1)]
    mu_tilde = [b[1] * w1] + [w1 * x for x in mu[1:]]
    gamma_tilde = [0.0] + [-(1 - b[j - 1]) * mu_tilde[j - 1] for j in range(2, stages + 1)]
    return _scheme(f"rkl2({stages})", 2, mu, nu, mu_tilde, gamma_tilde, MEYER)


def _chebyshev(stages: int, x: float) -> tuple[list[float], list[float], list[float]]:
    """T_j(x), T_j'(x) and T_j''(x) for j = 0, ..., stages.

    The recursion T_j = 2 x T_{j-1} - T_{j-2} is run on the differences T_j - T_{j-1}, which are sums of positive terms.
    """
    T, dT, ddT = [1.0, x], [0.0, 1.0], [0.0, 0.0]
    excess = x - 1
    T_up, dT_up, ddT_up = excess, 1.0, 0.0
    for _ in range(stages - 1):
        T_up += 2 * excess * T[-1]
        dT_up += 2 * excess * dT[-1] + 2 * T[-1]
        ddT_up += 2 * excess * ddT[-1] + 4 * dT[-1]
        T.append(T[-1] + T_up)
        dT.append(dT[-1] + dT_up)
        ddT.append(ddT[-1] + ddT_up)
    return T, dT, ddT


def _scheme(
    name: str,
    order: int,
    mu: Sequence[float],
    nu: Sequence[float],
    mu_tilde: Sequence[float],
    gamma_tilde: Sequence[float],
    reference: str,
) -> StabilisedRK:
    return StabilisedRK(name, order, tuple(mu), tuple(nu), tuple(mu_tilde), tuple(gamma_tilde), reference)
