"""Names of dimensions of every model of the registry, against a table that was checked by hand.

    python -m benchmarks.names                      # compare all models with the record
    python -m benchmarks.names --scramble           # the same with parameters under other paths, in another order
    python -m benchmarks.names gpt-tiny moe-tiny    # some models
    python -m benchmarks.names --compat             # models of other packages too, those that are installed
    python -m benchmarks.names --save               # write the record

The record has, per model and name, the dimensions of arguments that have it; numbers of layers are folded, so
``params/block_*/attention/key/kernel.1`` stands for that dimension in every block.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks import compat
from benchmarks.models import MODELS, build
from jaxplan.ir import StepGraph, analyse, trace

RECORD = Path(__file__).parent / "records" / "names.json"
NAMES = frozenset(
    [
        "batch",
        "sequence",
        "heads",
        "head_dim",
        "hidden",
        "vocabulary",
        "classes",
        "experts",
        "rows",
        "columns",
        "channels",
    ]
)
Table = dict[str, list[str]]


def names_of(model: str) -> Table:
    """Name -> the dimensions of the arguments of a model that have it."""
    step, args = _step_of(model)
    graph = analyse(trace(step, args))
    return _table(graph, [_readable(tensor) for tensor in _inputs(graph)])


def scrambled_names_of(model: str) -> Table:
    """The same where each argument is a flat dictionary under keys that say nothing, in another order."""
    step, args = _step_of(model)
    scrambled, restored = zip(*[_scrambled(arg) for arg in args], strict=True)
    graph = analyse(trace(_with_scrambled(step, restored), scrambled))
    paths = [_readable(tensor) for tensor in _inputs(analyse(trace(step, args)))]
    order: list[str] = []
    start = 0
    for arg in args:
        leaves = jax.tree.leaves(arg)
        mine = dict(zip(_keys(len(leaves)), paths[start : start + len(leaves)], strict=True))
        order += [mine[key] for key in sorted(mine)]
        start += len(leaves)
    return _table(graph, order)


def _step_of(model: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if model in MODELS:
        return build(model)
    case = compat.build(model)
    return case.step, case.abstract_args()


def _keys(number: int) -> list[str]:
    return [hashlib.sha256(str(i).encode()).hexdigest()[:8] for i in range(number)]


def _scrambled(arg: Any) -> tuple[dict[str, Any], Any]:
    leaves, tree = jax.tree.flatten(arg)
    return dict(zip(_keys(len(leaves)), leaves, strict=True)), tree


def _with_scrambled(step: Callable[..., Any], trees: tuple[Any, ...]) -> Callable[..., Any]:
    """The step on scrambled arguments; a result in the form of one of them is scrambled too."""

    def scrambled_step(*args: dict[str, Any]) -> Any:
        given = [
            jax.tree.unflatten(tree, [arg[key] for key in _keys(len(arg))])
            for tree, arg in zip(trees, args, strict=True)
        ]
        result = step(*given)
        parts = result if type(result) is tuple else (result,)
        return tuple(_scrambled(part)[0] if jax.tree.structure(part) in trees else part for part in parts)

    return scrambled_step


def _inputs(graph: StepGraph) -> list[str]:
    return [graph.program.tensors[t].path for t in graph.program.inputs]


def _readable(path: str) -> str:
    keys = re.findall(r"\w+", path)
    return (
        "/".join("*" if key.isdigit() else re.sub(r"_\d+(?=_|$)|\d+$", "_*", key) for key in keys[1:])
        or "argument"
    )


def _table(graph: StepGraph, paths: list[str]) -> Table:
    found: dict[str, set[str]] = defaultdict(set)
    named = graph.named
    for t, path in zip(graph.program.inputs, paths, strict=True):
        if path.startswith(("opt_state", "slots")):
            continue
        for d in range(len(graph.program.tensors[t].shape)):
            name = named.name_at(t, d)
            if name in NAMES:
                found[name].add(f"{path}.{d}")
    return {name: sorted(of) for name, of in sorted(found.items())}


def differences(wanted: Table, found: Table) -> list[str]:
    """Lines that differ, ``-`` for the expected ones."""
    lines = [[f"{name} {path}" for name, of in table.items() for path in of] for table in (wanted, found)]
    return [line for line in difflib.ndiff(*lines) if line[0] in "+-"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="default: all")
    parser.add_argument("--scramble", action="store_true")
    parser.add_argument("--compat", action="store_true")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    record: dict[str, Table] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    others = [name for name, of in compat.MODELS.items() if of.version] if arguments.compat else []
    models, wrong = arguments.models or [*MODELS, *others], 0
    for model in models:
        if arguments.scramble and "nnx" in model:
            print(f"{model}: not scrambled, its arguments are objects")
            continue
        found = scrambled_names_of(model) if arguments.scramble else names_of(model)
        if arguments.save:
            record[model] = found
        lines = differences(record.get(model, {}), found)
        wrong += bool(lines)
        print(
            f"{model}: {sum(map(len, found.values()))} named dimensions of arguments",
            *lines,
            sep="\n  ",
            flush=True,
        )
    if arguments.save:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(models) - wrong} of {len(models)} models as recorded")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
