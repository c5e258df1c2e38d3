"""Contenders for gradients of a net: of half the squared outputs, with respect to all weights, biases and inputs."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.timing import Answer, Prepared

BATCH = 256
SEGMENT = 32  # layers between the states that checkpointing peers keep


@dataclass(frozen=True)
class Case:
    """A net of `steps` layers with weights of their own; `width` features, half of them q and half p for Verlet."""

    dynamics: str
    width: int
    steps: int
    dtype: str = "float64"

    @property
    def name(self) -> str:
        return f"{self.dynamics} {self.width}" + ("" if self.dtype == "float64" else f" {self.dtype}")

    @property
    def size(self) -> int:
        """Rows of K."""
        return self.width if self.dynamics == "residual" else self.width // 2

    @property
    def h(self) -> float:
        return (1.0 if self.dynamics == "residual" else 5.0) / self.steps

    @cache  # noqa: B019  a handful of cases
    def numbers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """K, b and inputs."""
        random, m = np.random.default_rng(0), self.size
        K = random.normal(size=(self.steps, m, m)) / np.sqrt(m)
        b, x = 0.1 * random.normal(size=(self.steps, m)), random.normal(size=(BATCH, self.width))
        return tuple(np.ascontiguousarray(each, self.dtype) for each in (K, b, x))


DEPTHS = {4: 1000, 16: 1000, 64: 1000, 256: 100}
CASES = tuple(Case(dynamics, width, n) for dynamics in ("residual", "verlet") for width, n in DEPTHS.items())
SINGLE = tuple(
    Case(dynamics, width, DEPTHS[width], "float32") for dynamics in ("residual", "verlet") for width in (16, 64)
)


class Contender(NamedTuple):
    """`prepare(case)` gives the gradient (K, b, x) as one array."""

    name: str
    package: str
    prepare: Callable[[Case], Prepared]
    dynamics: tuple[str, ...] = ("residual", "verlet")


def flat(*parts) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(part, float)) for part in parts])


def net_of(case: Case):
    from stepnet import fields
    from stepnet.nets import Block, Design, Net

    make, scheme = (fields.residual, "euler") if case.dynamics == "residual" else (fields.hamiltonian, "verlet")
    block = Block(make(fields.dense(case.size)), scheme, case.steps, case.h * case.steps, fields.Depth(case.steps))
    K, b, _ = case.numbers()
    return Net(Design((block,)), np.concatenate((K.ravel(), b.ravel())), dtype=case.dtype, workers=1)


def half_square(y):
    return 0.5 * float(np.vdot(y, y)), y


def stepnet(memory: str):
    def prepare(case):
        net, x = net_of(case), case.numbers()[2]

        def call():
            return net.gradient(x, half_square, memory=memory)

        call()
        return Prepared(call, lambda found: Answer(flat(found.theta, found.x), case.steps))

    return prepare


# ---- peers: layers as Python users write them -----------------------------------------------------------------------


def residual_step(xp, y, K, b, h):
    return y + h * xp.tanh(y @ K.T + b)


def force(xp, y, K, b):
    return xp.tanh(y @ K.T + b) @ K


def verlet_step(xp, state, K, b, K_next, b_next, h):
    """Half a kick, a drift, half a kick; the kick at the end of a step is the first of the next one."""
    q, p, kick = state
    p = p - 0.5 * h * kick
    q = q + h * force(xp, p, K, b)
    kick = force(xp, q, K_next, b_next)
    return q, p - 0.5 * h * kick, kick


def torch_eager(is_checkpointed: bool):
    """A Python loop over layers and its tape; with checkpoints, segments are run again."""

    def prepare(case):
        import torch
        from torch.utils.checkpoint import checkpoint

        torch.set_num_threads(1)
        K, b, x = (torch.tensor(each, requires_grad=True) for each in case.numbers())
        h, m = case.h, case.size

        def segment(state, first, last, Ks, bs):
            for k in range(first, last):
                n = min(k + 1, case.steps - 1)
                if case.dynamics == "residual":
                    state = (torch.add(state[0], torch.tanh(torch.addmm(bs[k], state[0], Ks[k].t())), alpha=h),)
                else:
                    state = verlet_step(torch, state, Ks[k], bs[k], Ks[n], bs[n], h)
            return state

        def call():
            K.grad = b.grad = x.grad = None
            Ks, bs = K.unbind(0), b.unbind(0)
            state = (x,)
            if case.dynamics == "verlet":
                q, p = x[:, :m], x[:, m:]
                state = (q, p, force(torch, q, Ks[0], bs[0]))
            if is_checkpointed:
                for first in range(0, case.steps, SEGMENT):
                    last = min(first + SEGMENT, case.steps)
                    state = checkpoint(segment, state, first, last, Ks, bs, use_reentrant=False)
            else:
                state = segment(state, 0, case.steps, Ks, bs)
            sum(0.5 * (each * each).sum() for each in state[:2]).backward()
            return K.grad, b.grad, x.grad

        return Prepared(call, lambda raw: Answer(flat(*(each.numpy() for each in raw)), case.steps))

    return prepare


def jax_scan(is_checkpointed: bool):
    """A compiled scan over layers; with checkpoints, a scan over segments that are run again."""

    def prepare(case):
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)
        h, m = case.h, case.size

        def step(state, weights):
            if case.dynamics == "residual":
                return (residual_step(jnp, state[0], *weights, h),), None
            return verlet_step(jnp, state, *weights, h), None

        def value(K, b, x):
            weights, state = (K, b), (x,)
            if case.dynamics == "verlet":
                after = [jnp.concatenate((each[1:], each[-1:])) for each in (K, b)]
                weights, state = (K, b, *after), (x[:, :m], x[:, m:], force(jnp, x[:, :m], K[0], b[0]))
            if is_checkpointed:
                n = next(n for n in range(SEGMENT, 0, -1) if case.steps % n == 0)
                weights = jax.tree.map(lambda each: each.reshape(-1, n, *each.shape[1:]), weights)
                state, _ = jax.lax.scan(jax.checkpoint(lambda s, w: jax.lax.scan(step, s, w)), state, weights)
            else:
                state, _ = jax.lax.scan(step, state, weights)
            return sum(0.5 * (each * each).sum() for each in state[:2])

        gradient = jax.jit(jax.grad(value, argnums=(0, 1, 2)))
        numbers = tuple(map(jnp.asarray, case.numbers()))

        def call():
            return jax.block_until_ready(gradient(*numbers))

        call()
        return Prepared(call, lambda raw: Answer(flat(*raw), case.steps))

    return prepare


# ---- C --------------------------------------------------------------------------------------------------------------

SOURCE = Path(__file__).with_name("layers.c")
COMMAND = ("gcc", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC")


@cache
def library() -> ctypes.CDLL:
    """The layers in C, which the compiler may vectorise as it likes, tanh included."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "layers.so"
        subprocess.run([*COMMAND, "-o", target, SOURCE, "-lm"], check=True, capture_output=True)
        return ctypes.CDLL(str(target))


