"""Fixed steps of stochastic schemes: their step programs prepared for tensors, and a scheme with Levy areas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from stepnet.engines.torch_engine.codegen.constants import build_from_constants
from stepnet.engines.torch_engine.integrators.fixed_steps import (
    CompiledScheme,
    FixedStepRun,
    StepGrid,
    compile_program,
)
from stepnet.engines.torch_engine.random.step_noise import LEVY_AREA, StepNoise
from stepnet.engines.torch_engine.rhs.stochastic_fields import StochasticField
from stepnet.schemes import catalogue
from stepnet.schemes.step_program import (
    DIFFUSION,
    DIFFUSION_DERIVATIVE,
    DRIFT,
    MATRIX,
    Noise,
    Product,
    SchemeProgram,
    Slope,
    StepProgram,
    Sum,
    Term,
    build_stochastic_program,
)
from stepnet.schemes.stochastic import Orders


@dataclass(frozen=True)
class LogODE:
    """A midpoint step with the Levy areas A of general noise, for Stratonovich equations:

    y_new = y + h f(y') + g(y') dW + sum_kj (dg_j/dy g_k)(y') A_kj,  y' = y + h f(y) / 2 + g(y) dW / 2.
    """

    name: str
    orders: tuple[Orders, ...]
    reference: str
    calculus: str = "stratonovich"

    variables = ("W", LEVY_AREA)


LOG_ODE = LogODE("log_ode", (Orders("general", 0.5, 1),), "Castell & Gaines (1996), Ann. Inst. H. Poincare 32:231")

_MIDPOINT_WITH_AREAS = StepProgram(
    1,
    (
        Slope(DRIFT, 0, 0.0), Slope(DIFFUSION, 0, 0.0), Noise("W"), Product(2, 3, MATRIX),
        Sum((Term(0, 1.0, 0), Term(4, 0.5, 0), Term(1, 0.5, 1))),
        Slope(DRIFT, 5, 0.5), Slope(DIFFUSION, 5, 0.5), Product(7, 3, MATRIX),
        Slope(DIFFUSION_DERIVATIVE, 5, 0.5), Noise(LEVY_AREA, True), Product(9, 10, MATRIX),
        Sum((Term(0, 1.0, 0), Term(8, 1.0, 0), Term(11, 1.0, 0), Term(6, 1.0, 1))),
    ),
    (12,),
)  # fmt: skip


class StepNeeds(NamedTuple):
    """What a step needs: the derivative of the diffusion; single products of diffusions with vectors.

    `has_pairs`: drift and diffusion are evaluated at the same times and states, and nothing else is.  `has_inverse`:
    steps can be inverted.
    """

    derivative: bool
    has_single_products: bool
    has_pairs: bool
    has_inverse: bool


def find_step_needs(scheme: Any, kind: str) -> StepNeeds:
    """What the steps of a scheme need, for a kind of diffusion."""
    return _find_needs_by_name(scheme.name, kind) if torch.compiler.is_compiling() else _find_needs(scheme, kind)


def _find_needs(scheme: Any, kind: str) -> StepNeeds:
    program = build_program(scheme, kind)
    slopes = [each for each in program.step.operations if isinstance(each, Slope)]
    products = Counter(each.diffusion for each in program.step.operations if isinstance(each, Product))
    drifts, diffusions = ({(s.row, s.c) for s in slopes if s.part == part} for part in (DRIFT, DIFFUSION))
    has_derivative = any(s.part == DIFFUSION_DERIVATIVE for s in slopes)
    is_single = not has_derivative and max(products.values()) == 1
    has_inverse = program.back is not None
    return StepNeeds(has_derivative, is_single, drifts == diffusions and not has_derivative, has_inverse)


@build_from_constants
def _find_needs_by_name(name: str, kind: str) -> StepNeeds:
    return _find_needs(_find_scheme(name), kind)


def _find_scheme(name: str) -> Any:
    return LOG_ODE if name == LOG_ODE.name else catalogue.get(name)


def build_program(scheme: Any, kind: str, n_components: int = 1) -> SchemeProgram:
    """The programs of a stochastic scheme; those of weak schemes depend on the number of components of matrices."""
    if isinstance(scheme, LogODE):
        return SchemeProgram(StepProgram(1, (), (0,), 0), _MIDPOINT_WITH_AREAS, (0,))
    return build_stochastic_program(scheme, kind, n_components)


def find_compiled_stochastic_scheme(scheme: Any, kind: str, n_components: int, n_states: int = 1) -> CompiledScheme:
    """The programs of a scheme for a kind of diffusion; with two states, all rows of a reversible scheme are state."""
    if torch.compiler.is_compiling():
        return _compile_scheme_by_name(scheme.name, kind, n_components, n_states)
    return _compile_scheme(scheme, kind, n_components, n_states)


def _compile_scheme(scheme: Any, kind: str, n_components: int, n_states: int) -> CompiledScheme:
    program = build_program(scheme, kind, n_components)
    if n_states > 1:
        rows = tuple(range(n_states))
        program = program._replace(opening=StepProgram(n_states, (), rows, 0), state=rows)
    return compile_program(program, n_states > 1)


@build_from_constants
def _compile_scheme_by_name(name: str, kind: str, n_components: int, n_states: int) -> CompiledScheme:
    return _compile_scheme(_find_scheme(name), kind, n_components, n_states)


def build_stochastic_run(field: StochasticField, scheme: Any, grid: StepGrid, noise: StepNoise) -> FixedStepRun:
    """A run of a stochastic scheme."""
    moves = find_compiled_stochastic_scheme(scheme, field.kind, field.n_components, field.n_states)
    return FixedStepRun(field, moves, field.functions, grid, noise=noise)
