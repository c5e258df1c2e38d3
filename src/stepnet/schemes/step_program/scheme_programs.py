"""The programs of any scheme without noise."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.exponential import ExponentialRK
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import PartitionedRK
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.step_program.multistep_steps import write_fixed_bdf, write_multistep, write_semi_implicit
from stepnet.schemes.step_program.one_step import (
    write_additive,
    write_exponential,
    write_pair,
    write_rosenbrock,
    write_runge_kutta,
)
from stepnet.schemes.step_program.operations import SchemeProgram
from stepnet.schemes.step_program.program_writer import write_nothing
from stepnet.schemes.step_program.splitting_steps import write_drifts_and_kicks, write_sum_of_flows


@lru_cache(maxsize=256)
def build_scheme_program(scheme: Any, n_parts: int, is_sum: bool, is_second_order: bool) -> SchemeProgram:
    """Build the programs of a scheme for a problem of one part, partitioned (q, p), or a sum of parts."""
    if isinstance(scheme, Multistep):
        return write_multistep(scheme)
    if isinstance(scheme, SemiImplicitBDF):
        return write_semi_implicit(scheme)
    if isinstance(scheme, FixedBDF):
        return write_fixed_bdf(scheme)
    if isinstance(scheme, Rosenbrock):
        return SchemeProgram(write_nothing(1), write_rosenbrock(scheme), (0,))
    if isinstance(scheme, ExponentialRK):
        return SchemeProgram(write_nothing(1), write_exponential(scheme), (0,))
    if isinstance(scheme, AdditiveRK):
        step = write_additive(scheme) if is_sum else write_runge_kutta(scheme.implicit_table)
        return SchemeProgram(write_nothing(1), step, (0,))
    if isinstance(scheme, PartitionedRK):
        return SchemeProgram(write_nothing(1), write_pair(scheme), (0,))
    if not isinstance(scheme, Splitting):
        return SchemeProgram(write_nothing(1), write_runge_kutta(scheme.butcher), (0,))
    if is_sum:
        return SchemeProgram(write_nothing(1), write_sum_of_flows(scheme, n_parts), (0,))
    return write_drifts_and_kicks(scheme, is_second_order)


@lru_cache(maxsize=256)
def build_held_program(scheme: Any, is_second_order: bool) -> SchemeProgram:
    """Build the programs for weights that are constant over each step and jump between steps.

    A one-step scheme does not reuse a slope of the previous step, which was evaluated with other weights.
    """
    if isinstance(scheme, Splitting):
        return write_drifts_and_kicks(scheme, is_second_order, can_carry=False)
    return build_scheme_program(scheme, 1, False, is_second_order)
