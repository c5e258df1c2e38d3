"""Hook of MkDocs: pages of the site that are not files in docs/, and links to them.

The README is the first page; other documents of the repository and the examples follow.  The reference has one page for
each public module, written from `dir(module)` and the docstrings, so that it cannot fall behind the code.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import stepnet as sn

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md",
    "benchmarks/RESULTS.md", "benchmarks/work_precision.png", "examples/README.md",
)  # fmt: skip
"""Files outside docs/ that are pages or figures of the site."""

MODULES = ("stepnet", *sorted(getattr(sn, name).__name__ for name in sn._MODULES), "stepnet.torch")
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of the folders in the navigation, which MkDocs does not do beside named pages."""
    config.nav = [_expand(entry) for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add documents, examples and the reference to the files of the site."""
    for name in DOCUMENTS:
        files.append(_generate(config, _find_address(name), (ROOT / name).read_bytes()))
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(_generate(config, _find_address(f"examples/{path.name}"), _show_script(path).encode()))
    for module in MODULES:
        files.append(_generate(config, f"reference/{module}.md", _write_reference(module).encode()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links between documents of the repository to their pages."""
    source = _find_source(page.file.src_uri)

    def replace(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        address = _find_address("examples/README.md" if target == "examples" else target)
        return posixpath.relpath(address, posixpath.dirname(page.file.src_uri) or ".") + (found[2] or "")

    return LINK.sub(replace, markdown)


def _expand(entry: Any) -> Any:
    """An entry of the navigation with its folders replaced by their pages."""
    if not isinstance(entry, dict):
        return entry
    ((title, value),) = entry.items()
    if isinstance(value, list):
        return {title: [_expand(inner) for inner in value]}
    return {title: _list_pages(value) if value.endswith("/") else value}


def _list_pages(folder: str) -> list[Any]:
    """The pages of a folder, its overview first."""
    if folder == "reference/":
        return [{name: f"reference/{name}.md"} for name in MODULES]
    if folder == "examples/":
        scripts = sorted((ROOT / "examples").glob("*.py"))
        return ["examples/README.md", *({path.name: f"examples/{path.stem}.md"} for path in scripts)]
    return sorted(
        (f"{folder}{path.name}" for path in (ROOT / "docs" / folder).glob("*.md")),
        key=lambda name: ("README" not in name, name),
    )


def _generate(config: MkDocsConfig, address: str, content: bytes) -> File:
    """A file of the site that has no source in docs/."""
    return File.generated(config, address, content=content)


def _find_address(name: str) -> str:
    """Where a file of the repository is on the site."""
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return name.removesuffix(".py") + ".md" if name.endswith(".py") else name


def _find_source(address: str) -> str:
    """The file of the repository behind a page."""
    if address == "index.md":
        return "README.md"
    return address if address in DOCUMENTS or address.startswith(("reference/", "examples/")) else f"docs/{address}"


def _show_script(path: Path) -> str:
    """An example as a page: its title and its code."""
    return f'# {path.name}\n\n```python title="examples/{path.name}"\n{path.read_text()}```\n'


def _write_reference(name: str) -> str:
    """The page of a module: its docstring, then its public functions and classes, then its constants."""
    module = import_module(name)
    paths = list(_list_objects(module))
    return "\n\n".join([f"# {name}", inspect.cleandoc(module.__doc__ or ""), *(f"::: {path}" for path in paths)]) + "\n"


def _list_objects(module: ModuleType) -> Iterator[str]:
    """The dotted paths of the definitions of the public names of a module."""
    for name in sorted(dir(module), key=str.lower):
        value: Any = getattr(module, name)
        if name.startswith("_") or isinstance(value, ModuleType):
            continue
        is_defined = inspect.isclass(value) or inspect.isfunction(value)
        yield f"{value.__module__}.{value.__qualname__}" if is_defined else f"{module.__name__}.{name}"
