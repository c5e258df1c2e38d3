"""Names and arguments of other packages are answered with their names in this package."""

import inspect
import re
import warnings

import numpy as np
import pytest

import stepnet as sn
from stepnet import estimators, fields, nets, training
from stepnet.foreign_names import ARGUMENTS, NAMES, STIFF
from stepnet.nets import losses, penalties
from stepnet.nets.initialisation import NAMES as INITIALISATIONS

PROBLEM = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))

SCHEMES = {
    "RK45": "SciPy's 'RK45' is 'dopri5' here",
    "RK23": "SciPy's 'RK23' is 'bosh3' here",
    "ode45": "MATLAB's 'ode45' is 'dopri5' here",
    "Vern7": "Julia's 'Vern7' is 'verner76' here",
    "velocity_verlet": "it is called 'verlet' here",
    "ode15s": "MATLAB's 'ode15s' is 'ndf' here",
    "ode23s": "for stiff problems use 'rodas5p', for tight tolerances 'radau5'",
    "Crank_Nicolson": "it is called 'trapezoid' here",
}


@pytest.mark.parametrize("name", SCHEMES)
def test_foreign_schemes_are_named(name):
    for call in (
        lambda: sn.schemes.get(name),
        lambda: sn.solve(PROBLEM, name),
        lambda: sn.start(PROBLEM, name),
        lambda: sn.gradient(PROBLEM, name, np.sum),
        lambda: sn.solve_ensemble(PROBLEM, name, y0=[[1.0]]),
    ):
        with pytest.raises(sn.UnknownName, match=re.escape(SCHEMES[name])):
            call()


OTHERS = [
    (lambda: fields.activation("swish"), "Keras's 'swish' is 'silu' here"),
    (lambda: nets.resnet(2, 1, 4, 2, activation="logistic"), "scikit-learn's 'logistic' is 'sigmoid' here"),
    (lambda: losses.get("squared_error"), "scikit-learn's 'squared_error' is 'mse' here"),
    (lambda: losses.get("BCE"), "it is called 'binary_cross_entropy' here"),
    (lambda: penalties.get("elasticnet"), "scikit-learn's 'elasticnet' is 'elastic_net' here"),
    (lambda: nets.resnet(2, 1, 4, 2, initialisation="xavier"), "torch's 'xavier' is 'glorot' here"),
    (lambda: training.schedules.get("StepLR", rate=0.1), "torch's 'StepLR' is 'step' here"),
]


@pytest.mark.parametrize(("call", "words"), OTHERS, ids=[words for _, words in OTHERS])
def test_other_foreign_names_are_named(call, words):
    with pytest.raises(sn.UnknownName, match=re.escape(words)):
        call()


def test_names_that_are_nobodys_are_answered_with_the_nearest():
    with pytest.raises(sn.UnknownName, match=r"did you mean .*'dopri5'"):
        sn.schemes.get("dopri")


def _squares():
    net = nets.resnet(1, 1, 4, 2)
    x = np.linspace(0.0, 1.0, 8)[:, None]
    return training.Objective(net, "mse"), training.Data(x, x * x)


