"""Ctrl-C works in tests, and measured values are printed at the end, in whichever process they were measured.

A shell in the background hands down a signal that is ignored; what workers print is lost but for their reports.
"""

from __future__ import annotations

import signal
from collections import defaultdict

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)

TOLD = (
    "tests/nets/",
    "tests/claims/",
    "tests/stochastic/test_weak_orders.py",
)  # whose prints are tables of what was measured


@pytest.fixture
def counted(record_property):
    """`counted(what, case, total)`: this case of so many was run; how many were is told at the end."""

    def count(what: str, case: str, total: int) -> None:
        record_property("counted", [what, case, total])

    return count


@pytest.fixture
def within(record_property):
    """`within(what, error, bound)` asserts that the error is in bounds; the largest of all is told at the end."""

    def check(what: str, error: float, bound: float) -> None:
        record_property("within", [what, float(error), bound])
        assert error <= bound, f"{what}: {error:.2e}, allowed {bound:.0e}"  # NaN is not

    return check


def pytest_terminal_summary(terminalreporter):
    """Counts of cases that passed, largest errors beside their bounds, and printed tables."""
    reports = [each for each in terminalreporter.stats.get("passed", []) if each.when == "call"]
    lines = [*_counts(reports), *_errors(reports)]
    tables = [each.capstdout.strip("\n") for each in reports if each.nodeid.startswith(TOLD) and each.capstdout]
    if lines or tables:
        terminalreporter.section("measured")
        for line in (*lines, *tables):
            terminalreporter.write_line(line)


def _told(reports, name: str):
    return [value for report in reports for key, value in report.user_properties if key == name]


def _counts(reports):
    cases, totals = defaultdict(set), {}
    for what, case, total in _told(reports, "counted"):
        cases[what].add(case)
        totals[what] = total
    return [f"{len(cases[what])} of {totals[what]} {what}" for what in cases]


def _errors(reports):
    errors, bounds = defaultdict(list), {}
    for what, error, bound in _told(reports, "within"):
        errors[what].append(error)
        bounds[what] = bound
    return [
        f"{what}: {max(errors[what]):.1e} at most in {len(errors[what])}, allowed {bounds[what]:.0e}" for what in errors
    ]
