"""Convergence studies find the orders of schemes; work-precision tables count what a solve costs."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

import stepnet as sn
from stepnet.stability import convergence_study, work_precision

ORDER = 0.15  # of observed orders, as in the tests of the catalogue
SWING = sn.ODE(lambda t, y: [y[1], -np.sin(y[0]) + 0.1 * np.cos(t)], [1.0, 0.2], (0.0, 2.0))
PENDULUM = sn.SecondOrder(lambda t, q: -np.sin(q), [1.0], [0.2], (0.0, 2.0))


def test_observed_orders_are_those_of_the_schemes():
    found = convergence_study(SWING, ["euler", "heun2", "kutta3", "rk4", "dopri5"], steps=(40, 80, 160))
    assert [row.scheme for row in found.rows] == ["euler", "heun2", "kutta3", "rk4", "dopri5"]
    for row in found.rows:
        assert row.observed_order == pytest.approx(row.order, abs=ORDER)
        assert list(row.errors) == sorted(row.errors, reverse=True)


def test_splitting_schemes_and_a_known_solution():
    exact = np.cos(3.0) + 0.5 * np.sin(3.0), -np.sin(3.0) + 0.5 * np.cos(3.0)
    line = sn.SecondOrder(lambda t, q: -q, [1.0], [0.5], (0.0, 3.0))
    for given in (None, exact):
        found = convergence_study(line, "verlet", steps=(100, 200), exact=given)
        assert found.rows[0].observed_order == pytest.approx(2, abs=ORDER)
    assert convergence_study(PENDULUM, "yoshida4", steps=(50, 100)).rows[0].observed_order == pytest.approx(
        4, abs=ORDER
    )


def test_errors_of_rounding_show_no_order():
    found = convergence_study(SWING, "dop853", steps=(100, 1000, 2000))
    assert np.isnan(found.rows[0].observed_orders[-1])


def test_tables_and_csv_hold_the_same_numbers():
    found = convergence_study(SWING, ["euler", "rk4"], steps=(20, 40))
    rows = list(csv.DictReader(io.StringIO(found.as_csv())))
    assert [(r["scheme"], int(r["steps"]), float(r["error"])) for r in rows] == [
        (name, n, error) for name, n, _, error, _ in found.table()
    ]
    assert rows[0]["order"] == ""
    assert float(rows[1]["order"]) == found.rows[0].observed_order
    assert len(str(found).splitlines()) == 5


def test_work_counts_evaluations_and_precision_follows_tolerances():
    found = work_precision(SWING, ["dopri5", "rk4"], tolerances=(1e-4, 1e-6, 1e-8), steps=(20, 40, 80), repeats=1)
    pair, fixed = found.rows
    assert fixed.evaluations == (80, 160, 320)
    for row in found.rows:
        assert list(row.errors) == sorted(row.errors, reverse=True)
        assert list(row.evaluations) == sorted(row.evaluations)
        assert min(row.seconds) > 0
    assert pair.errors[-1] < 1e-7
    assert len(list(csv.reader(io.StringIO(found.as_csv())))) == 7
    assert len(str(found).splitlines()) == 7


def test_a_run_that_fails_has_an_infinite_error():
    stiff = sn.ODE(lambda t, y: -1e6 * (y - np.cos(t)) ** 3, [2.0], (0.0, 1.0))
    found = convergence_study(stiff, "rk4", steps=(5, 10), exact=[np.cos(1.0)])
    assert found.rows[0].errors == (np.inf, np.inf)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": (20, 10)}, "`steps` must be increasing"), ({"steps": ()}, "`steps` must hold at least 1"),
        ({"exact": [1.0]}, "`exact` must be 2 finite numbers"), ({"schemes": ["rk4", 3]}, r"`schemes\[1\]` must be a"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        convergence_study(SWING, **{"schemes": "rk4", **options})


def test_orders_near_the_accuracy_of_the_reference_are_not_shown():
    """dop853 has the error of the reference with any of these steps."""
    (row,) = convergence_study(SWING, "dop853", steps=(40, 80, 160)).rows
    assert np.isnan(row.observed_order)
    assert max(row.errors) < row.floor < 1e-11


def test_complex_states_keep_their_imaginary_parts():
    rotation = sn.ODE(lambda t, y: 1j * y, np.array([1.0 + 0.0j]), (0.0, 2.0))
    for exact in (None, [np.exp(2j)]):
        assert convergence_study(rotation, "rk4", exact=exact).rows[0].observed_order == pytest.approx(4, abs=ORDER)


def test_problems_with_flows_need_their_solution():
    grid = sn.operators.Grid(32, -8.0, 8.0)
    (x,) = grid.coordinates
    ground = np.exp(-(x**2) / 2)
    problem = sn.equations.schroedinger(grid, ground, (0.0, 1.0), x**2 / 2)
    found = convergence_study(problem, "strang", steps=(20, 40), exact=np.exp(-0.5j) * ground)
    assert found.rows[0].observed_order == pytest.approx(2, abs=ORDER)
    with pytest.raises(TypeError, match="its `parts` hold a `Flow`"):
        convergence_study(problem, "strang")