ARGUMENT_CASES = [
    (lambda: sn.solve(PROBLEM, "rk4", dt=0.1), "`solve` takes no `dt`; give `steps=round((t1 - t0) / h)`"),
    (lambda: sn.solve(PROBLEM, "dopri5", t_eval=[0.5]), "`solve` takes no `t_eval`; give `save_at`"),
    (lambda: sn.solve(PROBLEM, method="RK45"), "`solve` takes no `method`; give `scheme`"),
    (lambda: sn.solve(PROBLEM, dense_output=True), "`solve` takes no `dense_output`; give `dense`"),
    (lambda: sn.solve(PROBLEM, args=(1.0,)), "`solve` takes no `args`; it belongs to the problem"),
    (lambda: sn.solve(PROBLEM, rtoll=1e-3), "`solve` takes no `rtoll`; did you mean 'rtol'"),
    (lambda: sn.start(PROBLEM, "rk4", step_size=0.1), "`start` takes no `step_size`; give `steps="),
    (lambda: sn.gradient(PROBLEM, "rk4", np.sum, t_eval=[0.5]), "`gradient` takes no `t_eval`; give `save_at`"),
    (lambda: sn.gradient(PROBLEM, "rk4", np.sum, events=len), "`gradient` takes no `events`; give `event`"),
    (lambda: sn.tangent(PROBLEM, "rk4", y0=[1.0], dt=0.1), "`tangent` takes no `dt`; give `steps="),
    (lambda: sn.jacobian(PROBLEM, "rk4", t_eval=[0.5]), "`jacobian` takes no `t_eval`; give `save_at`"),
    (lambda: sn.hvp(PROBLEM, "rk4", np.sum, y0=[1.0], dt=0.1), "`hvp` takes no `dt`; give `steps="),
    (lambda: sn.solve_ensemble(PROBLEM, "rk4", n_jobs=2), "`solve_ensemble` takes no `n_jobs`; give `workers`"),
    (lambda: sn.gradient_ensemble(PROBLEM, "rk4", np.sum, dt=0.1), "`gradient_ensemble` takes no `dt`; give `steps="),
    (lambda: sn.sweep(PROBLEM, "rk4", {"y0[0]": [1.0]}, t_eval=[0.5]), "`sweep` takes no `t_eval`; give `save_at`"),
    (lambda: sn.ODE(lambda t, y: -y, [1.0], tspan=(0, 1)), "ODE takes no `tspan`; give `t_span`"),
    (lambda: sn.ODE(lambda t, y: -y, [1.0], (0, 1), params=(1.0,)), "ODE takes no `params`; give `args`"),
    (lambda: training.Adam(lr=0.1), "Adam takes no `lr`; give `rate`"),
    (lambda: training.SGD(momentum=0.9), "SGD takes no `momentum`; give the optimiser `Momentum(rate, momentum)`"),
    (lambda: training.Adam(betas=(0.9, 0.99)), "Adam takes no `betas`; give `beta1` and `beta2`"),
    (lambda: training.optimisers.get("adam", lr=0.1), "the optimiser 'adam' takes no `lr`; give `rate`"),
    (lambda: training.LBFGS(max_iter=5), "LBFGS takes no `max_iter`; give `iterations`"),
    (lambda: training.GaussNewton(maxiter=5), "GaussNewton takes no `maxiter`; give `iterations`"),
    (lambda: training.Recipe(optimizer="adam"), "Recipe takes no `optimizer`; give `optimiser`"),
    (lambda: training.Recipe("adam", lr=0.1), "Recipe takes no `lr`; give the `rate` of the optimiser"),
    (lambda: training.Recipe("adam", max_iter=5), "Recipe takes no `max_iter`; give `epochs`"),
    (lambda: training.train(*_squares(), epochs=5), "`train` takes no `epochs`; give `recipe=Recipe(epochs=...)`"),
    (lambda: training.minimise(*_squares(), maxiter=5), "`minimise` takes no `maxiter`; give the `iterations` of"),
    (lambda: estimators.NetClassifier(lr=0.1), "NetClassifier takes no `lr`; give `rate`"),
    (lambda: estimators.NetClassifier(optimizer="adam"), "NetClassifier takes no `optimizer`; give `optimiser`"),
    (lambda: estimators.NetRegressor(max_iter=5), "NetRegressor takes no `max_iter`; give `epochs`"),
    (lambda: estimators.NetRegressor(seed=5), "NetRegressor takes no `seed`; give `random_state`"),
    (lambda: nets.resnet(2, 1, 4, 2, random_state=0), "`compose_net` takes no `random_state`; give `seed`"),
]


@pytest.mark.parametrize(("call", "words"), ARGUMENT_CASES, ids=[words for _, words in ARGUMENT_CASES])
def test_foreign_arguments_are_told_what_to_give(call, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        call()


KNOWN = {
    *sn.schemes.names(), *fields.ACTIVATIONS, *losses.names(),
    *penalties.names(),
    *INITIALISATIONS,
    *training.optimisers.names(), *training.schedules.names(), *training.METHODS,
}  # fmt: skip


def test_the_table_names_only_what_there_is():
    assert {ours for _, ours in NAMES.values()} <= KNOWN
    assert not KNOWN & {*NAMES, *STIFF}


EXPLAINED = (
    sn.solve, sn.start, sn.gradient, sn.tangent, sn.jacobian, sn.hvp, sn.solve_ensemble, sn.gradient_ensemble,
    sn.sweep, sn.ODE, training.Adam, training.AdamW, training.Recipe, training.LBFGS, training.train,
    training.minimise, estimators.NetClassifier, nets.Net, nets.compose_net, nets.resnet,
)  # fmt: skip


def test_every_hint_is_for_a_parameter_that_something_has():
    parameters = {name for each in EXPLAINED for name in inspect.signature(each).parameters}
    assert {parameter for hints in ARGUMENTS.values() for parameter, _ in hints} <= parameters


def test_signatures_do_not_show_how_arguments_are_looked_at():
    parameters = inspect.signature(sn.solve).parameters
    assert list(parameters)[:3] == ["problem", "scheme", "steps"]
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    assert sn.solve.__doc__.startswith("Integrate")


def test_warnings_point_at_the_call():
    stiff = sn.ODE(lambda t, y: -1000.0 * (y - np.cos(t)), [0.0], (0.0, 2.0))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sn.solve(stiff, "dopri5")
    assert [each.filename for each in found if each.category is sn.StiffnessWarning] == [__file__]
