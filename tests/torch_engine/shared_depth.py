"""A gradient through a net that is parallel in depth: run by `test_distributed` in one process and in two."""

from __future__ import annotations

import sys

import numpy as np

import stepnet as sn


def gradient(carrier=None) -> np.ndarray:
    net, x = sn.nets.hamiltonian(2, 1, 4, 36, length=3.0), np.random.default_rng(0).normal(size=(5, 2))
    mgrit = sn.nets.MGRIT(coarsening=2, levels=3, iterations=2)
    return sn.nets.mgrit_gradient(net, x, lambda y: (0.5 * np.sum(y * y), y), mgrit, carrier=carrier).gradient.theta


if __name__ == "__main__":
    import torch.distributed as dist

    import stepnet.torch as snt

    dist.init_process_group("gloo")
    calls = []

    def carrier(function, *lists):
        def counted(*entry):
            calls.append(entry)
            return function(*entry)

        return snt.over_ranks(counted, *lists)

    def failure(group) -> str:
        """What every rank is told if the last entry, which is the business of one of them, fails."""
        try:
            snt.over_ranks(lambda entry: 1 // (3 - entry), [0, 1, 2, 3], group=group)
        except (ZeroDivisionError, RuntimeError) as error:
            return repr(error)
        return "nothing"

    group = dist.new_group([0, 1])
    found, told = gradient(carrier), failure(group)
    np.savez(f"{sys.argv[1]}{dist.get_rank()}", gradient=found, calls=len(calls), told=told)
    dist.destroy_process_group()
