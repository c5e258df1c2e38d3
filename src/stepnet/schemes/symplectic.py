"""Splitting schemes for separable Hamiltonian systems q' = f(p), p' = g(q) and for sums of two flows."""

from __future__ import annotations

from stepnet.schemes.splitting import Splitting

DE_VOGELAERE = "de Vogelaere (1956), Univ. Notre Dame, Dept. Math. Report 4"
MCLACHLAN_ATELA = "McLachlan & Atela (1992), Nonlinearity 5:541"
YOSHIDA = "Yoshida (1990), Phys. Lett. A 150:262"
BLANES_MOAN = "Blanes & Moan (2002), J. Comput. Appl. Math. 142:313"


def _kick_first(gammas: tuple[float, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Coefficients of kick-drift-kick steps of sizes gamma_1 h, ..., gamma_m h, adjacent kicks merged."""
    return (0.0, *gammas), _join_halves(gammas)


def _drift_first(gammas: tuple[float, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Coefficients of drift-kick-drift steps of sizes gamma_1 h, ..., gamma_m h, adjacent drifts merged."""
    return _join_halves(gammas), (*gammas, 0.0)


def _join_halves(gammas: tuple[float, ...]) -> tuple[float, ...]:
    return tuple((left + right) / 2 for left, right in zip((0.0, *gammas), (*gammas, 0.0), strict=True))


def _odd_palindrome(*outer: float) -> tuple[float, ...]:
    """x_1, ..., x_m, y, x_m, ..., x_1 with the y that makes the sum 1."""
    return (*outer, 1 - 2 * sum(outer), *outer[::-1])


def _even_palindrome(*outer: float) -> tuple[float, ...]:
    """x_1, ..., x_m, y, y, x_m, ..., x_1 with the y that makes the sum 1."""
    middle = 1 / 2 - sum(outer)
    return (*outer, middle, middle, *outer[::-1])


SYMPLECTIC_EULER_DRIFT = Splitting("symplectic_euler_drift", 1, (1.0,), (1.0,), DE_VOGELAERE)
SYMPLECTIC_EULER_KICK = Splitting("symplectic_euler_kick", 1, (0.0, 1.0), (1.0, 0.0), DE_VOGELAERE)
LIE = Splitting("lie", 1, (1.0,), (1.0,), "Trotter (1959), Proc. Amer. Math. Soc. 10:545")
STRANG = Splitting("strang", 2, (1 / 2, 1 / 2), (1.0, 0.0), "Strang (1968), SIAM J. Numer. Anal. 5:506")

VERLET = Splitting("verlet", 2, (0.0, 1.0), (1 / 2, 1 / 2), "Verlet (1967), Phys. Rev. 159:98")
VERLET_POSITION = Splitting(
    "verlet_position", 2, (1 / 2, 1 / 2), (1.0, 0.0),
    reference="Tuckerman, Berne & Martyna (1992), J. Chem. Phys. 97:1990",
)  # fmt: skip
LEAPFROG = Splitting("leapfrog", 2, (0.0, 1.0), (1 / 2, 1 / 2), "Hockney (1970), Methods Comput. Phys. 9:136")

RUTH3 = Splitting(
    "ruth3", 3,
    a=(0.0, 2 / 3, -2 / 3, 1.0),
    b=(7 / 24, 3 / 4, -1 / 24, 0.0),
    reference="Ruth (1983), IEEE Trans. Nucl. Sci. 30:2669",
)  # fmt: skip

MCLACHLAN2 = Splitting(
    "mclachlan2", 2,
    a=(0.0, 2**-0.5, 1 - 2**-0.5),
    b=(1 - 2**-0.5, 2**-0.5, 0.0),
    reference=MCLACHLAN_ATELA,
)  # fmt: skip

# Digits refined from the published ones by Newton's method on the order conditions.
MCLACHLAN3 = Splitting(
    "mclachlan3", 3,
    a=(0.0, 0.9196615230173998570509, -0.1879916187991597820079, 0.2683300957817599249570),
    b=(0.2683300957817599249570, -0.1879916187991597820079, 0.9196615230173998570509, 0.0),
    reference=MCLACHLAN_ATELA,
)  # fmt: skip

MCLACHLAN4 = Splitting(
    "mclachlan4", 4,
    a=(0.0, 0.515352837431122936, -0.085782019412973646, 0.441583023616466524, 0.128846158365384185),
    b=(0.134496199277431089, -0.224819803079420806, 0.756320000515668291, 0.334003603286321425, 0.0),
    reference=MCLACHLAN_ATELA,
    nystrom=True,
)  # fmt: skip

MCLACHLAN5 = Splitting(
    "mclachlan5", 5,
    a=(
        0.0, 0.339839625839110000, -0.088601336903027329, 0.5858564768259621188, -0.603039356536491888,
        0.3235807965546976394, 0.4423637942197494587,
    ),
    b=(
        0.1193900292875672758, 0.6989273703824752308, -0.1713123582716007754, 0.4012695022513534480,
        0.0107050818482359840, -0.0589796254980311632, 0.0,
    ),
    reference=MCLACHLAN_ATELA,
    nystrom=True,
)  # fmt: skip

YOSHIDA4 = Splitting("yoshida4", 4, *_kick_first(_odd_palindrome(1 / (2 - 2 ** (1 / 3)))), reference=YOSHIDA)
FOREST_RUTH = Splitting(
    "forest_ruth", 4, *_drift_first(_odd_palindrome(1 / (2 - 2 ** (1 / 3)))),
    reference="Forest & Ruth (1990), Physica D 43:105",
)  # fmt: skip
SUZUKI4 = Splitting(
    "suzuki4", 4, *_kick_first(_odd_palindrome(1 / (4 - 4 ** (1 / 3)), 1 / (4 - 4 ** (1 / 3)))),
    reference="Suzuki (1990), Phys. Lett. A 146:319",
)  # fmt: skip

# Solutions A (order 6) and D (order 8), digits refined from the published ones by Newton's method on the order
# conditions.
YOSHIDA6 = Splitting(
    "yoshida6", 6,
    *_kick_first(_odd_palindrome(0.784513610477557263819498, 0.235573213359358133684793, -1.17767998417887100694642)),
    reference=YOSHIDA,
)  # fmt: skip
YOSHIDA8 = Splitting(
    "yoshida8", 8,
    *_kick_first(_odd_palindrome(
        0.914844246229791566748793, 0.253693336566211354146146, -1.44485223686060515769473, -0.158240635368050175204067,
        1.93813913762252598657919, -1.96061023297531080760763, 0.102799849391796440698115,
    )),
    reference=YOSHIDA,
)  # fmt: skip

# S6, S10, SRKN6b and SRKN14a of the paper; SRKN6b keeps its order for any A, but its error is tuned for a linear one.
BLANES_MOAN4 = Splitting(
    "blanes_moan4", 4,
    a=_odd_palindrome(0.0792036964311957, 0.353172906049774, -0.0420650803577195),
    b=(*_even_palindrome(0.209515106613362, -0.143851773179818), 0.0),
    reference=BLANES_MOAN,
)  # fmt: skip
BLANES_MOAN6 = Splitting(
    "blanes_moan6", 6,
    a=_odd_palindrome(0.0502627644003922, 0.413514300428344, 0.0450798897943977, -0.188054853819569, 0.541960678450780),
    b=(*_even_palindrome(0.148816447901042, -0.132385865767784, 0.067307604692185, 0.432666402578175), 0.0),
    reference=BLANES_MOAN,
)  # fmt: skip
BLANES_MOAN_NYSTROM4 = Splitting(
    "blanes_moan_nystrom4", 4,
    a=(0.0, *_even_palindrome(0.245298957184271, 0.604872665711080)),
    b=_odd_palindrome(0.0829844064174052, 0.396309801498368, -0.0390563049223486),
    reference=BLANES_MOAN,
)  # fmt: skip
BLANES_MOAN_NYSTROM6 = Splitting(
    "blanes_moan_nystrom6", 6,
    a=_odd_palindrome(
        0.0378593198406116, 0.102635633102435, -0.0258678882665587, 0.314241403071447, -0.130144459517415,
        0.106417700369543, -0.00879424312851058,
    ),
    b=(*_even_palindrome(
        0.09171915262446165, 0.183983170005006, -0.05653436583288827, 0.004914688774712854, 0.143761127168358,
        0.328567693746804,
    ), 0.0),
    reference=BLANES_MOAN,
    nystrom=True,
)  # fmt: skip
