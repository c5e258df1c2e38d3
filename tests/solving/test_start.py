"""Stepping by hand equals `solve` bit for bit, and continues from disk without a difference."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from scheme_names import FIXED_STEPS

import stepnet as sn

PATIENCE = 120  # seconds for one small run in a process of its own


# ---- one run of every family -----------------------------------------------------------------------------------------


def slopes(t, y, k):
    return [y[1] - 0.1 * y[0], -k * np.sin(y[0]) + 0.3 * np.cos(t)]


def drift(t, p, k):
    return p + 0.1 * np.sin(t)


def kick(t, q, k):
    return -k * np.sin(q)


def first_part(t, y, k):
    return [y[1], 0.0]


def second_part(t, y, k):
    return [0.0, -k * np.sin(y[0]) + np.cos(t)]


SPAN, ARGS = (0.0, 3.0), (1.3,)
ODE = sn.ODE(slopes, [0.5, -0.2], SPAN, ARGS)
PROBLEMS = {
    "ODE": ODE,
    "backward": replace(ODE, t_span=(3.0, 0.0)),
    "complex": sn.ODE(lambda t, y: [1j * y[0] - 0.1 * y[1], 0.5 * y[0] + np.cos(t)], [1.0 + 0.5j, 0.2j], SPAN),
    "single": sn.ODE(slopes, np.array([0.5, -0.2], np.float32), SPAN, ARGS),
    "matrix": sn.ODE(lambda t, y: np.cos(t) - y @ y, [[0.1, 0.2], [0.3, 0.1]], SPAN),
    "Partitioned": sn.Partitioned(drift, kick, [0.5, 0.1], [-0.2, 0.3], SPAN, ARGS),
    "SecondOrder": sn.SecondOrder(kick, [0.5, 0.1], [-0.2, 0.3], SPAN, ARGS),
    "semilinear": sn.Split((first_part, sn.Linear([[-0.1, 0.2], [0.3, -0.5]])), [0.5, -0.2], SPAN, ARGS),
    "Split": sn.Split((first_part, second_part), [0.5, -0.2], SPAN, ARGS),
}


@dataclass(frozen=True, eq=False)
class Family:
    """A scheme, a problem, and how to step."""

    problem_name: str
    scheme: str
    how: dict = field(default_factory=lambda: {"steps": 24})

    @property
    def problem(self):
        return PROBLEMS[self.problem_name]

    def __str__(self) -> str:
        how = "adaptive" if "steps" not in self.how else "given" if np.ndim(self.how["steps"]) else "even"
        return f"{self.scheme} {how} {self.problem_name}"

    def start(self, **how) -> sn.Integrator:
        return sn.start(self.problem, self.scheme, **{**self.how, **how})

    def solve(self) -> sn.Solution:
        return sn.solve(self.problem, self.scheme, **self.how)


GRID = {"steps": [0.0, 0.1, 0.25, 1.0, 1.75, 2.5, 3.0]}
FAMILIES = [
    Family("ODE", "rk4"),
    Family("ODE", "dopri5"),
    Family("ODE", "verner98"),
    Family("ODE", "rk38", GRID),
    Family("backward", "rk4"),
    Family("complex", "rk4"),
    Family("single", "rk4"),
    Family("matrix", "heun3"),
    Family("ODE", "williamson3"),
    Family("ODE", "carpenter_kennedy54", GRID),
    Family("ODE", "rkc2"),
    Family("ODE", "rkl1", GRID),
    Family("Partitioned", "verlet"),
    Family("Partitioned", "ruth3", GRID),
    Family("SecondOrder", "leapfrog"),
    Family("SecondOrder", "blanes_moan_nystrom4"),
    Family("Split", "strang"),
    Family("Split", "yoshida4", GRID),
    Family("Partitioned", "rk4"),
    Family("Split", "rk4"),
    Family("ODE", "ab2"),
    Family("ODE", "ab5"),
    Family("ODE", "midpoint_two_step"),
    Family("ODE", "bdf3"),
    Family("Partitioned", "lobatto_iiia_iiib4"),
    Family("SecondOrder", "leapfrog_two_step"),
    Family("ODE", "dopri5", {"rtol": 1e-7, "atol": 1e-9}),
    Family("ODE", "fehlberg45", {"rtol": 1e-6}),
    Family("ODE", "dop853", {"rtol": 1e-9, "controller": "PI"}),
    Family("ODE", "bosh3", {"controller": "PID", "norm": "max"}),
    Family("ODE", "tsit5", {"first_step": 0.01, "max_step": 0.2}),
    Family("backward", "dopri5", {"rtol": 1e-7}),
    Family("complex", "dopri5", {"rtol": 1e-7}),
    Family("single", "bosh3", {"rtol": 1e-4, "atol": 1e-5}),
    Family("Partitioned", "verner65", {"rtol": 1e-8}),
    Family("SecondOrder", "dop853", {"rtol": 1e-8}),
    Family("Split", "dopri5", {"rtol": 1e-7}),
    Family("ODE", "implicit_midpoint"),
    Family("ODE", "radau5", {"rtol": 1e-7}),
    Family("ODE", "ros3p", GRID),
    Family("ODE", "rodas4", {"rtol": 1e-7}),
    Family("Split", "ars343", GRID),
    Family("Split", "kencarp4", {"rtol": 1e-7}),
    Family("Split", "sbdf3"),
    Family("semilinear", "etdrk4"),
]
ONE_OF_EACH = [
    f for f in FAMILIES if str(f) in (
        "rk4 even ODE", "carpenter_kennedy54 given ODE", "rkc2 even ODE", "verlet even Partitioned",
        "strang even Split", "ab5 even ODE", "leapfrog_two_step even SecondOrder", "dopri5 adaptive ODE",
        "dop853 adaptive ODE", "dopri5 adaptive complex", "dop853 adaptive SecondOrder",
    )
]  # fmt: skip
ADAPTIVE = [f for f in FAMILIES if "steps" not in f.how]
EVEN = [f for f in FAMILIES if np.ndim(f.how.get("steps", [])) == 0]

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
every_adaptive = pytest.mark.parametrize("family", ADAPTIVE, ids=str)
every_even = pytest.mark.parametrize("family", EVEN, ids=str)
one_of_each = pytest.mark.parametrize("family", ONE_OF_EACH, ids=str)


def states_of(solution: sn.Solution) -> np.ndarray:
    return solution.y.reshape(len(solution.t), -1)


# ---- bit for bit -----------------------------------------------------------------------------------------------------


@every_family
def test_stepping_by_hand_is_solving(family):
    solution = family.solve()
    integrator = family.start()
    begun = list(solution.t).index(integrator.t)  # multistep schemes have taken their first steps already
    assert begun == integrator.steps
    for i in range(begun, len(solution.t)):
        assert integrator.t == solution.t[i]
        np.testing.assert_array_equal(np.ravel(integrator.y), states_of(solution)[i])
        assert integrator.is_finished == (i == len(solution.t) - 1)
        if not integrator.is_finished:
            assert integrator.step() is integrator
    assert integrator.steps == solution.statistics.accepted
    assert integrator.t == family.problem.t_span[1]


@every_family
def test_running_to_the_end_is_solving(family):
    integrator = family.start().run_to(family.problem.t_span[1])
    assert integrator.is_finished
    np.testing.assert_array_equal(np.ravel(integrator.y), states_of(family.solve())[-1])


@every_family
def test_steps_then_a_run_are_the_same(family):
    integrator = family.start()
    for _ in range(2):
        integrator.step()
    integrator.run_to(family.problem.t_span[1])
    np.testing.assert_array_equal(np.ravel(integrator.y), states_of(family.solve())[-1])


def test_the_families_are_all_there():
    kinds = {type(sn.schemes.get(family.scheme)).__name__ for family in FAMILIES}
    assert kinds == {type(sn.schemes.get(name)).__name__ for name in FIXED_STEPS}


# ---- to a time -------------------------------------------------------------------------------------------------------


@every_adaptive
def test_adaptive_steps_end_exactly_at_a_wanted_time(family):
    integrator = family.start()
    for t in (0.7, 0.70001, 2.0)[:: 1 if family.problem.t_span[0] == 0 else -1]:
        integrator.run_to(t)
        assert integrator.t == t
        assert not integrator.is_finished
    integrator.run_to(family.problem.t_span[1])
    assert integrator.is_finished
    rounding = 1e-3 if family.problem_name == "single" else 1e-4
    np.testing.assert_allclose(np.ravel(integrator.y), states_of(family.solve())[-1], rtol=rounding, atol=rounding)


@every_adaptive
def test_a_stop_on_the_way_does_not_shorten_the_steps_after_it(family):
    """The step that was cut to end there says nothing about the next one."""
    integrator = family.start()
    t0, t1 = family.problem.t_span
    integrator.run_to(t0 + 0.5 * (t1 - t0))
    before = abs(integrator.h)
    integrator.run_to(integrator.t + 1e-6 * math.copysign(1.0, t1 - t0))
    assert abs(integrator.h) >= 0.5 * before


def test_running_to_where_it_stands_does_nothing():
    for family in ONE_OF_EACH:
        integrator = family.start().step()
        y, t = integrator.y, integrator.t
        integrator.run_to(t)
        assert integrator.t == t
        np.testing.assert_array_equal(integrator.y, y)


@every_even
def test_given_steps_stop_at_their_own_times(family):
    times = family.solve().t
    integrator = family.start()
    for t in times[len(times) // 2 :: 3]:
        integrator.run_to(t)
        assert integrator.t == t


@pytest.mark.parametrize(("end", "steps"), [(3.0, 10), (1.0, 10), (0.7, 7), (2.1, 21), (1.0, 49)])
def test_times_of_even_steps_are_known_by_their_decimals(end, steps):
    """0.9 is 0.3 three times to whoever writes it, though 3 * 0.3 is 0.8999999999999999."""
    integrator = sn.start(replace(ODE, t_span=(0.0, end)), "rk4", steps=steps)
    for i in range(1, steps):
        integrator.run_to(end * i / steps)
        assert integrator.steps == i


@pytest.mark.parametrize("family", [f for f in FAMILIES if "steps" in f.how], ids=str)
def test_times_between_given_steps_are_refused(family):
    integrator = family.start()
    step = (family.problem.t_span[1] - integrator.t) / 100
    with pytest.raises(ValueError, match="is not among the times of the fixed steps"):
        integrator.run_to(integrator.t + 40.123456 * step)


@one_of_each
@pytest.mark.parametrize("t", [-0.5, 3.0001, 0.0, math.nan, math.inf], ids=str)
def test_times_outside_or_behind_are_refused(family, t):
    integrator = family.start().step()
    with pytest.raises(ValueError, match=r"`t` must (lie between|be a number in)"):
        integrator.run_to(t)


# ---- looking, changing -----------------------------------------------------------------------------------------------


@every_family
def test_states_have_the_shape_and_type_of_the_problem(family):
    integrator = family.start()
    flat = family.problem.initial
    expected = family.problem.y0.shape if hasattr(family.problem, "y0") else flat.shape
    assert integrator.y.shape == expected
    assert integrator.y.dtype == flat.dtype
    assert np.sign(integrator.h) == np.sign(family.problem.t_span[1] - family.problem.t_span[0])
    assert family.scheme.split("(")[0] in repr(integrator)


def test_looking_changes_nothing():
    integrator = FAMILIES[0].start()
    integrator.y[:] = 100.0
    np.testing.assert_array_equal(integrator.y, ODE.y0)


ONE_STEP = [f for f in ONE_OF_EACH if type(sn.schemes.get(f.scheme)).__name__ != "Multistep"]


@pytest.mark.parametrize("family", ONE_STEP, ids=str)
def test_a_state_put_in_the_middle_is_gone_on_from(family):
    """As if the problem had begun there."""
    integrator = family.start()
    t1 = family.problem.t_span[1]
    if "steps" not in family.how:
        integrator.run_to(1.0)
        how = family.how | {"first_step": abs(integrator.h)}
    else:
        times = family.solve().t
        integrator.run_to(times[4])
        how = {"steps": times[4:]}
    new = integrator.y * 1.1 + 0.05
    integrator.y = new
    np.testing.assert_array_equal(integrator.y, new)
    start = integrator.t
    integrator.run_to(t1)
    fresh = sn.solve(begun_at(family.problem, start, new), family.scheme, **how)
    # a controller remembers the errors of the last steps, and a new run has none to remember
    close = 1e-12 if "steps" in family.how else 1e-5
    np.testing.assert_allclose(np.ravel(integrator.y), states_of(fresh)[-1], rtol=close)


def begun_at(problem, t, y):
    span = (t, problem.t_span[1])
    if hasattr(problem, "y0"):
        return replace(problem, y0=y, t_span=span)
    first, second = np.split(np.ravel(y), 2)
    names = ("q0", "v0") if isinstance(problem, sn.SecondOrder) else ("q0", "p0")
    return replace(problem, **dict(zip(names, (first, second), strict=True)), t_span=span)


@pytest.mark.parametrize("value", [[1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]], 1.0], ids=str)
def test_a_state_of_another_shape_is_refused(value):
    integrator = FAMILIES[0].start()
    with pytest.raises(ValueError, match=r"`y` must have the shape \(2,\)"):
        integrator.y = value


def test_a_state_that_is_not_finite_is_refused():
    integrator = FAMILIES[0].start()
    with pytest.raises(ValueError, match="`y` must be finite, but entry 1 is nan"):
        integrator.y = [1.0, math.nan]


def test_a_complex_state_for_a_real_one_is_refused():
    integrator = FAMILIES[0].start()
    with pytest.raises(TypeError, match=r"`y`.*complex"):
        integrator.y = [1.0, 1.0j]


@pytest.mark.parametrize("name", ["ab3", "midpoint_two_step"])
def test_multistep_schemes_cannot_change_their_past(name):
    integrator = sn.start(ODE, name, steps=20)
    with pytest.raises(ValueError, match=f"{name} continues from its history"):
        integrator.y = [1.0, 2.0]


# ---- to disk and back ------------------------------------------------------------------------------------------------


@every_family
def test_goes_on_from_disk_bit_for_bit(family, tmp_path):
    integrator = family.start().step().step()
    integrator.save(tmp_path / "run.npz")
    again = family.start(restore=tmp_path / "run.npz")
    assert (again.t, again.h, again.steps) == (integrator.t, integrator.h, integrator.steps)
    np.testing.assert_array_equal(again.y, integrator.y)
    while not integrator.is_finished:
        integrator.step()
        again.step()
        assert (again.t, again.h) == (integrator.t, integrator.h)
        np.testing.assert_array_equal(again.y, integrator.y)
    assert again.is_finished


def test_goes_on_in_another_process_bit_for_bit(tmp_path):
    """Every family at once: the child restores each file and runs it to its end."""
    for i, family in enumerate(ONE_OF_EACH):
        family.start().step().step().save(tmp_path / f"{i}.npz")
    program = f"""
        import sys
        import numpy as np
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from solving.test_start import ONE_OF_EACH
        for i, family in enumerate(ONE_OF_EACH):
            integrator = family.start(restore={str(tmp_path)!r} + f"/{{i}}.npz")
            end = integrator.run_to(family.problem.t_span[1])
            np.save({str(tmp_path)!r} + f"/{{i}}.npy", np.ravel(end.y))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for i, family in enumerate(ONE_OF_EACH):
        np.testing.assert_array_equal(np.load(tmp_path / f"{i}.npy"), states_of(family.solve())[-1])


