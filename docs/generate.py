"""Writes the generated pages: docs/schemes.md with its figures, docs/internals/modules.md and paper/paper.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from stepnet import schemes
from stepnet.schemes import capabilities, conditions, variable_order
from stepnet.schemes.conditions.families import find_explicit_part

DOCS = Path(__file__).parent
SOURCES = DOCS.parent / "src" / "stepnet"
STOCHASTIC = """## Stochastic

Strong and weak orders for each type of noise; the strong order - means convergence in law only. Schemes with an error
*estimate* choose their steps by tolerances. [sdes.md](sdes.md) explains types of noise and calculus.
"""
MEAN_SQUARE = """Regions of mean-square stability on dy = lambda y dt + mu y dW, in the plane of h lambda and h mu^2, of
schemes that admit such noise; that of the equation ends at the dashed (Ito) or dotted (Stratonovich) line:

![Mean-square stability regions of stochastic schemes](figures/mean_square.png)
"""
LANGEVIN = """## Langevin dynamics

Strong and weak order for `Langevin` problems.
"""
VARIABLE = """## Variable order, and switching

Schemes for adaptive steps only, which choose their order or switch by stiffness; BDF and NDF of each order are stable
in the sector of the left half plane with the given *angle* (degrees), PECE Adams schemes to *real* on the negative real
axis. [stiff.md](stiff.md) says when to take which.
"""
FORMULAS = """Regions of the formulas of each order, with steps of one length (outside of the curves for BDF and NDF):

![Stability regions of schemes of variable order](figures/variable_order.png)
"""
IMEX = """Regions of the explicit part of y' = lambda y + mu y, in the plane of h lambda, for several h mu of the part
that is implicit or exact:

![Stability regions of schemes for sums](figures/sums.png)
"""
WINDOWS = {"bdf": (-6.0, 24.0, 15.0, 5), "ndf": (-6.0, 24.0, 15.0, 5), "adams": (-2.6, 0.6, 1.6, 8)}
"""Left, right and top of the panel of a scheme of variable order, and the highest order in it."""
STIFF = (0.0, -2.0, -10.0)
COLUMNS = 5  # of panels in a figure
LIMITS = ("real", "imaginary")
FIND_LIMITS = (conditions.real_stability_limit, conditions.imaginary_stability_limit)
NOISES = ("scalar", "additive", "diagonal", "commutative", "general")
FAMILIES = {
    "ExplicitRK": "Explicit Runge-Kutta",
    "LowStorageRK": "Low-storage Runge-Kutta (2N)",
    "StabilisedRK": "Stabilised Runge-Kutta (families; here with 10 stages)",
    "ImplicitRK": "Implicit Runge-Kutta (families; here with 3 stages)",
    "PartitionedRK": "Partitioned implicit Runge-Kutta, symplectic for every Hamiltonian (family; here with 3 stages)",
    "Rosenbrock": "Rosenbrock",
    "AdditiveRK": "Additive (IMEX) Runge-Kutta",
    "FixedBDF": "BDF with equal steps",
    "SemiImplicitBDF": "Semi-implicit BDF (IMEX)",
    "ExponentialRK": "Exponential Runge-Kutta (limits and regions without a linear part)",
    "Splitting": "Splitting and symplectic",
    "Multistep": "Multistep",
}
SCHEMES = """# Schemes

Generated from the catalogue by `docs/generate.py`; every property is computed from the coefficients. *Real* and
*imaginary* are the stability limits on the negative real axis and on the imaginary axis (for splitting schemes: the
largest h omega on an oscillator), *SSP* is the strong-stability-preserving coefficient.
"""
MODULES = """# Modules

