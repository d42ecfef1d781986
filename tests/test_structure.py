"""The structure of the package: folders import one way, functions are short, the top level is small."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parent.parent / "jaxplan"
MOST_LINES, MOST_AT_TOP = 60, 20


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def test_folders_import_one_way() -> None:
    """No circle, with imports inside functions and for type checkers counted."""
    arrows: dict[str, set[str]] = {}
    for path, tree in trees().items():
        source = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if source in ("__init__", "__main__"):
            continue
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        targets = {module.split(".")[1] for module in modules if module.startswith("jaxplan.")}
        arrows.setdefault(source, set()).update(targets - {source})
    order = list(graphlib.TopologicalSorter(arrows).static_order())  # raises CycleError
    assert order.index("mesh") < order.index("cost") < order.index("partition") < order.index("search")


def test_modules_import_one_way() -> None:
    """No circle between modules either; a package is its `__init__`, which its own modules may not import."""
    modules = {module_name(path): tree for path, tree in trees().items()}
    arrows = {name: imported_modules(tree, modules.keys()) - {name} for name, tree in modules.items()}
    list(graphlib.TopologicalSorter(arrows).static_order())  # raises CycleError


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(tree: ast.Module, modules: Collection[str]) -> set[str]:
    """Modules of the package that a module imports: at its top, in functions, by name, and for type checkers."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            source = node.module or ""
            inside = {alias.name: f"{source}.{alias.name}" for alias in node.names}
            found |= {inner if inner in modules else source for inner in inside.values()}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {name.value for name in node.args if isinstance(name, ast.Constant)}
    return found.intersection(modules)


def test_one_module_asks_for_the_id_of_an_object() -> None:
    """A memo keyed by `id` goes wrong when an object dies; `jaxplan.core._interner` keeps the objects of its keys."""
    found = [
        f"{module_name(path)}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "id"
    ]
    assert {place.partition(":")[0] for place in found} == {"jaxplan.core._interner"}, found


def test_functions_are_short() -> None:
    long = [
        f"{path.name}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= MOST_LINES
    ]
    assert not long


def test_the_top_level_is_small() -> None:
    assert len([path for path in ROOT.iterdir() if path.name != "__pycache__"]) <= MOST_AT_TOP


def test_few_files_are_long() -> None:
    long = [path.name for path in trees() if len(path.read_text().splitlines()) > 400]
    assert len(long) <= 3, long


def test_nothing_is_defined_that_nothing_uses() -> None:
    """Functions and classes that no decorator registers are named again in the package, its pages or benchmarks."""
    names = re.compile(r"[A-Za-z_]\w*")
    words = Counter(name for path in trees() for name in names.findall(path.read_text()))
    top = ROOT.parent
    others = top / "README.md", *(top / "docs").glob("*.md"), *(top / "benchmarks").rglob("*.py")
    outside = {name for path in others for name in names.findall(path.read_text())}
    unused = {
        f"{path.name}:{node.lineno} {node.name}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not any(map(registers, node.decorator_list))
        if words[node.name] == 1 and node.name not in outside and not node.name.startswith("__")
    }
    assert unused == set()


def registers(decorator: ast.expr) -> bool:
    """Whether a decorator may hand the function on; those of the standard library do not."""
    name = ast.unparse(decorator).partition("(")[0].rpartition(".")[2]
    return name not in ("property", "cached_property", "cache", "staticmethod", "classmethod", "dataclass")
