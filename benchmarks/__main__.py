"""`python -m benchmarks [workload ...]`: measure, print, and after a full run write results.json and RESULTS.md."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

# One thread for everybody, set before anything that counts cores is imported.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

from benchmarks import (
    adaptive,
    batches,
    cold_start,
    drop_in,
    ensembles,
    figure,
    fixed_steps,
    gradients,
    layers,
    lines,
    montecarlo,
    neural_ode,
    noise,
    pdes,
    report,
    sdes,
    stability,
    stiff,
    stiff_batch,
    training,
)
from benchmarks.environment import environment, source_hash

HERE = Path(__file__).parent
WORKLOADS = (
    dict.fromkeys(adaptive.WORKLOADS, adaptive.rows)
    | dict.fromkeys(fixed_steps.WORKLOADS, fixed_steps.rows)
    | dict.fromkeys(stiff.WORKLOADS, stiff.rows)
    | {stiff.ENSEMBLE: stiff.rows_of_members}
    | dict.fromkeys(pdes.WORKLOADS, pdes.rows)
    | {
        module.WORKLOAD: module.rows
        for module in (
            cold_start, drop_in, lines, gradients, ensembles, batches, stiff_batch, neural_ode, noise, sdes, montecarlo,
            layers, stability, training,
        )
    }
)  # fmt: skip


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        print(f"unknown workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}", file=sys.stderr)
        return 2
    facts = environment()
    rows = measure(names or list(WORKLOADS))
    print("\n" + report.aims_table(rows))
    print("\n" + report.c_table(rows))
    if names:
        print("\nresults.json and RESULTS.md are left as they are: they come from full runs only")
        return 0
    if source_hash() != facts["sources"]:
        print("\nthe sources of stepnet changed during the run, so nothing is written", file=sys.stderr)
        return 1
    results = {"environment": facts, "rows": rows}
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    write_pages()
    return 0


def write_pages() -> None:
    """RESULTS.md and the figure from results.json."""
    results = json.loads((HERE / "results.json").read_text())
    (HERE / "RESULTS.md").write_text(report.report(results))
    titles = {name: problem.title for name, (problem, _) in adaptive.WORKLOADS.items()}
    figure.draw(results["rows"], titles, HERE / "work_precision.png")


def measure(names: list[str]) -> list[dict]:
    """All rows of the named workloads, printed as they come."""
    rows = []
    for name in names:
        started = time.perf_counter()
        for row in WORKLOADS[name](name):
            rows.append(row.as_dict())
            print(_line(rows[-1]), flush=True)
        print(f"{name}: {time.perf_counter() - started:.0f} s\n", flush=True)
    return rows


def _line(row: dict) -> str:
    tolerance = "" if row["tolerance"] is None else f"{row['tolerance']:.0e}"
    head = f"{row['workload']:14}{tolerance:7}{row['contender']:33}"
    if row["memory"] is not None:
        return f"{head}{row['memory'] / 1e6:>10.4g} MB"
    if row["time"] is None:
        return head + row["note"]
    kernel = "" if row["kernel_time"] is None else f"{row['kernel_time'] * 1e3:.4g}"
    error = "" if row["error"] is None else f"{row['error']:.1e}"
    return (
        f"{head}{row['time'] * 1e3:>10.4g} ms{kernel:>10}{error:>10}{row['accepted'] or '':>9}{row['calls']:>6} calls"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
