"""Stochastic schemes on tensors: the numbers of the other engine, samples, steps, dtypes and forms of equations."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from stochastic import problems
from torch_engine.sdes import COMPONENTS, TensorSDE, start

import stepnet as sn
import stepnet.torch as snt

torch.set_num_threads(1)

slow = partial(pytest.param, marks=pytest.mark.slow)
AGREE = 1e-12  # of states; normals differ in their last places
BATCH = 3


def motion(noise: str, **how) -> snt.BrownianInterval:
    options = {"entropy": 3, "cells": 8, "paths": 21, "dtype": torch.float64} | how
    return snt.BrownianInterval(0.0, 1.0, size=(BATCH, COMPONENTS[noise]), **options)


@pytest.mark.parametrize(("name", "noise"), problems.list_cases())
def test_both_engines_agree_on_the_same_paths(name, noise, within):
    """Sample i of the batch is the path 21 + i; steps are joined cells, cells and halved cells."""
    scheme = sn.schemes.get(name)
    sde, problem = TensorSDE(noise, scheme.calculus), problems.build(noise, scheme.calculus, cells=8, seed=3)
    for steps in (4, 8, 16):
        with torch.no_grad():
            found = snt.sdeint(sde, start(BATCH), [0.0, 1.0], bm=motion(noise), method=name, dt=1 / steps)[-1]
        wanted = sn.solve_ensemble(problem, scheme, paths=21 + BATCH, steps=steps).y[21:, 0]
        within("engines on the same noise", np.abs(found.numpy() - wanted).max(), AGREE)


def test_a_motion_is_that_of_numpy():
    bm = snt.BrownianInterval(0.0, 2.0, size=(4, 3), entropy=7, paths=[5, 0, 2**33, 9], dtype=torch.float64)
    for i, number in enumerate((5, 0, 2**33, 9)):
        path = sn.noise.BrownianPath(7, number, (0.0, 2.0), dimension=3)
        W, H = path.increment_and_area(0.3, 1.7)
        found, U, A = bm(0.3, torch.tensor(1.7, dtype=torch.float64), return_U=True, return_A=True)
        np.testing.assert_allclose(found[i], W, rtol=0, atol=1e-12)
        np.testing.assert_allclose(U[i], 1.4 * (W / 2 + H), rtol=0, atol=1e-12)
        np.testing.assert_allclose(A[i], path.levy_areas([0.3, 1.7])[0], rtol=0, atol=1e-12)


def test_a_motion_is_additive_and_has_the_given_ends():
    bm = snt.BrownianInterval(-1.0, 1.0, size=(5, 2), entropy=1, dtype=torch.float64)
    assert torch.equal(bm(-0.3, 0.1) + bm(0.1, 0.7), bm(-0.3, 0.7))
    assert torch.equal(bm(0.2, 0.2), torch.zeros(5, 2, dtype=torch.float64))
    W, H = torch.ones(5, 2, dtype=torch.float64), torch.full((5, 2), 0.25, dtype=torch.float64)
    given = snt.BrownianInterval(0.0, 2.0, W=W, H=H, entropy=1)
    found, U = given(0.0, 2.0, return_U=True)
    assert torch.equal(found, W)
    torch.testing.assert_close(U, 2.0 * (0.5 * W + H))
    assert torch.allclose(given(0.0, 0.3) + given(0.3, 2.0), W, rtol=0, atol=1e-12)
    tree = snt.BrownianTree(0.0, W, w1=3 * W, entropy=2)
    torch.testing.assert_close(tree(1.0), 3 * W)
    path = snt.BrownianPath(0.0, W, entropy=2)
    assert torch.equal(path(0.5), W + path(0.0, 0.5))
    like = snt.brownian_interval_like(W, entropy=4)
    assert (like.shape, like.dtype, like.size()) == (W.shape, W.dtype, W.shape)


@pytest.mark.parametrize("size", [(), (4,), (2, 3, 2)])
def test_motions_have_any_shape(size):
    bm = snt.BrownianInterval(size=size, entropy=1)
    W, U, A = bm(0.1, 0.4, return_U=True, return_A=True)
    assert (W.shape, U.shape, A.shape) == (size, size, (*size, *size[-1:]))
    assert W.dtype == torch.get_default_dtype()


@pytest.mark.parametrize("noise", ["diagonal", "general"])
def test_a_sample_does_not_depend_on_its_batch(noise):
    """Nor on the order of samples: numbers of paths are given."""
    sde, y0 = TensorSDE(noise), torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2)
    m = COMPONENTS[noise]

    def solve(samples: list[int]) -> torch.Tensor:
        bm = snt.BrownianInterval(size=(len(samples), m), entropy=3, paths=samples, dt=0.1, dtype=torch.float64)
        return snt.sdeint(sde, y0[samples], [0.0, 1.0], bm=bm, method="euler", dt=0.1)[-1]

    assert torch.equal(solve([0, 1, 2, 3, 4])[[3, 1]], solve([3, 1]))


def test_the_seed_of_torch_decides_by_default():
    sde, found = TensorSDE("diagonal"), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(snt.sdeint(sde, start(), [0.0, 1.0], dt=0.25))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_times_between_steps_are_interpolated_and_the_last_step_is_shorter():
    sde, bm = TensorSDE("diagonal"), motion("diagonal", cells=1)
    ts = [0.0, 0.25, 0.33, 0.9, 1.0]
    found = snt.sdeint(sde, start(), ts, bm=bm, method="euler", dt=0.3)
    every = snt.sdeint(sde, start(), [0.0, 0.3, 0.6, 0.9, 1.0], bm=bm, method="euler", dt=0.3)
    assert torch.equal(found[0], start())
    torch.testing.assert_close(found[1], torch.lerp(every[0], every[1], 0.25 / 0.3))
    torch.testing.assert_close(found[2], torch.lerp(every[1], every[2], 0.1))
    assert torch.equal(found[3:], every[3:])


@pytest.mark.parametrize("name", ["euler", "srk", "milstein"])
def test_float32_is_the_rounded_solution(name):
    ts = torch.linspace(0, 1, 4)
    found, wanted = (
        snt.sdeint(TensorSDE("diagonal", dtype=dtype), start(3, dtype), ts, bm=motion("diagonal"), method=name, dt=0.05)
        for dtype in (torch.float32, torch.float64)
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


# ---- forms of equations ---------------------------------------------------------------------------------------------


class Only(torch.nn.Module):
    """An equation that has only some of the methods, whose calls are counted."""

    def __init__(self, sde: TensorSDE, *methods: str):
        super().__init__()
        self.sde, self.noise_type, self.sde_type, self.calls = sde, sde.noise_type, sde.sde_type, 0
        for name in methods:
            setattr(self, name, getattr(self, f"_{name}"))

    def _f(self, t, y):
        return self.sde.f(t, y)

    def _g(self, t, y):
        return self.sde.g(t, y)

    def _f_and_g(self, t, y):
        self.calls += 1
        return self.sde.f(t, y), self.sde.g(t, y)

    def _g_prod(self, t, y, v):
        g = self.sde.g(t, y)
        return g * v if self.noise_type == "diagonal" else torch.einsum("bnm,bm->bn", g, v)

    def _f_and_g_prod(self, t, y, v):
        return self.sde.f(t, y), self._g_prod(t, y, v)


FORMS = [("f", "g"), ("f_and_g",), ("f", "g", "f_and_g"), ("f", "g_prod"), ("f_and_g_prod",), ("f", "g", "g_prod")]


@pytest.mark.parametrize("methods", FORMS[1:])
@pytest.mark.parametrize("noise", ["diagonal", "scalar", "general"])
def test_all_forms_of_an_equation_have_the_same_solution(methods, noise):
    for name, calculus in (("euler", "ito"), ("heun", "stratonovich"), ("reversible_heun", "stratonovich")):
        sde = TensorSDE(noise, calculus)
        solve = lambda each: snt.sdeint(each, start(), [0.0, 1.0], bm=motion(noise), method=name, dt=0.125)  # noqa: B023
        torch.testing.assert_close(solve(Only(sde, *methods)), solve(Only(sde, "f", "g")), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("name", "calls"), [("euler", 8), ("heun", 16), ("midpoint", 16)])
def test_drift_and_diffusion_at_one_place_are_one_call(name, calls):
    sde = Only(TensorSDE("diagonal", "ito" if name == "euler" else "stratonovich"), "f_and_g")
    snt.sdeint(sde, start(), [0.0, 1.0], method=name, dt=0.125)
    assert sde.calls == calls


def test_names_replace_methods():
    sde = TensorSDE("diagonal")
    sde.other = lambda t, y: sde.f(t, y) + 1.0
    solve = lambda **how: snt.sdeint(sde, start(), [0.0, 1.0], bm=motion("diagonal"), method="euler", dt=1.0, **how)
    torch.testing.assert_close(solve(names={"drift": "other"})[-1], solve()[-1] + 1.0)


# ---- reversible Heun ------------------------------------------------------------------------------------------------


def test_a_reversible_run_can_be_continued():
    sde, bm = TensorSDE("general", "stratonovich"), motion("general")
    how = {"bm": bm, "method": "reversible_heun", "dt": 0.125}
    whole, last = snt.sdeint(sde, start(), [0.0, 0.5, 1.0], extra=True, **how)
    half, state = snt.sdeint(sde, start(), [0.0, 0.5], extra=True, **how)
    again, end = snt.sdeint(sde, half[-1], [0.5, 1.0], extra=True, extra_solver_state=state, **how)
    torch.testing.assert_close(again[-1], whole[-1], rtol=1e-13, atol=1e-13)
    for one, other in zip(last, end, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_other_schemes_pass_on_the_state_alone():
    ys, state = snt.sdeint(TensorSDE("diagonal"), start(), [0.0, 1.0], dt=0.5, extra=True)
    assert (ys.shape, state) == ((2, 3, 2), ())


# ---- adaptive steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "noise"), [("srk", "diagonal"), slow("srk", "additive"), slow("milstein", "scalar")])
def test_adaptive_steps_approach_the_solution_on_the_same_path(name, noise):
    sde, bm = TensorSDE(noise), motion(noise, cells=1)
    with torch.no_grad():
        fine = snt.sdeint(sde, start(), [0.0, 1.0], bm=bm, method=name, dt=2**-9)[-1]
        found = [
            snt.sdeint(sde, start(), [0.0, 1.0], bm=bm, method=name, dt=0.1, adaptive=True, rtol=tol, atol=tol)[-1]
            for tol in (3e-2, 1e-3)
        ]
    errors = [float((each - fine).abs().max()) for each in found]
    assert errors[1] < 0.3 * errors[0]
    assert errors[1] < 1e-2  # ten times the tolerance, over about a hundred steps


def test_steps_at_the_minimum_are_announced():
    with pytest.warns(UserWarning, match="dt_min"):
        snt.sdeint(TensorSDE("diagonal"), start(), [0.0, 0.2], dt=0.1, adaptive=True, dt_min=0.05, rtol=1e-9, atol=1e-9)


def test_adaptive_euler_is_warned_of():
    with pytest.warns(UserWarning, match="wrong solution"):
        snt.sdeint(TensorSDE("diagonal"), start(), [0.0, 0.1], method="euler", adaptive=True, rtol=1.0, atol=1.0)


# ---- refusals -------------------------------------------------------------------------------------------------------


class Wrong:
    sde_type, noise_type = "ito", "diagonal"

    def __init__(self, **changes):
        vars(self).update(changes)

    def f(self, t, y):
        return -y

    def g(self, t, y):
        return y


COLUMNS = lambda t, y: y.unsqueeze(-1).expand(-1, -1, 3)


@pytest.mark.parametrize(
    ("sde", "changes", "match"),
    [
        (Wrong(g=COLUMNS), {}, r"`g` must return the shape \(3, 2\), found \(3, 2, 3\)"),
        (Wrong(noise_type="general"), {}, r"`g` must return the shape \(3, 2, m\) for general noise, found \(3, 2\)"),
        (Wrong(noise_type="scalar", g=COLUMNS), {}, r"`g` must return the shape \(3, 2\), found \(3, 2, 3\)"),
        (Wrong(f=lambda t, y: y[:1]), {}, r"`f` must return the shape \(3, 2\)"),
        (Wrong(g=lambda t, y: y.float()), {}, "`g` must return torch.float64"),
        (Wrong(noise_type="diagnal"), {}, "there is no noise_type of `sde` 'diagnal'.*diagonal"),
        (Wrong(sde_type="itoh"), {}, "there is no sde_type of `sde` 'itoh'"),
        (Wrong(f=None), {}, "`sde` must have a method `f`"),
        (Wrong(g=None), {}, "`sde` must have a method `g`"),
        (object(), {}, "`sde` must have the attribute `noise_type`"),
        (Wrong(), {"method": "eulr"}, "there is no method 'eulr'"),
        (Wrong(), {"method": "rk4"}, "there is no method 'rk4'"),
        (Wrong(), {"method": 3}, "`method` must be a name or a stochastic scheme"),
        (Wrong(), {"method": "sra1"}, "sra1 does not admit diagonal noise"),
        (Wrong(), {"method": "heun"}, "stochastic_heun solves Stratonovich equations"),
        (Wrong(), {"method": "adjoint_reversible_heun"}, "for `adjoint_method` only"),
        (Wrong(), {"ts": [0.0, 0.5, 0.5]}, "`ts` must be strictly increasing"),
        (Wrong(), {"ts": [0.0, float("nan")]}, "`ts` must hold at least one time, and finite"),
        (Wrong(), {"ts": torch.tensor([0.0, float("inf")])}, "`ts` must hold at least one time, and finite"),
        (Wrong(), {"ts": 1.0}, "`ts` must be a tensor or a list"),
        (Wrong(), {"dt": 0.0}, "`dt` must be positive"),
        (Wrong(), {"dt": -0.1}, "`dt` must be positive"),
        (Wrong(), {"y0": torch.ones(3)}, r"`y0` must have the shape \(batch, n\)"),
        (Wrong(), {"y0": torch.ones(3, 2, dtype=torch.int64)}, "`y0` must hold real floating-point"),
        (Wrong(), {"bm": snt.BrownianInterval(size=(3, 4))}, r"`bm` must have the shape \(3, 2\) for diagonal noise"),
        (Wrong(), {"bm": snt.BrownianInterval(size=(4, 2))}, r"`bm` must have the shape \(3, components\)"),
        (Wrong(), {"bm": snt.BrownianInterval(0, 0.5, size=(3, 2))}, r"`ts` must be within the interval \[0, 0.5\]"),
        (Wrong(), {"bm": 3}, "`bm` must be a Brownian motion"),
        (Wrong(), {"options": {"gradfree": True}}, "there is no option of `sdeint` 'gradfree'"),
        (Wrong(), {"names": {"drft": "f"}}, "there is no key of `names` 'drft'"),
        (Wrong(), {"names": {"drift": "k"}}, "`sde` has no method 'k'"),
        (Wrong(), {"logqp": True}, r"the methods `f`, `g` and `h`"),
        (Wrong(noise_type="scalar", g=COLUMNS), {"method": "platen_weak2", "adaptive": True}, "converges in law only"),
        (Wrong(), {"extra_solver_state": (torch.ones(3, 2),)}, "`extra_solver_state` is for 'reversible_heun'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(sde, changes, match):
    arguments = {"sde": sde, "y0": start(), "ts": [0.0, 1.0], "dt": 0.5} | changes
    with pytest.raises((ValueError, TypeError, sn.UnknownName), match=match):
        snt.sdeint(**arguments)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"t1": 0.0}, "`t_span`"),
        ({"size": None}, "`size` must be the shape"),
        ({"size": (3, 0)}, r"`size\[1\]`"),
        ({"levy_area_approximation": "exact"}, "there is no levy_area_approximation 'exact'"),
        ({"entropy": -1}, "`entropy`"),
        ({"dt": 0.0}, "`dt` must be positive"),
        ({"paths": [1, 2]}, "`paths` must be a number or 3 of them"),
        ({"dtype": torch.int64}, "`dtype` must be a floating-point dtype"),
        ({"W": torch.ones(2, 2)}, "must have one shape"),
        ({"W": torch.ones(3, 2), "cells": 4}, "`cells` must be 1"),
    ],
)
def test_bad_arguments_of_motions_are_refused(changes, match):
    with pytest.raises((ValueError, TypeError, sn.UnknownName), match=match):
        snt.BrownianInterval(**({"t0": 0.0, "t1": 1.0, "size": (3, 2)} | changes))


def test_bad_queries_are_refused():
    bm = snt.BrownianInterval(size=(3, 2))
    with pytest.raises(ValueError, match="`tb` must not be before `ta`"):
        bm(0.5, 0.25)
    with pytest.raises(ValueError, match="must be within the interval"):
        bm(0.5, 1.25)
