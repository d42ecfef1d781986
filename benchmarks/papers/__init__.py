"""Experiments of FlexFlow, PaSE, TensorOpt and Tofu, repeated: `python -m benchmarks.papers` lists them.

Each module is one figure or table; its `EXPERIMENT` has the rows, the claims of the paper and their judges.
"""
