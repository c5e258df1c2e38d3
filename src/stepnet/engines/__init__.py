"""The engines that execute schemes, and their contract.  An engine is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # each engine satisfies the contract; type checkers compare all parameters
    from collections.abc import Callable, Sequence

    import numpy as np
    from torch import Tensor

    from stepnet.engines import contract, numba_engine, torch_engine
    from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun
    from stepnet.engines.numba_engine.layers.stage_runs import NetStage
    from stepnet.engines.numba_engine.runs.stepper import Stepper
    from stepnet.engines.torch_engine import BatchMembers, BatchOutcome, BatchPlan, TensorPlan, TensorProblem
    from stepnet.engines.torch_engine.integrators.fixed_steps import FixedStepRun
    from stepnet.engines.torch_engine.layers.stage_runs import NetStage as TensorStage
    from stepnet.engines.torch_engine.rhs.tensor_fields import State
    from stepnet.problem import Problem

    compiled_runs: contract.RunEngine[Problem, contract.Plan, contract.Outcome] = numba_engine
    compiled_maps: contract.LinearisingEngine[Problem, contract.FixedSteps, DifferentiableRun] = numba_engine
    compiled_ensembles: contract.EnsembleEngine[Problem, contract.Plan, contract.Members, contract.EnsembleOutcome] = (
        numba_engine
    )
    compiled_layers: contract.LayerEngine[NetStage] = numba_engine
    compiled_steps: contract.SteppingEngine[Problem, contract.Plan, Stepper] = numba_engine
    compiled_identities: contract.IdentifyingEngine[Problem, contract.Plan] = numba_engine
    compiled_report: contract.ReportingEngine = numba_engine

    tensor_runs: contract.RunEngine[TensorProblem, TensorPlan, object] = torch_engine
    tensor_maps: contract.LinearisingEngine[TensorProblem, TensorPlan, FixedStepRun] = torch_engine
    tensor_ensembles: contract.EnsembleEngine[Callable[..., object], BatchPlan, BatchMembers, BatchOutcome] = (
        torch_engine
    )
    tensor_layers: contract.LayerEngine[TensorStage] = torch_engine

    def check_results(
        compiled_map: DifferentiableRun, compiled_stage: NetStage, tensor_map: FixedStepRun, tensor_stage: TensorStage
    ) -> None:
        """The return values of these functions satisfy the contract as well."""
        _map: contract.LinearRun[np.ndarray, np.ndarray] = compiled_map
        _stage: contract.LayerStage[np.ndarray, np.ndarray] = compiled_stage
        _tensor_map: contract.LinearRun[State, tuple[Any, ...]] = tensor_map
        _tensor_stage: contract.LayerStage[Sequence[Tensor], Tensor] = tensor_stage
