"""Problems that the tests solve, each a function that returns a fresh record, and the reference end states of some.

The right-hand sides run in Numba (float64) and as plain Python on np.longdouble arrays.  The `coupled_*` problems are
smooth, nonlinear and non-autonomous, every component depends on every other, and none has a structure (Hamiltonian,
autonomous, quadrature, linear) on which a wrong coefficient could hide.  Their numbers were chosen so that steps exist
which are short enough for the principal error of the best pairs to dominate, and long enough to see it in longdouble.
Most of them run to infinity soon after their default end; `coupled_second_order` stays bounded.
"""

from __future__ import annotations

import numpy as np

import stepnet

# ---- made for measuring orders, from t = 0 to 2 ---------------------------------------------------------------------


def coupled_slope(t, y):
    return np.array(
        [
            0.4 * np.sin(y[1]) + 0.2 * y[0] * y[2] - 0.7 * y[2] + 0.5 * np.cos(2.0 * t),
            0.7 * y[0] - 1.2 * y[1] + 0.9 * y[0] * y[2] * np.cos(t) - 0.8 * np.sin(y[0] + t),
            -0.7 * y[1] + 0.2 * y[0] * y[1] - 0.6 * y[2] * y[2] + np.sin(t * y[1]),
        ]
    )


def coupled_ode(t_end: float = 2.0) -> stepnet.ODE:
    """Three coupled equations."""
    return stepnet.ODE(coupled_slope, [-1.1, -0.3, 0.3], (0.0, t_end))


def coupled_dq(t, p):
    return np.array(
        [
            p[0] - p[0] * p[1] - 0.6 * np.sin(t) * p[1],
            -1.1 * np.sin(p[1]) - 0.7 * p[0] * p[0] * np.cos(t) - 0.7,
        ]
    )


def coupled_dp(t, q):
    return np.array(
        [
            -np.sin(q[0]) + 0.6 * q[0] * q[1] - 0.3 * np.cos(2.0 * t),
            -q[1] * (1.0 - 1.1 * np.sin(t)) - q[0] * q[0] - 0.6 * np.cos(q[0] + t),
        ]
    )


def coupled_partitioned(t_end: float = 2.0) -> stepnet.Partitioned:
    """Separable, both halves nonlinear and driven; not Hamiltonian, so all order conditions are needed."""
    return stepnet.Partitioned(coupled_dq, coupled_dp, [0.5, -0.9], [0.8, -0.3], (0.0, t_end))


def coupled_acceleration(t, q):
    return np.array(
        [
            -np.sin(q[0]) * (1.0 - 0.5 * np.cos(t)) - 0.4 * q[0] * q[1] + 0.3 * np.sin(2.0 * t),
            -q[1] + 0.4 * q[0] * q[0] * np.cos(t) - 0.9 * np.sin(q[0] * q[1]),
        ]
    )


def coupled_second_order(t_end: float = 2.0) -> stepnet.SecondOrder:
    """Two coupled driven oscillators; the force has no potential."""
    return stepnet.SecondOrder(coupled_acceleration, [0.8, -0.4], [-0.6, -0.5], (0.0, t_end))


def first_of_two(t, y):
    return np.array([0.5 * y[1] * np.cos(t) - 0.3 * y[0] * y[1], -0.3 * np.sin(y[0]) - 0.2 * np.sin(2.0 * t)])


def second_of_two(t, y):
    return np.array([1.1 * np.sin(y[1] + t) + 0.6 * y[0], 0.2 * y[0] * y[1] - 0.6 * np.cos(t)])


def coupled_split2(t_end: float = 2.0) -> stepnet.Split:
    """Two parts that do not commute, both nonlinear and driven."""
    return stepnet.Split((first_of_two, second_of_two), [0.5, -0.5], (0.0, t_end))


def coupled_semilinear(t_end: float = 2.0) -> stepnet.Split:
    """A nonlinear driven part and a linear one whose matrix is not normal."""
    return stepnet.Split((first_of_two, stepnet.Linear([[-1.1, 0.6], [-0.4, -0.3]])), [0.5, -0.5], (0.0, t_end))


