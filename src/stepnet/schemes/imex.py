"""Additive (IMEX) Runge-Kutta schemes: one part of the right-hand side explicit, the other implicit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepnet.errors import SchemeError
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.order import HIGHEST, TOLERANCE, additive_defect
from stepnet.schemes.tableau import AN_ORDER, Butcher, Embedded, butcher, floats, freeze, require_finite
from stepnet.validation import check, instance, sequence, text

ASCHER = "Ascher, Ruuth & Spiteri (1997), Appl. Numer. Math. 25:151"
KENNEDY = "Kennedy & Carpenter (2003), Appl. Numer. Math. 44:139"
Rows = tuple[tuple[float, ...], ...]


@check(name=text, order=AN_ORDER)
@dataclass(frozen=True)
class AdditiveRK:
    """Y_i = y + h sum_{j<i} a^_ij f1(t + c_j h, Y_j) + h sum_{j<=i} a_ij f2(t + c_j h, Y_j),
    y_new = y + h sum b^_i f1(t + c_i h, Y_i) + h sum b_i f2(t + c_i h, Y_i)

    for y' = f1 + f2; an equation without parts is integrated by the implicit tableau alone.

    `explicit` holds the rows of the strict lower triangle of a^, the empty first row included; `implicit` the rows of
    the lower triangle of a, its diagonal included.  Both have the same row sums c, and the first stage is the state at
    the start of the step.

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain, conditions that couple both tableaux included.
    explicit : tuple
        Rows of the explicit tableau.
    implicit : tuple
        Rows of the implicit tableau.
    b_explicit : tuple of float
        Weights of the explicit part.
    b : tuple of float
        Weights of the implicit part.
    reference : str
        The source of the coefficients.
    embedded : tuple of Embedded, optional
        Embedded results of both parts, the explicit one first.

    Examples
    --------
    >>> import stepnet as sn
    >>> euler = sn.schemes.AdditiveRK(
    ...     "imex_euler", 1, ((), (1.0,)), ((0.0,), (0.0, 1.0)), (1.0, 0.0), (0.0, 1.0), "Crouzeix (1980)")
    >>> sn.schemes.conditions.order(euler)
    1
    """

    name: str
    order: int
    explicit: Rows
    implicit: Rows
    b_explicit: tuple[float, ...]
    b: tuple[float, ...]
    reference: str
    embedded: tuple[Embedded, ...] = ()

    def __post_init__(self) -> None:
        freeze(self, explicit=sequence(floats)("explicit", self.explicit))
        freeze(self, implicit=sequence(floats)("implicit", self.implicit))
        freeze(self, b=floats("b", self.b), b_explicit=floats("b_explicit", self.b_explicit))
        freeze(self, embedded=sequence(instance(Embedded))("embedded", self.embedded))
        s = len(self.b)
        for label, rows, first in (("explicit", self.explicit, 0), ("implicit", self.implicit, 1)):
            if s == 0 or [len(row) for row in rows] != list(range(first, s + first)):
                raise SchemeError(
                    f"{self.name}: `{label}` must have {s} rows with {first}, {first + 1}, ... entries, because `b` "
                    f"has {s}; found rows with {[len(row) for row in rows]} entries"
                )
            require_finite(self.name, **{label: [x for row in rows for x in row]})
        require_finite(self.name, b=self.b, b_explicit=self.b_explicit)
        if len(self.b_explicit) != s:
            raise SchemeError(f"{self.name}: `b_explicit` must have {s} entries, found {len(self.b_explicit)}")
        if self.implicit[0][0] != 0.0:
            raise SchemeError(
                f"{self.name}: the first row of `implicit` must be 0, because the first stage is the state at the "
                f"start of the step; found {self.implicit[0][0]}"
            )
        _require_nodes(self)
        _require_coupled_order(self.name, "b", self.coupled, self.order)
        _require_embedded(self)

    def __hash__(self) -> int:
        return hash((self.name, self.order))  # a subset of the fields: hashing all coefficients is slow

    @cached_property
    def explicit_table(self) -> Butcher:
        """The explicit tableau as arrays."""
        return butcher(_fill(self.explicit), np.array(self.b_explicit, float))

    @cached_property
    def implicit_table(self) -> Butcher:
        """The implicit tableau as arrays."""
        return butcher(_fill(self.implicit), np.array(self.b, float))

    @cached_property
    def implicit_scheme(self) -> ImplicitRK:
        """The implicit tableau, for equations without an explicit part."""
        rows = tuple(map(tuple, self.implicit_table.A.tolist()))
        return ImplicitRK(self.name, self.order, rows, self.b, self.reference, self.embedded[1:])

    @property
    def coupled(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Matrices and weights of both parts, for the order conditions."""
        tables = (self.explicit_table, self.implicit_table)
        return [table.A for table in tables], [table.b for table in tables]


def _fill(rows: Rows) -> np.ndarray:
    A = np.zeros((len(rows), len(rows)))
    for i, row in enumerate(rows):
        A[i, : len(row)] = row
    return A