def c_loops(case: Case) -> Prepared:
    """Plain loops over layers, features and samples."""
    if case.dtype != "float64":
        raise TypeError("the loops in C are for float64")
    K, b, x = case.numbers()
    n, m = case.steps, case.size
    states, values = np.empty((n + 1, m, BATCH)), np.empty((n, m, BATCH))
    K_bar, b_bar, x_bar, work = np.empty_like(K), np.empty_like(b), np.empty((m, BATCH)), np.empty((m, BATCH))
    states[0] = x.T
    function = library().residual
    function.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_double] + [ctypes.c_void_p] * 8
    arrays = (K, b, states, values, K_bar, b_bar, x_bar, work)
    pointers = [each.ctypes.data for each in arrays]

    def call(keep=arrays):  # the addresses stay valid as long as the function
        function(n, m, BATCH, case.h, *pointers)

    return Prepared(call, lambda _: Answer(flat(K_bar, b_bar, x_bar.T), n))


OURS, REVERSIBLE = "stepnet", "stepnet reversible"
CONTENDERS = (
    Contender(OURS, "stepnet", stepnet("all")),
    Contender(REVERSIBLE, "stepnet", stepnet("reversible"), ("verlet",)),
    Contender("torch", "torch", torch_eager(is_checkpointed=False)),
    Contender("torch checkpoint", "torch", torch_eager(is_checkpointed=True)),
    Contender("jax scan", "jax", jax_scan(is_checkpointed=False)),
    Contender("jax scan checkpoint", "jax", jax_scan(is_checkpointed=True)),
    Contender("C", "C", c_loops, ("residual",)),
)
