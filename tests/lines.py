"""Methods of lines in the usual programming styles: name -> (right-hand side, arguments, shape of the state).

`size` is the number of unknowns to aim at.
"""

import math

import numpy as np
from numpy import roll, zeros_like


def heat_dirichlet(t, u):
    dx = 1 / (u.size + 1)
    du = np.zeros_like(u)
    du[1:-1] = (u[2:] - 2 * u[1:-1] + u[:-2]) / dx**2
    du[0] = (u[1] - 2 * u[0]) / dx**2
    du[-1] = (u[-2] - 2 * u[-1]) / dx**2
    return du


def heat_neumann(t, u, kappa):
    h = 1.0 / (len(u) - 1)
    du = np.empty_like(u)
    du[0] = 2 * kappa * (u[1] - u[0]) / h**2
    du[1:-1] = kappa * np.diff(u, 2) / h**2
    du[-1] = 2 * kappa * (u[-2] - u[-1]) / h**2
    return du


def heat_ring(t, u):
    return (roll(u, 1) - 2 * u + roll(u, -1)) * u.shape[0] ** 2


def uneven_rod(t, u, k):
    flux = k * np.diff(u)
    return np.concatenate(([flux[0]], np.diff(flux), [-flux[-1]]))


def own_grid(t, u):
    x = np.linspace(0.0, 1.0, len(u))
    return -u * x + np.exp(-x) * np.sin(t)


def burgers(t, u, nu):
    left, right = roll(u, 1), roll(u, -1)
    slope = np.where(u > 0, u - left, right - u)
    return -u * slope + nu * (left - 2 * u + right)


def korteweg_de_vries(t, u):
    third = roll(u, -2) - 2 * roll(u, -1) + 2 * roll(u, 1) - roll(u, 2)
    return -6 * u * (roll(u, -1) - roll(u, 1)) / 2 - third / 2


def fisher(t, u):
    v = np.pad(u, 1, mode="edge")
    return np.diff(v, 2) + u * (1 - u)


def wave(t, y):
    u, v = y
    a = zeros_like(u)
    a[1:-1] = u[2:] - 2 * u[1:-1] + u[:-2]
    return np.array([v, a])


def brusselator_in_pairs(t, y, a, b):
    u, v = y[::2], y[1::2]
    w, dy = u * u * v, np.empty_like(y)
    dy[::2], dy[1::2] = a + w - (b + 1) * u, b * u - w
    dy[2:-2:2] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    dy[3:-2:2] += 0.1 * (v[2:] - 2 * v[1:-1] + v[:-2])
    return dy


def slope_by_gradient(t, u):
    return -np.gradient(u * u / 2, 0.1, edge_order=2) + 0.01 * np.gradient(np.gradient(u, 0.1), 0.1)


def kuramoto(t, theta, coupling, omega):
    s, c = np.sin(theta).mean(), np.cos(theta).mean()
    return omega + coupling * (s * np.cos(theta) - c * np.sin(theta))


def lorenz96(t, x, forcing):
    return (roll(x, -1) - roll(x, 2)) * roll(x, 1) - x + forcing


def kept_on_average(t, u, w):
    return -u + np.sum(u * w) / w.sum() + 0.1 * (u @ w) * np.tanh(u.mean() - u)


def kuramoto_sivashinsky(t, u):
    second = roll(u, 1) - 2 * u + roll(u, -1)
    fourth = roll(second, 1) - 2 * second + roll(second, -1)
    return -second - fourth - u * (roll(u, -1) - roll(u, 1)) / 2


def cahn_hilliard(t, u):
    def laplacian(v):
        return roll(v, 1) - 2 * v + roll(v, -1)

    return laplacian(u**3 - u - 0.1 * laplacian(u))


def with_a_limiter(t, u):
    a, b = u - roll(u, 1), roll(u, -1) - u
    slope = 0.5 * (np.sign(a) + np.sign(b)) * np.minimum(np.abs(a), np.abs(b))
    face = u + 0.5 * slope
    return roll(face, 1) - face


def fitzhugh_nagumo(t, y, dy, p):
    n = len(y) // 2
    u, w = y[:n], y[n:]
    dy[:n] = u - u**3 / 3 - w + p[0]
    dy[n:] = p[1] * (u + 0.7 - 0.8 * w)
    dy[1 : n - 1] += u[2:] - 2 * u[1:-1] + u[:-2]
    dy[0] += u[1] - u[0]
    dy[n - 1] += u[n - 2] - u[n - 1]


def driven_end(t, u, amplitude):
    left = np.append(amplitude * math.sin(3 * t), u[:-1])
    return left - 2 * u + np.hstack([u[1:], [0.0]])


def heat_of_planes(t, u):
    out = np.zeros((u.shape[0], u.shape[1]))
    out[1:-1, 1:-1] = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    return out


def heat_dirichlet_2d(t, y):
    n = math.isqrt(y.size)
    u, dx = y.reshape(n, n), 1 / (n + 1)
    p = np.pad(u, 1)
    return ((p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u) / dx**2).ravel()


