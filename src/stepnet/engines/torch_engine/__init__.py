"""The engine of tensors: the same scheme records on any device, in eager mode, compiled, and differentiated."""

from stepnet.engines.torch_engine.integrators.fixed_steps import FixedStepRun, build_fixed_run
from stepnet.engines.torch_engine.rhs.tensor_fields import Partitioned, SecondOrder, SingleField, Split

__all__ = ["FixedStepRun", "Partitioned", "SecondOrder", "SingleField", "Split", "build_fixed_run"]
