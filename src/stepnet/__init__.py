"""stepnet: a layer is a step of an integrator.

Public names are imported when they are first used; `import stepnet` itself imports NumPy and nothing heavier.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy  # noqa: F401  all submodules need it

__version__ = "0.1.0"

_HOME = {
    "ODE": "stepnet.problem",
    "Partitioned": "stepnet.problem",
    "SecondOrder": "stepnet.problem",
    "Flow": "stepnet.problem",
    "Linear": "stepnet.problem",
    "Split": "stepnet.problem",
    "Langevin": "stepnet.problem",
    "SDE": "stepnet.problem",
    "Gmres": "stepnet.problem",
    "Solution": "stepnet.solution",
    "Statistics": "stepnet.solution",
    "Status": "stepnet.solution",
    "Failure": "stepnet.solution",
    "Event": "stepnet.events",
    "Address": "stepnet.c_functions",
    "address": "stepnet.c_functions",
    "solve": "stepnet.solving.integrate",
    "start": "stepnet.solving.integrate",
    "Integrator": "stepnet.solving.integrate",
    "track": "stepnet.solving.tracking",
    "solve_ivp": "stepnet.solving.ivp",
    "solve_ensemble": "stepnet.ensembles.ensemble",
    "EnsembleSolution": "stepnet.solution",
    "sweep": "stepnet.ensembles.sweeps",
    "SweepResult": "stepnet.ensembles.sweeps",
    "Checkpoints": "stepnet.checkpoints",
    "gradient": "stepnet.gradients.adjoint",
    "Gradient": "stepnet.gradients.adjoint",
    "gradient_ensemble": "stepnet.ensembles.ensemble_gradient",
    "EnsembleGradient": "stepnet.ensembles.ensemble_gradient",
    "likelihood_ratio_gradient": "stepnet.ensembles.likelihood_ratio",
    "LikelihoodRatioGradient": "stepnet.ensembles.likelihood_ratio",
    "tangent": "stepnet.gradients.tangents",
    "jacobian": "stepnet.gradients.tangents",
    "hvp": "stepnet.gradients.tangents",
    "SolveFailed": "stepnet.errors",
    "Interrupted": "stepnet.errors",
    "TrainingFailed": "stepnet.errors",
    "TrainingInterrupted": "stepnet.errors",
    "SchemeError": "stepnet.errors",
    "UnknownName": "stepnet.errors",
    "NoDerivative": "stepnet.errors",
    "StiffnessWarning": "stepnet.errors",
    "AdjointWarning": "stepnet.errors",
    "MonteCarloWarning": "stepnet.errors",
}
_MODULES = {
    "checkpoints": "stepnet.checkpoints",
    "derivatives": "stepnet.gradients.derivatives",
    "equations": "stepnet.equations",
    "estimators": "stepnet.estimators",
    "fields": "stepnet.fields",
    "montecarlo": "stepnet.montecarlo",
    "nets": "stepnet.nets",
    "noise": "stepnet.noise",
    "operators": "stepnet.operators",
    "plots": "stepnet.plots",
    "reductions": "stepnet.ensembles.reductions",
    "schemes": "stepnet.schemes",
    "stability": "stepnet.stability",
    "trackers": "stepnet.solving.trackers",
    "training": "stepnet.training",
}

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'stepnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *__all__]
