"""Every plan that is offered lowers, and those that are tried compute what one device computes.

    python -m benchmarks.lowering                                    # 300 fuzzed programs, all optimizers, all steps
    python -m benchmarks.lowering --programs 40 --optimizers dog prodigy --steps gan --seed 7
    python -m benchmarks.lowering --only-programs 17 --runs 99       # one program again, all of its plans run

A subject is a step with its arguments: a program of the fuzzer (`tests.fuzz`), an update by each optimizer of
`optax` and `optax.contrib` (`_optimizers.py`), or a train step that reads parameters in an unusual order (`_steps.py`).
It is planned as a person would do it; every point of the frontier and every reference strategy is lowered, and some are
compiled, run on virtual CPU devices and compared with one device (`_offered.py`).
"""
