"""The loop over epochs and mini-batches, with early stopping, progress, storage and divergence checks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite, nan
from typing import TYPE_CHECKING

import numpy as np

from stepnet.errors import TrainingFailed, TrainingInterrupted
from stepnet.nets.sample_noise import SampleNoise
from stepnet.records import explain_arguments
from stepnet.storage.stored_arrays import report_damage
from stepnet.training.objective import Data, Objective, require, validate_theta
from stepnet.training.optimisers import empty_slots
from stepnet.training.progress import Bar, show_bar
from stepnet.training.run import NOTHING, Ending, Recipe, Run, State, build_result
from stepnet.training.storage import Store, digest, identity, require_same

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import ArrayLike

GROWTH = 1e10  # a loss above this multiple of the first one (or of one, if that is less) counts as divergence
SHOWN = ("loss", "accuracy", "validation", "validation_accuracy")  # names of the history's columns on the progress bar


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """The objective, data and recipe of a training run."""

    objective: Objective
    data: Data
    validation: Data | None
    recipe: Recipe

    @cached_property
    def steps_per_epoch(self) -> int:
        return self.recipe.steps_per_epoch(len(self.data))

    def draw(self, epoch: int) -> Objective:
        """The objective with the Brownian paths of an epoch >= 1; parameters are compared on the paths of epoch 0."""
        if not self.objective.has_noise:
            return self.objective
        return replace(self.objective, noise=SampleNoise(self.recipe.seed, path=epoch))

    @property
    def by_best(self) -> bool:
        """Whether to return the best parameters instead of the last."""
        return self.validation is not None or self.recipe.patience is not None


class Diverged(Exception):
    """Raised inside the loop; the message says where."""


@explain_arguments()
def train(
    objective: Objective,
    data: Data,
    recipe: Recipe | None = None,
    *,
    theta: ArrayLike | None = None,
    validation: Data | None = None,
    progress: bool = False,
    path: str | PathLike[str] | None = None,
    resume: bool = False,
    check: bool = True,
) -> Run:
    """Train a model by mini-batches; the model keeps the resulting parameters.

    Parameters
    ----------
    objective : Objective
        The model, its loss and penalties.
    data : Data
        Training data.
    recipe : Recipe, optional
        Optimiser, epochs, batches, clipping, early stopping, seed.
    theta : array, optional
        Initial parameters, instead of those of the model; a resumed run must have started from them.
    validation : Data, optional
        Validation data for early stopping and the choice of the best parameters.
    progress : bool
        Show a progress bar with loss and accuracy.
    path : path, optional
        A directory in which the run is stored, so that it can be resumed.
    resume : bool
        Continue the run in `path`, bit for bit, if there is one.
    check : bool
        Raise `TrainingFailed` or `TrainingInterrupted`, which hold the run, if it diverges or is interrupted.

    Returns
    -------
    Run

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> objective = training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse")
    >>> training.train(objective, training.Data(np.ones((4, 2)), np.ones((4, 1))), training.Recipe(epochs=3)).epochs
    3
    """
    require(objective, data, validation)
    recipe = Recipe() if recipe is None else recipe
    if not isinstance(recipe, Recipe):
        raise TypeError(f"`recipe` must be a Recipe, such as Recipe('adam', epochs=10), found {recipe!r:.80}")
    job = TrainingJob(objective, data, validation, recipe)
    store = None if path is None else Store(path)
    with nullcontext() if store is None else store.lock():
        state = _begin(job, store, theta, resume)
        with (
            show_bar(job.recipe.epochs, progress, done=len(state.history), unit="epoch") as shown,
            np.errstate(over="ignore", invalid="ignore"),
        ):
            state, ending, message = _run(job, state, store, shown)
        if store is not None:
            store.write(state, ending, message, job.by_best)
    run = build_result(state, ending, message, job.by_best)
    objective.model.put(run.theta)
    if check and ending is Ending.DIVERGED:
        raise TrainingFailed(run)
    if check and ending is Ending.INTERRUPTED:
        raise TrainingInterrupted(run)
    return run


def _begin(job: TrainingJob, store: Store | None, theta: ArrayLike | None, resume: bool) -> State:
    """A new state, or the stored one."""
    given, theta = theta is not None, validate_theta(job.objective.model, theta)
    if store is None:
        if resume:
            raise ValueError("`resume` needs a `path`, the directory that the run was stored in")
    else:
        what = identity(job.objective, job.data, job.validation, job.recipe)
        beginning = {"theta": digest(theta)}
        if store.holds_a_run:
            if not resume:
                raise ValueError(f"`path` = {str(store.path)!r} holds a run; set `resume=True` to continue it")
            require_same(store.description(), what | (beginning if given else {}), store.path)
            return _load_stored(job, store, theta)
        store.describe(what | beginning)
    state = State(theta, theta, theta, empty_slots(job.recipe.optimiser, theta))
    if store is not None:
        store.write(state)
    return state


def _load_stored(job: TrainingJob, store: Store, theta: np.ndarray) -> State:
    """The stored state, which must be one of this run."""
    state, slots = store.read()[0], job.recipe.optimiser.slots
    with report_damage(store.path, "the directory of this run"):
        state.require_part_of(theta, tuple(slots), job.steps_per_epoch)
    return state


def _run(job: TrainingJob, state: State, store: Store | None, shown: Bar) -> tuple[State, Ending, str]:
    """Step until the run ends.  A state is replaced as a whole, so an interruption leaves a consistent one."""
    n, recipe = job.steps_per_epoch, job.recipe
    ending = Ending.COMPLETED
    try:
        while len(state.history) < recipe.epochs:
            if _is_stale(job, state):
                ending = Ending.STOPPED
                break
            state = _advance(job, state)
            if state.step % n == 0:
                shown.tell(**dict(zip(SHOWN, state.history[-1], strict=False)))
                shown.move()
            if store is not None and state.step % (recipe.save_every or n) == 0:
                store.write(state)
        if state.step and not job.by_best:
            _require_good_end(job, state)
    except Diverged as trouble:
        return state, Ending.DIVERGED, f"{Ending.DIVERGED.value}: {trouble}"
    except KeyboardInterrupt:
        return state, Ending.INTERRUPTED, f"{Ending.INTERRUPTED.value} in epoch {state.step // n + 1}"
    return state, ending, f"{ending.value}: {len(state.history)} epochs, {state.step} steps"


def _advance(job: TrainingJob, state: State) -> State:
    """The state after a step and, at the end of an epoch, after its evaluation."""
    new = _step(job, state)
    return _close_epoch(job, new) if new.step % job.steps_per_epoch == 0 else new


def _step(job: TrainingJob, state: State) -> State:
    """Process one mini-batch: gradient and update."""
    epoch, place = divmod(state.step, job.steps_per_epoch)
    batch, recipe = _select_batch(job, epoch, place), job.recipe
    rate = _find_rate(recipe, state.step / job.steps_per_epoch)
    value, accuracy, gradient = job.draw(epoch + 1).gradient(state.theta, batch)
    first = value if state.step == 0 else state.first
    if not _is_bounded(value, first) or not _is_finite(gradient):
        raise Diverged(_advise(value, epoch, place, rate))
    if recipe.clip is not None:
        gradient = recipe.clip(gradient)
    theta, slots = recipe.optimiser.step(state.theta, gradient, state.slots, rate, state.step + 1)
    if not _is_finite(theta):
        raise Diverged(_advise(value, epoch, place, rate))
    n, weight = len(batch), float(len(batch) if batch.weights is None else batch.weights.sum())
    sums = tuple(a + b for a, b in zip(state.sums, (weight * value, n * accuracy, weight, n), strict=True))
    return state._replace(theta=theta, good=state.theta, slots=slots, step=state.step + 1, first=first, sums=sums)


def _find_rate(recipe: Recipe, epoch: float) -> float:
    """The learning rate at a time, checked because a user's schedule may return an invalid one."""
    rate = recipe.optimiser.rate(epoch)
    if not (isinstance(rate, (int, float, np.number)) and 0 <= rate < inf):
        raise ValueError(
            f"`rate` must be a number, 0 or more, found {rate!r:.80} at epoch {epoch:g}; correct the schedule"
        )
    return float(rate)


