"""Right-hand sides as users write them: textbook systems in plain NumPy and math, every style of Python.

Each is a `Case`: the function, where to start, and the rung of the ladder it is expected to reach.  `TRACED` become
straight-line code, `FALLEN` must not, because their Python does something that straight-line code cannot.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from math import cos, sin

import numpy as np
import pytest
import scipy.special
from numba import njit


@dataclass(frozen=True, eq=False)
class Case:
    """A right-hand side: `rung` is where it must end up, `reason` a word of why not higher.

    `is_analytic` says that the Python runs on complex numbers and is an analytic function of them, so that a complex
    step differentiates it.  `reach` is how far from y0, relative to its size, the function is smooth.  `compiles` says
    that Numba can compile it, `is_slow` that this takes it more than a few seconds.
    """

    name: str
    fun: Callable
    y0: object
    t_span: tuple[float, float]
    args: tuple = ()
    rung: str = "traced"
    reason: str = ""
    is_analytic: bool = True
    reach: float = 0.1
    compiles: bool = True
    is_slow: bool = False

    def __repr__(self) -> str:
        return self.name

    @property
    def start(self) -> np.ndarray:
        """The initial state as an array."""
        return np.asarray(self.y0, dtype=float)


TRACED: list[Case] = []
FALLEN: list[Case] = []


def traced(y0, t_span=(0.0, 2.0), args=(), **facts):
    """Register a function that becomes straight-line code."""
    return lambda function: _registered(TRACED, function, y0, t_span, args, facts)


def fallen(y0, t_span=(0.0, 2.0), args=(), **facts):
    """Register a function that must not."""
    return lambda function: _registered(FALLEN, function, y0, t_span, args, facts)


def _registered(cases, function, y0, t_span, args, facts):
    name = facts.pop("name", None) or function.__name__
    cases.append(Case(name, function, y0, t_span, args, **facts))
    return function


# ---- small systems: lists, tuples and arrays of expressions ---------------------------------------------------------


@traced([-8.0, 8.0, 27.0], args=(10.0, 28.0, 8 / 3))
def lorenz(t, y, sigma, rho, beta):
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]


@traced([1.0, 1.0, 0.5], (0.0, 5.0), args=(0.2, 0.2, 5.7))
def roessler(t, y, a, b, c):
    x, y_, z = y
    return -y_ - z, x + a * y_, b + z * (x - c)


@traced([2.0, 0.0], (0.0, 5.0), args=(1.5,))
def van_der_pol(t, y, mu):
    return [y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]]


@traced([1.5, 3.0], (0.0, 5.0), args=(1.0, 3.0))
def brusselator(t, y, a, b):
    u, v = y
    return np.array([a + u**2 * v - (b + 1) * u, b * u - u**2 * v])


@traced([1.0, 2.0, 3.0], (0.0, 1e-2), args=(77.27, 8.375e-6, 0.161))
def oregonator(t, y, s, q, w):
    return [s * (y[1] + y[0] * (1 - q * y[0] - y[1])), (y[2] - (1 + y[0]) * y[1]) / s, w * (y[0] - y[2])]


@traced([1.0, 2e-5, 0.1], (0.0, 1e-2))
def robertson(t, y):
    slow, fast, back = 0.04 * y[0], 3e7 * y[1] * y[1], 1e4 * y[1] * y[2]
    return [-slow + back, slow - back - fast, fast]


@traced([10.0, 5.0], args=(1.1, 0.4, 0.4, 0.1))
def lotka_volterra(t, z, a, b, c, d):  # SciPy's example calls the state z
    x, y = z
    return [a * x - b * x * y, -c * y + d * x * y]


@traced([0.99, 0.01, 0.02], (0.0, 20.0), args=(0.3, 0.1))
def sir(t, y, beta, gamma):
    s, i, _ = y
    infection = beta * s * i / sum(y)
    return (-infection, infection - gamma * i, gamma * i)


@traced([990.0, 5.0, 5.0, 1.0], (0.0, 20.0), args=(0.5, 0.2, 0.1))
def seir(t, y, beta, sigma, gamma):
    s, e, i, r = y
    n = s + e + i + r
    return np.array([-beta * s * i / n, beta * s * i / n - sigma * e, sigma * e - gamma * i, gamma * i])


@traced([1.0, 0.3], (0.0, 10.0))
def pendulum(t, y):
    theta, omega = y
    return [omega, -0.25 * omega - 5.0 * np.sin(theta)]


@traced([2.0, 2.2, 0.1, -0.1], is_analytic=False)
def double_pendulum(t, y):
    a, b, u, v = y
    m1, m2, l1, l2, g = 1.0, 0.8, 1.0, 0.9, 9.81
    d = a - b
    bottom = 2 * m1 + m2 - m2 * math.cos(2 * a - 2 * b)
    top1 = -g * (2 * m1 + m2) * math.sin(a) - m2 * g * math.sin(a - 2 * b)
    top1 -= 2 * math.sin(d) * m2 * (v**2 * l2 + u**2 * l1 * math.cos(d))
    top2 = u**2 * l1 * (m1 + m2) + g * (m1 + m2) * math.cos(a) + v**2 * l2 * m2 * math.cos(d)
    return [u, v, top1 / (l1 * bottom), 2 * math.sin(d) * top2 / (l2 * bottom)]


@traced([0.5, 0.1], (0.0, 10.0), args=(0.2, -1.0, 1.0, 0.3, 1.2), is_analytic=False)
def duffing(t, y, delta, alpha, beta, gamma, omega):
    return [y[1], gamma * cos(omega * t) - delta * y[1] - alpha * y[0] - beta * y[0] ** 3]


@traced([-1.0, 1.0], (0.0, 10.0), args=(0.7, 0.8, 12.5, 0.5))
def fitzhugh_nagumo(t, y, a, b, tau, current):
    v, w = y
    return np.array([v - v**3 / 3 - w + current, (v + a - b * w) / tau])


def opening_rate(v):
    return 0.1 * (v + 40) / (1 - np.exp(-(v + 40) / 10))


def closing_rate(v):
    return 4 * np.exp(-(v + 65) / 18)


@traced([-60.3, 0.08, 0.6, 0.35], (0.0, 1.0), reach=0.02)
def hodgkin_huxley(t, y):
    v, m, h, n = y
    sodium, potassium, leak = 120 * m**3 * h * (v - 50), 36 * n**4 * (v + 77), 0.3 * (v + 54.4)
    return [
        10.0 - sodium - potassium - leak,
        opening_rate(v) * (1 - m) - closing_rate(v) * m,
        0.07 * np.exp(-(v + 65) / 20) * (1 - h) - h / (1 + np.exp(-(v + 35) / 10)),
        0.01 * (v + 55) / (1 - np.exp(-(v + 55) / 10)) * (1 - n) - 0.125 * np.exp(-(v + 65) / 80) * n,
    ]


@traced([0.5, 0.1, 0.2, 1.6], (0.0, 5.0))
def kepler(t, y):
    cube = (y[0] ** 2 + y[1] ** 2) ** 1.5
    return [y[2], y[3], -y[0] / cube, -y[1] / cube]


@traced([0.994, 0.01, 0.02, -2.0], (0.0, 1.0), args=(0.012277471,), reach=1e-3)
def arenstorf(t, y, mu):
    nu = 1 - mu
    x, z, vx, vz = y
    d1, d2 = ((x + mu) ** 2 + z**2) ** 1.5, ((x - nu) ** 2 + z**2) ** 1.5
    return (
        vx,
        vz,
        x + 2 * vz - nu * (x + mu) / d1 - mu * (x - nu) / d2,
        z - 2 * vx - nu * z / d1 - mu * z / d2,
    )


@traced([0.1, 0.2, 0.3, -0.1], (0.0, 10.0))
def henon_heiles(t, y):
    q, p = y[:2], y[2:]
    return [p[0], p[1], -q[0] - 2 * q[0] * q[1], -q[1] - q[0] ** 2 + q[1] ** 2]


@traced([0.3, 0.4, -0.5, 0.2], args=(9.81, 1.0, 0.1, 0.5), is_analytic=False)
def cart_pole(t, y, g, cart, pole, length):
    _, v, theta, omega = y
    s, c = sin(theta), cos(theta)
    push = -pole * length * omega**2 * s / (cart + pole)
    turn = (g * s + c * push) / (length * (4 / 3 - pole * c**2 / (cart + pole)))
    return [v, push - pole * length * turn * c / (cart + pole), omega, turn]


@traced([1.0, 0.5, 0.2, 0.1], (0.0, 5.0), args=(2.5, 1.0, 0.6))
def michaelis_menten(t, y, bind, unbind, turn):
    substrate, enzyme, both, _ = y
    on, off, out = bind * substrate * enzyme, unbind * both, turn * both
    return np.array([off - on, off + out - on, on - off - out, out])


@traced([0.5, 0.5], (0.0, 10.0))
def selkov_glycolysis(t, y, a=0.08, b=0.6):
    return [-y[0] + a * y[1] + y[0] ** 2 * y[1], b - a * y[1] - y[0] ** 2 * y[1]]


@traced([1.1, 0.3, 0.4, -0.5], (0.0, 5.0), args=(0.25, 4.0, 8.0, 1.0))
def lorenz84(t, y, a, b, f, g):
    x, v, z = y[0], y[1], y[2]
    return [-v * v - z * z - a * x + a * f, x * v - b * x * z - v + g, b * x * v + x * z - z, -y[3] + x]


@traced([0.1, 1.1, -0.3], (0.0, 10.0), compiles=False)
def thomas(t, y):
    return np.sin(y[[1, 2, 0]]) - 0.208186 * y


@traced([-20.0, 0.1], args=(8.0, 4.4, 2.0, 120.0, -84.0, -60.0))
def morris_lecar(t, y, calcium, potassium, leak, high, low, rest):
    v, w = y
    m = 0.5 * (1 + np.tanh((v + 1.2) / 18))
    settled = 0.5 * (1 + np.tanh((v - 2) / 30))
    current = 90 - leak * (v - rest) - calcium * m * (v - high) - potassium * w * (v - low)
    return [current / 20, 0.04 * np.cosh((v - 2) / 60) * (settled - w)]


@traced([1.0, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.0057], (0.0, 0.01))
def hires(t, y):
    fast = 280 * y[5] * y[7]
    return [
        -1.71 * y[0] + 0.43 * y[1] + 8.32 * y[2] + 0.0007,
        1.71 * y[0] - 8.75 * y[1],
        -10.03 * y[2] + 0.43 * y[3] + 0.035 * y[4],
        8.32 * y[1] + 1.71 * y[2] - 1.12 * y[3],
        -1.745 * y[4] + 0.43 * (y[5] + y[6]),
        -fast + 0.69 * y[3] + 1.71 * y[4] - 0.43 * y[5] + 0.69 * y[6],
        fast - 1.81 * y[6],
        -fast + 1.81 * y[6],
    ]


# ---- forcing, elementary functions, pieces ---------------------------------------------------------------------------


@traced([1.0, 0.1], (0.0, 10.0), is_analytic=False)
def forced_oscillator(t, y):
    return [y[1], math.sin(t) * math.exp(-0.1 * t) - y[0] - 0.2 * y[1]]


@traced([2.0], args=(0.5,), is_analytic=False)
def leaking_tank(t, y, outflow):
    return [0.2 - outflow * math.sqrt(y[0])]


@traced([0.7, 0.8], (0.0, 3.0), is_analytic=False)
def spiral_in_polar_terms(t, y):
    r, phi = np.hypot(y[0], y[1]), np.arctan2(y[1], y[0])
    return r * (1 - r) * np.cos(phi) - r * np.sin(phi), r * (1 - r) * np.sin(phi) + r * np.cos(phi)


@traced([0.3, 0.5], (0.0, 5.0), args=(0.9, 1.7))
def gompertz_and_power_law(t, y, a, k):
    return [a * y[0] * np.log(k / y[0]), np.exp(-t) - a * np.power(y[1], k)]


@traced([0.2, 0.1], is_analytic=False)
def error_function_switch(t, y):
    return [math.erf(3 * (t - 1)) - y[0], math.erfc(y[0]) - y[1]]


@traced([0.4, 1.3, 0.6], (0.0, 0.2))
def every_elementary_function(t, y):
    a, b, c = y
    return [
        np.tan(0.3 * a) + np.arcsin(0.5 * a) - np.arccos(0.4 * c) + np.arctan(b) + np.exp2(-a) + np.expm1(-c),
        np.sinh(a) - np.cosh(0.5 * c) + np.arcsinh(b) + np.arccosh(1.5 + a * a) - np.arctanh(0.5 * c) + np.log1p(a * a),
        np.log2(1.5 + b * b) - np.log10(2 + c * c) + np.sqrt(1 + a) - 1 / (1 + np.square(c)) + t**2 - np.reciprocal(b),
    ]


@traced([0.4, 0.8], is_analytic=False)
def cube_roots_and_degrees(t, y):
    return [np.cbrt(1 + y[1]) - y[0] * np.deg2rad(30.0), np.sin(np.deg2rad(60 * y[0])) - np.logaddexp(y[0], y[1])]


@traced([0.8, 0.3], (0.0, 5.0), is_analytic=False, compiles=False)
def clipped_predator(t, y):
    prey, predator = np.maximum(y[0], 0.0), np.clip(y[1], 0.0, 10.0)
    eaten = np.minimum(1.2 * prey, 2.0) * predator
    return np.array([prey * (1 - prey) - eaten, eaten - 0.4 * predator])


@traced([18.0, 21.0], (0.0, 0.3), is_analytic=False, reach=0.02)
def thermostat(t, y):
    heating = np.where(y < 20.0, 5.0, 0.5)
    return heating - 0.3 * (y - 10.0)


@traced([1.0, 0.8], (0.0, 0.5), is_analytic=False)
def dry_friction(t, y):
    return [y[1], -y[0] - 0.3 * np.sign(y[1]) - 0.1 * abs(y[1]) * y[1]]


@traced([0.1, 0.15, 0.2], (0.0, 2.0), args=(15.6, 28.0, -1.143, -0.714), is_analytic=False)
def chua(t, y, alpha, beta, m0, m1):
    diode = m1 * y[0] + 0.5 * (m0 - m1) * (np.abs(y[0] + 1) - np.abs(y[0] - 1))
    return [alpha * (y[1] - y[0] - diode), y[0] - y[1] + y[2], -beta * y[1]]


@traced([0.6, -0.4, 0.3], is_analytic=False)
def masked_by_a_comparison(t, y):
    return (y > 0) * (1.0 - y) - 0.5 * (y <= 0) * y


@traced([0.3, 0.2], (0.0, 1.3), is_analytic=False, compiles=False)
def sawtooth_drive(t, y):
    return [np.mod(t, 2.0) - y[0], t % 3.0 - y[1] + np.heaviside(y[1], 0.5)]


@traced([0.0, 1.5, 30.0, 10.0], is_analytic=False)
def projectile_with_drag(t, y):
    speed = math.hypot(y[2], y[3])
    return [y[2], y[3], -0.02 * speed * y[2], -9.81 - 0.02 * speed * y[3]]


@traced([0.3, 0.2, 0.4], (0.0, 5.0), args=(4,))
def goodwin(t, y, n):
    return [1 / (1 + y[2] ** n) - 0.1 * y[0], y[0] - 0.1 * y[1], y[1] - 0.1 * y[2]]


@traced([0.1, 0.2, 0.3], (0.0, 3.0), args=(2.0, 0.5))
def bicycle(t, y, speed, steer):
    heading = y[2]
    return np.array([speed * np.cos(heading), speed * np.sin(heading), speed / 2.5 * np.tan(steer * np.sin(t))])


@traced([0.8, 0.4, 0.3], (0.0, 0.2), args=(0.4, 0.9))
def whole_and_half_powers(t, y, a, b):
    a2, root = y[0] ** 2, y[1] ** 0.5
    return [-a2 * y[0] + a**0.5, root - y[2] ** 1.5, y[0] ** -1 - b * y[2] ** -0.5 - y[1] ** 7]


# ---- vectors: slices, rolls, sums, products ------------------------------------------------------------------------


@traced(np.where(np.arange(36) == 19, 8.01, 8.0) + 0.1 * np.sin(np.arange(36)), (0.0, 0.5), args=(8.0,))
def lorenz96(t, x, force):
    return (np.roll(x, -1) - np.roll(x, 2)) * np.roll(x, 1) - x + force


@traced(np.sin(np.linspace(0.1, 3, 24)), (0.0, 0.05), args=(0.7, 0.1))
def heat_by_slices(t, u, kappa, dx):
    du = np.zeros_like(u)
    du[1:-1] = kappa * (u[2:] - 2 * u[1:-1] + u[:-2]) / dx**2
    return du


@traced(1.5 + np.sin(np.linspace(0, 6, 20)), (0.0, 0.1))
def burgers_by_slices(t, u):
    dx, nu = 0.3, 0.05
    du = np.empty_like(u)
    du[1:-1] = -u[1:-1] * (u[2:] - u[:-2]) / (2 * dx) + nu * (u[2:] - 2 * u[1:-1] + u[:-2]) / dx**2
    du[0], du[-1] = 0.0, 0.0
    return du


@traced(np.exp(-((np.arange(20) - 10.0) ** 2) / 8), (0.0, 1.0), args=(1.3,))
def advection_by_roll(t, u, speed):
    return -speed * (u - np.roll(u, 1)) / 0.5


@traced(np.linspace(0.2, 1.0, 12), (0.0, 0.5), compiles=False)
def heat_by_padding(t, u):
    wide = np.pad(u, 1, mode="edge")
    return 2.0 * (wide[2:] - 2 * wide[1:-1] + wide[:-2])


@traced(np.linspace(0.0, 2.5, 8), args=(0.8,))
def kuramoto(t, theta, coupling):
    n = len(theta)
    own = np.linspace(-1, 1, n)
    return own + coupling / n * np.sum(np.sin(theta[None, :] - theta[:, None]), axis=1)


@traced([1.0, 0.5, -0.3], (0.0, 2.0), args=(np.array([[-0.5, 2.0, 0.1], [-2.0, -0.4, 0.3], [0.2, 0.1, -1.0]]),))
def linear_system(t, y, A):
    return A @ y


@traced([1.0, 0.2, 0.3], (0.0, 5.0), args=(np.array([1.0, 2.0, 3.0]),))
def rigid_body(t, omega, inertia):
    return np.cross(inertia * omega, omega) / inertia


@traced([1.0, 0.6, 0.1, 0.2], args=(np.array([1.5, 0.8, 0.3]),))
def reaction_network(t, c, k):
    rates = np.array([k[0] * c[0] * c[1], k[1] * c[2], k[2] * c[2] * c[3]])
    return STOICHIOMETRY @ rates


STOICHIOMETRY = np.array([[-1.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [1.0, -1.0, -1.0], [0.0, 0.0, 1.0]])


@traced(np.concatenate((0.1 * np.sin(np.arange(8)), np.zeros(8))), (0.0, 3.0), args=(1.5,))
def spring_chain(t, y, k):
    q, v = y[:8], y[8:]
    stretch = np.diff(np.concatenate((np.zeros(1), q, np.zeros(1))))
    return np.concatenate((v, k * (stretch[1:] - stretch[:-1])))


@traced(np.concatenate((0.1 * np.cos(np.arange(6)), np.zeros(6))), (0.0, 3.0), compiles=False)
def toda_lattice(t, y):
    q, p = np.split(y, 2)
    pull = np.exp(q[:-1] - q[1:])
    return np.hstack((p, np.concatenate((-pull, [0.0])) + np.concatenate(([0.0], pull))))


@traced(
    [0.3, -0.2, 0.5, 0.1],
    args=(np.sin(np.arange(16.0)).reshape(4, 4), np.array([0.1, -0.2, 0.3, 0.0])),
)
def neural_field(t, y, W, b):
    return np.tanh(W @ y + b) - y


@traced([0.5, 0.3, 0.2], (0.0, 3.0), args=(np.array([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.2], [1.0, -0.9, 0.0]]),))
def replicator(t, x, payoff):
    fitness = payoff.dot(x)
    return x * (fitness - np.dot(x, fitness))


@traced([1.0, 0.5, 0.2, 0.3, -0.2, 0.6])
def central_force(t, y):
    q, v = y[:3], y[3:]
    return np.concatenate((v, -q / np.sqrt(np.sum(q**2)) ** 3))


@traced([1.0, 0.5, 0.2, 0.3, -0.2, 0.6], is_analytic=False)
def central_force_by_norm(t, y):
    q, v = y[:3], y[3:]
    return np.concatenate((v, -q / np.linalg.norm(q) ** 3))


@traced([0.5, -0.4, 0.3, 0.9])
def mean_field(t, y):
    return y.mean() - y + 0.1 * np.mean(y**2) - 0.05 * y.sum() * y.prod()


@traced([0.4, 0.7, 0.2], is_analytic=False, compiles=False)
def stacked_pieces(t, y):
    return np.stack([y[1] * y[2], np.vdot(y, y), np.inner(y, y[::-1])]) - np.cumsum(y)


@traced([0.6, 0.3, -0.2], compiles=False)
def sums_by_einsum(t, y):
    return np.einsum("ij,j->i", PAYOFF, y) - np.einsum("i,i->", y, y) * y


PAYOFF = np.array([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.2], [1.0, -0.9, 0.0]])


@traced([0.3, 0.6, 0.9, 0.2])
def softmax_flow(t, y):
    z = np.exp(y - y.sum() / 4)
    return z / z.sum() - y * np.linspace(0.5, 1, 4)


@traced([0.2, 0.4, 0.8], is_analytic=False)
def extremes(t, y):
    return np.max(y) - y + 0.1 * np.min(y) * np.ptp(np.array([1.0, 3.0]))


PLEIADES_START = np.array(
    [3, 3, -1, -3, 2, -2, 2, 3, -3, 2, 0, 0, -4, 4, 0, 0, 0, 0, 0, 1.75, -1.5, 0, 0, 0, -1.25, 1, 0, 0]
)


@traced(PLEIADES_START, (0.0, 0.5), reach=0.02, compiles=False)
def pleiades(t, w):
    x, y = w[:7], w[7:14]
    dx, dy = x[None, :] - x[:, None], y[None, :] - y[:, None]
    pull = np.arange(1.0, 8.0) / (dx**2 + dy**2 + np.eye(7)) ** 1.5
    return np.concatenate([w[14:], (pull * dx).sum(axis=1), (pull * dy).sum(axis=-1)])


# ---- shapes: scalars, matrices, grids --------------------------------------------------------------------------------


@traced(0.1, (0.0, 5.0), args=(1.5, 2.0))
def logistic(t, y, rate, capacity):
    return rate * y * (1 - y / capacity)


@traced(np.array([[1.0, 0.2], [0.1, 0.8]]), args=(np.array([[0.1, 1.0], [-1.0, -0.2]]),))
def riccati(t, P, A):
    return A @ P + P @ A.T - P @ P + np.eye(2)


@traced(np.array([[0.5, 0.1, 0.2], [0.3, -0.4, 0.6]]), args=(0.3,))
def hebbian(t, W, decay):
    x = np.array([np.cos(t), np.sin(t), 1.0])
    return np.outer(np.tanh(W @ x), x) - decay * W


@traced(np.array([np.sin(np.linspace(0, 3, 10)), np.zeros(10)]), (0.0, 1.0))
def wave_equation(t, y):
    u, v = y
    acceleration = np.zeros_like(u)
    acceleration[1:-1] = 4.0 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return np.stack((v, acceleration))


def laplacian(u):
    return np.roll(u, 1, axis=0) + np.roll(u, -1, axis=0) + np.roll(u, 1, axis=1) + np.roll(u, -1, axis=1) - 4 * u


GRAY_SCOTT_START = np.array([0.9 + 0.05 * np.sin(np.arange(16.0)), 0.2 + 0.1 * np.cos(np.arange(16.0))])


@traced(GRAY_SCOTT_START.reshape(2, 4, 4), (0.0, 5.0), args=(0.16, 0.08, 0.035, 0.065), compiles=False)
def gray_scott(t, w, du, dv, feed, kill):
    u, v = w[0], w[1]
    out = np.empty_like(w)
    out[0] = du * laplacian(u) - u * v**2 + feed * (1 - u)
    out[1] = dv * laplacian(v) + u * v**2 - (feed + kill) * v
    return out


@traced(np.array([[1.0, 0.3], [-0.5, 0.8], [0.2, -0.9]]), (0.0, 0.3), compiles=False, is_analytic=False)
def planets(t, q):
    away = q[:, None, :] - q[None, :, :]
    distance = np.sqrt((away**2).sum(axis=-1, keepdims=True) + np.eye(3)[:, :, None])
    return -(away / distance**3).sum(axis=1) - 0.1 * np.linalg.norm(q, axis=1, keepdims=True) * q


@traced([0.9, 0.1, -0.3, 0.2], (0.0, 3.0), args=(0.7, -0.4, 1.1))
def quaternion(t, q, a, b, c):
    omega = np.array([[0.0, -a, -b, -c], [a, 0.0, c, -b], [b, -c, 0.0, a], [c, b, -a, 0.0]])
    return 0.5 * omega @ q


@traced(np.array([[0.2, 0.7, 0.1], [0.5, 0.4, 0.6], [0.3, 0.8, 0.9]]), is_analytic=False, compiles=False)
def attention(t, x):
    scores = x @ x.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ x - x.mean(axis=0, keepdims=True)


# ---- Python around it: closures, helpers, objects, in place ----------------------------------------------------------


def _make_ring(n: int, coupling: np.ndarray):
    def ring(t, y):
        return coupling * (np.roll(y, 1) - y) + np.cos(t) * weight(y)

    def weight(y):
        return y / n

    return ring


traced([0.4, 0.1, -0.6, 0.3], name="closures")(_make_ring(4, np.array([0.5, 1.0, 1.5, 2.0])))
traced([1.0, 0.4], (0.0, 5.0), name="lambda")(lambda t, y: [y[1], -y[0] - 0.1 * y[1] ** 3])
traced([0.9, 0.2], name="partial", compiles=False)(
    functools.partial(lambda t, y, k: np.array([y[1], -k * np.sin(y[0])]), k=3.0)
)


class Spring:
    """A right-hand side that is an object."""

    def __init__(self, stiffness: float):
        self.stiffness = stiffness

    def __call__(self, t, y):
        return [y[1], -self.stiffness * y[0] * (1 + y[0] ** 2)]

    def slopes(self, t, y):
        return np.array([y[1], -self.stiffness * np.sin(y[0])])


traced([0.5, 0.2], name="object", compiles=False)(Spring(2.0))
traced([0.5, 0.2], name="method", compiles=False)(Spring(2.0).slopes)


@njit
def _restoring(x):
    return -np.sin(x)


@njit
def _jitted(t, y):
    return np.array([y[1], _restoring(y[0])])


traced([0.5, 0.2], name="jitted", is_analytic=False)(_jitted)


@traced([-8.0, 8.0, 27.0], args=(10.0, 28.0, 8 / 3))
def lorenz_in_place(t, y, dy, p):
    sigma, rho, beta = p
    dy[0] = sigma * (y[1] - y[0])
    dy[1] = y[0] * (rho - y[2]) - y[1]
    dy[2] = y[0] * y[1] - beta * y[2]


@traced(np.linspace(0.1, 1.0, 6), (0.0, 0.5))
def heat_in_place(t, y, dy):
    dy[:] = 0.0
    dy[1:-1] += y[2:] - 2 * y[1:-1]
    dy[1:-1] += y[:-2]


@traced(
    [1.0, 0.1, -0.5, 0.8, -0.4, -0.9, 0.1, -0.5, 0.6, 0.2, -0.3, 0.4], (0.0, 0.5), args=(np.array([1.0, 2.0, 0.5]),)
)
def three_bodies_by_loops(t, y, dy, p):
    for i in range(3):
        dy[2 * i], dy[2 * i + 1] = y[6 + 2 * i], y[7 + 2 * i]
        ax = ay = 0.0
        for j in range(3):
            if j != i:
                dx, dz = y[2 * j] - y[2 * i], y[2 * j + 1] - y[2 * i + 1]
                cube = (dx * dx + dz * dz) ** 1.5
                ax += p[j] * dx / cube
                ay += p[j] * dz / cube
        dy[6 + 2 * i], dy[7 + 2 * i] = ax, ay


@traced([0.4, 0.7], compiles=False)
def silenced_warnings(t, y):
    with np.errstate(divide="ignore"):
        return [y[1], -y[0] / (1 + y[1] ** 2)]


@traced([0.4, 0.3], args=(0.5, True, 3))
def flags_and_counts(t, y, k, is_damped, n):
    total = 0.0
    for i in range(n):
        total += k * y[0] ** i
    return [y[1], -y[0] - (total if is_damped else 0.0) * y[1]]


# ---- what straight-line code cannot do -------------------------------------------------------------------------------


@fallen([1.0, 0.0], (0.0, 3.0), rung="compiled", reason="branches on data")
def branch_on_state(t, y):
    if y[0] > 0:
        return [y[1], -2.0 * y[0]]
    return [y[1], -3.0 * y[0]]


@fallen([0.5, 0.1], (0.0, 2.0), rung="compiled", reason="branches on data")
def branch_on_time(t, y):
    push = 1.0 if t < 1.0 else -1.0
    return [y[1], push - y[0]]


@fallen([1.7], (0.0, 2.0), rung="compiled", reason="branches on data")
def loop_on_data(t, y):
    x, n = y[0], 0
    while x > 0.5:
        x *= 0.5
        n += 1
    return np.array([-0.1 * n * y[0] - x])


@fallen([0.4, 0.7], rung="compiled", reason="float")
def turned_into_a_float(t, y):
    x = float(y[0])
    return [y[1], -x]


@fallen([0.4, -0.7], rung="compiled", reason="branches on data")
def built_in_maximum(t, y):
    return [max(y[1], 0.0) - y[0], -y[1]]


@fallen([0.4, 0.7, 0.1], rung="compiled", reason="sort", is_slow=True)
def order_statistics(t, y):
    return np.sort(y)[::-1] - y


@fallen([0.4, 0.7, 0.1], rung="compiled", reason="argmax")
def winner_takes_all(t, y):
    dy = -0.5 * y
    dy[np.argmax(y)] += 1.0
    return dy


@fallen([1.0], (0.0, 2.0), rung="compiled", reason="interp", is_slow=True)
def tabulated_forcing(t, y):
    return np.array([np.interp(t, np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, -1.0])) - y[0]])


@fallen([0.4, -0.7, 0.1], rung="compiled", reason="arrays used as indices")
def selection_by_mask(t, y):
    dy = -y
    dy[y < 0] = 0.5 * y[y < 0]
    return dy


@fallen([0.4, 0.7], rung="compiled", reason="solve", is_slow=True)
def mass_matrix(t, y):
    return np.linalg.solve(np.array([[2.0, 0.3], [0.3, 1.0]]), -y)


@fallen([0.4, -0.7], rung="python", reason="expit", compiles=False)
def special_function(t, y):
    return scipy.special.expit(y) - y


@fallen([0.4, 0.7, 0.1, 0.3], rung="python", reason="gradient", compiles=False)
def difference_quotients(t, y):
    return -np.gradient(y, np.array([0.0, 0.5, 1.2, 2.0]))


@fallen(np.sin(np.arange(8.0)), (0.0, 0.5), rung="python", reason="fft", compiles=False)
def spectral_heat(t, u):
    k = np.fft.fftfreq(8, 1 / 8)
    return np.fft.ifft(-(k**2) * np.fft.fft(u)).real


CASES = TRACED + FALLEN


def parameters(cases) -> list:
    """The cases for `pytest.mark.parametrize`, those that compile long marked slow."""
    return [pytest.param(case, marks=[pytest.mark.slow] if case.is_slow else [], id=case.name) for case in cases]


# Kept apart, because it has no single right answer: its own noise bounds how far two solutions may differ.
NOISE = 1e-4
_generator = np.random.default_rng(5)


def noisy_decay(t, y):
    return -y + NOISE * _generator.random()
