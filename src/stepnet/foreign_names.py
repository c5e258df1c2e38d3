"""Names that other packages use: the hints that errors give for an unknown name or argument.

They are refused, not accepted as aliases, so that a word has one meaning here; `solve_ivp`, which has SciPy's
signature, and `stepnet.torch`, which has torchdiffeq's, accept the names of those packages.
"""

from __future__ import annotations

from collections.abc import Collection

NAMES: dict[str, tuple[str, str]] = {
    # schemes
    "rk45": ("SciPy", "dopri5"),
    "rk23": ("SciPy", "bosh3"),
    "ode45": ("MATLAB", "dopri5"),
    "ode23": ("MATLAB", "bosh3"),
    "ode78": ("MATLAB", "verner98"),
    "ode89": ("MATLAB", "verner98"),
    "ode113": ("MATLAB", "adams"),
    "ode15s": ("MATLAB", "ndf"),
    "vode": ("SciPy", "bdf"),
    "cvode": ("SUNDIALS", "bdf"),
    "odeint": ("SciPy", "lsoda"),
    "qndf": ("Julia", "ndf"),
    "fbdf": ("Julia", "bdf"),
    "vcabm": ("Julia", "adams"),
    "autotsit5": ("Julia", "auto"),
    "dp5": ("Julia", "dopri5"),
    "dp8": ("Julia", "dop853"),
    "bs3": ("Julia", "bosh3"),
    "vern6": ("Julia", "verner65"),
    "vern7": ("Julia", "verner76"),
    "vern9": ("Julia", "verner98"),
    "ssprk33": ("Julia", "ssprk3"),
    "ssprk22": ("Julia", "ssprk2"),
    "rock2": ("Julia", "rkc2"),
    "velocityverlet": ("Julia", "verlet"),
    "velocity_verlet": ("the literature", "verlet"),
    "stormer_verlet": ("the literature", "verlet"),
    "stoermer_verlet": ("the literature", "verlet"),
    "symplectic_euler": ("the literature", "symplectic_euler_kick"),
    "semi_implicit_euler": ("the literature", "symplectic_euler_kick"),
    "explicit_euler": ("the literature", "euler"),
    "forward_euler": ("the literature", "euler"),
    "heun": ("diffrax", "heun2"),
    "ralston": ("diffrax", "ralston2"),
    "rkf45": ("the literature", "fehlberg45"),
    "runge_kutta": ("the literature", "rk4"),
    "runge_kutta_4": ("the literature", "rk4"),
    "adams_moulton": ("the literature", "adams"),
    "adams_bashforth": ("the literature", "ab4"),
    "explicit_adams": ("torchdiffeq", "ab4"),
    "implicit_adams": ("torchdiffeq", "adams"),
    "adaptive_heun": ("torchdiffeq", "bosh3"),
    "radau": ("SciPy", "radau5"),
    "radauiia5": ("Julia", "radau5"),
    "rodas5": ("Julia", "rodas5p"),
    "ode23tb": ("MATLAB", "trbdf2"),
    "backward_euler": ("the literature", "implicit_euler"),
    "crank_nicolson": ("the literature", "trapezoid"),
    "gauss_legendre": ("the literature", "gauss4"),
    "fehlberg2": ("torchdiffeq", "bosh3"),
    # activations
    "swish": ("Keras", "silu"),
    "logistic": ("scikit-learn", "sigmoid"),
    "linear": ("Keras", "identity"),
    "leakyrelu": ("torch", "leaky_relu"),
    "lrelu": ("the literature", "leaky_relu"),
    # losses
    "mean_squared_error": ("Keras", "mse"),
    "squared_error": ("scikit-learn", "mse"),
    "mseloss": ("torch", "mse"),
    "mean_absolute_error": ("Keras", "mae"),
    "absolute_error": ("scikit-learn", "mae"),
    "l1loss": ("torch", "mae"),
    "crossentropyloss": ("torch", "cross_entropy"),
    "log_loss": ("scikit-learn", "cross_entropy"),
    "categorical_crossentropy": ("Keras", "cross_entropy"),
    "binary_crossentropy": ("Keras", "binary_cross_entropy"),
    "bce": ("the literature", "binary_cross_entropy"),
    "bcewithlogitsloss": ("torch", "binary_cross_entropy"),
    "smooth_l1": ("torch", "huber"),
    "pinball": ("scikit-learn", "quantile"),
    # training
    "bfgs": ("SciPy", "lbfgs"),
    "l-bfgs": ("the literature", "lbfgs"),
    "l-bfgs-b": ("SciPy", "lbfgs"),
    "newton": ("the literature", "gauss_newton"),
    "levenberg_marquardt": ("the literature", "gauss_newton"),
    "lm": ("SciPy", "gauss_newton"),
    "steplr": ("torch", "step"),
    "exponentiallr": ("torch", "exponential"),
    "cosineannealinglr": ("torch", "cosine"),
    "elasticnet": ("scikit-learn", "elastic_net"),
    "xavier": ("torch", "glorot"),
    "xavier_uniform": ("torch", "glorot"),
    "kaiming": ("torch", "he"),
    "kaiming_normal": ("torch", "he"),
}
"""By lower-case name: the package that uses it, and the name here."""

