"""Stability analysis: whether the continuous adjoint is reliable for a problem."""

from stepnet.stability.safety import AdjointSafety, adjoint_safety

__all__ = ["AdjointSafety", "adjoint_safety"]


def __dir__() -> list[str]:
    return __all__
