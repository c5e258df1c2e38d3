"""Rows of equations on periodic planes: 200 steps of heat, waves and advection, blocked steps, a gradient, and ADI.

"pde-operator" applies the Laplacian to an array again and again; the copy row `u.copy()` takes new memory, too.

Heat and advection take Euler steps, waves those of Verlet's scheme; "pde-adi" takes long implicit steps.  The copy row
is `b = c a` over arrays of the same size, as often as a step has to read and write them: once, twice for waves.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.c_loops import COMMAND
from benchmarks.timing import Answer, Measured, Prepared, Row, by_turns, first_line

SECONDS = 6.0
AGREEMENT = 1e-10  # relative to the largest entry: 200 stable steps in another order of summation
SPLITTING = 1e-3  # the same for steps along axes beside those of Crank and Nicolson: h^2 of long steps
COPY, OURS, UNBLOCKED = "copy", "stepnet", "stepnet, a step at a time"
SPARSE = "SciPy sparse LU"
GRADIENT, FORWARD = "stepnet gradient", "stepnet forward"
SOURCE = Path(__file__).with_name("grids.c")


class Task(NamedTuple):
    """An equation u' = f on an n x n periodic plane with `steps` steps."""

    equation: str
    n: int
    steps: int

    @property
    def h(self) -> float:
        if self.equation == "implicit heat":
            return 1e-4
        return 0.2 / self.n**2 if self.equation == "heat" else 0.2 / self.n

    def start(self) -> np.ndarray:
        x = np.arange(self.n) / self.n
        return np.sin(2 * np.pi * x)[:, None] * np.cos(4 * np.pi * x)


TASKS = {
    "pde-heat": Task("heat", 1024, 200),
    "pde-wave": Task("wave", 1024, 200),
    "pde-advection": Task("advection", 1024, 200),
    "pde-heat-2048": Task("heat", 2048, 64),
    "pde-gradient": Task("heat", 256, 500),
    "pde-adi": Task("implicit heat", 1024, 10),
    "pde-operator": Task("laplacian", 2048, 10),
}
WORKLOADS = tuple(TASKS)
HEAT_STEPS, WAVE_STEPS, ADVECTION, BLOCKED, DIFFERENTIATED, ALTERNATING, APPLIED = WORKLOADS
STEPPED = HEAT_STEPS, WAVE_STEPS, ADVECTION
VELOCITY = (0.5, 0.25)


def build_problem(task: Task):
    from stepnet import equations
    from stepnet.operators import Grid

    grid, u, span = Grid((task.n, task.n)), task.start(), (0.0, task.h * task.steps)
    if task.equation == "heat":
        return equations.heat(grid, u, span), "euler"
    if task.equation == "implicit heat":
        return equations.heat(grid, u, span), "adi"
    if task.equation == "wave":
        return equations.wave(grid, u, np.zeros_like(u), span), "verlet"
    return equations.transport(grid, u, span, np.array(VELOCITY), order=1), "euler"


def stepnet_solve(task: Task) -> Prepared:
    import stepnet as sn

    problem, scheme = build_problem(task)
    rows = 2 if task.equation == "wave" else 1

    def call():
        return sn.solve(problem, scheme, steps=task.steps, save_every=0)

    call()
    return Prepared(call, lambda solution: Answer(np.reshape(solution.y[-1], (rows, task.n, task.n))[0]))


def stepnet_unblocked(task: Task) -> Prepared:
    """The kernel of the same solve, one step at a time."""
    from stepnet.engines.numba_engine.stencils import stencil_code
    from stepnet.schemes import get
    from stepnet.schemes.step_program import build_scheme_program

    problem, scheme = build_problem(task)
    program = build_scheme_program(get(scheme), 1, False, False).step
    kept, stencil_code.BLOCKED_BYTES = stencil_code.BLOCKED_BYTES, np.inf
    code = stencil_code.build_stencil_code(problem.fun.find_linear_form(*problem.args), np.float64)
    address = code.find_steps(program, (0,), 1, task.n**2)
    stencil_code.BLOCKED_BYTES = kept
    real, integer, pointer = ctypes.c_double, ctypes.c_int64, ctypes.c_void_p
    steps = ctypes.CFUNCTYPE(ctypes.c_int32, real, real, integer, integer, pointer, pointer)(address)
    work, p = np.zeros((2, task.n**2)), np.array(problem.args)

    def call(code=code):  # which owns the machine code
        work[0] = problem.y0.ravel()
        steps(0.0, task.h, 0, task.steps, work.ctypes.data, p.ctypes.data)
        return work[0].reshape(task.n, task.n)

    return Prepared(call, read)


