"""Rosenbrock schemes: each stage solves one linear system with the Jacobian at the start of the step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepnet.errors import SchemeError
from stepnet.records import validate_flag
from stepnet.schemes.order import Conditions
from stepnet.schemes.tableau import (
    AN_ORDER,
    Butcher,
    Embedded,
    butcher,
    floats,
    freeze,
    require_finite,
    require_order,
)
from stepnet.validation import check, instance, real, sequence, text


class RosenbrockArrays(NamedTuple):
    """The coefficients as arrays: matrices alpha and gamma (its diagonal included), weights, row sums of both."""

    alpha: np.ndarray
    gamma: np.ndarray
    b: np.ndarray
    c: np.ndarray
    d: np.ndarray


class TransformedRosenbrock(NamedTuple):
    """The form without products with J: (I / (h gamma) - J) u_i = f(t + c_i h, y + sum a_ij u_j)
    + sum C_ij / h u_j + h d_i f_t;  y_new = y + sum m_i u_i, and the error estimate is sum e_i u_i.

    Hairer & Wanner (1996), Solving Ordinary Differential Equations II, IV.7.
    """

    a: np.ndarray
    C: np.ndarray
    m: np.ndarray
    e: np.ndarray


@check(name=text, order=AN_ORDER, gamma=real("[-inf, inf]"))
@dataclass(frozen=True)
class Rosenbrock:
    """(I - h gamma J) k_i = f(t + c_i h, y + h sum_j alpha_ij k_j) + h J sum_{j<i} gamma_ij k_j + h d_i f_t,
    y_new = y + h sum b_i k_i, with J = f_y and f_t at the start of the step.

    `alpha` and `gamma_lower` hold the rows of strict lower triangles, the empty first row included; c and d are the row
    sums of alpha and of gamma with its diagonal.

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain.
    gamma : float
        The diagonal entry.
    alpha : tuple
        Rows of the arguments of f.
    gamma_lower : tuple
        Rows of the products with J.
    b : tuple of float
        Weights.
    reference : str
        The source of the coefficients.
    embedded : tuple of Embedded, optional
        The embedded result for the error estimate.
    by_axes : bool, optional
        On equations on grids, replace I - h gamma J by the product of I - h gamma J_k, with the part J_k of J along
        each axis, and evaluate f in the middle of the step instead of df/dt.  One stage with gamma = 1/2 keeps its
        order; other problems have one axis.

    Examples
    --------
    >>> import stepnet as sn
    >>> linear = sn.schemes.Rosenbrock("linear_euler", 1, 1.0, ((),), ((),), (1.0,), "Rosenbrock (1963)")
    >>> sn.schemes.conditions.is_l_stable(linear)
    True
    """

    name: str
    order: int
    gamma: float
    alpha: tuple[tuple[float, ...], ...]
    gamma_lower: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    reference: str
    embedded: tuple[Embedded, ...] = ()
    by_axes: bool = False

    def __post_init__(self) -> None:
        freeze(self, by_axes=validate_flag("by_axes", self.by_axes))
        freeze(self, alpha=sequence(floats)("alpha", self.alpha), b=floats("b", self.b))
        freeze(self, gamma_lower=sequence(floats)("gamma_lower", self.gamma_lower))
        freeze(self, embedded=sequence(instance(Embedded))("embedded", self.embedded))
        s = len(self.b)
        for label, rows in (("alpha", self.alpha), ("gamma_lower", self.gamma_lower)):
            if s == 0 or [len(row) for row in rows] != list(range(s)):
                raise SchemeError(
                    f"{self.name}: `{label}` must have {s} rows with 0, 1, ... entries, because `b` has {s}; "
                    f"found rows with {[len(row) for row in rows]} entries"
                )
            require_finite(self.name, **{label: [x for row in rows for x in row]})
        require_finite(self.name, gamma=[self.gamma], b=self.b)
        if not self.gamma > 0:
            raise SchemeError(f"{self.name}: `gamma` must be positive, found {self.gamma}")
        require_order(self.name, "b", self.conditions, self.arrays.b, self.order)
        if self.by_axes and (s != 1 or self.gamma != 0.5):
            raise SchemeError(
                f"{self.name}: `by_axes` needs one stage with gamma = 1/2, because others lose their order with a "
                f"product of matrices; found {s} stages and gamma = {self.gamma}"
            )
        if len(self.embedded) > 1:
            raise SchemeError(f"{self.name}: at most one embedded result is supported, found {len(self.embedded)}")
        for hat in self.embedded:
            require_finite(self.name, embedded=hat.b)
            if len(hat.b) != s:
                raise SchemeError(f"{self.name}: embedded `b` must have {s} entries, found {len(hat.b)}")
            if hat.b == self.b:
                raise SchemeError(f"{self.name}: embedded `b` repeats `b`, so it would estimate every error as 0")
            require_order(self.name, "embedded b", self.conditions, np.array(hat.b), hat.order)

    def __hash__(self) -> int:
        return hash((self.name, self.order))  # a subset of the fields: hashing all coefficients is slow

    @cached_property
    def arrays(self) -> RosenbrockArrays:
        """The coefficients as arrays."""
        s = len(self.b)
        alpha, gamma = np.zeros((s, s)), self.gamma * np.eye(s)
        for i in range(s):
            alpha[i, :i], gamma[i, :i] = self.alpha[i], self.gamma_lower[i]
        table = butcher(alpha, np.array(self.b, float))
        d = gamma.sum(axis=1)
        gamma.flags.writeable = d.flags.writeable = False
        return RosenbrockArrays(table.A, gamma, table.b, table.c, d)

    @cached_property
    def conditions(self) -> Conditions:
        """Its order conditions: a vertex with one subtree has the matrix alpha + gamma, others have alpha."""
        return Conditions(self.arrays.alpha, single=self.linear.A)

    @cached_property
    def linear(self) -> Butcher:
        """The Runge-Kutta scheme that takes the same steps on linear equations, with the matrix alpha + gamma."""
        return butcher(self.arrays.alpha + self.arrays.gamma, np.array(self.b, float))

    @cached_property
    def transformed(self) -> TransformedRosenbrock:
        """Its coefficients for stages u = h gamma k, which need no products with J."""
        inverse = np.linalg.inv(self.arrays.gamma)
        hat = np.array(self.embedded[0].b if self.embedded else self.b)
        C = np.tril(-inverse, -1)
        return TransformedRosenbrock(
            np.tril(self.arrays.alpha @ inverse, -1), C, self.arrays.b @ inverse, (hat - self.arrays.b) @ inverse
        )


# On linear equations these are the steps of Crank and Nicolson along one axis, of Peaceman and Rachford with two axes
# (with both half-steps joined), and of Douglas and Gunn with three.
ADI = Rosenbrock(
    "adi", 2, 1 / 2, ((),), ((),), (1.0,),
    "Peaceman & Rachford (1955), J. SIAM 3:28; Douglas & Gunn (1964), Numer. Math. 6:428", by_axes=True,
)  # fmt: skip

# The published weights of an embedded result, (1/3, 1/3, 1/3), differ from b by a multiple of k2 - k1, which is zero on
# autonomous linear equations, and no other ones have order 2; so its steps are not chosen by an estimate.
_ROS3P_GAMMA = 1 / 2 + 3**0.5 / 6
ROS3P = Rosenbrock(
    "ros3p", 3, _ROS3P_GAMMA,
    alpha=((), (1.0,), (1.0, 0.0)),
    gamma_lower=((), (-1.0,), (-_ROS3P_GAMMA, 1 / 2 - 2 * _ROS3P_GAMMA)),
    b=(2 / 3, 0.0, 1 / 3),
    reference="Lang & Verwer (2001), BIT 41:731",
)  # fmt: skip

RODAS3 = Rosenbrock(
    "rodas3", 3, 1 / 2,
    alpha=((), (0.0,), (1.0, 0.0), (3 / 4, -1 / 4, 1 / 2)),
    gamma_lower=((), (1.0,), (-1 / 4, -1 / 4), (1 / 12, 1 / 12, -2 / 3)),
    b=(5 / 6, -1 / 6, -1 / 6, 1 / 2),
    reference="Sandu et al. (1997), Atmos. Environ. 31:3459",
    embedded=(Embedded((3 / 4, -1 / 4, 1 / 2, 0.0), 2),),
)  # fmt: skip

# The printed sixteen digits of the transformed coefficients, refined by Newton's method (with the smallest change) on
# the order conditions of both results; converted to alpha and gamma with forty digits.  So for RODAS5P.
RODAS4 = Rosenbrock(
    "rodas4", 4, 1 / 4,
    alpha=(
        (),
        (0.386,),
        (0.14607470752541798895, 0.06392529247458203896),
        (-0.33081150366773018595, 0.71115102516828476529, 0.24966047849944543392),
        (-4.5525571863180312996, 1.710181363241331745, 4.0143473321031733255, -0.17197150902647377091),
        (2.4286337654669858295, -0.38274873376478439464, -1.8557203309295773775, 0.55983529922737594266, 1 / 4),
    ),
    gamma_lower=(
        (),
        (-0.3543,),
        (-0.1336025052681755592, -0.01289749473182446789),
        (1.5268491730064670707, -0.53365628875045729808, -1.2793928842560098409),
        (6.9811909517850171291, -2.0929300970061161397, -5.870067663032750703, 0.73180680825384971357),
        (
            -2.0801894941809329659, 0.59576235567668224059, 1.7016177982672589131, -0.088514519835879825852,
            -0.37867613992712836193,
        ),
    ),
    b=(
        0.3484442712860528636, 0.21301362191189784595, -0.15410253266231846442, 0.47132077939149611681,
        -0.12867613992712836193, 1 / 4,
    ),
    reference="Hairer & Wanner (1996), Solving Ordinary Differential Equations II, IV.7 and the code RODAS",
    embedded=(
        Embedded((
            2.4286337654669858295, -0.38274873376478439464, -1.8557203309295773775, 0.55983529922737594266, 1 / 4, 0.0,
        ), 3),
    ),
)  # fmt: skip

_RODAS5P_LAST = (
    -0.0034872501992537735524, -0.12996697120564904971, 1.5259417608062676112, 1.1496140949123893944,
    -0.70433571158824247188, -1.0497034859198018505, 0.21193756319429014,
)  # fmt: skip
RODAS5P = Rosenbrock(
    "rodas5p", 5, 0.21193756319429014,
    alpha=(
        (),
        (0.6358126895828661122,),
        (0.31242290829798594796, 0.097156931041766412598),
        (1.3140825753299154652, 1.8583084874258068849, -2.195460390249651426),
        (0.42153145792834217127, 0.25386966273007707674, -0.23655479053260057211, -0.010005969169957980574),
        (
            1.7120280621215167926, 2.4456320333808039065, -3.1172548398275924261, -0.046805382663105542561,
            0.006400126988377269657,
        ),
        (
            -0.99930302157388693264, -1.5559156221685981867, 3.1251564324841784152, 0.24141811637172373865,
            -0.023293468307707174497, 0.21193756319429014,
        ),
        _RODAS5P_LAST,
    ),
    gamma_lower=(
        (),
        (-0.63581268958286793483,),
        (-0.42194991444764370472, -0.12845036137023955603),
        (0.38766328985842835098, -2.0150665034869118787, 3.2201109377224695368),
        (3.16573053300895069, 1.3574038770338268855, -2.1414486119160527388, -0.26779772155593787201),
        (
            -2.7113310836954037252, -4.0015476555494020932, 6.2424112723117708413, 0.28822349903482928121,
            -0.029693595296084444154,
        ),
        (
            0.99581577137463315909, 1.425948650962949137, -1.599214671677910804, 0.90819597854066565574,
            -0.68104224328053529738, -1.2616410491140919905,
        ),
        (
            0.12584733011228214199, 0.18020585308984761972, -0.20210253993992244618, 0.11477428094986517935,
            -0.086067473998957692321, 0.081610210500349560297, -0.42620522390775450286,
        ),
    ),
    b=(
        0.12236007991302836844, 0.050238881884198570006, 1.3238392208663451651, 1.2643883758622545737,
        -0.7904031855872001642, -0.96809327541945229019, -0.21426766071346436286, 0.21193756319429014,
    ),
    reference="Steinebach (2023), BIT 63:27",
    embedded=(Embedded((*_RODAS5P_LAST, 0.0), 4),),
)  # fmt: skip
