"""Right-hand sides of equations as frozen records: called as f(t, u, *args), with the eigenvalues of their operators.

They are plain array code on operators, so that engines trace, differentiate and compile them like a user's function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.equations.spectra import (
    add_sets,
    find_stencil_spectrum,
    find_symbol,
    find_transport_spectrum,
    find_upwind_spectrum,
)
from stepnet.operators.coefficient_operators import Upwind, VariableDiffusion
from stepnet.operators.conservation import ConservationLaw
from stepnet.operators.extension import find_time
from stepnet.operators.linear import StencilOperator
from stepnet.operators.linear_form import (
    NEGATIVE,
    POSITIVE,
    SQUARE,
    AxisTerm,
    DiffusionForm,
    LinearForm,
    Rate,
    list_operator_terms,
)
from stepnet.operators.stencils import fit_stencil

LIMITED_OFFSETS = {"constant": (-1, 0), "muscl": (-2, -1, 0, 1), "weno5": (-3, -2, -1, 0, 1, 2)}
"""The linear stencils that limited schemes become where the data are smooth."""


@dataclass(frozen=True, eq=False)
class HeatRHS:
    """diffusivity lap u + source."""

    laplacian: StencilOperator
    source: Callable[..., Any] | None
    checks_steps: bool
    name: str = "heat"

    def __call__(self, t: Any, u: Any, diffusivity: Any, source: Any = 0.0) -> Any:
        slopes = diffusivity * self.laplacian(u, t) + source
        return slopes if self.source is None else slopes + self.source(find_time(t))

    def diffuse(self, t: Any, u: Any, diffusivity: Any, source: Any = 0.0) -> Any:
        """The diffusion alone."""
        return diffusivity * self.laplacian(u, t)

    def find_rest(self, t: Any, u: Any, diffusivity: Any, source: Any = 0.0) -> Any:
        """The slopes without the diffusion."""
        slopes = 0.0 * u + source
        return slopes if self.source is None else slopes + self.source(find_time(t))

    def find_spectrum(self, t: Any, u: Any, diffusivity: Any, source: Any = 0.0) -> np.ndarray:
        return diffusivity * find_stencil_spectrum(self.laplacian)

    def find_linear_form(self, diffusivity: Any, *source: Any) -> LinearForm | None:
        terms = list_operator_terms(self.laplacian, Rate(0))
        return None if self.source else LinearForm(self.laplacian.grid.shape, terms, 1 if source else None)

    def find_axes(self, diffusivity: Any, *source: Any) -> LinearForm:
        return LinearForm(self.laplacian.grid.shape, list_operator_terms(self.laplacian, Rate(0)))


@dataclass(frozen=True, eq=False)
class DiffusionRHS:
    """div(diffusivity grad u) + source."""

    operator: VariableDiffusion
    laplacian: StencilOperator  # for the eigenvalues
    source: Callable[..., Any] | None
    checks_steps: bool
    name: str = "diffusion"

    def __call__(self, t: Any, u: Any, diffusivity: Any, source: Any = 0.0) -> Any:
        slopes = self.operator(u, diffusivity, t) + source
        return slopes if self.source is None else slopes + self.source(find_time(t))

    def diffuse(self, t: Any, u: Any, diffusivity: Any, source: Any = 0.0) -> Any:
        """The diffusion alone."""
        return self.operator(u, diffusivity, t)

    def find_rest(self, t: Any, u: Any, diffusivity: Any, source: Any = 0.0) -> Any:
        """The slopes without the diffusion."""
        slopes = 0.0 * u + source
        return slopes if self.source is None else slopes + self.source(find_time(t))

    def find_spectrum(self, t: Any, u: Any, diffusivity: Any, source: Any = 0.0) -> np.ndarray:
        return np.max(diffusivity) * find_stencil_spectrum(self.laplacian)

    def find_axes(self, diffusivity: Any, *source: Any) -> DiffusionForm:
        return DiffusionForm(self.operator)


@dataclass(frozen=True, eq=False)
class WaveRHS:
    """speed^2 lap q."""

    laplacian: StencilOperator
    checks_steps: bool
    name: str = "wave"

    def __call__(self, t: Any, q: Any, speed: Any) -> Any:
        return speed * speed * self.laplacian(q, t)

    def find_spectrum(self, t: Any, q: Any, speed: Any) -> np.ndarray:
        return np.max(speed) ** 2 * find_stencil_spectrum(self.laplacian)

    def find_linear_form(self, speed: Any) -> LinearForm:
        return LinearForm(self.laplacian.grid.shape, list_operator_terms(self.laplacian, Rate(0, SQUARE)))


@dataclass(frozen=True, eq=False)
class TransportRHS:
    """-velocity . grad u + diffusivity lap u; a velocity that is a function of time is kept here.

    In the `direction` -1 of time the side that the flow comes from is the other one.
    """

    upwind: Upwind
    laplacian: StencilOperator | None
    velocity: Callable[..., Any] | None
    checks_steps: bool
    name: str
    direction: float = 1.0

    def __call__(self, t: Any, u: Any, *args: Any) -> Any:
        slopes = self.find_rest(t, u, *args)
        return slopes if self.laplacian is None else slopes + args[-1] * self.laplacian(u, t)

    def diffuse(self, t: Any, u: Any, *args: Any) -> Any:
        """The diffusion alone."""
        return 0.0 * u if self.laplacian is None else args[-1] * self.laplacian(u, t)

    def find_rest(self, t: Any, u: Any, *args: Any) -> Any:
        """The slopes without the diffusion."""
        velocity = args[0] if self.velocity is None else self.velocity(find_time(t))
        return -self.upwind(u, velocity, t) if self.direction > 0 else self.upwind(u, -velocity, t)

    def find_spectrum(self, t: Any, u: Any, *args: Any) -> np.ndarray:
        velocity = np.asarray(args[0] if self.velocity is None else self.velocity(find_time(t)))
        if self.laplacian is None:
            return self.direction * find_upwind_spectrum(self.upwind, self.direction * velocity)
        return find_transport_spectrum(self.upwind, self.direction * velocity, self.laplacian, args[-1], self.direction)

    def find_linear_form(self, *args: Any) -> LinearForm | None:
        ndim = self.upwind.grid.ndim
        if self.velocity is not None or self.direction < 0 or np.shape(args[0]) != (ndim,):
            return None
        terms = [
            AxisTerm(Rate(axis, kind, -1.0), *self.upwind._find_axis_weights(axis, side))
            for axis in range(ndim)
            for side, kind in enumerate((POSITIVE, NEGATIVE))
        ]
        if self.laplacian is not None:
            terms += list_operator_terms(self.laplacian, Rate(ndim))
        return LinearForm(self.upwind.grid.shape, tuple(terms))

    def find_axes(self, *args: Any) -> LinearForm | None:
        """In three dimensions steps along axes would not be stable for transport."""
        return self.find_linear_form(*args) if self.upwind.grid.ndim < 3 else None


@dataclass(frozen=True, eq=False)
class BurgersRHS:
    """-div(u^2 / 2, ..., u^2 / 2) + viscosity lap u."""

    law: ConservationLaw
    laplacian: StencilOperator
    checks_steps: bool
    name: str = "burgers"

    def __call__(self, t: Any, u: Any, viscosity: Any) -> Any:
        return self.law(u, t) + viscosity * self.laplacian(u, t)

    def diffuse(self, t: Any, u: Any, viscosity: Any) -> Any:
        """The diffusion alone."""
        return viscosity * self.laplacian(u, t)

    def find_rest(self, t: Any, u: Any, viscosity: Any) -> Any:
        """The slopes without the diffusion."""
        return self.law(u, t)

    def find_spectrum(self, t: Any, u: Any, viscosity: Any) -> np.ndarray:
        along = find_law_spectra(self.law, [float(np.max(np.abs(u)))] * self.law.grid.ndim)
        spread = viscosity * find_stencil_spectrum(self.laplacian).real
        return add_sets([*along, np.array([spread.min(), 0.0])])


def find_law_spectra(law: ConservationLaw, fastest: Sequence[float]) -> list[np.ndarray]:
    """The eigenvalues along each axis of a conservation law where it is smooth, for the fastest wave along the axis."""
    grid, stencil = law.grid, fit_stencil(1, LIMITED_OFFSETS[law.reconstruction])
    return [-speed * find_symbol(stencil, grid, axis) for axis, speed in enumerate(fastest)]


def burgers_flux(u: Any, axis: Any) -> Any:
    """u^2 / 2 along every axis."""
    return 0.5 * u * u


def burgers_speeds(u: Any, axis: Any) -> Any:
    """Both wave speeds are u."""
    return u, u


@dataclass(frozen=True, eq=False)
class GrayScottRHS:
    """u' = D_u lap u - u v^2 + F (1 - u), v' = D_v lap v + u v^2 - (F + k) v for a state (u, v)."""

    laplacian: StencilOperator
    checks_steps: bool
    name: str = "gray_scott"

    def __call__(self, t: Any, state: Any, diffusivity_u: Any, diffusivity_v: Any, feed: Any, kill: Any) -> Any:
        u, v = state[0], state[1]
        spread = self.laplacian(state, t)
        reaction = u * v * v
        return np.stack(
            (
                diffusivity_u * spread[0] - reaction + feed * (1.0 - u),
                diffusivity_v * spread[1] + reaction - (feed + kill) * v,
            )
        )

    def diffuse(self, t: Any, state: Any, diffusivity_u: Any, diffusivity_v: Any, feed: Any, kill: Any) -> Any:
        """The diffusion alone."""
        spread = self.laplacian(state, t)
        return np.stack((diffusivity_u * spread[0], diffusivity_v * spread[1]))

    def find_rest(self, t: Any, state: Any, diffusivity_u: Any, diffusivity_v: Any, feed: Any, kill: Any) -> Any:
        """The slopes without the diffusion."""
        u, v = state[0], state[1]
        reaction = u * v * v
        return np.stack((feed * (1.0 - u) - reaction, reaction - (feed + kill) * v))

    def find_spectrum(
        self, t: Any, state: Any, diffusivity_u: Any, diffusivity_v: Any, feed: Any, kill: Any
    ) -> np.ndarray:
        return max(diffusivity_u, diffusivity_v) * find_stencil_spectrum(self.laplacian)


@dataclass(frozen=True, eq=False)
class FitzHughNagumoRHS:
    """u' = D lap u + u - u^3 / 3 - v + I, v' = rate (u + a - b v) for a state (u, v)."""

    laplacian: StencilOperator
    checks_steps: bool
    name: str = "fitzhugh_nagumo"

    def __call__(self, t: Any, state: Any, diffusivity: Any, rate: Any, a: Any, b: Any, current: Any) -> Any:
        u, v = state[0], state[1]
        slope = diffusivity * self.laplacian(u, t) + u - u * u * u * (1.0 / 3.0) - v + current
        return np.stack((slope, rate * (u + a - b * v)))

    def diffuse(self, t: Any, state: Any, diffusivity: Any, rate: Any, a: Any, b: Any, current: Any) -> Any:
        """The diffusion alone."""
        return np.stack((diffusivity * self.laplacian(state[0], t), 0.0 * state[1]))

    def find_rest(self, t: Any, state: Any, diffusivity: Any, rate: Any, a: Any, b: Any, current: Any) -> Any:
        """The slopes without the diffusion."""
        u, v = state[0], state[1]
        return np.stack((u - u * u * u * (1.0 / 3.0) - v + current, rate * (u + a - b * v)))

    def find_spectrum(
        self, t: Any, state: Any, diffusivity: Any, rate: Any, a: Any, b: Any, current: Any
    ) -> np.ndarray:
        return diffusivity * find_stencil_spectrum(self.laplacian)


@dataclass(frozen=True, eq=False)
class AllenCahnRHS:
    """width^2 lap u + u - u^3."""

    laplacian: StencilOperator
    checks_steps: bool
    name: str = "allen_cahn"

    def __call__(self, t: Any, u: Any, width: Any) -> Any:
        return width * width * self.laplacian(u, t) + u - u * u * u

    def diffuse(self, t: Any, u: Any, width: Any) -> Any:
        """The diffusion alone."""
        return width * width * self.laplacian(u, t)

    def find_rest(self, t: Any, u: Any, width: Any) -> Any:
        """The slopes without the diffusion."""
        return u - u * u * u

    def find_spectrum(self, t: Any, u: Any, width: Any) -> np.ndarray:
        return width**2 * find_stencil_spectrum(self.laplacian)