def _require_nodes(scheme: AdditiveRK) -> None:
    found, wanted = scheme.explicit_table.c, scheme.implicit_table.c
    sizes = np.maximum(np.abs(scheme.explicit_table.A).sum(axis=1), 1.0)
    for i, gap in enumerate(np.abs(found - wanted) / sizes):
        if not gap <= TOLERANCE:
            raise SchemeError(
                f"{scheme.name}: rows {i} of `explicit` and `implicit` must have equal sums, found {found[i]} and "
                f"{wanted[i]}"
            )


def _require_coupled_order(
    name: str, label: str, coupled: tuple[list[np.ndarray], list[np.ndarray]], order: int
) -> None:
    """Refuse weights that violate a condition of a tree whose vertices belong to either part."""
    if order < 1:
        raise SchemeError(f"{name}: the order of `{label}` must be at least 1, found {order}")
    if order > HIGHEST:
        raise SchemeError(f"{name}: orders are checked up to {HIGHEST}, so `{label}` cannot promise {order}")
    for p in range(1, order + 1):
        defect = additive_defect(*coupled, p)
        if not defect <= TOLERANCE:
            raise SchemeError(
                f"{name}: `{label}` promises order {order}, but a condition of order {p} is missed by {defect:.1e} "
                f"(relative; up to {TOLERANCE:.0e} is rounding)"
            )


def _require_embedded(scheme: AdditiveRK) -> None:
    if len(scheme.embedded) not in (0, 2):
        raise SchemeError(
            f"{scheme.name}: `embedded` must hold the results of both parts, found {len(scheme.embedded)}"
        )
    if not scheme.embedded:
        return
    for hat in scheme.embedded:
        require_finite(scheme.name, embedded=hat.b)
        if len(hat.b) != len(scheme.b):
            raise SchemeError(f"{scheme.name}: embedded `b` must have {len(scheme.b)} entries, found {len(hat.b)}")
    if (scheme.embedded[0].b, scheme.embedded[1].b) == (scheme.b_explicit, scheme.b):
        raise SchemeError(f"{scheme.name}: embedded `b` repeats `b`, so it would estimate every error as 0")
    hats = [np.array(hat.b) for hat in scheme.embedded]
    _require_coupled_order(
        scheme.name, "embedded b", (scheme.coupled[0], hats), max(hat.order for hat in scheme.embedded)
    )


# ---- Ascher, Ruuth & Spiteri ----------------------------------------------------------------------------------------

IMEX_EULER = AdditiveRK(
    "imex_euler", 1, ((), (1.0,)), ((0.0,), (0.0, 1.0)), (1.0, 0.0), (0.0, 1.0), f"{ASCHER}; there (1,1,1)"
)


def _ars222() -> AdditiveRK:
    g = 1 - 0.5**0.5
    d = 1 - 1 / (2 * g)
    return AdditiveRK(
        "ars222", 2,
        explicit=((), (g,), (d, 1 - d)),
        implicit=((0.0,), (0.0, g), (0.0, 1 - g, g)),
        b_explicit=(d, 1 - d, 0.0),
        b=(0.0, 1 - g, g),
        reference=ASCHER,
    )  # fmt: skip


def _ars343() -> AdditiveRK:
    """gamma is a root of 6 g^3 - 18 g^2 + 9 g - 1; the free a_42 = a_43 are the printed ones, the rest follows."""
    g, free = 0.4358665215084589994, 0.5529291479
    b2, b3 = -1.5 * g**2 + 4 * g - 0.25, 1.5 * g**2 - 5 * g + 1.25
    c3 = (1 + g) / 2
    a32 = (1 / 6 - g * free * (g + c3)) / (b3 * g)
    return AdditiveRK(
        "ars343", 3,
        explicit=((), (g,), (c3 - a32, a32), (1 - 2 * free, free, free)),
        implicit=((0.0,), (0.0, g), (0.0, (1 - g) / 2, g), (0.0, b2, b3, g)),
        b_explicit=(0.0, b2, b3, g),
        b=(0.0, b2, b3, g),
        reference=ASCHER,
    )  # fmt: skip


ARS222 = _ars222()
ARS343 = _ars343()
ARS443 = AdditiveRK(
    "ars443", 3,
    explicit=((), (1 / 2,), (11 / 18, 1 / 18), (5 / 6, -5 / 6, 1 / 2), (1 / 4, 7 / 4, 3 / 4, -7 / 4)),
    implicit=(
        (0.0,), (0.0, 1 / 2), (0.0, 1 / 6, 1 / 2), (0.0, -1 / 2, 1 / 2, 1 / 2), (0.0, 3 / 2, -3 / 2, 1 / 2, 1 / 2),
    ),
    b_explicit=(1 / 4, 7 / 4, 3 / 4, -7 / 4, 0.0),
    b=(0.0, 3 / 2, -3 / 2, 1 / 2, 1 / 2),
    reference=ASCHER,
)  # fmt: skip


# ---- Kennedy & Carpenter --------------------------------------------------------------------------------------------