def first_of_three(t, y):
    return np.array([0.4 * y[1] * np.cos(t) - 0.4 * y[0] * y[1], 0.3 * np.sin(y[0]) - 0.7 * np.sin(2.0 * t)])


def second_of_three(t, y):
    return np.array([0.6 * np.sin(y[1] + t) - 0.3 * y[0], 0.4 * y[0] * y[1] + 0.3 * np.cos(t)])


def third_of_three(t, y):
    return np.array([-0.2 * y[1] * y[1] + 0.7 * np.sin(t) * y[0], 0.3 * np.cos(y[0]) * np.sin(t + y[1])])


def coupled_split3(t_end: float = 2.0) -> stepnet.Split:
    """Three such parts."""
    return stepnet.Split((first_of_three, second_of_three, third_of_three), [1.0, -0.9], (0.0, t_end))


def driven_dq(t, p):
    return np.array([p[0] * (1.0 + 0.3 * p[1] * p[1]), p[1] + 0.3 * p[0] * p[0] * p[1] + 0.2 * np.sin(t)])


def driven_dp(t, q):
    return np.array([-np.sin(q[0]) - q[0] * q[1] * np.cos(t), -q[1] - 0.5 * q[0] * q[0] * np.cos(t)])


def driven_hamiltonian(t_end: float = 2.0) -> stepnet.Partitioned:
    """H = p0^2/2 + p1^2/2 + 0.15 p0^2 p1^2 + 0.2 sin(t) p1 - cos q0 + q1^2/2 + 0.5 cos(t) q0^2 q1."""
    return stepnet.Partitioned(driven_dq, driven_dp, [0.7, -0.4], [0.3, 0.6], (0.0, t_end))


# ---- geometric integration: Hairer, Lubich & Wanner, Geometric Numerical Integration, I.2 and I.3 -------------------


def same(t, p):
    return 1.0 * p


def kepler_force(t, q):
    return -q / (q[0] * q[0] + q[1] * q[1]) ** 1.5


def _kepler_start(e: float) -> tuple[list[float], list[float]]:
    return [1.0 - e, 0.0], [0.0, np.sqrt((1.0 + e) / (1.0 - e))]


def kepler(e: float, t_end: float = 200.0) -> stepnet.Partitioned:
    """Two bodies, eccentricity e, period 2 pi, from the pericentre."""
    return stepnet.Partitioned(same, kepler_force, *_kepler_start(e), (0.0, t_end))


def kepler_second_order(e: float, t_end: float = 200.0) -> stepnet.SecondOrder:
    """The same as q'' = a(q)."""
    return stepnet.SecondOrder(kepler_force, *_kepler_start(e), (0.0, t_end))


def kepler_energy(y: np.ndarray) -> np.ndarray:
    """H of flat states (..., 4)."""
    return (y[..., 2] ** 2 + y[..., 3] ** 2) / 2 - 1 / np.hypot(y[..., 0], y[..., 1])


def kepler_momentum(y: np.ndarray) -> np.ndarray:
    """Angular momentum of flat states (..., 4)."""
    return y[..., 0] * y[..., 3] - y[..., 1] * y[..., 2]


def henon_heiles_force(t, q):
    return np.array([-q[0] - 2.0 * q[0] * q[1], -q[1] - q[0] * q[0] + q[1] * q[1]])


def _henon_heiles_start(energy: float) -> tuple[list[float], list[float]]:
    y = 0.1
    return [0.0, y], [np.sqrt(2 * energy - y**2 + 2 * y**3 / 3), 0.0]


def henon_heiles(energy: float, t_end: float = 1000.0) -> stepnet.Partitioned:
    """A star in a galaxy, H = (p^2 + q^2)/2 + q0^2 q1 - q1^3/3, from q = (0, 0.1), p1 = 0."""
    return stepnet.Partitioned(same, henon_heiles_force, *_henon_heiles_start(energy), (0.0, t_end))


