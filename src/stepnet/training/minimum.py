"""The result of a minimisation, as SciPy's `OptimizeResult`.  Imports `scipy.optimize`, so it is loaded when needed."""

from __future__ import annotations

import numpy as np
from scipy.optimize import OptimizeResult

from stepnet.records import show_fields
from stepnet.validation import array, check


class Minimum(OptimizeResult):  # type: ignore[misc]
    """Where a minimisation ended.  `history` has the value after each step; `products` counts products with J' H J.

    It is a SciPy `OptimizeResult`: entries are keys and attributes, by SciPy's names (`x`, `fun`, `jac`, `nit`, `nfev`,
    `njev`, `success`, `message`); parameters, value and gradient are also available under the names used in training.

    Parameters
    ----------
    theta, gradient : numpy.ndarray
        The best parameters, and the gradient there: `x` and `jac`.
    value : float
        The objective there: `fun`.
    converged : bool
        Whether a stopping rule of the method was met: `success`.
    message : str
        Why it ended.
    history : numpy.ndarray
        The value after each step; their number is `nit`.
    gradients, products : int
        Number of gradients (`nfev` and `njev`) and of curvature products.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> objective = training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse")
    >>> found = training.minimise(objective, training.Data(np.ones((4, 2)), np.ones((4, 1))))
    >>> found.value == found.fun
    True
    """

    _fields = ("theta", "value", "gradient", "converged", "message", "history", "gradients", "products")

    @check(history=array(None))
    def __init__(
        self, theta: np.ndarray, value: float, gradient: np.ndarray, converged: bool, message: str,
        history: np.ndarray, gradients: int, products: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            x=theta, fun=value, jac=gradient, success=converged, message=message, nit=len(history), nfev=gradients,
            njev=gradients, history=history, products=products,
        )  # fmt: skip

    __repr__ = show_fields
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def theta(self) -> np.ndarray:
        """The best parameters, `x`."""
        return self["x"]

    @property
    def value(self) -> float:
        """The objective at `theta`, `fun`."""
        return self["fun"]

    @property
    def gradient(self) -> np.ndarray:
        """The gradient at `theta`, `jac`."""
        return self["jac"]

    @property
    def converged(self) -> bool:
        """Whether a stopping rule of the method was met, `success`."""
        return self["success"]

    @property
    def gradients(self) -> int:
        """The number of gradients computed, `njev`."""
        return self["njev"]

    def __dir__(self) -> list[str]:
        return sorted({*self, *self._fields, *dir(type(self))})
