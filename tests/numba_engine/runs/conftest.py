"""Which rung the tests of the engine run on: the compiled one, and for what the kernels do also the traced one."""

from __future__ import annotations

import pytest

BOTH = {"test_failures", "test_saving", "test_slices", "test_clock", "test_control", "test_statistics"}


def pytest_generate_tests(metafunc):
    module = metafunc.module.__name__.rsplit(".", 1)[-1]
    metafunc.parametrize("first_rung", ["compiled", "traced"] if module in BOTH else ["compiled"], indirect=True)


@pytest.fixture(autouse=True)
def first_rung(request, monkeypatch):
    """The first rung of the ladder to try."""
    monkeypatch.setenv("STEPNET_RUNG", request.param)
    return request.param
