"""Rows of training: time to an accuracy on test data, and what a step of Gauss-Newton costs beside a gradient."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.timing import Answer, Measured, Prepared, Row, by_turns, first_line
from benchmarks.training_contenders import CONTENDERS, MOST_EPOCHS, Contender, Task, digits, peaks

WORKLOAD = "training"
TASKS = (
    *(Task(digits, 0.97, "residual", width) for width in (16, 32, 128)),
    *(Task(digits, 0.97, "plain", width) for width in (32, 128)),  # one of width 16 does not get there in 40 epochs
    *(Task(peaks, 0.98, "residual", width) for width in (16, 32, 128)),
)
SECONDS = 1.0  # for each contender of a task
SINGLE = "float32"
PRODUCTS, SAMPLES = 5, 1024  # of a step of Gauss-Newton, and in the batch it sees
STEPS = tuple((width, precision) for width in (16, 32, 64) for precision in (None, SINGLE))  # of products


class NotReached(Exception):
    """The accuracy was not reached."""


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    for task in TASKS:
        yield from task_rows(task)
    for width, precision in STEPS:
        yield from step_rows(width, precision)


# ---- time to an accuracy --------------------------------------------------------------------------------------------


def task_rows(task: Task) -> Iterator[Row]:
    """The epochs that each contender needs are found first, then as many are timed, without looking at test data."""
    taking_part = [each for each in CONTENDERS if task.kind in each.kinds]
    prepared, failed = {}, {}
    for contender in taking_part:
        try:
            prepared[contender.name] = _prepared(task, contender)
        except Exception as exception:
            failed[contender.name] = exception
    found = failed | by_turns(prepared, SECONDS)
    for contender in taking_part:
        yield _row(f"{task.name}, {contender.name}", contender.package, found[contender.name])


def _prepared(task: Task, contender: Contender) -> Prepared:
    accuracies = np.asarray(contender.train(task, MOST_EPOCHS, True))
    reached = np.flatnonzero(accuracies >= task.accuracy)
    if reached.size == 0:
        raise NotReached(f"{accuracies.max():.3f} in {MOST_EPOCHS} epochs")
    epochs = int(reached[0]) + 1
    return Prepared(lambda: contender.train(task, epochs, False), lambda _: Answer(np.zeros(0), epochs))


def _row(name: str, package: str, found: Measured | Exception) -> Row:
    if isinstance(found, Exception):
        return Row(WORKLOAD, name, package, note=first_line(found))
    return Row(WORKLOAD, name, package, time=found.time, accepted=found.answer.accepted, calls=found.calls)


# ---- Gauss-Newton ---------------------------------------------------------------------------------------------------

GRADIENT, STEP = "gradient", f"Gauss-Newton step, {PRODUCTS} products"
FEW, MORE = 1, 4  # steps of two minimisations, whose difference in time is that of steps alone
MANY = 20  # gradients in a row, which take about as long
STEP_SECONDS = 2.5


def step_width(width: int, precision: str | None) -> str:
    return f"width {width}" if precision is None else f"width {width}, products in {precision}"


def step_label(width: int, precision: str | None, what: str) -> str:
    return f"residual, {step_width(width, precision)}: {what}"


def step_rows(width: int, precision: str | None) -> Iterator[Row]:
    """A gradient of the loss, and a whole step: gradient, products, line search."""
    from stepnet import nets, training

    random = np.random.default_rng(0)
    x, y = random.normal(size=(SAMPLES, 2)), random.integers(0, 5, SAMPLES)
    net = nets.resnet(2, 5, width, 16, length=4.0, seed=0, workers=1)
    objective, data, theta = training.Objective(net, "cross_entropy"), training.Data(x, y), net.theta.copy()

    def steps(count):
        method = training.GaussNewton(iterations=count, cg_iterations=PRODUCTS, cg_tol=0.0, precision=precision)
        found = training.minimise(objective, data, method, theta=theta)
        if found.products != count * PRODUCTS or found.gradients != count + 1:
            raise ValueError(f"{found.products} products and {found.gradients} gradients in {count} steps")
        return found

    def read(_):
        return Answer(np.zeros(0))

    calls = {
        GRADIENT: Prepared(lambda: [objective.gradient(theta, data).value for _ in range(MANY)], read),
        FEW: Prepared(lambda: steps(FEW), read),
        MORE: Prepared(lambda: steps(MORE), read),
    }
    steps(MORE)  # whatever is to be compiled is compiled now
    found = by_turns(calls, STEP_SECONDS)
    gradient, step = (step_label(width, precision, what) for what in (GRADIENT, STEP))
    failure = next((each for each in found.values() if isinstance(each, Exception)), None)
    if failure is not None:
        yield Row(WORKLOAD, step, "stepnet", note=first_line(failure))
        return
    yield Row(WORKLOAD, gradient, "stepnet", time=found[GRADIENT].time / MANY, calls=found[GRADIENT].calls)
    time = (found[MORE].time - found[FEW].time) / (MORE - FEW)
    yield Row(WORKLOAD, step, "stepnet", time=time, calls=found[MORE].calls)