def test_a_finished_run_is_restored_as_finished(tmp_path):
    for family in (FAMILIES[0], ADAPTIVE[0]):
        family.start().run_to(3.0).save(tmp_path / "end.npz")
        assert family.start(restore=tmp_path / "end.npz").is_finished


def other_slopes(t, y, k):
    return [y[1], -k * y[0]]


STRANGERS = {
    "another number of unknowns": lambda: sn.start(
        replace(ODE, fun=lambda t, y, k: -k * y, y0=np.ones(9)), "heun2", steps=24
    ),
    "a scheme with more stages": lambda: sn.start(ODE, "rk4", steps=24),
    "another scheme of as many stages": lambda: sn.start(ODE, "ralston2", steps=24),
    "another family": lambda: sn.start(ODE, "williamson3", steps=24),
    "another interval": lambda: sn.start(replace(ODE, t_span=(0.0, 5.0)), "heun2", steps=24),
    "another number of steps": lambda: sn.start(ODE, "heun2", steps=48),
    "another right-hand side": lambda: sn.start(replace(ODE, fun=other_slopes), "heun2", steps=24),
    "other arguments": lambda: sn.start(replace(ODE, args=(2.6,)), "heun2", steps=24),
    "another type of state": lambda: sn.start(replace(ODE, y0=ODE.y0.astype(np.float32)), "heun2", steps=24),
}


