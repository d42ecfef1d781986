"""Experiments of FlexFlow, PaSE, TensorOpt and Tofu, repeated on predictions; `python -m benchmarks.papers` lists them."""
