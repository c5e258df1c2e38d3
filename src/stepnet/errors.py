"""The exception types of the package; wrong arguments raise `ValueError` or `TypeError`."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from stepnet.foreign_names import find_hint_for_argument, find_hint_for_name

if TYPE_CHECKING:
    from stepnet.montecarlo.estimate import Estimate
    from stepnet.montecarlo.gradient_estimate import GradientEstimate
    from stepnet.montecarlo.multilevel_estimate import MultilevelEstimate
    from stepnet.solution import EnsembleSolution, Solution
    from stepnet.training.minimum import Minimum
    from stepnet.training.run import Run


class SchemeError(ValueError):
    """The coefficients of a scheme contradict its declared properties.

    Examples
    --------
    >>> import stepnet as sn
    >>> try:
    ...     sn.schemes.ExplicitRK("wrong", 2, ((),), (1.0,), "")
    ... except sn.SchemeError as error:
    ...     print("order" in str(error))
    True
    """


class UnknownName(LookupError):
    """A name that is not in a catalogue; the message offers the nearest ones.

    Parameters
    ----------
    what : str
        What the name stands for, such as "scheme".
    name
        The unknown name.
    known : Iterable
        The names that exist.

    Examples
    --------
    >>> import stepnet as sn
    >>> try:
    ...     sn.schemes.get("dopri4")
    ... except sn.UnknownName as error:
    ...     print("dopri5" in str(error))
    True
    """

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        if not isinstance(known, Iterable) or getattr(known, "ndim", 1) == 0:
            raise TypeError(f"`known` must be names, found {type(known).__name__}")
        known = sorted(map(str, known))
        hint = find_hint_for_name(str(name), known) or _find_nearest(str(name), known) or f"known: {', '.join(known)}"
        super().__init__(f"there is no {what} {name!r}; {hint}")


class UnknownArgument(TypeError):
    """An argument that a function does not have; the message says what to give instead."""

    def __init__(self, function: str, name: str, known: Iterable[str]) -> None:
        known = list(known)
        hint = (
            find_hint_for_argument(name, known)
            or _find_nearest(name, known)
            or f"it takes {', '.join(known) or 'no numbers'}"
        )
        super().__init__(f"{function} takes no `{name}`; {hint}")


def _find_nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


class DamagedFile(ValueError):
    """A file that is damaged or not of the expected kind."""


class FolderInUse(BlockingIOError):
    """The folder is in use by another process or thread."""


class NoIdentity(TypeError):
    """An object that cannot be identified by its value, so that no stored result can be matched to it."""


class NoDerivative(TypeError):
    """A right-hand side or a loss whose derivative is not available; the message says why and what to supply.

    Examples
    --------
    >>> import stepnet as sn
    >>> issubclass(sn.NoDerivative, TypeError)
    True
    """


def _message(name: str, value: object) -> str:
    message = getattr(value, "message", None)
    if not isinstance(message, str):
        raise TypeError(f"`{name}` must have a `message`, found {type(value).__name__}")
    return message


class SolveFailed(RuntimeError):
    """A solve stopped before its end; `.solution` holds the valid part, the status and the reason.

    Parameters
    ----------
    solution : Solution
        The valid part, with status and failure.

    Examples
    --------
    >>> import stepnet as sn
    >>> try:
    ...     sn.solve(sn.ODE(lambda t, y: y**2, [1.0], (0.0, 2.0)), "dopri5")
    ... except sn.SolveFailed as error:
    ...     print(error.solution.status is sn.Status.COMPLETED)
    False
    """

    def __init__(
        self, solution: Solution | EnsembleSolution | Estimate | GradientEstimate | MultilevelEstimate
    ) -> None:
        super().__init__(_message("solution", solution))
        self.solution = solution

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.solution,)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a solve; `.solution` holds the completed part.

    Parameters
    ----------
    solution : Solution or EnsembleSolution
        The part that was done.

    Examples
    --------
    >>> import stepnet as sn
    >>> issubclass(sn.Interrupted, KeyboardInterrupt)
    True
    """

    def __init__(
        self, solution: Solution | EnsembleSolution | Estimate | GradientEstimate | MultilevelEstimate
    ) -> None:
        super().__init__(_message("solution", solution))
        self.solution = solution

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.solution,)


class TrainingFailed(RuntimeError):
    """Training diverged; `.run` holds the last good parameters, the history and the reason.

    Parameters
    ----------
    run : Run
        The last good parameters, the history and the reason.

    Examples
    --------
    >>> import stepnet as sn
    >>> issubclass(sn.TrainingFailed, RuntimeError)
    True
    """

    def __init__(self, run: Run) -> None:
        super().__init__(_message("run", run))
        self.run = run

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run,)


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during training; `.run` holds the completed part, `.model` the model if the caller does not have it.

    Parameters
    ----------
    run : Run or Minimum
        The part that was done.
    model
        The model, if the caller does not have it.

    Examples
    --------
    >>> import stepnet as sn
    >>> issubclass(sn.TrainingInterrupted, KeyboardInterrupt)
    True
    """

    def __init__(self, run: Run | Minimum, model: Any = None) -> None:
        super().__init__(_message("run", run))
        self.run, self.model = run, model

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run, self.model)


class StiffnessWarning(UserWarning):
    """An explicit scheme ran to the end, but its steps were limited by stability and not by accuracy.

    Examples
    --------
    >>> import stepnet as sn
    >>> issubclass(sn.StiffnessWarning, UserWarning)
    True
    """


class MonteCarloWarning(UserWarning):
    """An estimate whose error is poorly determined, or whose levels are inconsistent.

    Examples
    --------
    >>> import stepnet as sn
    >>> issubclass(sn.MonteCarloWarning, UserWarning)
    True
    """


class AdjointWarning(UserWarning):
    """A gradient that is not exact, or not complete.

    Examples
    --------
    >>> import stepnet as sn
    >>> issubclass(sn.AdjointWarning, UserWarning)
    True
    """
