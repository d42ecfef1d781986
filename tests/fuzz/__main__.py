"""``python -m tests.fuzz``; see the package."""

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


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.by_tests:
        from tests.fuzz._by_tests import hunt_by_tests

        return hunt_by_tests(options.only_mutants)
    apply_settings()
    if options.mutants:
        from tests.fuzz._mutants import hunt

        return hunt(options.seed, range(options.start, options.programs or 400), options.only_mutants)
    from tests.fuzz._run import Counts

    if options.only is not None:
        indices = list(options.only)
    else:
        indices = list(range(options.start, options.programs or 200))
    job = functools.partial(
        importlib.import_module("tests.fuzz.__main__")._share,  # by a name that other processes can import
        seed=options.seed,
        num_strategies=options.strategies,
        reduces=not options.no_reduce,
        max_statements=options.max_statements,
        backend=options.backend,
    )
    counts = Counts()
    for part in _results(job, [indices[p :: options.processes] for p in range(options.processes)]):
        counts.add(part)
    print(counts.table())
    print(f"seed {options.seed}, programs {options.start} to {indices[-1]}: {counts.summary()}")
    if counts.failed:
        print(f"failed: {sorted(counts.failed)}")
    return 1 if counts.failed else 0


def _results(job: Callable[[list[int]], Any], shares: list[list[int]]) -> list[Any]:
    """The counts of every share of the programs; several shares have a process each."""
    if len(shares) == 1:
        return [job(shares[0])]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(shares), context) as pool:
        return list(pool.map(job, shares))


def _share(indices: list[int], **options: Any) -> Any:
    """The work of one process; settings come before its JAX starts."""
    apply_settings()
    from tests.fuzz._run import fuzz

    return fuzz(indices=indices, **options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests.fuzz", description="Random programs under random strategies."
    )
    parser.add_argument("--programs", type=int, default=None, help="number of the program to end before")
    parser.add_argument("--start", type=int, default=0, help="number of the first program")
    parser.add_argument("--strategies", type=int, default=3, help="strategies of each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", default=None, help="just these programs")
    parser.add_argument("--processes", type=int, default=1, help="processes that share the programs")
    parser.add_argument("--no-reduce", action="store_true", help="print failing programs as they are")
    parser.add_argument(
        "--max-statements", type=int, default=30, help="about the largest number in a program"
    )
    parser.add_argument("--backend", choices=("jit", "shard_map"), help="of all runs; by default they take turns")
    parser.add_argument("--mutants", action="store_true", help="the mutation check instead")
    parser.add_argument("--by-tests", action="store_true", help="the mutation check of the default tests")
    parser.add_argument("--only-mutants", nargs="+", default=None, help="names of mutants")
    return parser


if __name__ == "__main__":
    sys.exit(main())