STIFF = ("ode23s", "rosenbrock23")
"""Schemes for stiff problems that have no equivalent here."""

STEP_SIZE = "`steps=round((t1 - t0) / h)` for fixed steps of length h, `first_step` or `max_step` for adaptive ones"
OF_THE_PROBLEM = "it belongs to the problem, as in `ODE(fun, y0, t_span, args=...)`"

ARGUMENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "dt": (("steps", STEP_SIZE),),
    "h": (("steps", STEP_SIZE),),
    "step_size": (("steps", STEP_SIZE),),
    "dt0": (("first_step", "`first_step`"),),
    "h0": (("first_step", "`first_step`"),),
    "reduce": (("increments", "`reduce` to `sweep`, which reduces members and paths without storing them"),),
    "dtmax": (("max_step", "`max_step`"),),
    "hmax": (("max_step", "`max_step`"),),
    "n_steps": (("steps", "`steps`"),),
    "num_steps": (("steps", "`steps`"),),
    "n_layers": (("steps", "`steps`"),),
    "num_layers": (("steps", "`steps`"),),
    "depth": (("steps", "`steps`"),),
    "t_eval": (("save_at", "`save_at`"),),
    "saveat": (("save_at", "`save_at`"),),
    "ts": (("save_at", "`save_at`"), ("t_span", "`t_span`")),
    "dense_output": (("dense", "`dense`"),),
    "event": (("events", "`events`"),),
    "events": (("event", "`event`"),),
    "event_fn": (("events", "`events`"), ("event", "`event`")),
    "reltol": (("rtol", "`rtol`"),),
    "abstol": (("atol", "`atol`"),),
    "tol": (("rtol", "`rtol` and `atol`"),),
    "mxstep": (("max_steps", "`max_steps`"),),
    "maxiters": (("max_steps", "`max_steps`"),),
    "max_num_steps": (("max_steps", "`max_steps`"),),
    "method": (("scheme", "`scheme`"), ("optimiser", "`optimiser`")),
    "solver": (("scheme", "`scheme`"), ("optimiser", "`optimiser`")),
    "stepsize_controller": (("controller", "`controller`"),),
    "args": (("problem", OF_THE_PROBLEM),),
    "params": (("args", "`args`"), ("problem", OF_THE_PROBLEM)),
    "p": (("args", "`args`"), ("problem", OF_THE_PROBLEM)),
    "y0": (("problem", OF_THE_PROBLEM),),
    "t_span": (("problem", OF_THE_PROBLEM),),
    "jac": (("problem", OF_THE_PROBLEM),),
    "tspan": (("t_span", "`t_span`"), ("problem", OF_THE_PROBLEM)),
    "u0": (("y0", "`y0`"), ("problem", OF_THE_PROBLEM)),
    "adjoint": (("memory", "`memory`"),),
    "sensealg": (("memory", "`memory`"),),
    "checkpoints": (("memory", "`memory=Checkpoints(...)`"),),
    "lr": (("rate", "`rate`"), ("optimiser", "the `rate` of the optimiser, as in `Adam(rate=1e-3)`")),
    "learning_rate": (("rate", "`rate`"), ("optimiser", "the `rate` of the optimiser, as in `Adam(rate=1e-3)`")),
    "learning_rate_init": (("rate", "`rate`"),),
    "optimizer": (("optimiser", "`optimiser`"), ("recipe", "`recipe=Recipe(optimiser)`")),
    "max_iter": (("epochs", "`epochs`"), ("iterations", "`iterations`"), ("max_steps", "`max_steps`"),
                 ("method", "the `iterations` of the method, as in `LBFGS(iterations=100)`")),
    "maxiter": (("iterations", "`iterations`"), ("epochs", "`epochs`"),
                ("method", "the `iterations` of the method, as in `LBFGS(iterations=100)`")),
    "n_epochs": (("epochs", "`epochs`"),),
    "num_epochs": (("epochs", "`epochs`"),),
    "epochs": (("recipe", "`recipe=Recipe(epochs=...)`"), ("iterations", "`iterations`")),
    "batch_size": (("recipe", "`recipe=Recipe(batch_size=...)`"),),
    "batch": (("batch_size", "`batch_size`"),),
    "momentum": (("rate", "the optimiser `Momentum(rate, momentum)`"),),
    "betas": (("beta1", "`beta1` and `beta2`"),),
    "epsilon": (("eps", "`eps`"),),
    "weight_decay": (("decay", "`decay`"), ("alpha", "`penalty='l2'` and its strength `alpha`"),
                     ("rate", "the optimiser `AdamW(rate, decay=...)`")),
    "gtol": (("tol", "`tol`"),),
    "n_iter_no_change": (("patience", "`patience`"),),
    "early_stopping": (("patience", "`patience` with `validation_fraction`"),),
    "hidden_layer_sizes": (("width", "`width`, and `steps` for the number of layers"),),
    "hidden_size": (("width", "`width`"),),
    "hidden_dim": (("width", "`width`"),),
    "criterion": (("loss", "`loss`"),),
    "loss_fn": (("loss", "`loss`"),),
    "seed": (("random_state", "`random_state`"),),
    "random_state": (("seed", "`seed`"),),
    "n_jobs": (("workers", "`workers`"),),
    "num_workers": (("workers", "`workers`"),),
    "n_threads": (("workers", "`workers`"),),
    "verbose": (("progress", "`progress`"),),
    "init": (("initialisation", "`initialisation`"),),
    "initialization": (("initialisation", "`initialisation`"),),
}  # fmt: skip
"""By argument: what to use instead, with the parameter that a function must have for the hint to apply."""


def find_hint_for_name(name: str, known: Collection[str]) -> str | None:
    """The package that a foreign name comes from and its equivalent among the known names, if there is one."""
    key = name.lower()
    if key in STIFF and "rodas5p" in known:
        return "for stiff problems use 'rodas5p', for tight tolerances 'radau5', for long mildly stiff systems 'rkc2'"
    whose, ours = NAMES.get(key, ("", ""))
    if ours not in known:
        return None
    return f"it is called {ours!r} here" if whose == "the literature" else f"{whose}'s {name!r} is {ours!r} here"


def find_hint_for_argument(name: str, known: Collection[str]) -> str | None:
    """What to use instead of an argument that a function with the known parameters does not have."""
    found = next((hint for parameter, hint in ARGUMENTS.get(name.lower(), ()) if parameter in known), None)
    return None if found is None else found if found is OF_THE_PROBLEM else f"give {found}"
