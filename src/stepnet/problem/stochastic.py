"""Stochastic differential equations, in general form and of Langevin type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from stepnet.errors import UnknownName
from stepnet.problem.checks import (
    check_flag,
    convert_args,
    set_fields,
    validate_forward_span,
    validate_initial_state,
    validate_pair,
)
from stepnet.problem.forms import ProblemForm
from stepnet.records import explain_arguments, show_fields, validate_count, validate_number

NOISE_TYPES = ("scalar", "additive", "diagonal", "commutative", "general")
CALCULI = ("ito", "stratonovich")
MOST_SEED, MOST_PATH, MOST_CELLS = 2**64 - 1, 2**40 - 1, 2**32


@explain_arguments()
@dataclass(frozen=True, eq=False)
class SDE:
    """dy = f(t, y) dt + g(t, y) dW, y(t0) = y0 on t_span = (t0, t1): a stochastic differential equation.

    The Brownian path W is a function of `seed`, `path` and `cells`, so that a problem has one solution for each scheme
    and number of steps; see `stepnet.noise.BrownianPath`.

    Parameters
    ----------
    drift : callable
        `f(t, y, *args)`, returning an array of the shape of the state, as `fun` in `ODE`.
    diffusion : callable
        `g(t, y, *args)`; the shape of its result depends on `noise`.
    y0 : array_like
        Initial state of any shape, in float64.
    t_span : (float, float)
        Beginning and end, t0 < t1.
    args : tuple
        Further arguments of both functions.
    noise : {"diagonal", "scalar", "additive", "commutative", "general"}
        "diagonal": g has the shape of the state, and entry i of the state has its own component of W and depends on no
        other entry in g; "scalar": g has the shape of the state and W one component; "general" and "commutative": g is
        (*state, m) and W has m components; "additive": g depends on t only, and is (*state, m), or of the shape of the
        state with a component of W for each entry.
    calculus : {"ito", "stratonovich"}
        The sense of the integral; `convert` changes it.
    seed, path : int
        Which Brownian path; paths of a seed are independent.
    cells : int, optional
        Cells of the base grid of the Brownian path, by default the number of steps.  Runs with different numbers of
        steps use the same path if they have the same `cells`, and each number of steps is a divisor of `cells`, or
        `cells` times a power of two.
    trace : bool
        As in `ODE`.
    correction : float
        A multiple of sum_j (dg_j/dy) g_j, over the columns g_j of g, that is added to the drift; set by `convert`.

    Examples
    --------
    >>> import stepnet as sn
    >>> gbm = sn.SDE(lambda t, y: 0.05 * y, lambda t, y: 0.2 * y, [1.0], (0.0, 1.0))
    >>> gbm.noise, gbm.calculus
    ('diagonal', 'ito')
    """

    drift: Callable[..., Any]
    diffusion: Callable[..., Any]
    y0: np.ndarray
    t_span: tuple[float, float]
    args: tuple[Any, ...] = ()
    noise: str = field(default="diagonal", kw_only=True)
    calculus: str = field(default="ito", kw_only=True)
    seed: int = field(default=0, kw_only=True)
    path: int = field(default=0, kw_only=True)
    cells: int | None = field(default=None, kw_only=True)
    trace: bool = field(default=True, kw_only=True)
    correction: float = field(default=0.0, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        t_span = validate_forward_span(self.t_span, "an `SDE`")
        set_fields(self, y0=validate_initial_state("y0", self.y0), t_span=t_span, args=convert_args(self.args))
        if self.y0.dtype != np.float64:
            raise TypeError(f"`y0` of an `SDE` must be float64, found {self.y0.dtype}")
        if not isinstance(self.noise, str) or self.noise not in NOISE_TYPES:
            raise UnknownName("noise", self.noise, NOISE_TYPES)
        if not isinstance(self.calculus, str) or self.calculus not in CALCULI:
            raise UnknownName("calculus", self.calculus, CALCULI)
        _set_path(self)
        check_flag("trace", self.trace)
        set_fields(self, correction=validate_number("correction", self.correction))

    form = ProblemForm.STOCHASTIC

    @cached_property
    def initial(self) -> np.ndarray:
        """The flat initial state."""
        return self.y0.ravel()

    @cached_property
    def diffusion_shape(self) -> tuple[int, ...]:
        """The shape of the diffusion, found by calling it once."""
        g = np.asarray(self.diffusion(self.t_span[0], self.y0.copy(), *self.args))
        shape, wanted = g.shape, self.y0.shape
        is_vector, is_matrix = shape == wanted, shape[:-1] == wanted and len(shape) > len(wanted)
        if self.noise in ("scalar", "diagonal"):
            if not is_vector:
                raise ValueError(
                    f"`diffusion` of {self.noise} noise must return the shape {wanted} of the state, found {shape}; "
                    f"for a matrix use noise='general'"
                )
        elif not (is_matrix or (self.noise == "additive" and is_vector)) or 0 in shape:
            raise ValueError(
                f"`diffusion` of {self.noise} noise must return an array (*state, components) = ({_join(wanted)}m), "
                f"found {shape}; for one value per entry of the state use noise='diagonal'"
            )
        if g.dtype.kind not in "biuf":
            raise TypeError(f"`diffusion` must return real numbers, found dtype {g.dtype}")
        if not np.isfinite(g).all():
            raise ValueError(f"`diffusion` must be finite at the beginning, t = {self.t_span[0]:g}, found {g!r:.80}")
        return shape

    @property
    def n_components(self) -> int:
        """The number of components of W."""
        if self.noise == "scalar":
            return 1
        return self.y0.size if self.diffusion_shape == self.y0.shape else self.diffusion_shape[-1]

    def convert(self, calculus: str) -> SDE:
        """The same process in the other calculus: the drift changes by half the derivative of g in the direction g.

        Parameters
        ----------
        calculus : {"ito", "stratonovich"}
            The sense of the integral of the result.

        Returns
        -------
        SDE

        Examples
        --------
        >>> import stepnet as sn
        >>> gbm = sn.SDE(lambda t, y: 0.05 * y, lambda t, y: 0.2 * y, [1.0], (0.0, 1.0))
        >>> gbm.convert("stratonovich").calculus
        'stratonovich'
        """
        if not isinstance(calculus, str) or calculus not in CALCULI:
            raise UnknownName("calculus", calculus, CALCULI)
        if calculus == self.calculus:
            return self
        change = 0.0 if self.noise == "additive" else 0.5 if calculus == "ito" else -0.5
        return replace(self, calculus=calculus, correction=self.correction + change)


@explain_arguments()
@dataclass(frozen=True, eq=False)
class Langevin:
    """dq = v dt, m dv = F(t, q) dt - m c v dt + sqrt(2 m c T) dW: Langevin dynamics of friction c and temperature T.

    If F = -grad U, the stationary density of (q, v) is proportional to exp(-(U(q) + m v^2 / 2) / T).

    Parameters
    ----------
    force : callable
        `F(t, q, *args)`, returning an array of the shape of `q0`.
    q0, v0 : array_like
        Initial positions and velocities, of equal shapes, in float64.
    t_span : (float, float)
        Beginning and end, t0 < t1.
    args : tuple
        Further arguments of `force`.
    friction : float
        The rate c >= 0 at which velocities decay.
    temperature : float
        T >= 0, in units of energy.
    mass : float or array_like
        One positive mass, or an array of them that broadcasts to the shape of `q0`.
    seed, path, cells, trace
        As in `SDE`; each entry of `q0` has a component of W.

    Examples
    --------
    >>> import stepnet as sn
    >>> well = sn.Langevin(lambda t, q: -q, [1.0], [0.0], (0.0, 10.0), friction=0.5, temperature=2.0)
    >>> well.n_components
    1
    """

    force: Callable[..., Any]
    q0: np.ndarray
    v0: np.ndarray
    t_span: tuple[float, float]
    args: tuple[Any, ...] = ()
    friction: float = field(default=1.0, kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)
    mass: Any = field(default=1.0, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    path: int = field(default=0, kw_only=True)
    cells: int | None = field(default=None, kw_only=True)
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        q0, v0 = validate_pair("q0", self.q0, "v0", self.v0)
        if q0.dtype != np.float64:
            raise TypeError(f"`q0` and `v0` of a `Langevin` problem must be float64, found {q0.dtype}")
        set_fields(
            self,
            q0=q0,
            v0=v0,
            t_span=validate_forward_span(self.t_span, "a `Langevin` problem"),
            args=convert_args(self.args),
        )
        set_fields(
            self,
            friction=validate_number("friction", self.friction, "[0, inf)"),
            temperature=validate_number("temperature", self.temperature, "[0, inf)"),
            mass=_validate_mass(self.mass, q0.shape),
        )
        _set_path(self)
        check_flag("trace", self.trace)

    form = ProblemForm.LANGEVIN

    @cached_property
    def initial(self) -> np.ndarray:
        """The flat initial state: q, then v."""
        return np.concatenate((self.q0.ravel(), self.v0.ravel()))

    @property
    def n_components(self) -> int:
        """The number of components of W."""
        return self.q0.size

    @cached_property
    def acceleration(self) -> Callable[..., Any]:
        """F / m; the force itself if all masses are 1."""
        if np.all(self.mass == 1.0):
            return self.force
        force, mass = self.force, np.array(np.broadcast_to(self.mass, self.q0.shape))

        def acceleration(t: float, q: np.ndarray, *args: Any) -> np.ndarray:
            return np.asarray(force(t, q, *args)) / mass

        return acceleration

    @cached_property
    def amplitude(self) -> Callable[..., Any]:
        """sqrt(2 c T / m) as a function of any arguments."""
        value = np.array(np.broadcast_to(np.sqrt(2.0 * self.friction * self.temperature / self.mass), self.q0.shape))

        def amplitude(t: float, q: np.ndarray, *args: Any) -> np.ndarray:
            return value

        return amplitude


def _set_path(problem: Any) -> None:
    """Validate the numbers of a Brownian path."""
    set_fields(
        problem,
        seed=validate_count("seed", problem.seed, 0, MOST_SEED),
        path=validate_count("path", problem.path, 0, MOST_PATH),
        cells=None if problem.cells is None else validate_count("cells", problem.cells, 1, MOST_CELLS),
    )


def _validate_mass(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    mass = validate_initial_state("mass", value)
    if mass.dtype.kind != "f" or not np.all(mass > 0.0):
        raise ValueError(f"`mass` must be positive, found {value!r:.60}")
    try:
        np.broadcast_to(mass, shape)
    except ValueError:
        raise ValueError(f"`mass` must be one number or have the shape {shape} of `q0`, found {mass.shape}") from None
    return mass


def _join(shape: tuple[int, ...]) -> str:
    return "".join(f"{n}, " for n in shape)
