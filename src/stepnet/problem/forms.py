"""The forms of equations, which decide which schemes can solve them."""

from enum import Enum


class ProblemForm(Enum):
    """The form of an equation, which decides which schemes can solve it."""

    FIRST = "first"  # y' = f(t, y)
    SUM = "sum"  # y' = f1(t, y) + f2(t, y) + ...
    PARTITIONED = "partitioned"  # q' = dq(t, p), p' = dp(t, q)
    COUPLED = "coupled"  # q' = dq(t, q, p), p' = dp(t, q, p)
    SECOND = "second"  # q'' = a(t, q)
    STOCHASTIC = "stochastic"  # dy = f(t, y) dt + g(t, y) dW
    LANGEVIN = "langevin"  # dq = v dt, dv = a(t, q) dt - friction v dt + s dW

    @property
    def has_separate_halves(self) -> bool:
        """Whether q' depends on p only and p' on q only."""
        return self in (ProblemForm.PARTITIONED, ProblemForm.SECOND)

    @property
    def has_halves(self) -> bool:
        """Whether the state consists of q and p, or q and v."""
        return self.has_separate_halves or self is ProblemForm.COUPLED

    @property
    def is_stochastic(self) -> bool:
        """Whether solutions depend on a Brownian path."""
        return self in (ProblemForm.STOCHASTIC, ProblemForm.LANGEVIN)
