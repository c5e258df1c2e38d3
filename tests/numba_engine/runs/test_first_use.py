"""The first use on a machine says on stderr, once, that kernels are being compiled; later ones say nothing."""

from __future__ import annotations

import pytest
from numba_engine.runs import child

KERNEL = """
    import numpy as np
    from stepnet.engines.numba_engine.layers.parameter_updates import adam
    adam(np.ones(1), np.ones(1), np.zeros(1), np.zeros(1), (0.9, 0.999, 1.0, 1e-3, 1.0, 1e-8))
"""
ANOTHER = """
    import stepnet as sn
    sn.solve(sn.ODE(lambda t, y: [-y[0]], [1.0], (0.0, 1.0)), "carpenter_kennedy54", steps=3)
"""
SAID = "stepnet: compiling kernels for this machine (once; later runs load them from disk) ...\n"


def stderr_of(program: str, directory, **environment: str) -> str:
    done = child.run(program, STEPNET_CACHE_DIR=str(directory), **{"STEPNET_QUIET": "", **environment})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def test_it_is_said_once_for_all_kernels_and_not_by_later_processes(tmp_path):
    assert stderr_of(KERNEL + ANOTHER, tmp_path) == SAID
    assert stderr_of(KERNEL + ANOTHER, tmp_path) == ""


@pytest.mark.parametrize(("value", "said"), [("1", ""), ("0", SAID)])
def test_an_environment_variable_silences_it(tmp_path, value, said):
    assert stderr_of(KERNEL, tmp_path, STEPNET_QUIET=value) == said


def test_it_is_said_where_kernels_cannot_be_stored():
    """Nobody may make a folder here, not even root."""
    told = stderr_of(KERNEL, "/proc/stepnet")
    assert told.startswith(SAID)
    assert told.count(SAID) == told.count("every process compiles them again") == 1


def test_importing_and_building_records_says_nothing(tmp_path):
    program = """
        import stepnet as sn
        sn.ODE(lambda t, y: [-y[0]], [1.0], (0.0, 1.0))
        sn.solve, sn.gradient
    """
    assert stderr_of(program, tmp_path) == ""
