"""Capabilities of a scheme: its problems, steps and outputs, derived from its record alone.

Code outside `schemes` calls these functions and never checks the class of a scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.problem import Flow, Linear, ProblemForm
from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.conditions import is_pair, is_stiffly_accurate, real_stability_limit, tableau_of
from stepnet.schemes.conditions.families import linear_tableau
from stepnet.schemes.exponential import ExponentialRK
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.langevin import LangevinSplitting, StochasticVerlet
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import PartitionedRK
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.step_program import build_scheme_program
from stepnet.schemes.stochastic import ReversibleHeun, StochasticRK, TamedEuler
from stepnet.schemes.tableau import ExplicitRK, StabilisedRK
from stepnet.schemes.variable_order import Switching, VariableAdams, VariableBDF
from stepnet.schemes.weak import WeakRK

ROUNDING = 1e-10  # of coefficients that were computed
OF_TWO_PARTS = (AdditiveRK, ExponentialRK, SemiImplicitBDF)
WITH_HISTORY = (Multistep, SemiImplicitBDF, FixedBDF)
FLUCTUATING = 0.7  # of the limit of stability: mean step of Adams schemes on stiff problems

# ---- problems -------------------------------------------------------------------------------------------------------


def find_refusal(scheme: Any, form: ProblemForm, single: str = "an `ODE`") -> str | None:
    """Why a scheme cannot run a problem of this form, None if it can; `single` names a problem without parts."""
    if is_langevin(scheme):
        is_own = form is ProblemForm.LANGEVIN
        return None if is_own else f"{scheme.name} integrates Langevin dynamics; use `Langevin`"
    if form is ProblemForm.LANGEVIN:
        return f"{scheme.name} does not integrate Langevin dynamics; for `Langevin` use a scheme such as baoab"
    if is_stochastic(scheme):
        if form is not ProblemForm.STOCHASTIC:
            return f"{scheme.name} integrates stochastic equations; use `SDE`"
        return None
    if form is ProblemForm.STOCHASTIC:
        return f"{scheme.name} has no noise; for an `SDE` use a stochastic scheme such as euler_maruyama"
    if isinstance(scheme, Splitting):
        if form is ProblemForm.FIRST:
            return (
                f"{scheme.name} advances the parts of a problem in turn, and {single} has no parts; "
                "use `Partitioned`, `SecondOrder` or `Split`"
            )
        if form is ProblemForm.COUPLED:
            return f"{scheme.name} needs dq(t, p) and dp(t, q); a problem with separable=False has none"
        if scheme.nystrom and form is not ProblemForm.SECOND:
            return f"{scheme.name} keeps its order only for q'' = a(t, q); use `SecondOrder`"
    if isinstance(scheme, PartitionedRK) and not form.has_halves:
        found = "a sum" if form is ProblemForm.SUM else single
        return (
            f"{scheme.name} advances q and p by different tableaux, and {found} has no q and p; use `Partitioned` or "
            "`SecondOrder`"
        )
    if isinstance(scheme, ExponentialRK) and form is not ProblemForm.SUM:
        return f"{scheme.name} integrates a part and a `Linear` one; use `Split`"
    if isinstance(scheme, SemiImplicitBDF) and form is not ProblemForm.SUM:
        return f"{scheme.name} takes an explicit and an implicit part; use `Split`"
    if find_derivative_order(scheme) == 2 and form is not ProblemForm.SECOND:
        return f"{scheme.name} integrates q'' = a(t, q); use `SecondOrder`"
    return None


def find_mass_refusal(scheme: Any, is_singular: bool) -> str | None:
    """Why a scheme cannot solve M y' = f, None if it can; a singular M gives algebraic equations of index one.

    It is the last stage that satisfies the algebraic equations, and their values follow from each stage if the matrix
    of the stages, without an explicit first one, is nonsingular.
    """
    if isinstance(scheme, Switching):
        return f"{scheme.name} switches by what it sees of df/dy alone; use a scheme such as rodas5p, radau5 or bdf"
    if not is_singular or isinstance(scheme, (VariableBDF, FixedBDF)):
        return None
    table = linear_tableau(scheme) if isinstance(scheme, (ImplicitRK, Rosenbrock)) else None
    if table is None:
        return f"{scheme.name} does not solve algebraic equations; use a scheme such as rodas5p, radau5 or trbdf2"
    inner = table.A[1:, 1:] if not table.A[0].any() else table.A
    is_regular = inner.size > 0 and np.linalg.cond(inner) < 1.0 / ROUNDING
    ends = table.c[-1] if isinstance(scheme, ImplicitRK) else scheme.arrays.c[-1]
    if not (is_stiffly_accurate(scheme) and is_regular and abs(ends - 1.0) < ROUNDING):
        return (
            f"{scheme.name} is not stiffly accurate, so its new states would not satisfy the algebraic equations; use "
            f"a scheme such as rodas5p, radau5 or trbdf2"
        )
    return None


def reads_jacobian(scheme: Any) -> bool:
    """Whether it reads the entries of df/dy, so that products with df/dy are not enough."""
    return isinstance(scheme, Switching)


def is_stochastic(scheme: Any) -> bool:
    """Whether a scheme integrates stochastic equations, Langevin dynamics among them."""
    return isinstance(scheme, (StochasticRK, WeakRK, TamedEuler, ReversibleHeun)) or is_langevin(scheme)


def is_langevin(scheme: Any) -> bool:
    """Whether a scheme integrates Langevin dynamics."""
    return isinstance(scheme, (LangevinSplitting, StochasticVerlet))


def find_noise_refusal(scheme: Any, noise: str, calculus: str) -> str | None:
    """Why a stochastic scheme cannot run equations with this type of noise and calculus, None if it can."""
    admitted = [orders.noise for orders in scheme.orders]
    if noise not in admitted:
        return f"{scheme.name} does not admit {noise} noise, only {', '.join(admitted)}; see `scheme.orders`"
    if noise != "additive" and calculus != scheme.calculus:
        return (
            f"{scheme.name} solves {scheme.calculus.capitalize()} equations, and this one is in the sense of "
            f"{calculus.capitalize()}; convert it by `sde.convert({scheme.calculus!r})`"
        )
    return None


def needs_increments_only(scheme: Any) -> bool:
    """Whether the random variables of a step are functions of the increments of W."""
    return not {"I10/h", "V", "V2"} & set(scheme.variables)


def find_weak_order(scheme: Any, noise: str) -> float:
    """The weak order of a stochastic scheme for a type of noise that it admits."""
    return float(next(orders.weak for orders in scheme.orders if orders.noise == noise))


def find_strong_order(scheme: Any, noise: str) -> float:
    """The strong order of a stochastic scheme for a type of noise that it admits."""
    return float(next(orders.strong for orders in scheme.orders if orders.noise == noise))


def needs_diffusion_derivative(scheme: Any) -> bool:
    """Whether a step evaluates the derivative of the diffusion."""
    return isinstance(scheme, StochasticRK) and bool(scheme.gamma)


def accepts(scheme: Any, form: ProblemForm) -> bool:
    """Whether a scheme runs problems of this form."""
    return find_refusal(scheme, form) is None


def find_parts_refusal(scheme: Any, parts: Sequence[Any]) -> str | None:
    """Why a scheme cannot run a sum of these parts, None if it can."""
    if not isinstance(scheme, OF_TWO_PARTS):
        return None
    second = "a `Linear`" if isinstance(scheme, ExponentialRK) else "the implicit"
    if len(parts) != 2:
        return f"{scheme.name} takes two parts, the explicit one first and {second} one second, found {len(parts)}"
    if any(isinstance(part, Flow) for part in parts):
        return f"{scheme.name} evaluates right-hand sides, and `parts` hold a `Flow`, which has none"
    if isinstance(scheme, ExponentialRK) and not isinstance(parts[1], Linear):
        return f"{scheme.name} solves the second part exactly, so it must be `stepnet.Linear(matrix or operator)`"
    return None


def needs_linear_part(scheme: Any) -> bool:
    """Whether a step applies functions of the linear part of a problem."""
    return isinstance(scheme, ExponentialRK)


def moves_parts(scheme: Any, form: ProblemForm) -> bool:
    """Whether a scheme integrates the parts of such a problem separately."""
    if isinstance(scheme, Splitting):
        return form not in (ProblemForm.FIRST, ProblemForm.COUPLED)
    if isinstance(scheme, OF_TWO_PARTS):
        return form is ProblemForm.SUM
    return find_derivative_order(scheme) == 2 and form is ProblemForm.SECOND


def find_derivative_order(scheme: Any) -> int:
    """The order of the derivative that the scheme integrates: 1 for y' = f, 2 for q'' = a."""
    return scheme.derivative if isinstance(scheme, Multistep) else 1


