"""What can be said about stability: so far whether the continuous adjoint can be trusted."""

from stepnet.stability.safety import AdjointSafety, adjoint_safety

__all__ = ["AdjointSafety", "adjoint_safety"]


def __dir__() -> list[str]:
    return __all__