def _is_finite(vector: np.ndarray) -> bool:
    """Whether all entries are finite: a finite sum implies it, otherwise all are checked."""
    return isfinite(vector.sum()) or bool(np.isfinite(vector).all())


def _is_bounded(value: float, first: float) -> bool:
    return isfinite(value) and value <= GROWTH * max(abs(first), 1.0)


def _require_good_end(job: TrainingJob, state: State) -> None:
    """Check the parameters of the last update, which no step has evaluated."""
    epoch, place = divmod(state.step - 1, job.steps_per_epoch)
    value, _ = job.draw(epoch + 1).value(state.theta, _select_batch(job, epoch, place))
    if not _is_bounded(value, state.first):
        raise Diverged(_advise(value, epoch, place, state.history[-1][-1]))


def _select_batch(job: TrainingJob, epoch: int, place: int) -> Data:
    size = job.recipe.batch_size
    if size is None or size >= len(job.data):
        return job.data
    return job.data.rows(job.recipe.order(len(job.data), epoch)[place * size : (place + 1) * size])


def _close_epoch(job: TrainingJob, state: State) -> State:
    """End an epoch: append to the history, and update the best state."""
    loss, hits, weight, samples = state.sums
    validated = (nan, nan) if job.validation is None else job.draw(0).value(state.theta, job.validation)
    epoch = len(state.history) + 1
    rate = job.recipe.optimiser.rate((state.step - 1) / job.steps_per_epoch)
    row = (loss / weight, hits / samples, *validated, rate)
    watched = _find_watched_loss(job, state.theta, row)
    if not isfinite(watched):
        which = "" if job.validation is None else " of the validation data"
        raise Diverged(f"the loss{which} is {watched:g} after epoch {epoch}; a smaller rate may help")
    state = state._replace(history=(*state.history, row), sums=NOTHING)
    if state.best_epoch == 0 or watched < state.lowest - job.recipe.tolerance * abs(state.lowest):
        state = state._replace(best=state.theta, best_epoch=epoch, lowest=watched)
    return state


def _find_watched_loss(job: TrainingJob, theta: np.ndarray, row: tuple[float, ...]) -> float:
    """The loss by which epochs are compared: that of the parameters at the end of the epoch, if they may be kept."""
    if job.validation is not None:
        return row[2]
    return row[0] if job.recipe.patience is None else job.draw(0).value(theta, job.data)[0]


def _is_stale(job: TrainingJob, state: State) -> bool:
    patience, is_whole = job.recipe.patience, state.step % job.steps_per_epoch == 0
    return patience is not None and is_whole and len(state.history) - state.best_epoch >= patience


def _advise(value: float, epoch: int, place: int, rate: float) -> str:
    return (
        f"loss {value:.3g} in epoch {epoch + 1}, batch {place + 1}, at the rate {rate:.3g}; the last good parameters "
        "are kept; try a smaller rate, a warm-up or `clip=ClipNorm(1.0)`"
    )