def copy(task: Task) -> Prepared:
    """b = c a as often as the equation reads and writes its states."""
    from numba import njit

    @njit
    def scale(a, b, c):
        for i in range(a.size):
            b[i] = c * a[i]

    a, times = task.start().ravel(), task.steps * (2 if task.equation == "wave" else 1)
    b = np.empty_like(a)
    scale(a, b, 1.0)

    def call():
        for _ in range(times):
            scale(a, b, 1.0)

    return Prepared(call, lambda _: Answer(np.empty(0)))


def lap(u, roll):
    """The Laplacian times h^2, written with `roll`."""
    return roll(u, 1, 0) + roll(u, -1, 0) + roll(u, 1, 1) + roll(u, -1, 1) - 4 * u


def take_step(task: Task, state, roll):
    """One step with array operations, for NumPy, torch and JAX."""
    r = task.h * task.n**2
    if task.equation == "heat":
        return state + r * lap(state, roll)
    if task.equation == "wave":
        q, v, a = state
        v = v + 0.5 * task.h * a
        q = q + task.h * v
        a = task.n**2 * lap(q, roll)
        return q, v + 0.5 * task.h * a, a
    cx, cy = (task.h * task.n * each for each in VELOCITY)
    return state - cx * (state - roll(state, 1, 0)) - cy * (state - roll(state, 1, 1))


def begin(task: Task, u, roll):
    return (u, 0 * u, task.n**2 * lap(u, roll)) if task.equation == "wave" else u


def read(state) -> Answer:
    return Answer(np.asarray(state[0] if isinstance(state, tuple) else state))


def numpy_steps(task: Task) -> Prepared:
    def call():
        state = begin(task, task.start(), np.roll)
        for _ in range(task.steps):
            state = take_step(task, state, np.roll)
        return state

    return Prepared(call, read)


def torch_steps(is_compiled: bool) -> Callable[[Task], Prepared]:
    def prepare(task: Task) -> Prepared:
        import torch

        torch.set_num_threads(1)
        step = torch.compile(lambda state: take_step(task, state, torch.roll)) if is_compiled else None

        def call():
            with torch.no_grad():
                state = begin(task, torch.from_numpy(task.start()), torch.roll)
                for _ in range(task.steps):
                    state = step(state) if step is not None else take_step(task, state, torch.roll)
                return state

        call()
        return Prepared(call, read)

    return prepare


def torch_convolution(task: Task) -> Prepared:
    """Heat by conv2d with circular padding."""
    import torch

    torch.set_num_threads(1)
    r = task.h * task.n**2
    kernel = torch.tensor([[0.0, r, 0.0], [r, 1 - 4 * r, r], [0.0, r, 0.0]], dtype=torch.float64)[None, None]

    def call():
        with torch.no_grad():
            u = torch.from_numpy(task.start())[None, None]
            for _ in range(task.steps):
                u = torch.conv2d(torch.nn.functional.pad(u, (1, 1, 1, 1), "circular"), kernel)
            return u[0, 0]

    call()
    return Prepared(call, read)


def jax_steps(task: Task) -> Prepared:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    u = jnp.asarray(task.start())

    @jax.jit
    def run(u):
        first = begin(task, u, jnp.roll)
        return jax.lax.fori_loop(0, task.steps, lambda _, state: take_step(task, state, jnp.roll), first)

    def call():
        return jax.block_until_ready(run(u))

    call()
    return Prepared(call, read)


def pde_steps(task: Task) -> Prepared:
    """py-pde's diffusion by explicit Euler steps, compiled by Numba."""
    import pde

    grid = pde.CartesianGrid([[0, 1], [0, 1]], task.n, periodic=True)
    field, equation = pde.ScalarField(grid, task.start()), pde.DiffusionPDE()
    span = task.h * task.steps

    def call():
        return equation.solve(field, t_range=span, dt=task.h, tracker=None, solver="euler", backend="numba")

    call()
    return Prepared(call, lambda found: Answer(found.data))


def c_heat(task: Task) -> Prepared:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "grids.so"
        subprocess.run([*COMMAND, "-ffp-contract=fast", "-o", target, SOURCE], check=True, capture_output=True)
        heat = ctypes.CDLL(str(target)).heat
    heat.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_double)
    heat.restype = None
    u, v = task.start(), np.empty((task.n, task.n))

    def call():
        u[:] = task.start()
        heat(u.ctypes.data, v.ctypes.data, task.n, task.steps, task.h * task.n**2)
        return v if task.steps % 2 else u

    return Prepared(call, read)


