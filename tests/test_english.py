"""The prose of the code: sentences that lean on question words are rare. ``python tests/test_english.py`` prints it."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "jaxplan"
MOST_PER_1000_WORDS = 3.0
MOST_PER_1000_WORDS_OF_A_FILE = 10.0
WITH_PROSE = ("jaxplan", "tests", "benchmarks", "examples")
WORDS = re.compile(r"[A-Za-z]+")
QUESTION_WORDS = re.compile(r"\b(what|who|whom|whose)\b", re.IGNORECASE)
DOCUMENTS = [*(PACKAGE.parent / name for name in ("README.md", "CONTRIBUTING.md")), *PACKAGE.parent.glob("docs/*.md")]
FOLDERS = (".", *sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))


def prose_of(source: str) -> Iterator[str]:
    """Docstrings (those under constants too) and comments of a module."""
    strings: dict[int, list[tuple[int, int]]] = defaultdict(list)  # line -> the columns of its strings
    for node in ast.walk(ast.parse(source)):
        for child in getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ():
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            assert node.end_lineno is not None and node.end_col_offset is not None
            for line in range(node.lineno, node.end_lineno + 1):
                first = node.col_offset if line == node.lineno else 0
                strings[line].append((first, node.end_col_offset if line == node.end_lineno else len(source)))
    for number, line in enumerate(source.encode().split(b"\n"), 1):
        places = (match.start() for match in re.finditer(b"#", line))
        start = next((at for at in places if not any(a <= at < b for a, b in strings[number])), None)
        if start is not None:
            yield line[start:].decode()


@functools.cache
def count(path: Path) -> tuple[int, int]:
    """Words of the prose of a file, and question words among them."""
    texts = [*prose_of(path.read_text())]
    return sum(len(WORDS.findall(text)) for text in texts), sum(len(QUESTION_WORDS.findall(text)) for text in texts)


def counts() -> tuple[Counter[str], Counter[str]]:
    """Words and question words of each folder of the package; "." is the top level."""
    words, questions = Counter[str](), Counter[str]()
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        folder = parts[0] if len(parts) > 1 else "."
        of_file, asked = count(path)
        words[folder] += of_file
        questions[folder] += asked
    return words, questions


def test_prose_is_docstrings_attribute_docs_and_comments() -> None:
    source = '"""What."""\nX = "who"  # whose\n"""Whom."""\n\ndef f():\n    """What else."""\n    return "what"\n'
    found = " ".join(prose_of(source))
    assert len(QUESTION_WORDS.findall(found)) == 4


@pytest.mark.parametrize("folder", FOLDERS)
def test_question_words_are_rare(folder: str) -> None:
    words, questions = counts()
    assert 1000 * questions[folder] <= MOST_PER_1000_WORDS * words[folder]


def test_no_file_leans_on_question_words() -> None:
    """Nor do tests and benchmarks; a file of few words may have none."""
    found = {}
    for path in (p for folder in WITH_PROSE for p in sorted((PACKAGE.parent / folder).rglob("*.py"))):
        words, questions = count(path) if path != Path(__file__) else (0, 0)
        if 1000 * questions > MOST_PER_1000_WORDS_OF_A_FILE * words:
            found[str(path.relative_to(PACKAGE.parent))] = questions
    assert found == {}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_lean_on_no_question_words(path: Path) -> None:
    text = path.read_text()
    found, words = QUESTION_WORDS.findall(text), len(text.split())
    assert 1000 * len(found) <= MOST_PER_1000_WORDS * words, f"{len(found)} in {words} words"


def main() -> None:
    words, questions = counts()
    for folder in sorted(words):
        rate = 1000 * questions[folder] / words[folder]
        print(f"{folder:12} {questions[folder]:4} in {words[folder]:6} words: {rate:5.1f} per 1,000")
    print(f"{'all':12} {questions.total():4} in {words.total():6} words: ", end="")
    print(f"{1000 * questions.total() / words.total():5.1f} per 1,000")


if __name__ == "__main__":
    main()
