"""How long the blocks of steps of a gradient are."""

from __future__ import annotations

import pytest

from stepnet.engines.torch_engine.adjoint import reversal

ONE_STEP = 1  # bytes of a block: less than any step takes, so that a block is one step


@pytest.fixture(params=[ONE_STEP, 2**24], ids=["steps", "one block"])
def block(request, monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_BYTES", request.param)
    return request.param


@pytest.fixture
def short_blocks(monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_BYTES", ONE_STEP)
    monkeypatch.setattr(reversal, "AUTOMATIC_BYTES", 40_000)
