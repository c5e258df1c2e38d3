"""Under torchrun: a module with solves inside of it in DistributedDataParallel, and a net parallel in depth."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch_engine import shared_depth, trained

import stepnet.torch as snt

ROUND_OFF = 1e-12  # halves of a mean are added in another order


def in_two_processes(module, path) -> None:
    """Run a module that writes what it found to the path, followed by its rank."""
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", module.__file__, str(path)]
    done = subprocess.run([sys.executable, *run], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_two_processes_learn_the_weights_of_one(tmp_path):
    in_two_processes(trained, tmp_path / "w")
    first, second = (torch.load(tmp_path / f"w{rank}") for rank in range(2))
    assert torch.equal(first, second)
    torch.set_num_threads(1)
    alone = trained.weights(slice(None))
    assert torch.allclose(first, alone, rtol=ROUND_OFF, atol=ROUND_OFF)
    assert not torch.allclose(first, trained.weights(slice(0, None, 2)), rtol=1e-6)


def test_two_processes_share_the_depth_of_a_net(tmp_path):
    in_two_processes(shared_depth, tmp_path / "g")
    found = [np.load(tmp_path / f"g{rank}.npz") for rank in range(2)]
    for each in found:
        np.testing.assert_array_equal(each["gradient"], shared_depth.gradient())
    assert abs(int(found[0]["calls"]) - int(found[1]["calls"])) < 0.1 * int(found[0]["calls"])
    assert "rank 1 of the group failed: ZeroDivisionError" in str(found[0]["told"])
    assert str(found[1]["told"]).startswith("ZeroDivisionError")


def test_ranks_must_know_each_other():
    with pytest.raises(RuntimeError, match="init_process_group"):
        snt.over_ranks(abs, [1, -2])
