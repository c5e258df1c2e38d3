"""The executor of each scheme family: the only module of this engine that checks the class of a scheme."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from stepnet.engines.numba_engine.runs.job import Job
from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.exponential import ExponentialRK
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import PartitionedRK
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import ExplicitRK, LowStorageRK, StabilisedRK
from stepnet.schemes.variable_order import Switching, VariableAdams, VariableBDF

EXECUTORS = {
    ExplicitRK: "explicit_rk",
    LowStorageRK: "low_storage",
    StabilisedRK: "stabilised",
    ImplicitRK: "implicit.implicit_rk",
    PartitionedRK: "implicit.partitioned_rk",
    Rosenbrock: "implicit.rosenbrock",
    AdditiveRK: "implicit.additive_rk",
    SemiImplicitBDF: "implicit.semi_implicit",
    FixedBDF: "implicit.semi_implicit",
    ExponentialRK: "exponential",
    Splitting: "splitting",
    Multistep: "multistep",
    VariableBDF: "implicit.variable_order",
    VariableAdams: "implicit.variable_order",
    Switching: "implicit.switching",
}


STAGE_TABLES = {
    ImplicitRK: ("implicit.implicit_stages", "build_stage_tables"),
    Rosenbrock: ("implicit.linear_stages", "build_linear_tables"),
}


def find_executor(scheme) -> Callable[..., Job]:
    """The function `(problem, scheme, plan)` that prepares runs of the scheme's family, imported on first use."""
    return _load(type(scheme))  # type: ignore[arg-type]


@cache
def _load(kind: type) -> Callable[..., Job]:
    return import_module(f"stepnet.engines.numba_engine.integrators.{EXECUTORS[kind]}").prepare


def find_stage_tables(scheme):
    """The coefficients of an implicit or Rosenbrock scheme as kernels read them."""
    module, name = STAGE_TABLES[type(scheme)]
    return getattr(import_module(f"stepnet.engines.numba_engine.integrators.{module}"), name)(scheme)