def gray_scott(t, y, feed, kill):
    u, v = y

    def laplacian(w):
        return roll(w, 1, 0) + roll(w, -1, 0) + roll(w, 1, axis=1) + roll(w, -1, axis=1) - 4 * w

    uvv = u * v * v
    return np.stack([0.16 * laplacian(u) - uvv + feed * (1 - u), 0.08 * laplacian(v) + uvv - (feed + kill) * v])


def brusselator_2d(t, y):
    n = math.isqrt(y.size // 2)
    u, v = y.reshape(2, n, n)
    w, du, dv = u * u * v, np.empty((n, n)), np.empty((n, n))
    for z, dz, reaction in ((u, du, 1 + w - 4.4 * u), (v, dv, 3.4 * u - w)):
        dz[:] = reaction
        dz[1:-1] += z[2:] - 2 * z[1:-1] + z[:-2]
        dz[:, 1:-1] += z[:, 2:] - 2 * z[:, 1:-1] + z[:, :-2]
    return np.concatenate([du.ravel(), dv.ravel()])


def conduction_by_rows(t, u, k):
    flux = k[:, None] * np.diff(u, axis=1)
    du = np.zeros_like(u)
    du[:, :-1] += flux
    du[:, 1:] -= flux
    return du - 0.1 * (u - u.mean(axis=1, keepdims=True))


def shallow_water(t, y):
    h, p, q = y
    u, v = p / h, q / h

    def slope(f, axis):
        return (roll(f, -1, axis) - roll(f, 1, axis)) / 2

    pressure = h * h / 2
    return np.stack([
        -slope(p, 0) - slope(q, 1),
        -slope(p * u + pressure, 0) - slope(p * v, 1),
        -slope(q * u, 0) - slope(q * v + pressure, 1),
    ])  # fmt: skip


def heat_3d(t, u):
    total = -6 * u
    for axis in range(3):
        total = total + roll(u, 1, axis) + roll(u, -1, axis)
    return total


def by_a_matrix(t, u, matrix):
    return matrix @ u - u**3


def lax_friedrichs(t, u):
    speed = np.abs(u).max()
    f, right = u * u / 2, roll(u, -1)
    face = 0.5 * (f + roll(f, -1)) - 0.5 * speed * (right - u)
    return roll(face, 1) - face


def one_by_one(t, u, dy, p):
    n = len(u)
    dy[0] = dy[n - 1] = 0.0
    for i in range(1, n - 1):
        dy[i] = p[0] * (u[i + 1] - 2 * u[i] + u[i - 1]) + math.sin(u[i])


def numbers(n, seed=3):
    return np.random.default_rng(seed).uniform(0.5, 1.5, n)


def lines(size: int) -> dict:
    """All of them with about `size` unknowns."""
    side, edge = math.isqrt(size), round(size ** (1 / 3))
    half, few = math.isqrt(size // 2), min(size, 400)
    return {
        "heat, Dirichlet": (heat_dirichlet, (), (size,)),
        "heat, Neumann": (heat_neumann, (0.3,), (size,)),
        "heat on a ring": (heat_ring, (), (size,)),
        "uneven rod": (uneven_rod, (numbers(size - 1),), (size,)),
        "own grid": (own_grid, (), (size,)),
        "Burgers, upwind": (burgers, (0.1,), (size,)),
        "Korteweg-de Vries": (korteweg_de_vries, (), (size,)),
        "Fisher, padded": (fisher, (), (size,)),
        "wave": (wave, (), (2, size // 2)),
        "Brusselator in pairs": (brusselator_in_pairs, (1.0, 3.0), (2 * (size // 2),)),
        "np.gradient": (slope_by_gradient, (), (size,)),
        "Kuramoto": (kuramoto, (0.7, numbers(size)), (size,)),
        "Lorenz 96": (lorenz96, (8.0,), (size,)),
        "averages": (kept_on_average, (numbers(size) / size,), (size,)),
        "Kuramoto-Sivashinsky": (kuramoto_sivashinsky, (), (size,)),
        "Cahn-Hilliard": (cahn_hilliard, (), (size,)),
        "limiter": (with_a_limiter, (), (size,)),
        "FitzHugh-Nagumo in place": (fitzhugh_nagumo, (0.5, 0.08), (2 * (size // 2),)),
        "driven end": (driven_end, (0.4,), (size,)),
        "heat of planes": (heat_of_planes, (), (side, side)),
        "heat in 2-D, flat": (heat_dirichlet_2d, (), (side * side,)),
        "Gray-Scott": (gray_scott, (0.04, 0.06), (2, half, half)),
        "Brusselator in 2-D": (brusselator_2d, (), (2 * half * half,)),
        "conduction by rows": (conduction_by_rows, (numbers(side),), (side, side)),
        "shallow water": (shallow_water, (), (3, half, half)),
        "heat in 3-D": (heat_3d, (), (edge, edge, edge)),
        "matrix": (by_a_matrix, (numbers(few * few).reshape(few, few) / few,), (few,)),
        "Lax-Friedrichs": (lax_friedrichs, (), (size,)),
        "one by one": (one_by_one, (0.3,), (min(size, 4000),)),
    }