def henon_heiles_second_order(energy: float, t_end: float = 1000.0) -> stepnet.SecondOrder:
    """The same as q'' = a(q)."""
    return stepnet.SecondOrder(henon_heiles_force, *_henon_heiles_start(energy), (0.0, t_end))


def henon_heiles_energy(y: np.ndarray) -> np.ndarray:
    """H of flat states (..., 4)."""
    return np.sum(y**2, axis=-1) / 2 + y[..., 0] ** 2 * y[..., 1] - y[..., 1] ** 3 / 3


# ---- the non-stiff test set: Hairer, Norsett & Wanner, Solving Ordinary Differential Equations I, II.0 and II.10 ----

ARENSTORF_MU = 0.012277471
ARENSTORF_PERIOD = 17.0652165601579625588917206249


def arenstorf_slope(t, y):
    mu, nu = 0.012277471, 1.0 - 0.012277471
    d1 = ((y[0] + mu) ** 2 + y[1] ** 2) ** 1.5
    d2 = ((y[0] - nu) ** 2 + y[1] ** 2) ** 1.5
    return np.array(
        [
            y[2],
            y[3],
            y[0] + 2.0 * y[3] - nu * (y[0] + mu) / d1 - mu * (y[0] - nu) / d2,
            y[1] - 2.0 * y[2] - nu * y[1] / d1 - mu * y[1] / d2,
        ]
    )


def arenstorf() -> stepnet.ODE:
    """A satellite between earth and moon over one period: it ends where it began."""
    y0 = [0.994, 0.0, 0.0, -2.00158510637908252240537862224]
    return stepnet.ODE(arenstorf_slope, y0, (0.0, ARENSTORF_PERIOD))


def pleiades_slope(t, y):
    dy = np.zeros_like(y)
    dy[:14] = y[14:]
    for i in range(7):
        for j in range(7):
            if i != j:
                dx, dz = y[j] - y[i], y[7 + j] - y[7 + i]
                pull = (j + 1.0) / (dx * dx + dz * dz) ** 1.5
                dy[14 + i] += pull * dx
                dy[21 + i] += pull * dz
    return dy


def pleiades() -> stepnet.ODE:
    """Seven stars of mass 1, ..., 7 in the plane; the state is x, y, x', y'."""
    x, y = [3, 3, -1, -3, 2, -2, 2], [3, -3, 2, 0, 0, -4, 4]
    vx, vy = [0, 0, 0, 0, 0, 1.75, -1.5], [0, 0, 0, -1.25, 1, 0, 0]
    return stepnet.ODE(pleiades_slope, [*x, *y, *vx, *vy], (0.0, 3.0))


# Positions x, y at t = 3.
PLEIADES_END = np.array(
    [
        *(0.370613914389, 3.237284092058, -3.222559032421, 0.659709145579),
        *(0.342558170717, 1.562172101401, -0.700309292221),
        *(-3.943437585514, -3.271380973972, 5.225081843447, -2.590612434978),
        *(1.198213693395, -0.242968234494, 1.091449240431),
    ]
)


def lorenz_slope(t, y):
    return np.array([10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]])


def lorenz() -> stepnet.ODE:
    """The butterfly, sigma = 10, r = 28, b = 8/3."""
    return stepnet.ODE(lorenz_slope, [-8.0, 8.0, 27.0], (0.0, 16.0))


# By verner98 and dop853 in longdouble, which agree to 3e-11; b = 8/3 in float64 or exact differ by 1e-9.  The value in
# the notes, (-9.1313156, -12.4761823, 22.8433416), is off by 3e-6.
LORENZ_END = np.array([-9.13131303, -12.47617881, 22.84333896])


def brusselator_slope(t, y):
    return np.array([1.0 + y[0] * y[0] * y[1] - 4.0 * y[0], 3.0 * y[0] - y[0] * y[0] * y[1]])


def brusselator() -> stepnet.ODE:
    """A chemical oscillator, A = 1, B = 3."""
    return stepnet.ODE(brusselator_slope, [1.5, 3.0], (0.0, 20.0))


BRUSSELATOR_END = np.array([0.49863707126834, 4.596780349452])