# ---- steps ----------------------------------------------------------------------------------------------------------


def is_implicit(scheme: Any) -> bool:
    """Whether a step solves systems of equations."""
    is_solved = getattr(scheme, "is_implicit", False)  # a stochastic scheme with stages that are solved
    solving = (ImplicitRK, PartitionedRK, Rosenbrock, AdditiveRK, SemiImplicitBDF, FixedBDF, VariableBDF, Switching)
    return isinstance(scheme, solving) or is_solved


def needs_second_derivatives(scheme: Any) -> bool:
    """Whether the derivative of a step contains second derivatives of the right-hand side."""
    return isinstance(scheme, Rosenbrock)


def needs_axes(scheme: Any, problem: Any) -> bool:
    """Whether the matrix of its linear systems becomes a product over the axes of the grid of this problem."""
    if not getattr(scheme, "by_axes", False) or problem.form is not ProblemForm.FIRST:
        return False
    find = getattr(problem.fun, "find_axes", None)
    return find is not None and find(*problem.args) is not None


def is_adaptive(scheme: Any) -> bool:
    """Whether it has an error estimate for adaptive steps; `takes_fixed_steps` says whether it can take fixed ones."""
    if is_stochastic(scheme):
        return getattr(scheme, "embedded", None) is not None
    return not takes_fixed_steps(scheme) or is_pair(scheme)