Generated from the docstrings by `docs/generate.py`: every module with its first sentence.
[ARCHITECTURE.md](../../ARCHITECTURE.md) has the tree of packages.
"""


def _list_names(takes_fixed: bool) -> list[str]:
    """Schemes for ordinary equations that take fixed steps, or only adaptive ones."""
    names = schemes.names("ODE")
    return [name for name in names if capabilities.takes_fixed_steps(schemes.get(name)) == takes_fixed]


def build_scheme_page() -> str:
    """The tables of all schemes, by family."""
    chosen = [schemes.get(name) for name in _list_names(takes_fixed=True)]
    parts = [SCHEMES]
    for family, title in FAMILIES.items():
        members = list_members(family, chosen)
        figure = f"![Stability regions of the family {family}](figures/{family}.png)\n"
        parts.append(f"## {title}\n\n{_build_table(members)}\n{figure}")
        if family == "ExponentialRK":  # the last family for sums
            parts.append(IMEX)
    parts.append(f"{VARIABLE}\n{_build_variable_table()}\n{FORMULAS}")
    parts.append(f"{STOCHASTIC}\n{_build_stochastic_table()}\n{MEAN_SQUARE}")
    parts.append(f"{LANGEVIN}\n{_build_langevin_table()}")
    return "\n".join(parts)


def list_members(family: str, chosen) -> list:
    """The schemes of a family by order and name."""
    return sorted((s for s in chosen if type(s).__name__ == family), key=lambda s: (s.order, s.name))


def draw_figures(folder: Path) -> None:
    """The stability regions of each family, a panel for each scheme; where the test equation is an oscillator, bars."""
    from matplotlib.figure import Figure

    from stepnet import plots
    from stepnet.schemes.stability_grids import is_for_oscillators

    folder.mkdir(exist_ok=True)
    chosen = [schemes.get(name) for name in _list_names(takes_fixed=True)]
    for family in FAMILIES:
        members = list_members(family, chosen)
        with plots.style():
            if all(map(is_for_oscillators, members)):
                figure = Figure(figsize=(7.0, 0.25 * len(members) + 0.8), dpi=80, layout="constrained")
                axes = figure.subplots()
                limits = [conditions.imaginary_stability_limit(each) for each in members]
                axes.barh([each.name for each in members], limits, color=plots.COLOURS[0])
                axes.set(xlabel="largest stable h omega")
                axes.invert_yaxis()
            else:
                n_rows = -(-len(members) // COLUMNS)
                figure = Figure(figsize=(9.0, 1.9 * n_rows), dpi=80, layout="constrained")
                panels = figure.subplots(n_rows, COLUMNS, squeeze=False).ravel()
                for axes, each in zip(panels, members, strict=False):
                    plots.stability_region(each, axes=axes)
                    axes.legend().remove()
                    axes.set(title=each.name, xlabel="", ylabel="")
                for axes in panels[len(members) :]:
                    axes.axis("off")
            figure.savefig(folder / f"{family}.png")

    with plots.style():
        _draw_panels(folder / "sums.png", _list_sums(chosen))
        _draw_panels(folder / "variable_order.png", _list_formulas())
        _draw_panels(folder / "mean_square.png", _list_noisy())


def _draw_panels(path: Path, draws: dict[str, Callable]) -> None:
    """Several drawings in the panels of a figure, by their titles."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(draws))
    n_rows = -(-len(draws) // columns)
    figure = Figure(figsize=(9.0, n_rows * (9.0 / columns + 0.3)), dpi=80, layout="constrained")
    panels = figure.subplots(n_rows, columns, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for axes, (title, draw) in zip(panels, draws.items(), strict=False):
        draw(axes=axes)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if ", " in label:  # after the name of a scheme
                handles.setdefault(label.rpartition(", ")[2], handle)
        axes.legend().remove()
        axes.set(xlabel="", ylabel="")
        axes.set_title(title, fontsize=7)
    for axes in panels[len(draws) :]:
        axes.axis("off")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=8)
    figure.savefig(path)


def _list_sums(chosen) -> dict[str, Callable]:
    from stepnet import plots
    from stepnet.stability import region

    grid = {"real": np.linspace(-13.0, 11.0, 241), "imaginary": np.linspace(-12.0, 12.0, 241)}
    members = [s for family in ("AdditiveRK", "SemiImplicitBDF", "ExponentialRK") for s in list_members(family, chosen)]
    return {
        each.name: partial(plots.stability_region, *(region(each, stiff=w, **grid) for w in STIFF)) for each in members
    }


def _list_formulas() -> dict[str, Callable]:
    from stepnet import plots
    from stepnet.stability import region

    found = {}
    for name, (left, right, top, highest) in WINDOWS.items():
        grid = {"real": np.linspace(left, right, 151), "imaginary": np.linspace(-top, top, 151)}
        found[name] = partial(plots.stability_region, *(region(name, order=k, **grid) for k in range(1, highest + 1)))
    return found


def _list_noisy() -> dict[str, Callable]:
    from stepnet import plots

    admitted = [name for name in schemes.names("SDE") if not _find_mean_square_refusal(schemes.get(name))]
    return {name: partial(plots.mean_square_stability, name) for name in admitted}


def _find_mean_square_refusal(scheme) -> str | None:
    if type(scheme).__name__ == "TamedEuler":
        return "tames the drift"
    return capabilities.find_noise_refusal(scheme, "scalar", scheme.calculus)


def _build_variable_table() -> str:
    rows = ["| name | orders | stability by order | reference |", "|---|---|---|---|"]
    for name in _list_names(takes_fixed=False):
        scheme = schemes.get(name)
        if isinstance(scheme, schemes.Switching):
            orders, stability = "-", f"{scheme.explicit.name}, and {scheme.implicit.name} where it is stiff"
        elif isinstance(scheme, schemes.VariableBDF):
            angles = (variable_order.find_stability_angle(scheme, k) for k in range(1, scheme.order + 1))
            orders, stability = f"1 to {scheme.order}", "angle " + ", ".join(f"{x:.2f}" for x in angles)
        else:
            limits = scheme.stability_limits[1:]
            orders, stability = f"1 to {scheme.order}", "real " + ", ".join(f"{x:.2g}" for x in limits)
        rows.append(f"| `{name}` | {orders} | {stability} | {scheme.reference} |")
    return "\n".join(rows) + "\n"


def _build_stochastic_table() -> str:
    heads = ["name", "calculus", *NOISES, "estimate", "reference"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in schemes.names("SDE"):
        scheme = schemes.get(name)
        orders = {each.noise: _show_orders(each) for each in scheme.orders}
        cells = [scheme.calculus, *(orders.get(noise, "") for noise in NOISES)]
        estimate = "yes" if capabilities.is_adaptive(scheme) else ""
        rows.append(f"| `{name}` | {' | '.join(cells)} | {estimate} | {scheme.reference} |")
    return "\n".join(rows) + "\n"


def _build_langevin_table() -> str:
    rows = ["| name | orders | reference |", "|---|---|---|"]
    for name in schemes.names("Langevin"):
        scheme = schemes.get(name)
        rows.append(f"| `{name}` | {_show_orders(scheme.orders[0])} | {scheme.reference} |")
    return "\n".join(rows) + "\n"


def _show_orders(orders) -> str:
    strong = f"{orders.strong:g}" if orders.strong else "-"
    return f"{strong}, {orders.weak:g}"


def _build_table(members) -> str:
    """Limits of IMEX schemes are those of the implicit part, followed by those of the explicit part."""
    is_imex = any(find_explicit_part(scheme) is not None for scheme in members)
    limits = ("implicit real", "implicit imaginary", "explicit real", "explicit imaginary") if is_imex else LIMITS
    heads = ["name", "order", *limits, "SSP", "properties", "reference"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for scheme in members:
        hats = ", ".join(str(hat.order) for hat in getattr(scheme, "embedded", ()))
        order = f"{scheme.order}({hats})" if hats else str(scheme.order)
        parts = [scheme, find_explicit_part(scheme)] if is_imex else [scheme]
        numbers = [find(part) for part in parts for find in FIND_LIMITS] + [conditions.ssp_coefficient(scheme)]
        cells = " | ".join(f"{x:.4g}" if isfinite(x) else "-" for x in numbers)
        rows.append(f"| `{scheme.name}` | {order} | {cells} | {_list_properties(scheme)} | {scheme.reference} |")
    return "\n".join(rows) + "\n"


def _list_properties(scheme) -> str:
    found = {
        "L-stable": conditions.is_l_stable(scheme),
        "A-stable": conditions.is_a_stable(scheme) and not conditions.is_l_stable(scheme),
        "FSAL": conditions.is_fsal(scheme),
        "symplectic": conditions.is_symplectic(scheme),
        "symmetric": conditions.is_symmetric(scheme),
        "Nystrom": getattr(scheme, "nystrom", False),
    }
    return ", ".join(name for name, holds in found.items() if holds)


def build_module_page() -> str:
    """The list of all modules, by package."""
    parts = [MODULES]
    for package in _list_packages(SOURCES):
        name = ".".join(("stepnet", *package.relative_to(SOURCES).parts))
        modules = sorted(path for path in package.glob("*.py") if path.stem != "__init__")
        rows = [f"| `{path.stem}` | {_read_first_sentence(path)} |" for path in modules]
        table = "\n".join(["| module | contents |", "|---|---|", *rows]) if rows else ""
        parts += [part for part in (f"## {name}", _read_first_sentence(package / "__init__.py"), table) if part]
    return "\n\n".join(parts).replace("\n\n\n", "\n\n") + "\n"


def _list_packages(folder: Path) -> Iterator[Path]:
    """A package and the packages inside it, parents first."""
    yield folder
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from _list_packages(inner)


def _read_first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring on one line, for a cell of a table."""
    paragraph = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.?])\s+(?=[A-Z`])", paragraph)[0]
    return sentence.replace("|", "\\|")


SHOWN = (
    "dopri5 beside SciPy RK45, the same pair, rtol = atol = 1e-8",
    "our fastest beside the fastest peer, rtol = atol = 1e-8",
    "kernel beside the C loop, rtol = atol = 1e-8",
    "the same gradient by JAX",
    "members in lanes beside the fastest peer",
    "cold process to first solution, warm disk",
)
"""Aims of the benchmarks that the paper shows, met or missed; the first workload of each."""


def build_paper() -> str:
    """The paper with the counts of the catalogue and the results of the benchmarks."""
    results = (DOCS.parent / "benchmarks" / "RESULTS.md").read_text()
    facts = dict(re.findall(r"^\| (commit|cpu) +\| (.*?) +\|$", results, flags=re.MULTILINE))
    aims = re.findall(
        r"^\| (\S+) +\| (.*?) +\| ([<>]= \S+ \S+) +\| (\S+ \S+) +\| (PASS|MISS) \| (.*?) +\|$",
        results,
        flags=re.MULTILINE,
    )
    rows = [next(aim for aim in aims if aim[1] == text) for text in SHOWN]
    lines = ["| workload | compared | aim | measured |", "|---|---|---|---|"]
    lines += [f"| {aim[0]}: {aim[1]} | {aim[5]} | {aim[2]} | {aim[3]} |" for aim in rows]
    values = {
        "n_schemes": len(schemes.names("ODE")),
        "n_families": len({type(schemes.get(name)) for name in _list_names(takes_fixed=True)}),
        "n_stochastic": len(schemes.names("SDE")) + len(schemes.names("Langevin")),
        "commit": facts["commit"][:7],
        "cpu": facts["cpu"],
        "n_passed": sum(aim[4] == "PASS" for aim in aims),
        "n_aims": len(aims),
        "performance": "\n".join(lines),
    }
    text = (DOCS.parent / "paper" / "template.md").read_text()
    return re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]) if found[1] in values else found[0], text)


PAGES: dict[Path, Callable[[], str]] = {
    DOCS.parent / "paper" / "paper.md": build_paper,
    DOCS / "schemes.md": build_scheme_page,
    DOCS / "internals" / "modules.md": build_module_page,
}

if __name__ == "__main__":
    draw_figures(DOCS / "figures")
    for target, build in PAGES.items():
        target.write_text(build())
