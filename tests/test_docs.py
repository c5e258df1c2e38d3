"""The documentation is correct: its code runs, their tables are current, their links, names and paths exist."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "stepnet"
GENERATED = ROOT / "docs" / "internals" / "modules.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WIDTH = 120

LANGUAGES = {"python", "python compile-only", "c", "sh", "text"}
"""What code in a page is: run, only compiled, or text that is no program of this package."""


def path_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of all fenced blocks."""
    return re.findall(r"^```([^\n]+)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def blocks_in(page: Path, language: str) -> list[str]:
    return [text for name, text in blocks(page) if name == language]


def prose(page: Path) -> str:
    """The page without fenced code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def inline_code(page: Path) -> list[str]:
    return [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose(page))]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of all tables, without their headings."""
    found = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in t.splitlines()[2:]] for t in found]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- code -----------------------------------------------------------------------------------------------------------

WITH_CODE = [page for page in PAGES if blocks_in(page, "python")]
COMPILED_ONLY = [page for page in PAGES if blocks_in(page, "python compile-only")]


@pytest.mark.parametrize("page", PAGES, ids=path_id)
def test_every_code_block_says_what_it_is(page):
    """Python is run, or says that it is only compiled; nothing is hidden in indented or unnamed blocks."""
    assert {language for language, _ in blocks(page)} <= LANGUAGES
    assert len(re.findall(r"^\s*```", page.read_text(), flags=re.MULTILINE)) == 2 * len(blocks(page))
    assert re.findall(r"^\n {4,}\S.*", prose(page), flags=re.MULTILINE) == []


