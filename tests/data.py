"""The data sets of the examples, where tests find them."""

from pathlib import Path
from runpy import run_path

globals().update(run_path(str(Path(__file__).parents[1] / "examples" / "data.py"), run_name=__name__))