def sparse_steps(task: Task) -> Prepared:
    """Crank and Nicolson's steps with SciPy's sparse LU, factorised once before they are timed."""
    from scipy import sparse
    from scipy.sparse.linalg import splu

    n, r = task.n, 0.5 * task.h * task.n**2
    line = sparse.diags_array([-2.0, 1.0, 1.0, 1.0, 1.0], offsets=[0, 1, -1, n - 1, 1 - n], shape=(n, n))
    laplacian = sparse.kron(line, sparse.eye_array(n)) + sparse.kron(sparse.eye_array(n), line)
    one = sparse.eye_array(n * n)
    factors, explicit = splu((one - r * laplacian).tocsc()), (one + r * laplacian).tocsr()

    def call():
        u = task.start().ravel()
        for _ in range(task.steps):
            u = factors.solve(explicit @ u)
        return u.reshape(n, n)

    return Prepared(call, read)


def stepnet_gradient(task: Task) -> Prepared:
    import stepnet as sn

    problem, scheme = build_problem(task)

    def call():
        return sn.gradient(problem, scheme, lambda u: ((u * u).sum(), 2 * u), steps=task.steps)

    call()
    return Prepared(call, lambda gradient: Answer(np.asarray(gradient.y0)))


def apply_laplacian(build: Callable) -> Callable[[Task], Prepared]:
    """The Laplacian of an array, `steps` times, by what `build` returns."""

    def prepare(task: Task) -> Prepared:
        apply, u = build(task), task.start()

        def call():
            for _ in range(task.steps):
                found = apply(u)
            return found

        call()
        return Prepared(call, lambda found: Answer(np.asarray(found)))

    return prepare


def build_laplacian(task: Task):
    from stepnet.operators import Grid, laplacian

    return laplacian(Grid((task.n, task.n)))


def torch_laplacian(task: Task):
    import torch

    torch.set_num_threads(1)
    return lambda u: task.n**2 * lap(torch.from_numpy(u), torch.roll)


def jax_laplacian(task: Task):
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    run = jax.jit(lambda u: task.n**2 * lap(u, jnp.roll))
    return lambda u: jax.block_until_ready(run(u))


def copy_array(task: Task) -> Prepared:
    u = task.start()

    def call():
        for _ in range(task.steps):
            u.copy()

    return Prepared(call, lambda _: Answer(np.empty(0)))


ARRAYS = {
    COPY: ("numba", copy),
    OURS: ("stepnet", stepnet_solve),
    "NumPy": ("numpy", numpy_steps),
    "torch": ("torch", torch_steps(False)),
    "torch compile": ("torch", torch_steps(True)),
    "JAX": ("jax", jax_steps),
}
HEAT = {"torch conv2d": ("torch", torch_convolution), "py-pde": ("py-pde", pde_steps), "C": ("C", c_heat)}
CONTENDERS = {
    "pde-heat": ARRAYS | HEAT,
    "pde-wave": ARRAYS,
    "pde-advection": ARRAYS,
    "pde-heat-2048": {
        COPY: ARRAYS[COPY],
        OURS: ARRAYS[OURS],
        UNBLOCKED: ("stepnet", stepnet_unblocked),
        "C": HEAT["C"],
    },
    "pde-operator": {
        COPY: ("numpy", copy_array),
        OURS: ("stepnet", apply_laplacian(build_laplacian)),
        "NumPy": ("numpy", apply_laplacian(lambda task: lambda u: task.n**2 * lap(u, np.roll))),
        "torch": ("torch", apply_laplacian(torch_laplacian)),
        "JAX": ("jax", apply_laplacian(jax_laplacian)),
    },
    "pde-adi": {OURS: ARRAYS[OURS], SPARSE: ("SciPy", sparse_steps)},
    "pde-gradient": {FORWARD: ("stepnet", stepnet_solve), GRADIENT: ("stepnet", stepnet_gradient)},
}


def rows(workload: str) -> Iterator[Row]:
    """The contenders of one workload; ends that differ have no time."""
    task, prepared = TASKS[workload], {}
    for name, (package, prepare) in CONTENDERS[workload].items():
        try:
            prepared[name] = prepare(task)
        except Exception as exception:
            yield Row(workload, name, package, note=first_line(exception))
    found = by_turns(prepared, SECONDS)
    for name, measured in found.items():
        yield _row(workload, name, measured, found)


def _row(workload: str, name: str, measured: Measured | Exception, found: dict) -> Row:
    package = CONTENDERS[workload][name][0]
    if isinstance(measured, Exception):
        return Row(workload, name, package, note=first_line(measured))
    y, ours = measured.answer.y, found.get(OURS)
    limit = SPLITTING if name == SPARSE else AGREEMENT
    if y.size and isinstance(ours, Measured) and np.abs(y - ours.answer.y).max() > limit * np.abs(y).max():
        return Row(workload, name, package, note="another end state")
    return Row(workload, name, package, time=measured.time, calls=measured.calls)