@pytest.mark.parametrize("page", WITH_CODE, ids=path_id)
def test_python_blocks_of_a_page_run_in_order(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in blocks_in(page, "python"):
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.parametrize("page", COMPILED_ONLY, ids=path_id)
def test_python_blocks_that_need_other_machines_compile_and_call_what_there_is(page):
    for block in blocks_in(page, "python compile-only"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[0] in ("sn", "snt"):
                signature = inspect.signature(resolve(ast.unparse(node.func)))
                keywords = {keyword.arg: keyword.value for keyword in node.keywords}
                signature.bind(*node.args, **keywords)
                assert set(keywords) <= set(signature.parameters)  # none is swallowed by **options


def test_readme_shows_every_way_in():
    code = "".join(blocks_in(ROOT / "README.md", "python"))
    ways = (
        "sn.solve(",
        "solve_ivp(",
        "sn.start(",
        "sn.Event(",
        "dense=True",
        "sn.schemes.ExplicitRK(",
        "sn.derivatives.jacobian(",
        "sn.gradient(",
        "sn.solve_ensemble(",
        "sn.sweep(",
        "sn.nets.",
        "training.minimise(",
        "snt.odeint(",
        "snt.solve(",
    )
    assert [way for way in ways if way not in code] == []


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of a page: its page and its words."""
    for page in sorted(set(PAGES) - {GENERATED}):
        lines = "".join(blocks_in(page, "sh")).splitlines()
        inline = [text for text in inline_code(page) if re.match(r"(make|stepnet|python) [\w./-]", text)]
        for line in [*lines, *inline]:
            yield path_id(page), shlex.split(line, comments=True)


def test_commands_exist_with_their_options():
    """make targets, subcommands and options of `stepnet`, scripts and folders of tests."""
    from stepnet.cli import main

    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    seen = 0
    for page, (program, *words) in commands():
        seen += 1
        where = f"{page}: {program} {' '.join(words)}"
        if program == "make":
            assert set(words) <= set(targets), where
        elif program == "stepnet":
            command = main.commands.get(words[0])
            assert isinstance(command, click.Command), where
            options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            assert {word for word in words if word.startswith("--")} <= options | {"--help"}, where
        elif program == "python":
            assert words[0] == "-m" or (ROOT / words[0]).exists(), where
            assert words[:2] != ["-m", "pytest"] or all((ROOT / word).exists() for word in words[2:]), where
            assert words[:2] != ["-m", "benchmarks"] or (ROOT / "benchmarks" / "__main__.py").exists(), where
        else:
            pytest.fail(where)
    assert seen > 20


# ---- names, paths and links -----------------------------------------------------------------------------------------

ROOTS = {
    "sn": "stepnet",
    "snt": "stepnet.torch",
    "stepnet": "stepnet",
    "checkpoints": "stepnet.checkpoints",
    "conditions": "stepnet.schemes.conditions",
    "fields": "stepnet.fields",
    "losses": "stepnet.nets.losses",
    "nets": "stepnet.nets",
    "penalties": "stepnet.nets.penalties",
    "plots": "stepnet.plots",
    "reductions": "stepnet.ensembles.reductions",
    "schemes": "stepnet.schemes",
    "training": "stepnet.training",
}
"""How pages begin a dotted name of the package."""

ENGINE = SOURCES / "engines" / "numba_engine"
FOLDERS = (ROOT, SOURCES, ENGINE, ROOT / "tests" / "claims", ROOT / "tests" / "nets")
"""What paths in pages may be relative to, besides the page."""

OF_USERS = {"lorenz.py", "run.json", "estimator.json"}
"""Files that calls write or that users have."""


def resolve(name: str) -> object:
    """The object of a dotted name as a page writes it."""
    first, *rest = name.split(".")
    found: object = import_module(ROOTS[first])
    for part in rest:
        if not hasattr(found, part) and isinstance(found, ModuleType):
            import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("page", PAGES, ids=path_id)
def test_dotted_names_of_the_package_exist(page):
    for text in inline_code(page):
        match = re.match(rf"({'|'.join(ROOTS)})(\.[A-Za-z_]\w*)+", text)
        if match and not re.search(r"\.(py|md|json)\b", text):
            resolve(match.group(0))


@pytest.mark.parametrize("page", PAGES, ids=path_id)
def test_files_and_folders_that_a_page_names_exist(page):
    for text in inline_code(page):
        if (
            re.fullmatch(r"[\w./-]+\.(py|md|toml|json|c)|[\w.-]+/([\w./-]*/)?|(tests|docs|src)/[\w/]+", text)
            and text not in OF_USERS
        ):
            assert any((folder / text).exists() for folder in (page.parent, *FOLDERS)), f"{page.name} names {text}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("*/README.md"))], ids=path_id)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name} links to {name}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to a heading #{anchor} that {file.name} lacks"


def test_every_page_is_linked_from_the_readme_or_from_an_index():
    """A page that nothing links to is not found."""
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s:]+)\)", prose(page))
    }
    assert [path_id(page) for page in PAGES if page.name != "README.md" and page.resolve() not in linked] == []


def test_the_site_lists_every_page():
    """The navigation of the documentation site names the pages of docs/, and the folders whose pages it shows."""
    import yaml

    def list_targets(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry if isinstance(entry, list) else entry.values():
                yield from list_targets(inner)

    found = set(list_targets(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    folders = {name for name in found if name.endswith("/")}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= found
    assert folders == {"examples/", "reference/", "internals/", "decisions/"}
    inside = found - folders - {"index.md"}
    assert [name for name in inside if not ((ROOT / "docs" / name).exists() or (ROOT / name).exists())] == []


# ---- facts ----------------------------------------------------------------------------------------------------------


def test_generated_pages_are_current(generate):
    for target, build in generate.PAGES.items():
        assert target.read_text() == build(), f"{target.name}: run `python docs/generate.py`"


def test_the_tree_of_the_architecture_is_that_of_the_sources():
    """Every package at its place, and every module of the top level."""
    tree = next(text for text in blocks_in(ROOT / "ARCHITECTURE.md", "text") if text.startswith("src/stepnet/"))
    packages, modules, parents = set(), set(), []
    for line in tree.splitlines()[1:]:
        entry, level = re.split(r"\s{2,}", line.strip())[0], (len(line) - len(line.lstrip())) // 2
        if level == 0:
            break
        if entry.endswith("/"):
            parents[level - 1 :] = [entry.rstrip("/")]
            packages.add("/".join(parents))
        else:
            modules |= set(entry.split(", "))
    assert packages == {str(path.parent.relative_to(SOURCES)) for path in SOURCES.rglob("*/__init__.py")} - {"."}
    assert modules == {path.stem for path in SOURCES.glob("*.py")} - {"__init__", "__main__"}


def test_the_architecture_is_one_page():
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) < 1400


def test_the_direction_of_imports_is_that_of_the_contracts():
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["name"] == "imports point one way")
    written = next(text for text in blocks_in(ROOT / "ARCHITECTURE.md", "text") if text.startswith("cli"))
    shown = [set(re.findall(r"\w+", layer)) for layer in written.split("->")]
    assert shown == [set(re.findall(r"stepnet\.(\w+)", layer)) for layer in layers]


def test_block_sizes_of_gradients_are_current():
    from stepnet.gradients.reversal import BLOCK_NUMBERS, count_steps_in_block

    text = " ".join((ROOT / "docs" / "gradients.md").read_text().split())
    steps = count_steps_in_block(3)
    assert BLOCK_NUMBERS == 2**17
    assert "one megabyte (2^17 numbers)" in text
    assert f"For Lorenz a block is {steps:,} steps, so 10^7 steps are {-(-(10**7) // steps)} blocks".replace(
        ",", " ", 1
    ) in text  # fmt: skip
    assert count_steps_in_block(3, 4 * 8 * BLOCK_NUMBERS) == steps > count_steps_in_block(3, 4 * 8 * BLOCK_NUMBERS - 96)


def test_tests_are_skipped_only_for_the_stated_reasons():
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    packages = "torchdiffeq, torchsde, safetensors"
    assert f"A test is skipped only where an optional package ({packages}) or `fork` is missing." in text
    found = set()
    for path in set((ROOT / "tests").rglob("*.py")) - {Path(__file__)}:
        found |= set(re.findall(r"importorskip\((.*?)\)|mark\.skipif\((.*?), reason|(pytest\.skip)", path.read_text()))
    reasons = {"".join(each) for each in found}
    assert reasons == {'"torchdiffeq"', '"safetensors.torch"', '"torchsde"', 'not hasattr(os, "fork")'}


def test_prices_of_checkpoints_are_current():
    from stepnet.checkpoints import binomial_advances

    text = (ROOT / "docs" / "gradients.md").read_text()
    for n in (10, 100, 1000, 10_000, 100_000):
        runs = (1 + binomial_advances(n, slots) / n for slots in (3, 5, 10, 20, 50, 100))
        assert f"| {n} | " + " | ".join(f"{run:.2f}" for run in runs) + " |" in text


def test_counts_of_schedules_are_current():
    from stepnet.checkpoints import binomial_advances, mixed_evaluations

    text = (ROOT / "docs" / "checkpoints.md").read_text()
    for count in (binomial_advances, mixed_evaluations):
        for n in (100, 1000, 1202, 10_000):
            assert f"| {n} | " + " | ".join(str(count(n, slots)) for slots in (3, 5, 10, 20, 50)) + " |" in text


def test_readme_counts_the_schemes_right():
    from stepnet import schemes

    assert f"{len(schemes.names('ODE'))} schemes" in (ROOT / "README.md").read_text()


def test_pages_list_all_losses_and_presets():
    from stepnet.nets import losses
    from stepnet.torch import nets

    training, networks = ((ROOT / "docs" / name).read_text() for name in ("training.md", "networks.md"))
    assert [name for name in losses.names() if not re.search(rf"^\|.*`{name}\b", training, flags=re.MULTILINE)] == []
    assert [name for name in nets.__all__ if f"`{name}`" not in networks] == []


# ---- words ----------------------------------------------------------------------------------------------------------

TERMS, REJECTED = tables(GLOSSARY.read_text())
BANNED = {word: say for say, words in REJECTED for word in words.split(", ")}


ESTABLISHED = re.compile(r"\bBrownian motion\b")
"""Terms of the field in which a rejected word has another meaning."""


def find_words(words, text: str) -> list[str]:
    text = ESTABLISHED.sub("", " ".join(text.split()))
    return [word for word in words if re.search(rf"\b{re.escape(word)}\b", text, flags=re.IGNORECASE)]


@pytest.mark.parametrize("page", PAGES, ids=path_id)
def test_lines_of_prose_are_no_longer_than_a_line_of_code(page):
    long = [line for line in page.read_text().splitlines() if len(line) > WIDTH and not line.startswith("|")]
    assert page == GENERATED or long == []


def test_terms_are_sorted_unique_and_sentences():
    terms = [term for term, _ in TERMS]
    assert terms == sorted(set(terms), key=str.lower)
    assert [says for says, _ in REJECTED] == sorted({says for says, _ in REJECTED}, key=str.lower)
    for term, meaning in TERMS:
        assert re.fullmatch(r"[A-Z0-9`].*\.", meaning), term
    assert find_words(BANNED, " ".join(" ".join(row) for row in TERMS)) == []


@cache
def text_of_everything() -> str:
    """Sources and pages but the glossary, names taken apart into words."""
    files = [*SOURCES.rglob("*.py"), *(page for page in PAGES if page != GLOSSARY)]
    return " ".join(re.sub(r"[_\W]+", " ", path.read_text()).lower() for path in files)


@pytest.mark.parametrize("term", [term for term, _ in TERMS])
def test_terms_are_used(term):
    words = re.sub(r"[_\W]+", " ", term).lower()
    assert re.search(rf"\b{words}(s|es)?\b", text_of_everything())


@pytest.mark.parametrize("page", PAGES, ids=path_id)
def test_pages_have_no_rejected_words(page):
    """Outside of code; of the glossary the table of rejected words is left out."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    if page == GLOSSARY:
        text = text.partition("## Rejected words")[0]
    assert page == GENERATED or find_words(BANNED, text) == []


def public_docstrings() -> Iterator[tuple[str, str]]:
    from fuzz.calls import methods_of, public_callables, public_modules

    for module in public_modules():
        yield module.__name__, module.__doc__ or ""
    for name, member in public_callables().items():
        yield name, inspect.getdoc(member) or ""
        for method in methods_of(member) if isinstance(member, type) else ():
            yield f"{name}.{method}", inspect.getdoc(getattr(member, method)) or ""


def test_docstrings_of_public_names_have_no_rejected_words():
    docstrings = list(public_docstrings())
    assert len(docstrings) > 300
    assert [(word, name) for name, text in docstrings for word in find_words(BANNED, text)] == []


# ---- docstrings -----------------------------------------------------------------------------------------------------


def has_section(text: str, *titles: str) -> bool:
    return re.search(rf"^({'|'.join(titles)})\n-", text, flags=re.MULTILINE) is not None


def find_gaps(name: str, member: object) -> Iterator[str]:
    """What the docstring of a public callable lacks."""
    text = inspect.getdoc(member) or ""
    if not has_section(text, "Examples"):
        yield f"{name}: no example"
    if isinstance(member, type) and issubclass(member, BaseException):
        return
    signature = inspect.signature(member)
    for parameter in signature.parameters:
        if not re.search(rf"^(?:[\w*]+, )*\*{{0,2}}{parameter}(?:, [\w*]+)*( :|$)", text, flags=re.MULTILINE):
            yield f"{name}: `{parameter}` is not documented"
    returns_nothing = isinstance(member, type) or signature.return_annotation in (None, "None")
    if not returns_nothing and not has_section(text, "Returns"):
        yield f"{name}: its result is not documented"


def test_public_callables_document_their_arguments_and_results(counted):
    from fuzz.calls import public_callables

    members = public_callables()
    assert len(members) > 250
    assert [gap for name, member in members.items() for gap in find_gaps(name, member)] == []
    for name in members:
        counted("public callables with a full docstring", name, len(members))


def test_examples_in_docstrings_run(monkeypatch, tmp_path):
    """Each in a fresh namespace: it imports what it uses."""
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    runner, parser, report = doctest.DocTestRunner(verbose=False), doctest.DocTestParser(), []
    for name, text in public_docstrings():
        runner.run(parser.get_doctest(text, {}, name, None, None), out=report.append)
        plt.close("all")
    print(f"{runner.tries} examples of docstrings")
    assert runner.tries > 500
    assert runner.failures == 0, "".join(report)


# ---- examples -------------------------------------------------------------------------------------------------------

SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "data")
TRAINING = [path for path in SCRIPTS if "training" in path.read_text() or path.stem in ("neural_ode", "neural_sde")]
LONG = [*TRAINING, *(path for path in SCRIPTS if path.stem in ("basins", "bifurcations"))]


def run_and_draw(script, folder):
    subprocess.run([sys.executable, script, folder], check=True, timeout=900)
    assert (folder / f"{script.stem}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "script",
    [pytest.param(path, marks=pytest.mark.slow if path in LONG else (), id=path.stem) for path in SCRIPTS],
)
def test_examples_run_and_draw(script, tmp_path):
    """Those that train run with less work in tests/examples, too."""
    run_and_draw(script, tmp_path)
