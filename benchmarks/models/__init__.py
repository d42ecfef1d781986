"""Train steps to plan: ordinary Flax and Optax programs that know nothing of sharding.

`build(name)` returns `(train_step, abstract_args)`; nothing is allocated.
"""

from benchmarks.models._registry import MODELS as MODELS
from benchmarks.models._registry import ModelSpec as ModelSpec
from benchmarks.models._registry import build as build
