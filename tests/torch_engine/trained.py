"""A module that contains solves, trained for a few iterations: run by `test_distributed` in one process and in two."""

from __future__ import annotations

import sys

import torch

import stepnet.torch as snt

SAMPLES, ITERATIONS = 16, 4


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 8).double(), torch.nn.Linear(8, 2).double()

    def forward(self, t, y):
        return self.second(torch.tanh(self.first(torch.cat((y, t.expand(len(y), 1)), 1))))


class Model(torch.nn.Module):
    """Three solves with one field: given steps with checkpoints, steps of every sample's own, plain autograd.

    Then blocks of layers by both engines, one weight of which is frozen.
    """

    def __init__(self):
        super().__init__()
        self.field = Field()
        self.blocks = torch.nn.Sequential(
            snt.HamiltonianBlock(2, 3, seed=0, dtype=torch.float64, engine="torch"),
            snt.ParabolicBlock(2, 3, seed=0).double(),
        )
        self.blocks[0].K.requires_grad_(False)

    def forward(self, x):
        t = torch.linspace(0.0, 1.0, 6, dtype=torch.float64)
        y = snt.odeint_adjoint(self.field, x, t, method="rk4", memory=snt.Checkpoints(slots=2))[-1]
        y = snt.solve(self.field, y, t[[0, -1]], rtol=1e-6, atol=1e-8).y_end
        return self.blocks(snt.odeint(self.field, y, t, method="midpoint")[-1])


def weights(part: slice, wrap=lambda model: model) -> torch.Tensor:
    """Those after training on a part of the samples."""
    torch.manual_seed(1)
    model = Model()
    parallel = wrap(model)
    x = torch.randn(SAMPLES, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(6))[part]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(ITERATIONS):
        optimiser.zero_grad()
        (parallel(x) - x.flip(1)).square().mean().backward()
        optimiser.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def main(file: str) -> None:
    """One of the processes that `torchrun` starts; each writes its weights."""
    from torch.distributed import destroy_process_group, get_rank, get_world_size, init_process_group
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    init_process_group("gloo")
    rank, n = get_rank(), get_world_size()
    torch.save(weights(slice(rank, None, n), DistributedDataParallel), f"{file}{rank}")
    destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
