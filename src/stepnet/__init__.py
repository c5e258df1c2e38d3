"""stepnet: a layer is a step of an integrator.

Public names are loaded when they are first used; `import stepnet` itself loads NumPy and nothing heavier.
"""

from __future__ import annotations

from importlib import import_module

import numpy  # noqa: F401  everything here speaks of arrays

__version__ = "0.1.0"

_HOME = {
    "ODE": "stepnet.problem",
    "Partitioned": "stepnet.problem",
    "SecondOrder": "stepnet.problem",
    "Split": "stepnet.problem",
    "Solution": "stepnet.solution",
    "Statistics": "stepnet.solution",
    "Status": "stepnet.solution",
    "Failure": "stepnet.solution",
    "Event": "stepnet.events",
    "Address": "stepnet.c_functions",
    "address": "stepnet.c_functions",
    "solve": "stepnet.integrate",
    "start": "stepnet.integrate",
    "Integrator": "stepnet.integrate",
    "solve_ivp": "stepnet.ivp",
    "solve_ensemble": "stepnet.ensemble",
    "EnsembleSolution": "stepnet.solution",
    "sweep": "stepnet.sweeps",
    "SweepResult": "stepnet.sweeps",
    "Checkpoints": "stepnet.checkpoints",
    "gradient": "stepnet.adjoint",
    "Gradient": "stepnet.adjoint",
    "gradient_ensemble": "stepnet.ensemble_gradient",
    "EnsembleGradient": "stepnet.ensemble_gradient",
    "tangent": "stepnet.tangents",
    "jacobian": "stepnet.tangents",
    "hvp": "stepnet.tangents",
    "SolveFailed": "stepnet.errors",
    "Interrupted": "stepnet.errors",
    "TrainingFailed": "stepnet.errors",
    "TrainingInterrupted": "stepnet.errors",
    "SchemeError": "stepnet.errors",
    "UnknownName": "stepnet.errors",
    "NoDerivative": "stepnet.errors",
    "StiffnessWarning": "stepnet.errors",
    "AdjointWarning": "stepnet.errors",
}
_MODULES = (
    "checkpoints",
    "derivatives",
    "estimators",
    "fields",
    "nets",
    "plots",
    "reductions",
    "schemes",
    "stability",
    "training",
)

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str):
    if name in _MODULES:
        return import_module(f"stepnet.{name}")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'stepnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *__all__]
