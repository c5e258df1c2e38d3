"""Work against precision, one panel for each problem."""

from __future__ import annotations

from pathlib import Path

PANELS = ("lorenz-short", "arenstorf", "pleiades")

# Colour tells the package, the marker the scheme.
COLOURS = {
    "C": "black", "stepnet": "tab:red", "diffrax": "tab:blue", "pydiffsol": "tab:green", "scipy": "tab:orange",
    "torchdiffeq": "tab:purple",
}  # fmt: skip
MARKERS = {
    "C dopri5": "o", "stepnet dopri5": "o", "stepnet tsit5": "s", "stepnet dop853": "^", "diffrax Dopri5": "o",
    "diffrax Tsit5": "s", "diffrax Dopri8": "^", "pydiffsol tsit45": "s", "SciPy RK45": "o", "SciPy DOP853": "^",
    "SciPy odeint": "D", "torchdiffeq dopri5": "o",
}  # fmt: skip


def draw(rows: list[dict], titles: dict[str, str], path: Path) -> None:
    """Error at the end to the right, time of a whole call upward; lower left is better."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(PANELS), figsize=(16, 6.2), sharey=True, layout="constrained")
    for ax, workload in zip(axes, PANELS, strict=True):
        for contender, marker in MARKERS.items():
            _curve(ax, [r for r in rows if (r["workload"], r["contender"]) == (workload, contender)], marker)
        ax.set(xscale="log", yscale="log", title=titles[workload], xlabel="error at the end (maximum norm)")
        ax.grid(True, which="major", alpha=0.3)
    axes[0].set_ylabel("time of one solve, ms")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curve(ax, rows: list[dict], marker: str) -> None:
    points = [(r["error"], r["time"] * 1e3) for r in rows if r["time"] and r["error"]]
    if not points:
        return
    row = rows[0]
    is_ours = row["package"] in ("stepnet", "C")
    ax.plot(
        *zip(*points, strict=True), marker=marker, color=COLOURS[row["package"]], label=row["contender"],
        linewidth=2.0 if is_ours else 1.0, markersize=6 if is_ours else 4.5, alpha=1.0 if is_ours else 0.8,
        linestyle="--" if row["package"] == "C" else "-",
    )  # fmt: skip
