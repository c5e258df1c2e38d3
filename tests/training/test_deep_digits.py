"""1202 Hamiltonian layers learn the digits in reversible memory: the example `deep_digits`, seed by seed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

SPEC = importlib.util.spec_from_file_location("deep_digits", Path(__file__).parents[2] / "examples" / "deep_digits.py")
deep_digits = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(deep_digits)


def workspace(net) -> int:
    """Bytes that a gradient of the block has written to: kept states and scratch."""
    stage = net._execution.stages[1]
    assert not net._execution._free, "all states were kept"
    return sum(workspace.memory.nbytes for each in stage._fitted.values() for workspace in each._free)


def states_kept(net, samples: int) -> float:
    """The same in states of these samples."""
    return workspace(net) / (samples * deep_digits.WIDTH * net.dtype.itemsize)


def test_states_that_are_kept_do_not_grow_with_depth():
    samples, kept = 64, {}
    x = np.random.default_rng(0).normal(size=(samples, 64))
    for layers in (300, deep_digits.LAYERS, 4 * deep_digits.LAYERS):
        net = deep_digits.deep_net(0, layers)
        assert net.memory == "reversible"
        found = net.gradient(x, lambda y: (0.0, y))
        assert np.isfinite(found.theta).all()
        kept[layers] = states_kept(net, samples)
    print(f"states kept by depth: {kept}")
    assert len(set(kept.values())) == 1
    assert kept[deep_digits.LAYERS] < 0.25 * deep_digits.LAYERS


@pytest.mark.slow
def test_a_net_of_1202_layers_learns_the_digits():
    reached, kept = [], []
    for seed in deep_digits.SEEDS:
        result = deep_digits.trained(seed)
        (block,) = result.net.design.blocks
        assert block.steps == 1202
        kept.append(states_kept(result.net, deep_digits.BATCH))
        reached.append(result.accuracy)
        print(
            f"seed {seed}: accuracy {result.accuracy:.4f}, {result.seconds:.0f} s, peak memory "
            f"{deep_digits.peak_megabytes():.0f} MB, kept {kept[-1]:.0f} states of a batch"
        )
    assert max(kept) < 0.5 * 1202
    assert np.median(reached) >= 0.97
