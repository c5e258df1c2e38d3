"""Memory of gradients: few vectors of parameters, a budget that is respected, no large leftovers; and forks."""

from __future__ import annotations

import multiprocessing
import os
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

import stepnet as sn
from stepnet import fields, nets
from stepnet.engines.numba_engine.layers.matrix_products import TILE
from stepnet.engines.numba_engine.layers.stage_runs import NetStage
from stepnet.engines.numba_engine.layers.tapes import StageTape
from stepnet.nets import Block, Design, Net, execution

BESIDES = 2e6  # bytes of Python's own, schedules and such


@contextmanager
def traced():
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def peak(net, x, memory):
    """Bytes that a gradient takes beside inputs, outputs and their gradients."""
    net.gradient(x[:10], end_gradient=net(x[:10]), memory="segments")  # compiles
    y = net(x)
    with traced() as memory_of:
        net.gradient(x, end_gradient=y, memory=memory)
        return memory_of()[1] - 8 * x.nbytes


def test_few_vectors_of_parameters_are_there_at_once():
    net = nets.resnet(None, None, 64, 60, workers=2)
    x = np.random.default_rng(0).normal(size=(256 * 20, 64))
    most = (execution.AHEAD * 2 + 2) * net.theta.nbytes  # 20 chunks
    tapes = net._execution.count_stored_bytes(80)
    assert peak(net, x, "all") < most + 1.2 * tapes + BESIDES
    assert most < 0.5 * 20 * net.theta.nbytes


@pytest.mark.parametrize(
    ("budget", "samples"),
    [
        (10**6, 200),
        (4 * 10**6, 3000),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((4 * 10**6, 200), (10**6, 3000), (2 * 10**7, 3000))),
    ],
)
def test_a_number_of_bytes_holds_for_the_whole_gradient(budget, samples):
    net = nets.resnet(None, None, 16, 600, workers=2)
    x = np.random.default_rng(0).normal(size=(samples, 16))
    vectors = (execution.AHEAD * 2 + 2) * net.theta.nbytes
    assert net._execution.count_stored_bytes(-(-samples // 64)) > budget
    assert peak(net, x, budget) < budget + vectors + BESIDES


def several_blocks(**options):
    blocks = (
        Block(fields.residual(fields.dense(6)), "rk4", 40, 0.5, fields.Depth(5, 1)),
        Block(fields.hamiltonian(fields.dense(3)), "verlet", 70),
        Block(fields.residual(fields.dense(6), "silu"), "ab3", 33),
    )
    readout = fields.Chain((fields.Layer(fields.dense(6, 2), "W", "b"),))
    return Net(Design(blocks, readout=readout), seed=2, **options)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_bits_do_not_depend_on_memory_or_threads(workers):
    net, x = several_blocks(workers=workers), np.random.default_rng(1).normal(size=(900, 6))
    y = net(x)
    stored = several_blocks(workers=1).gradient(x, end_gradient=y, memory="all")
    for memory in ("all", "segments", sn.Checkpoints(1), sn.Checkpoints(3), 3 * 10**6, 7 * 10**6, 10**8):
        found = net.gradient(x, end_gradient=y, memory=memory)
        np.testing.assert_array_equal(found.theta, stored.theta)
        np.testing.assert_array_equal(found.x, stored.x)


def test_automatic_memory_beyond_its_bytes_gives_the_same_bits(monkeypatch):
    net, x = several_blocks(), np.random.default_rng(1).normal(size=(900, 6))
    stored = net.gradient(x, end_gradient=net(x), memory="all")
    for limit in (1, 10**6, 4 * 10**6):
        monkeypatch.setattr(execution, "AUTOMATIC_BYTES", limit)
        net._execution._memory_splits.clear()
        np.testing.assert_array_equal(net.gradient(x, end_gradient=net(x)).theta, stored.theta)


def test_a_budget_that_cannot_be_met_says_what_can():
    net, x = several_blocks(), np.ones((300, 6))
    with pytest.raises(ValueError, match=r"`memory` must be at least [0-9]+ bytes") as error:
        net.gradient(x, end_gradient=net(x), memory=1000)
    least = int(str(error.value).split()[5])
    found = net.gradient(x, end_gradient=net(x), memory=least)
    np.testing.assert_array_equal(found.theta, net.gradient(x, end_gradient=net(x), memory="all").theta)


def test_what_is_put_by_is_bounded(monkeypatch):
    monkeypatch.setattr(execution, "AUTOMATIC_BYTES", 10**7)
    net, x = nets.resnet(None, None, 8, 300), np.ones((64 * 4 * 6, 8))
    net(x)
    with traced() as memory_of:
        net.gradient(x, end_gradient=x, memory="all")
        assert memory_of()[0] < 10**7 + BESIDES < memory_of()[1]


@pytest.mark.parametrize(("dynamics", "scheme", "wanted"), [("residual", "euler", 0), ("hamiltonian", "verlet", 0.5)])
def test_products_ask_for_the_record_that_comes_next(dynamics, scheme, wanted):
    """While a step is pulled back, what the step before it has left is on its way from main memory."""
    block = Block(getattr(fields, dynamics)(fields.dense(16)), scheme, 6, depth=fields.Depth(6))
    stage = NetStage(
        block.field, block.scheme_program, block.steps, block.length, block.depth, np.dtype(float)
    ).fit_group_size(4)
    tape, theta, x = StageTape(stage, 4), np.full(stage.n_parameters, 0.01), np.ones((4, block.n_in, TILE))
    tape.run(theta, x)
    tape.pull(theta, np.zeros_like(theta), x)
    program, record, (soon, stop) = stage.stored.program, stage.stored.record, tape._workspace.ahead
    assert program.wanted == wanted * record  # Verlet's state is half of it, which the way back does not read here
    assert stop == (tape.count * tape.groups + 1) * record + program.wanted  # before the first record comes the last
    assert soon >= stop


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads, which is what is tested
def test_a_net_that_has_run_runs_in_a_forked_process():
    net, x = nets.resnet(2, 1, 8, 3, workers=2), np.ones((700, 2))
    wanted = net.gradient(x, end_gradient=net(x)).theta
    context = multiprocessing.get_context("fork")
    answer, question = context.Pipe(duplex=False)
    child = context.Process(target=lambda: question.send(net.gradient(x, end_gradient=net(x)).theta), daemon=True)
    child.start()
    is_there = answer.poll(60)
    child.kill()
    assert is_there, "the forked process waits for threads that it does not have"
    np.testing.assert_array_equal(answer.recv(), wanted)
