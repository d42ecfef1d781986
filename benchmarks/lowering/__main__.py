"""``python -m benchmarks.lowering``; see the package."""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import importlib
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz._settings import apply_settings

_CLEAR_EVERY = 10
"""Subjects after which the programs that JAX has compiled are dropped."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    apply_settings()
    from benchmarks.lowering._offered import Counts

    names = _names(options)
    job = functools.partial(
        importlib.import_module("benchmarks.lowering.__main__")._share,  # by a name that other processes can import
        seed=options.seed,
        num_runs=options.runs,
        max_statements=options.max_statements,
        topologies=options.topologies,
    )
    counts = Counts()
    for part in _results(job, [names[p :: options.processes] for p in range(options.processes)]):
        counts.add(part)
    for name, text in counts.refused.items():
        print(f"refused: {name}: {text}")
    for failure in counts.failures:
        print(f"failed: {failure.subject} on {failure.topology} {failure.options} {failure.choice}: {failure.fault}")
    print(f"seed {options.seed}: {counts.summary()}")
    return 1 if counts.failures else 0


def _names(options: argparse.Namespace) -> list[tuple[int, str, Any]]:
    """(turn, kind, which) of every subject that was asked for."""
    from benchmarks.lowering._optimizers import constructors, has_flags
    from benchmarks.lowering._subjects import STEPS

    every = constructors()
    optimizers = [(name, flipped) for name in every for flipped in (False, True)[: 1 + has_flags(every[name])]]
    if options.optimizers is not None:
        optimizers = [(name, f) for name, f in optimizers if name.rpartition(".")[2] in options.optimizers]
    steps = [name for name in STEPS if options.steps is None or name in options.steps]
    programs = list(range(options.programs)) if options.only_programs is None else options.only_programs
    chosen = {"program": programs, "optimizer": optimizers, "step": steps}
    subjects = [(kind, which) for kind, names in chosen.items() for which in names]
    return [(turn + options.seed, kind, which) for turn, (kind, which) in enumerate(subjects)]


def _results(job: Callable[[list[Any]], Any], shares: list[list[Any]]) -> list[Any]:
    """The counts of every share; several shares have a process each."""
    if len(shares) == 1:
        return [job(shares[0])]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(shares), context) as pool:
        return list(pool.map(job, shares))


def _share(
    names: list[tuple[int, str, Any]],
    *,
    seed: int,
    num_runs: int,
    max_statements: int,
    topologies: Sequence[str] | None,
) -> Any:
    """The work of one process; settings come before its JAX starts."""
    apply_settings()
    import jax

    from benchmarks.lowering._offered import TOPOLOGIES, Check, Counts
    from benchmarks.lowering._subjects import subject_of

    counts = Counts()
    for number, (turn, kind, which) in enumerate(names, 1):
        name, subject = subject_of(kind, which, seed, max_statements)
        Check(name, subject, turn, num_runs, counts, topologies or TOPOLOGIES).run()
        if number % _CLEAR_EVERY == 0:
            jax.clear_caches()
            print(f"... {name}: {counts.summary()}", flush=True)
    return counts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks.lowering", description="Lower every plan that is offered, run some, and compare."
    )
    parser.add_argument("--programs", type=int, default=300, help="so many programs of the fuzzer")
    parser.add_argument("--only-programs", type=int, nargs="+", default=None, help="just these programs")
    parser.add_argument("--optimizers", nargs="*", default=None, help="just these, such as dog; default: all")
    parser.add_argument("--steps", nargs="*", default=None, help="just these, such as gan; default: all")
    parser.add_argument("--runs", type=int, default=3, help="plans of each subject that run")
    parser.add_argument("--seed", type=int, default=0, help="of programs; topologies and options are dealt from there")
    parser.add_argument("--topologies", nargs="+", default=None, help="these in turn, such as h100:2x4; default: many")
    parser.add_argument("--max-statements", type=int, default=12, help="about the largest number in a program")
    parser.add_argument("--processes", type=int, default=1, help="processes that share the subjects")
    return parser


if __name__ == "__main__":
    sys.exit(main())
