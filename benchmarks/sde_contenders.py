"""Contenders for paths of SDEs by Euler-Maruyama, and for gradients of the mean of half the squared end state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks import c_loops
from benchmarks.timing import Answer, Prepared

T_END, STEPS, PATHS, GRADIENT_PATHS, SEED = 1.0, 1000, 10_000, 1000, 1
H = T_END / STEPS


@dataclass(frozen=True)
class Problem:
    """dy = drift(y) dt + diffusion(y) dW in every component, y(0) = 1; `loop` is its name in paths.c."""

    name: str
    loop: str
    drift: Callable
    diffusion: Callable
    args: tuple[float, ...]
    dimension: int

    @property
    def y0(self) -> np.ndarray:
        return np.ones(self.dimension)

    @property
    def sde(self):
        """As a user of stepnet writes it."""
        import stepnet as sn

        def drift(t, y, *args):
            return self.drift(y, *args)

        def diffusion(t, y, *args):
            return [self.diffusion(y[i], *args) for i in range(self.dimension)]

        return sn.SDE(drift, diffusion, self.y0, (0.0, T_END), self.args, seed=SEED)


GBM = Problem("GBM", "gbm", lambda y, a, s: a * y, lambda y, a, s: s * y, (0.05, 0.2), 1)
OU = Problem("OU", "ou", lambda y, k, m, s: k * (m - y), lambda y, k, m, s: s, (1.0, 0.5, 0.3), 10)


class Contender(NamedTuple):
    """`prepare(problem, paths, steps)` compiles what is to be compiled; the time of fewer `paths` is scaled.

    The answer is the end states, gradients path by path, or their mean; with our noise it must be ours to rounding.
    """

    name: str
    package: str
    prepare: Callable[[Problem, int, int], Prepared]
    paths: int = PATHS
    is_our_noise: bool = False


# ---- paths ----------------------------------------------------------------------------------------------------------


def stepnet(problem: Problem, paths: int, steps: int) -> Prepared:
    import stepnet as sn

    sde = problem.sde

    def call():
        return sn.solve_ensemble(sde, "euler_maruyama", paths=paths, steps=steps, workers=1)

    told = call()
    if told.rung != "lanes" or not told.success.all():
        raise RuntimeError(f"the paths ran {told.rung}: {told.reason}")
    return Prepared(call, lambda found: Answer(found.y_end))


def c_loop(problem: Problem, paths: int, steps: int, is_fused: bool) -> Prepared:
    """Operation by operation as the kernel, or with fused products and sums, which give other last digits."""
    from stepnet.noise.grid import NoiseGrid

    grid, start = NoiseGrid((0.0, T_END), steps), np.ones((paths, problem.dimension))
    call = c_loops.paths(problem.loop, start, problem.args, SEED, grid, is_fused)
    call()
    return Prepared(call, Answer)


def numpy(problem: Problem, paths: int, steps: int) -> Prepared:
    generator, dW = np.random.default_rng(SEED), np.empty((paths, problem.dimension))

    def call():
        y = np.ones_like(dW)
        for _ in range(steps):
            generator.standard_normal(out=dW)
            y += H * problem.drift(y, *problem.args) + np.sqrt(H) * problem.diffusion(y, *problem.args) * dW
        return y

    return Prepared(call, Answer)


def torchsde(problem: Problem, paths: int, steps: int) -> Prepared:
    import torch
    import torchsde

    class Sde:
        noise_type, sde_type = "diagonal", "ito"

        def f(self, t, y):
            return problem.drift(y, *problem.args)

        def g(self, t, y):
            return problem.diffusion(y, *problem.args) + torch.zeros_like(y)

    torch.set_num_threads(1)
    y0 = torch.ones(paths, problem.dimension, dtype=torch.float64)
    t = torch.tensor([0.0, steps * H], dtype=torch.float64)

    def call():
        with torch.no_grad():
            return torchsde.sdeint(Sde(), y0, t, method="euler", dt=H)[-1].numpy()

    return Prepared(call, Answer)


def jax(problem: Problem, paths: int, steps: int) -> Prepared:
    """A scan that draws the normals of each step."""
    import jax as library

    _set_up(library)
    call = library.jit(partial(_jax_ends, problem, problem.y0, problem.args, paths, steps))
    key = library.random.key(SEED)
    call(key).block_until_ready()
    return Prepared(lambda: call(key).block_until_ready(), lambda found: Answer(np.asarray(found)))


def _set_up(library) -> None:
    library.config.update("jax_enable_x64", True)


def _jax_ends(problem: Problem, y0, args, paths: int, steps: int, key):
    import jax as library

    shape = (paths, problem.dimension)

    def step(y, key):
        dW = np.sqrt(H) * library.random.normal(key, shape)
        return y + H * problem.drift(y, *args) + problem.diffusion(y, *args) * dW, None

    start = library.numpy.broadcast_to(y0, shape)
    return library.lax.scan(step, start, library.random.split(key, steps))[0]


def diffrax(problem: Problem, paths: int, steps: int, is_tree: bool) -> Prepared:
    import diffrax as library
    import jax as arrays
    import lineax

    _set_up(arrays)

    def make_path(key):
        shape = (problem.dimension,)
        if is_tree:
            return library.VirtualBrownianTree(0.0, T_END, tol=H / 2, shape=shape, key=key)
        return library.UnsafeBrownianPath(shape=shape, key=key)

    def diffusion(t, y, args):
        return lineax.DiagonalLinearOperator(problem.diffusion(y, *args) + arrays.numpy.zeros_like(y))

    def solve(key):
        drift = library.ODETerm(lambda t, y, args: problem.drift(y, *args))
        terms = library.MultiTerm(drift, library.ControlTerm(diffusion, make_path(key)))
        found = library.diffeqsolve(
            terms, library.Euler(), 0.0, steps * H, dt0=H, y0=arrays.numpy.asarray(problem.y0), args=problem.args,
            max_steps=steps + 2, adjoint=library.ForwardMode(),
        )  # fmt: skip
        return found.ys[-1]

    call, keys = arrays.jit(arrays.vmap(solve)), arrays.random.split(arrays.random.key(SEED), paths)
    call(keys).block_until_ready()
    return Prepared(lambda: call(keys).block_until_ready(), lambda found: Answer(np.asarray(found)))


# ---- gradients ------------------------------------------------------------------------------------------------------


def loss(y):
    return 0.5 * (y @ y)


def stepnet_gradient(problem: Problem, paths: int, steps: int) -> Prepared:
    """Gradients of each path; the answer has a row for each."""
    import stepnet as sn

    sde = problem.sde

    def call():
        return sn.gradient_ensemble(sde, "euler_maruyama", loss, paths=paths, steps=steps, workers=1)

    told = call()
    if told.rung != "lanes":
        raise RuntimeError(f"the paths ran {told.rung}: {told.reason}")
    return Prepared(call, lambda found: Answer(np.concatenate((found.y0, found.args), axis=1)))


def jax_gradient_drawn(problem: Problem, paths: int, steps: int) -> Prepared:
    """Of the mean over paths, with normals that are drawn in the scan."""
    import jax as library

    def mean_loss(y0, args, key):
        return 0.5 * (_jax_ends(problem, y0, args, paths, steps, key) ** 2).sum() / paths

    return _jax_gradient(problem, mean_loss, library.random.key(SEED))


def jax_gradient_given(problem: Problem, paths: int, steps: int) -> Prepared:
    """Of the mean over paths, with increments that were drawn before, which are ours."""
    import jax as library

    _set_up(library)

    def mean_loss(y0, args, increments):
        def step(y, dW):
            return y + H * problem.drift(y, *args) + problem.diffusion(y, *args) * dW, None

        start = library.numpy.broadcast_to(y0, (paths, problem.dimension))
        return 0.5 * (library.lax.scan(step, start, increments)[0] ** 2).sum() / paths

    return _jax_gradient(problem, mean_loss, library.numpy.asarray(increments(problem, paths, steps)))


def _jax_gradient(problem: Problem, mean_loss: Callable, noise) -> Prepared:
    import jax as library

    _set_up(library)
    arrays, gradient = library.numpy, library.jit(library.grad(mean_loss, argnums=(0, 1)))
    start, numbers = arrays.asarray(problem.y0), tuple(map(arrays.asarray, problem.args))

    def call():
        return library.block_until_ready(gradient(start, numbers, noise))

    call()
    return Prepared(call, lambda found: Answer(np.concatenate((found[0], np.array(found[1])))))


def increments(problem: Problem, paths: int, steps: int) -> np.ndarray:
    """Ours, (steps, paths, dimension): sums of increments are exact, so they are differences of saved paths."""
    import stepnet as sn

    zero = np.zeros(problem.dimension)
    motion = sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 1.0 + 0.0 * y, zero, (0.0, T_END), seed=SEED)
    times = np.linspace(0.0, T_END, steps + 1)
    found = sn.solve_ensemble(motion, "euler_maruyama", paths=paths, steps=steps, save_at=times, workers=1)
    return np.ascontiguousarray(np.diff(found.y, axis=1).swapaxes(0, 1))


OURS, C, C_FUSED, NUMPY = "stepnet", "C loop", "C loop, fused operations", "numpy loop"
JAX, TORCHSDE, GRADIENT = "jax scan", "torchsde euler", "stepnet gradient of each path"
FEWER = 1000
UNSAFE, TREE = "diffrax UnsafeBrownianPath", f"diffrax VirtualBrownianTree, scaled from {FEWER} paths"
GRADIENT_DRAWN, GRADIENT_GIVEN = "jax gradient of the mean", "jax gradient, noise drawn before"
CONTENDERS = (
    Contender(OURS, "stepnet", stepnet, is_our_noise=True),
    Contender(C, "C", partial(c_loop, is_fused=False), is_our_noise=True),
    Contender(C_FUSED, "C", partial(c_loop, is_fused=True), is_our_noise=True),
    Contender(NUMPY, "numpy", numpy),
    Contender(JAX, "jax", jax),
    Contender(UNSAFE, "diffrax", partial(diffrax, is_tree=False)),
    Contender(TREE, "diffrax", partial(diffrax, is_tree=True), FEWER),
    Contender(TORCHSDE, "torchsde", torchsde),
)
GRADIENTS = (
    Contender(GRADIENT, "stepnet", stepnet_gradient, GRADIENT_PATHS, is_our_noise=True),
    Contender(GRADIENT_DRAWN, "jax", jax_gradient_drawn, GRADIENT_PATHS),
    Contender(GRADIENT_GIVEN, "jax", jax_gradient_given, GRADIENT_PATHS, is_our_noise=True),
)
