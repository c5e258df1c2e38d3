"""A training run: its recipe, state and result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np

from stepnet.records import explain_arguments, keep, keep_numbers, show_fields, validate_count, validate_seed
from stepnet.storage.stored_arrays import require_array
from stepnet.training import optimisers
from stepnet.training.clipping import ClipNorm, ClipValue
from stepnet.training.optimisers import Slots
from stepnet.validation import check, whole

LONGEST_ORDER = 2**30  # samples, whose order takes 8 GiB
NOTHING = (0.0, 0.0, 0.0, 0.0)  # the sums at the start of an epoch
COLUMNS = ("loss", "accuracy", "validation_loss", "validation_accuracy", "rate")


@explain_arguments()
@dataclass(frozen=True)
class Recipe:
    """How to train.

    Parameters
    ----------
    optimiser : Optimiser or str
        Such as `Adam(rate=Cosine(1e-2, 50))` or "adam".
    epochs : int
        Maximum number of passes over the data.
    batch_size : int, optional
        Samples in a mini-batch; all of them by default.  The last batch of an epoch may be smaller.
    clip : ClipNorm or ClipValue, optional
        Gradient clipping.
    patience : int, optional
        Epochs without improvement after which training ends.  The loss on the validation data is compared or, without
        these, that on all data, evaluated after each epoch.
    tolerance : float
        The relative decrease of the lowest loss that counts as improvement.
    seed : int
        Seed of the order of samples, which is a function of (seed, epoch), and of the Brownian paths of a model with
        noise, which are functions of (seed, sample, epoch).
    save_every : int, optional
        Number of steps between writes of a stored run; by default one epoch.

    Examples
    --------
    >>> from stepnet import training
    >>> training.Recipe("adam", epochs=20, batch_size=32).epochs
    20
    """

    optimiser: Any = "adam"
    epochs: int = 100
    batch_size: int | None = None
    clip: ClipNorm | ClipValue | None = None
    patience: int | None = None
    tolerance: float = 0.0
    seed: int = 0
    save_every: int | None = None

    def __post_init__(self) -> None:
        keep(self, optimiser=optimisers.get(self.optimiser), epochs=validate_count("epochs", self.epochs, 0))
        keep(self, seed=validate_seed(self.seed))
        keep_numbers(self, tolerance="[0, 1)")
        for name in ("batch_size", "patience", "save_every"):
            value = getattr(self, name)
            keep(self, **{name: None if value is None else validate_count(name, value, 1)})
        if self.clip is not None and not callable(self.clip):
            raise TypeError(f"`clip` must be a ClipNorm or a ClipValue, found {self.clip!r:.80}")

    @check(samples=whole(1))
    def steps_per_epoch(self, samples: int) -> int:
        return -(-samples // (self.batch_size or samples))

    @check(samples=whole(1, LONGEST_ORDER), epoch=whole())
    def order(self, samples: int, epoch: int) -> np.ndarray:
        """The order of the samples in an epoch."""
        return _shuffle_order(self.seed, epoch, samples)


@lru_cache(maxsize=1)
def _shuffle_order(seed: int, epoch: int, samples: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(samples)


class Ending(Enum):
    """How a run ended; the value is the message shown to the user."""

    COMPLETED = "all epochs are done"
    STOPPED = "the loss has not improved for `patience` epochs"
    DIVERGED = "the loss or its gradient became infinite or undefined, or grew beyond all bounds"
    INTERRUPTED = "interrupted by the user"


class State(NamedTuple):
    """All numbers that determine how a run continues.

    `good` are the parameters of the last step whose loss was finite, `best` those with the lowest loss after an epoch,
    `lowest`, in `best_epoch`.  `sums` are those of the current epoch: loss times weights, correctly classified samples,
    weights, samples.
    """

    theta: np.ndarray
    good: np.ndarray
    best: np.ndarray
    slots: Slots
    step: int = 0
    best_epoch: int = 0
    lowest: float = inf
    first: float = nan
    sums: tuple[float, ...] = NOTHING
    history: tuple[tuple[float, ...], ...] = ()

    def numbers(self) -> dict[str, np.ndarray]:
        """The state as arrays by name."""
        return {
            "theta": self.theta, "good": self.good, "best": self.best,
            "counts": np.array([self.step, self.best_epoch]),
            "marks": np.array([self.lowest, self.first, *self.sums]),
            "history": np.array(self.history).reshape(-1, len(COLUMNS)),
            **{f"slots.{name}": value for name, value in self.slots.items()},
        }  # fmt: skip

    @staticmethod
    def of(numbers: Mapping[str, np.ndarray]) -> State:
        """Build a state from the arrays of `numbers`, after validation."""
        theta = np.asarray(numbers["theta"])
        if theta.ndim != 1 or theta.dtype.kind != "f":
            raise ValueError(f"`theta` must be a row of real numbers, found {theta.dtype} {theta.shape}")
        slots = {name[6:]: numbers[name] for name in numbers if name.startswith("slots.")}
        good, best = numbers["good"], numbers["best"]
        for name, vector in {"theta": theta, "good": good, "best": best, **slots}.items():
            require_array(f"`{name}`", vector, theta.shape, theta.dtype, is_finite=name not in slots)
        if any(np.isnan(vector).any() for vector in slots.values()):  # squares of gradients may be infinite
            raise ValueError("the slots of the optimiser must not be NaN")
        step, best_epoch = require_array("`counts`", numbers["counts"], (2,), np.int64).tolist()
        lowest, first, *sums = require_array("`marks`", numbers["marks"], (6,), np.float64, False).tolist()
        rows = numbers["history"]
        require_array("`history`", rows, (len(rows), len(COLUMNS)), np.float64, False)
        if not (0 <= step < 2**62 and 0 <= best_epoch <= len(rows) <= step):
            raise ValueError(f"the counts of {step} steps, epoch {best_epoch} of {len(rows)} do not fit together")
        history = tuple(tuple(row) for row in rows.tolist())
        return State(theta, good, best, slots, step, best_epoch, lowest, first, tuple(sums), history)

    def require_part_of(self, theta: np.ndarray, slots: tuple[str, ...], steps_per_epoch: int) -> None:
        """Refuse a state that does not match these parameters, optimiser slots and steps per epoch."""
        require_array("`theta`", self.theta, theta.shape, theta.dtype)
        if set(self.slots) != set(slots):
            raise ValueError(f"the optimiser has the slots {sorted(slots)}, found {sorted(self.slots)}")
        if self.step // steps_per_epoch != len(self.history):
            raise ValueError(f"{self.step} steps of {steps_per_epoch} an epoch do not make {len(self.history)} epochs")


@dataclass(frozen=True, eq=False)
class Run:
    """The result of training.

    Parameters
    ----------
    theta : array
        The parameters: the best ones if there are validation data or `patience`, otherwise the last ones; for a run
        that diverged before the end of the first epoch, the last ones with a finite loss.
    ending : Ending
    message : str
        How it ended, where, and what to try.
    steps, epochs : int
        Updates and whole epochs done.
    best_epoch : int
        The epoch, from one, with the lowest loss.
    history : mapping
        An array with one number for each epoch: loss, accuracy, validation_loss, validation_accuracy, rate.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> objective = training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse")
    >>> run = training.train(objective, training.Data(np.ones((4, 2)), np.ones((4, 1))), training.Recipe(epochs=3))
    >>> run.history["loss"].shape
    (3,)
    """

    theta: np.ndarray
    ending: Ending
    message: str
    steps: int
    epochs: int
    best_epoch: int
    history: dict[str, np.ndarray]

    __repr__ = show_fields

    @property
    def success(self) -> bool:
        return self.ending in (Ending.COMPLETED, Ending.STOPPED)


def build_result(state: State, ending: Ending, message: str, by_best: bool) -> Run:
    """Build the result of a run that ended in a state."""
    if by_best and state.best_epoch:
        theta = state.best
    else:
        theta = state.good if ending is Ending.DIVERGED else state.theta
    columns = state.numbers()["history"].T
    history = dict(zip(COLUMNS, columns, strict=True))
    return Run(theta, ending, message, state.step, len(state.history), state.best_epoch, history)
