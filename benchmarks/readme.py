"""Does README show the output of its code? `python -m benchmarks.readme`; with `--write`, README is put right.

The Python blocks of README run one after the other in one namespace. The output of a block has to be the text that
follows it, but for the seconds that a search took; where a line without print ends in a comment with a number, such as
``# the fewest that fit: 8``, that is the value of the line.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import difflib
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxplan.core._files import write_whole

README = Path(__file__).parents[1] / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SEARCHED = re.compile(r"searched for\s+[\d.]+ (?:s|ms|us)")
_VALUE = re.compile(r"(#.*: )(\d+)\s*$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block between fences: its language ("" for text), content, and where the content lies in README."""

    language: str
    content: str
    start: int
    end: int


def blocks(text: str) -> list[Block]:
    return [
        Block(language=match[1], content=match[2], start=match.start(2), end=match.end(2))
        for match in _BLOCK.finditer(text)
    ]


def as_run(text: str) -> str:
    """README with the blocks that its own code prints, and the values that its lines have."""
    namespace: dict[str, Any] = {}
    found, pieces, done = blocks(text), [], 0
    for block, following in zip(found, [*found[1:], None]):
        if block.language != "python":
            continue
        printed, code = run(block.content, namespace)
        replaced = [(block, code)]
        if printed and following is not None and not following.language:
            replaced.append((following, same_but_for_seconds(printed, following.content)))
        elif printed:
            raise ValueError(f"no text block follows the code that prints:\n{block.content}")
        for old, new in replaced:
            pieces += [text[done : old.start], new]
            done = old.end
    return "".join([*pieces, text[done:]])


def run(code: str, namespace: dict[str, Any]) -> tuple[str, str]:
    """The output of a block, without spaces at the ends of lines, and the block with the values of its lines."""
    lines, output = code.splitlines(keepends=True), io.StringIO()
    with contextlib.redirect_stdout(output):
        for statement in ast.parse(code).body:
            if not isinstance(statement, ast.Expr):
                exec(compile(ast.Module([statement], []), "README.md", "exec"), namespace)
                continue
            value = eval(compile(ast.Expression(statement.value), "README.md", "eval"), namespace)
            last = (statement.end_lineno or 1) - 1
            if value is not None and _VALUE.search(lines[last]):
                lines[last] = _VALUE.sub(lambda match, value=value: f"{match[1]}{int(value)}", lines[last]) + "\n"
    printed = [line.rstrip() for line in output.getvalue().splitlines()]
    return "\n".join(_without_empty_ends(printed)) + "\n" if any(printed) else "", "".join(lines)


def _without_empty_ends(lines: list[str]) -> Iterator[str]:
    full = [i for i, line in enumerate(lines) if line]
    return iter(lines[full[0] : full[-1] + 1])


def same_but_for_seconds(printed: str, before: str) -> str:
    """The earlier text, where it differs in nothing but the seconds of a search."""
    is_same = _SEARCHED.sub("", printed).split() == _SEARCHED.sub("", before).split()
    return before if is_same and _SEARCHED.search(printed) else printed


def main(argv: Sequence[str] | None = None) -> int:
    """Print how README differs from the output of its code, or put it right; 1 if it differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the blocks as printed into README.md")
    options = parser.parse_args(argv)
    text = README.read_text(encoding="utf-8")
    wanted = as_run(text)
    if options.write:
        write_whole(README, wanted)
        return 0
    before, after = text.splitlines(), wanted.splitlines()
    print(*difflib.unified_diff(before, after, "README.md", "as printed", lineterm=""), sep="\n")
    return int(text != wanted)


if __name__ == "__main__":
    raise SystemExit(main())
