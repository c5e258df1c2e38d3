"""Rows of a stiff batch on tensors: van der Pol oscillators, implicit per-sample steps beside fixed implicit ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache

import numpy as np

from benchmarks.timing import Answer, Prepared, Row, by_turns, first_line

WORKLOAD = "stiff batch"
SAMPLES, T_END, LOWEST, HIGHEST, ALLOWED, EXACT = 1000, 10.0, 10.0, 500.0, 1e-3, 1e-8
RTOL, ATOL = 1e-6, 1e-8
STEPS, ORDER = 10_000, 4  # the iteration diverges with much longer steps; so do higher orders
SECONDS = 5.0
OURS, TORCHDIFFEQ = "stepnet rodas5p, per sample", "torchdiffeq implicit_adams"


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Both with steps whose error is below `ALLOWED`: the largest of all samples at the end."""
    import torch

    torch.set_num_threads(1)
    prepared, failed = {}, {}
    for who, prepare in ((OURS, stepnet), (TORCHDIFFEQ, torchdiffeq)):
        try:
            prepared[who] = prepare()
        except ImportError as exception:
            failed[who] = exception
    found = failed | by_turns(prepared, SECONDS)
    for who in (OURS, TORCHDIFFEQ):
        measured, package = found[who], who.split()[0]
        if isinstance(measured, Exception):
            yield Row(WORKLOAD, who, package, ALLOWED, note=first_line(measured))
            continue
        y, accepted, rejected, *_ = measured.answer
        error = float(np.abs(y - exact()).max())
        if not error <= ALLOWED:
            yield Row(WORKLOAD, who, package, ALLOWED, error=error, note=f"the error is {error:.1e}")
            continue
        yield Row(
            WORKLOAD, who, package, ALLOWED, time=measured.time, error=error, accepted=accepted, rejected=rejected,
            calls=measured.calls,
        )  # fmt: skip


def build():
    """The right-hand side with mu from 10 to 500, the initial states and both times."""
    import torch

    mu = torch.logspace(np.log10(LOWEST), np.log10(HIGHEST), SAMPLES, dtype=torch.float64)

    def van_der_pol(t, y):
        x, v = y.unbind(-1)
        return torch.stack((v, mu * (1.0 - x * x) * v - x), -1)

    y0 = torch.tensor([2.0, 0.0], dtype=torch.float64).repeat(SAMPLES, 1)
    return van_der_pol, y0, torch.tensor([0.0, T_END], dtype=torch.float64)


@cache
def exact() -> np.ndarray:
    import torch

    import stepnet.torch as snt

    fun, y0, times = build()
    with torch.no_grad():
        return snt.solve(fun, y0, times, rtol=EXACT, atol=1e-2 * EXACT, method="rodas5p").y_end.numpy()


def stepnet() -> Prepared:
    import torch

    import stepnet.torch as snt

    fun, y0, times = build()

    def call():
        with torch.no_grad():
            return snt.solve(fun, y0, times, rtol=RTOL, atol=ATOL, method="rodas5p")

    return Prepared(call, lambda s: Answer(s.y_end.numpy(), int(s.accepted.sum()), int(s.rejected.sum())))


def torchdiffeq() -> Prepared:
    import torch
    from torchdiffeq import odeint

    fun, y0, times = build()
    choices = {"step_size": T_END / STEPS, "max_order": ORDER}

    def call():
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # iterations of single steps that do not converge
            return odeint(fun, y0, times, method="implicit_adams", options=choices)

    return Prepared(call, lambda y: Answer(y[-1].numpy(), STEPS * SAMPLES))
