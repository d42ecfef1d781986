"""Whatever the documents name exists: files, modules that are run, tests."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")] if p.name != "CHANGELOG.md")
_PATH = re.compile(r"(?<![\w/.-])(?:benchmarks|tests|examples|docs|jaxplan)/[\w/.-]*\w/?")
_SHORT = re.compile(r"`((?:[a-z]\w*/)+\w+\.py)`")
"""A table may say once below which folder its files lie."""
_COMMAND = re.compile(r"python -m ([a-z_]\w*(?:\.\w+)*)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_files_and_commands_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    absent = {path for path in _PATH.findall(text) if not (ROOT / path).exists()}
    for path in _SHORT.findall(text):
        if not any((ROOT / folder / path).exists() for folder in ("", "jaxplan", "tests")):
            absent.add(path)
    commands = set(_COMMAND.findall(text))
    absent |= {name for name in commands if _is_ours(name) and importlib.util.find_spec(name) is None}
    assert not absent, f"{document.name} names {sorted(absent)}"


def test_sources_name_commands_that_exist() -> None:
    sources = [path for folder in ("benchmarks", "tests", "jaxplan") for path in (ROOT / folder).rglob("*.py")]
    commands = {name for path in sources for name in _COMMAND.findall(path.read_text(encoding="utf-8"))}
    ours = {name for name in commands if _is_ours(name)}
    assert len(ours) > 20
    assert not {name for name in ours if importlib.util.find_spec(name) is None}


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in ("benchmarks", "tests", "jaxplan")