def takes_fixed_steps(scheme: Any) -> bool:
    """Whether fixed steps may be given; schemes of variable order, and those that switch, choose their own steps."""
    return not isinstance(scheme, (VariableBDF, VariableAdams, Switching))


def find_step_choice_refusal(scheme: Any, what: str) -> str | None:
    """Why a scheme that chooses its order, or switches, is refused, and which one to use instead; None for others."""
    if takes_fixed_steps(scheme):
        return None
    instead = "dopri5 or tsit5" if isinstance(scheme, VariableAdams) else "radau5 or rodas5p"
    chosen = "its scheme" if isinstance(scheme, Switching) else "its order"
    return f"{scheme.name} chooses {chosen} in every step, {what} take {instead}"


def count_formulas(scheme: Any) -> int:
    """The number of formulas, of the orders 1, 2, ..., among which a scheme chooses; 0 for others."""
    return scheme.order if isinstance(scheme, (VariableBDF, VariableAdams)) else 0


def find_stability_function_refusal(scheme: Any) -> str | None:
    """Why a deterministic scheme has no single stability function, and what has one; None for those that have."""
    if isinstance(scheme, Switching):
        return f"{scheme.name} switches between {scheme.explicit.name} and {scheme.implicit.name}; use one of them"
    if count_formulas(scheme):
        region = f"`stability.region({scheme.name!r}, order=k)`"
        return f"{scheme.name} chooses its order in every step; use {region} for its formulas, k = 1 to {scheme.order}"
    return None


def find_stability_limit(scheme: Any, order: int = 1) -> float:
    """The h rho that indicates stiffness: the real stability limit; infinite for schemes that switch and BDF.

    Steps of Adams schemes fluctuate below the limit of their order, as errors are rejected once they have grown.
    """
    if isinstance(scheme, VariableAdams):
        return FLUCTUATING * float(scheme.stability_limits[max(order, 1)])
    return float(real_stability_limit(scheme)) if takes_fixed_steps(scheme) else float("inf")


def takes_projections(scheme: Any) -> bool:
    """Whether the state may be changed after every step; a scheme of variable order would restart each time."""
    is_one_step = isinstance(scheme, Switching) and not scheme.is_multistep
    return takes_changed_states(scheme) and (takes_fixed_steps(scheme) or is_one_step)


def needs_own_entries(scheme: Any, noise: str) -> bool:
    """Whether its order for diagonal noise needs entry i of the diffusion to depend on entry i of the state alone."""
    orders = next((orders for orders in scheme.orders if orders.noise == noise), None)
    return noise == "diagonal" and orders is not None and (orders.strong > 0.5 or orders.weak > 1.0)