@pytest.mark.parametrize("what", STRANGERS)
def test_a_file_of_another_run_is_refused(what, tmp_path):
    STRANGERS[what]().step().step().save(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="stored integrator"):
        sn.start(ODE, "heun2", steps=24, restore=tmp_path / "run.npz")


def test_a_file_of_given_steps_is_not_one_of_adaptive_ones(tmp_path):
    sn.start(ODE, "dopri5", steps=24).step().save(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="stored integrator"):
        sn.start(ODE, "dopri5", restore=tmp_path / "run.npz")


def test_a_file_of_another_version_is_refused(tmp_path):
    sn.start(ODE, "heun2", steps=24).step().save(tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz") as stored:
        numbers = dict(stored)
    numbers["stamp"] = np.array("of long ago")
    np.savez(tmp_path / "old.npz", **numbers)
    with pytest.raises(ValueError, match="stored integrator is from another version"):
        sn.start(ODE, "heun2", steps=24, restore=tmp_path / "old.npz")


def test_a_file_of_something_else_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(ValueError, match="stored integrator"):
        sn.start(ODE, "heun2", steps=24, restore=tmp_path / "other.npz")


@pytest.mark.parametrize("content", [b"", b"some text", np.ones(3).tobytes()], ids=["empty", "text", "bytes"])
def test_a_file_that_is_no_archive_is_refused(content, tmp_path):
    (tmp_path / "other.npz").write_bytes(content)
    with pytest.raises(ValueError, match="stored integrator"):
        sn.start(ODE, "heun2", steps=24, restore=tmp_path / "other.npz")


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        sn.start(ODE, "heun2", steps=24, restore=tmp_path / "nowhere.npz")


def test_saving_does_not_touch_the_run(tmp_path):
    integrator = ADAPTIVE[0].start().step()
    before = (integrator.t, integrator.h, integrator.y.tobytes())
    integrator.save(tmp_path / "run.npz")
    assert (integrator.t, integrator.h, integrator.y.tobytes()) == before


# ---- the end, and failure --------------------------------------------------------------------------------------------


@one_of_each
def test_a_step_beyond_the_end_is_refused(family):
    integrator = family.start().run_to(family.problem.t_span[1])
    with pytest.raises(ValueError, match=r"at the end of its time span, t = 3"):
        integrator.step()


def blow_up(t, y):
    return y * y


@pytest.mark.parametrize(("scheme", "how"), [("rk4", {"steps": 300}), ("dopri5", {}), ("ab3", {"steps": 300})])
@pytest.mark.parametrize("move", ["step", "run_to"])
def test_a_run_that_fails_says_where(scheme, how, move):
    integrator = sn.start(sn.ODE(blow_up, [1.0], (0.0, 3.0)), scheme, **how)
    with pytest.raises(RuntimeError, match=r"at t = (0\.99|1)"):
        if move == "run_to":
            integrator.run_to(3.0)
        while not integrator.is_finished:
            integrator.step()
    assert np.all(np.isfinite(integrator.y))


def test_a_limit_of_steps_ends_the_run():
    integrator = sn.start(ODE, "dopri5", rtol=1e-9, max_steps=5)
    with pytest.raises(RuntimeError, match="max_steps"):
        integrator.run_to(3.0)


class Mine(Exception):
    """An exception that compiled code knows nothing of."""


def raises_half_way(t, y):
    if t > 1.0:
        raise Mine("half way")
    return -y


@pytest.mark.parametrize(("scheme", "how"), [("rk4", {"steps": 30}), ("dopri5", {"max_step": 0.1})])
def test_the_users_exception_is_the_cause(scheme, how):
    integrator = sn.start(sn.ODE(raises_half_way, [1.0], (0.0, 3.0)), scheme, **how)
    with pytest.raises(RuntimeError, match="raised an exception") as caught:
        integrator.run_to(3.0)
    assert isinstance(caught.value.__cause__, Mine)


def test_a_start_that_fails_is_a_failed_run():
    """The first steps of a multistep scheme are taken at once; their failure is that of any run."""
    with pytest.raises(RuntimeError, match="NaN or infinite"):
        sn.start(sn.ODE(blow_up, [1.0], (0.0, 3000.0)), "ab5", steps=30)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"scheme": "rk4"}, "no error estimate"),
        ({"scheme": "rk4", "steps": 10, "rtol": 1e-3}, "`rtol` is for adaptive steps"),
        ({"scheme": "dopri5", "rtol": -1.0}, "`rtol` must be positive"),
        ({"scheme": "dopri5", "steps": 0}, "`steps` must be at least 1, found 0"),
        ({"scheme": "dopri5", "steps": [0.0, 2.0]}, "`steps` must begin at 0.0 and end at 3.0"),
        ({"scheme": "verlet", "steps": 10}, "an `ODE` has no parts"),
    ],
    ids=["no pair", "both", "tolerance", "no steps", "other end", "other problem"],
)
def test_bad_arguments_are_refused_as_by_solve(how, words):
    for way_in in (sn.start, sn.solve):
        with pytest.raises((ValueError, TypeError), match=words):
            way_in(ODE, **how)


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"rtol": 1e-9, "atol": 1e-9}, {"steps": 10**12}], ids=["adaptive", "even steps"])
def test_ctrl_c_leaves_a_run_that_goes_on(how):
    """A run that would take hours is left within the time of a slice, and can be gone on with."""
    end = 1e9
    integrator = sn.start(replace(ODE, t_span=(0.0, end)), "dopri5", **how).step()

    def press(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            integrator.run_to(end)
    finally:
        signal.signal(signal.SIGALRM, before)
    t, steps = integrator.t, integrator.steps
    assert 0.0 < t < end
    integrator.step()
    assert integrator.t > t
    assert integrator.steps == steps + 1
    assert not integrator.is_finished