def _pair(
    name: str, order: int, gamma: float, explicit: Rows, implicit: Rows, b: tuple[float, ...], hat: tuple[float, ...]
) -> AdditiveRK:
    """Both parts have the same weights; the rows of `implicit` are those between the first and the last stage."""
    full = ((0.0,), *((*row, gamma) for row in implicit), (*b[:-1], gamma))
    estimate = Embedded(hat, order - 1)
    return AdditiveRK(name, order, explicit, full, b, b, KENNEDY, (estimate, estimate))


_G3 = 1767732205903 / 4055673282236
KENCARP3 = _pair(
    "kencarp3", 3, _G3,
    explicit=(
        (),
        (1767732205903 / 2027836641118,),
        (5535828885825 / 10492691773637, 788022342437 / 10882634858940),
        (6485989280629 / 16251701735622, -4246266847089 / 9704473918619, 10755448449292 / 10357097424841),
    ),
    implicit=((_G3,), (2746238789719 / 10658868560708, -640167445237 / 6845629431997)),
    b=(1471266399579 / 7840856788654, -4482444167858 / 7529755066697, 11266239266428 / 11593286722821, _G3),
    hat=(
        2756255671327 / 12835298489170, -10771552573575 / 22201958757719, 9247589265047 / 10645013368117,
        2193209047091 / 5459859503100,
    ),
)  # fmt: skip

KENCARP4 = _pair(
    "kencarp4", 4, 1 / 4,
    explicit=(
        (),
        (1 / 2,),
        (13861 / 62500, 6889 / 62500),
        (-116923316275 / 2393684061468, -2731218467317 / 15368042101831, 9408046702089 / 11113171139209),
        (
            -451086348788 / 2902428689909, -2682348792572 / 7519795681897, 12662868775082 / 11960479115383,
            3355817975965 / 11060851509271,
        ),
        (
            647845179188 / 3216320057751, 73281519250 / 8382639484533, 552539513391 / 3454668386233,
            3354512671639 / 8306763924573, 4040 / 17871,
        ),
    ),
    implicit=(
        (1 / 4,),
        (8611 / 62500, -1743 / 31250),
        (5012029 / 34652500, -654441 / 2922500, 174375 / 388108),
        (15267082809 / 155376265600, -71443401 / 120774400, 730878875 / 902184768, 2285395 / 8070912),
    ),
    b=(82889 / 524892, 0.0, 15625 / 83664, 69875 / 102672, -2260 / 8211, 1 / 4),
    hat=(
        4586570599 / 29645900160, 0.0, 178811875 / 945068544, 814220225 / 1159782912, -3700637 / 11593932,
        61727 / 225920,
    ),
)  # fmt: skip

KENCARP5 = _pair(
    "kencarp5", 5, 41 / 200,
    explicit=(
        (),
        (41 / 100,),
        (367902744464 / 2072280473677, 677623207551 / 8224143866563),
        (1268023523408 / 10340822734521, 0.0, 1029933939417 / 13636558850479),
        (14463281900351 / 6315353703477, 0.0, 66114435211212 / 5879490589093, -54053170152839 / 4284798021562),
        (
            14090043504691 / 34967701212078, 0.0, 15191511035443 / 11219624916014, -18461159152457 / 12425892160975,
            -281667163811 / 9011619295870,
        ),
        (
            19230459214898 / 13134317526959, 0.0, 21275331358303 / 2942455364971, -38145345988419 / 4862620318723,
            -1 / 8, -1 / 8,
        ),
        (
            -19977161125411 / 11928030595625, 0.0, -40795976796054 / 6384907823539, 177454434618887 / 12078138498510,
            782672205425 / 8267701900261, -69563011059811 / 9646580694205, 7356628210526 / 4942186776405,
        ),
    ),
    implicit=(
        (41 / 200,),
        (41 / 400, -567603406766 / 11931857230679),
        (683785636431 / 9252920307686, 0.0, -110385047103 / 1367015193373),
        (3016520224154 / 10081342136671, 0.0, 30586259806659 / 12414158314087, -22760509404356 / 11113319521817),
        (
            218866479029 / 1489978393911, 0.0, 638256894668 / 5436446318841, -1179710474555 / 5321154724896,
            -60928119172 / 8023461067671,
        ),
        (
            1020004230633 / 5715676835656, 0.0, 25762820946817 / 25263940353407, -2161375909145 / 9755907335909,
            -211217309593 / 5846859502534, -4269925059573 / 7827059040749,
        ),
    ),
    b=(
        -872700587467 / 9133579230613, 0.0, 0.0, 22348218063261 / 9555858737531, -1143369518992 / 8141816002931,
        -39379526789629 / 19018526304540, 32727382324388 / 42900044865799, 41 / 200,
    ),
    hat=(
        -975461918565 / 9796059967033, 0.0, 0.0, 78070527104295 / 32432590147079, -548382580838 / 3424219808633,
        -33438840321285 / 15594753105479, 3629800801594 / 4656183773603, 4035322873751 / 18575991585200,
    ),
)  # fmt: skip
