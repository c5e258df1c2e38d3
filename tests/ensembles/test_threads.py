"""Solves in threads: right-hand sides built at the same time give the same results as alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import stepnet as sn
from stepnet.engines.numba_engine.codegen.steps.fused_steps import find_fused_address, write_steps
from stepnet.engines.numba_engine.rhs.problem_parts import build_full_field
from stepnet.schemes.step_program import build_scheme_program

THREADS, ROUNDS = 4, 3


@pytest.mark.parametrize("choices", [{}, {"steps": 50}], ids=["adaptive", "even"])
def test_a_new_right_hand_side_in_several_threads_at_once(choices):
    for number in range(ROUNDS):
        scale = 1.0 + number  # a function of its own in every round

        def fall(t, y, k, scale=scale):
            return [y[1], -k * scale * np.sin(y[0])]

        def end(k, fall=fall):
            return sn.solve(sn.ODE(fall, [1.0, 0.0], (0.0, 2.0), args=(k,)), "dopri5", save_every=0, **choices).y[-1]

        ready = Barrier(THREADS)

        def start(k, ready=ready, end=end):
            ready.wait()
            return end(k)

        values = np.linspace(0.5, 2.0, THREADS)
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(start, values))
        assert np.array_equal(found, [end(k) for k in values])


def test_code_that_another_thread_made_meanwhile_stays():
    """A kernel may be running it: the second to finish takes the first one's code and gives up its own."""
    field = build_full_field(sn.ODE(lambda t, y: [y[1], -y[0]], [1.0, 0.0], (0.0, 1.0)))
    program = build_scheme_program(sn.schemes.get("rk4"), 1, False, False).step
    first = []

    def write():
        return write_steps(program, [0], 4)

    def write_late():
        first.append(find_fused_address((field,), program, "raced", "steps", write, 4))
        return write()

    assert find_fused_address((field,), program, "raced", "steps", write_late, 4) == first[0] != 0
