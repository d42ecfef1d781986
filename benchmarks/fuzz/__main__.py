"""``python -m benchmarks.fuzz``; see the package."""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import sys
from collections.abc import Sequence

from benchmarks.fuzz._settings import apply_settings


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    apply_settings()
    if options.mutants:
        from benchmarks.fuzz._mutants import hunt

        return hunt(options.seed, options.programs or 400, options.only_mutants)
    from benchmarks.fuzz._run import Counts, fuzz

    if options.only is not None:
        indices = list(options.only)
    else:
        indices = list(range(options.start, options.programs or 200))
    shares = [indices[p :: options.processes] for p in range(options.processes)]
    counts = Counts()
    if options.processes == 1:
        counts = fuzz(options.seed, indices, options.strategies, reduces=not options.no_reduce, verbose=True)
    else:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(options.processes, context) as pool:
            jobs = [
                pool.submit(_share, options.seed, share, options.strategies, not options.no_reduce)
                for share in shares
            ]
            for job in jobs:
                counts.add(job.result())
    print(counts.table())
    print(f"seed {options.seed}, programs {options.start} to {indices[-1]}: {counts.summary()}")
    if counts.failed:
        print(f"failed: {sorted(counts.failed)}")
    return 1 if counts.failed else 0


def _share(seed: int, indices: list[int], num_strategies: int, reduces: bool) -> object:
    """What one process does; settings come before its JAX starts."""
    apply_settings()
    from benchmarks.fuzz._run import fuzz

    return fuzz(seed, indices, num_strategies, reduces=reduces, verbose=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks.fuzz", description="Random programs under random strategies."
    )
    parser.add_argument("--programs", type=int, default=None, help="number of the program to end before")
    parser.add_argument("--start", type=int, default=0, help="number of the first program")
    parser.add_argument("--strategies", type=int, default=3, help="strategies of each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", default=None, help="just these programs")
    parser.add_argument("--processes", type=int, default=1, help="processes that share the programs")
    parser.add_argument("--no-reduce", action="store_true", help="print failing programs as they are")
    parser.add_argument("--mutants", action="store_true", help="the mutation check instead")
    parser.add_argument("--only-mutants", nargs="+", default=None, help="names of mutants")
    return parser


if __name__ == "__main__":
    sys.exit(main())
