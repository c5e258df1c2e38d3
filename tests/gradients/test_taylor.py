"""Taylor tests: the remainder of first order decreases like the square of the step, with the Hessian like its cube."""

from __future__ import annotations

import numpy as np
import pytest
from gradients.cases import KINDS, STEPS, A, B, generator, loss, over_the_catalogue, relative

import stepnet as sn

LENGTHS = np.array([2e-3, 1e-3])
NEAR = 0.1  # of the slopes


class Line:
    """The loss of a scheme's end state along a line through the space of states and arguments."""

    def __init__(self, scheme, kind, random):
        self.scheme, self.kind = scheme, kind
        self.v, self.db = random.standard_normal(kind.initial.size), random.standard_normal(B.size)
        self.da = random.standard_normal()

    def value(self, s: float) -> float:
        problem = self.kind.build(self.kind.initial + s * self.v, (A + s * self.da, B + s * self.db))
        return loss(sn.solve(problem, self.scheme, steps=STEPS, save_every=0).y[-1])

    def bend(self) -> float:
        """The least of its second and third differences: one near zero would hide behind higher ones."""
        here, (far, near, back, far_back) = self.value(0.0), map(self.value, (0.02, 0.01, -0.01, -0.02))
        return min(abs(near - 2 * here + back), 50 * abs(far - far_back - 2 * (near - back)))

    def direction(self) -> np.ndarray:
        return np.concatenate((self.v, [self.da], self.db))

    def product(self, **how):
        args = (self.da, self.db)
        return sn.hvp(self.kind.build(), self.scheme, loss, y0=self.v, args=args, steps=STEPS, **how).flat


def slope_of(remainders: np.ndarray) -> float:
    return float(np.log2(abs(remainders[-2] / remainders[-1])))


@over_the_catalogue
def test_slopes_two_and_three(scheme, kind):
    random = generator(scheme, kind)
    line = max((Line(scheme, kind, random) for _ in range(10)), key=Line.bend)
    values = np.array([line.value(s) for s in LENGTHS])
    found = sn.gradient(kind.build(), scheme, loss, steps=STEPS)
    first = found.flat @ line.direction()
    second = line.product() @ line.direction()
    linear = values - found.value - LENGTHS * first
    assert abs(slope_of(linear) - 2) <= NEAR
    assert abs(slope_of(linear - LENGTHS**2 / 2 * second) - 3) <= NEAR


@pytest.mark.parametrize("name", ["rk4", "ab3"])
def test_gauss_newton_leaves_out_second_derivatives_of_the_steps(name):
    line = Line(sn.schemes.get(name), KINDS[0], np.random.default_rng(0))
    jacobian = sn.jacobian(KINDS[0].build(), name, steps=STEPS)
    J = np.column_stack((jacobian.y0, *(each.reshape(2, -1) for each in jacobian.args)))
    end, h = sn.solve(KINDS[0].build(), name, steps=STEPS).y[-1], 1e-4
    corners = [[loss(end + h * (i + j)) - loss(end + h * (i - j)) - loss(end - h * (i - j)) + loss(end - h * (i + j))
                for j in np.eye(2)] for i in np.eye(2)]  # fmt: skip
    H = np.array(corners) / (4 * h * h)
    assert relative(line.product(gauss_newton=True), J.T @ (H @ (J @ line.direction()))) <= 1e-6


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_products_are_symmetric_and_jacobians_are_tangents(kind):
    scheme = sn.schemes.get("rk4")
    problem, n = kind.build(), kind.initial.size
    columns = [sn.hvp(problem, scheme, loss, y0=v, steps=STEPS).y0 for v in np.eye(n)]
    assert relative(np.transpose(columns), columns) <= 1e-12
    jacobian = sn.jacobian(problem, scheme, steps=STEPS)
    tangents = [sn.tangent(problem, scheme, y0=v, steps=STEPS).dy for v in np.eye(n)]
    assert relative(np.transpose(tangents), jacobian.y0) <= 1e-12
    by_argument = sn.tangent(problem, scheme, args=(1.0, None), steps=STEPS).dy
    assert relative(jacobian.args[0], by_argument) <= 1e-12