def needs_commuting_columns(scheme: Any, noise: str) -> bool:
    """Whether its order for commutative noise needs (dg_j/dy) g_k = (dg_k/dy) g_j for the columns of the diffusion."""
    orders = {each.noise: (each.strong, each.weak) for each in scheme.orders}
    return noise == "commutative" and orders["commutative"] != orders.get("general")


def find_estimate_order(scheme: Any) -> float:
    """The strong order of the embedded scheme of a stochastic pair; its estimate is O(h^(order + 1/2))."""
    return scheme.embedded.order


def has_history(scheme: Any) -> bool:
    """Whether a step needs earlier ones, so that a run cannot continue from a state alone."""
    return isinstance(scheme, WITH_HISTORY)


def takes_uneven_steps(scheme: Any) -> bool:
    """Whether steps may have different lengths; weights of exponential and Langevin schemes are those of one length."""
    return not has_history(scheme) and not is_langevin(scheme) and not needs_linear_part(scheme)


def takes_changed_states(scheme: Any) -> bool:
    """Whether the state may be changed between steps: by a reset, a projection, or by hand."""
    return not has_history(scheme)


def count_stages(scheme: Any) -> int:
    """The number of stages of a step, without those that the step before gives; of each part for schemes of parts."""
    table = tableau_of(scheme) if takes_fixed_steps(scheme) else None
    if table is not None:
        return len(table.b) - table.is_fsal
    if isinstance(scheme, Splitting):
        parts = [part for part, _ in scheme.sequence()]
        return max(parts.count(0), parts.count(1)) - scheme.is_fsal
    if isinstance(scheme, AdditiveRK):
        tables = (scheme.explicit_table, scheme.implicit_table)
        return max(int(np.any([*table.A, table.b], axis=0).sum()) for table in tables)
    return len(scheme.b) if isinstance(scheme, (Rosenbrock, PartitionedRK)) else 1


def find_starter(scheme: Any) -> Any:
    """The one-step scheme of the first steps, None if it needs none."""
    return scheme.starter if isinstance(scheme, WITH_HISTORY) else None


def count_starting_steps(scheme: Any) -> int:
    """The number of steps of its starting procedure."""
    return scheme.n_steps - 1 if isinstance(scheme, WITH_HISTORY) else 0


# ---- runs -----------------------------------------------------------------------------------------------------------


def has_continuous_extension(scheme: Any) -> bool:
    """Whether its stages define the solution inside a step; other schemes use a Hermite polynomial."""
    return isinstance(scheme, ExplicitRK)


def has_inverse(scheme: Any, form: ProblemForm) -> bool:
    """Whether a step on such a problem can be inverted, up to rounding."""
    return accepts(scheme, form) and _build_program(scheme, form).back is not None


def count_state_rows(scheme: Any, form: ProblemForm) -> int:
    """Rows that a step passes to the next one: the state, earlier states and slopes."""
    return _build_program(scheme, form).step.n_rows


def admits_lanes(scheme: Any, form: ProblemForm, is_fixed: bool) -> bool:
    """Whether members of an ensemble run in SIMD lanes: adaptive pairs with separate steps, others in lockstep.

    Three-term recursions would lose accuracy if written as the sums of generated steps; steps of implicit Runge-Kutta
    schemes iterate, whereas adaptive ones of Rosenbrock schemes are formulas; exponential ones apply matrices.
    """
    if needs_linear_part(scheme) or not takes_fixed_steps(scheme):
        return False
    if is_implicit(scheme):
        return isinstance(scheme, Rosenbrock) and not is_fixed and is_adaptive(scheme) and accepts(scheme, form)
    return accepts(scheme, form) and (not isinstance(scheme, StabilisedRK) if is_fixed else is_adaptive(scheme))


def _build_program(scheme: Any, form: ProblemForm) -> Any:
    is_parted, n_parts = moves_parts(scheme, form), 1 if form is ProblemForm.FIRST else 2
    return build_scheme_program(
        scheme, n_parts, is_parted and form is ProblemForm.SUM, is_parted and form is ProblemForm.SECOND
    )
