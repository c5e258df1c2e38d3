"""Reading, validation and conversion of tables in CSV files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Table(NamedTuple):
    """A CSV file: column names, and one list of strings per line."""

    names: list[str]
    lines: list[list[str]]


def read_table(path: Path) -> Table:
    """Read a CSV file whose first line names the columns."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        names, *lines = [[text.strip() for text in line] for line in csv.reader(_read_text(path)) if line] or [[]]
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from None
    if not names or all(is_number(name) for name in names):
        raise ValueError(f"the first line of {path} must name the columns, found {', '.join(names) or 'nothing'}")
    if len(set(names)) != len(names):
        raise ValueError(f"the columns of {path} must have different names, found {', '.join(names)}")
    if not lines:
        raise ValueError(f"{path} must have lines below the names of its columns, found none")
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            raise ValueError(f"line {number} of {path} must have {len(names)} columns, found {len(line)}")
    return Table(names, lines)


def _read_text(path: Path) -> StringIO:
    """Read a file in UTF-8, without a byte order mark."""
    content = path.read_bytes()
    try:
        return StringIO(content.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path} must be text in UTF-8, found the byte 0x{content[error.start]:02x} in line {line}; store it "
            "in that encoding"
        ) from None


def parse_columns(table: Table, columns: Sequence[str], path: Path) -> np.ndarray:
    """Convert some columns to numbers (lines, columns)."""
    missing = [name for name in columns if name not in table.names]
    if missing:
        raise ValueError(f"{path} must have the columns {', '.join(columns)}; {', '.join(missing)} is missing")
    places = [table.names.index(name) for name in columns]
    for number, line in enumerate(table.lines, 2):
        for name, place in zip(columns, places, strict=True):
            if not is_number(line[place]):
                raise ValueError(
                    f"line {number} of {path} must have a number in the column {name}, found {line[place]!r}"
                )
    return np.array([[float(line[place]) for place in places] for line in table.lines])


def is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
