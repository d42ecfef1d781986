"""A fuzzer of rules and lowering: random programs under random strategies, compared with one device.

    python -m tests.fuzz --programs 5000 --strategies 3 --seed 0
    python -m tests.fuzz --programs 5000 --start 2000 --processes 8    # goes on from a program
    python -m tests.fuzz --only 1234                                   # one program again
    python -m tests.fuzz --mutants                                     # are bugs of rules found at all?
    python -m tests.fuzz --by-tests                                    # does `make test` find them?

A program (`_generate.py`) is made of operators of JAX that have rules, with loops, branches and rematerialised
regions, as it is, or as its gradient, or as a step with state that is updated. A strategy (`_strategies.py`) splits at
least half of the operators that can be split. A failing program is made smaller (`_reduce.py`) and printed as Python.
"""
