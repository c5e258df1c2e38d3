"""A module with solves inside of it, in DistributedDataParallel under torchrun."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch_engine import trained

ROUND_OFF = 1e-12  # halves of a mean are added in another order


def test_two_processes_learn_the_weights_of_one(tmp_path):
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", trained.__file__, str(tmp_path / "w")]
    done = subprocess.run([sys.executable, *run], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"w{rank}") for rank in range(2))
    assert torch.equal(first, second)
    torch.set_num_threads(1)
    alone = trained.weights(slice(None))
    assert torch.allclose(first, alone, rtol=ROUND_OFF, atol=ROUND_OFF)
    assert not torch.allclose(first, trained.weights(slice(0, None, 2)), rtol=1e-6)
