"""Steps to plan: ordinary Flax and Optax programs that know nothing of sharding.

`build(name)` returns `(step, abstract_args)`; nothing is allocated. `MODELS[name]` also makes real arguments.
"""

from benchmarks.models._optimizer import OPTIMIZERS as OPTIMIZERS
from benchmarks.models._registry import MODELS as MODELS
from benchmarks.models._registry import PAPER_MODELS as PAPER_MODELS
from benchmarks.models._registry import build as build
from benchmarks.models._spec import ModelSpec as ModelSpec
