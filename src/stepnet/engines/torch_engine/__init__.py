"""The engine of tensors: the same scheme records on any device, in eager mode, compiled, and differentiated."""

from stepnet.engines.torch_engine.fields import Partitioned, SecondOrder, Single, Split
from stepnet.engines.torch_engine.fixed import Fixed, fixed_run

__all__ = ["Fixed", "Partitioned", "SecondOrder", "Single", "Split", "fixed_run"]
