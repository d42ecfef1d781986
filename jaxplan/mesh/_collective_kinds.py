"""The collectives that plans are made of."""

from typing import Literal

Collective = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"]
COLLECTIVES: tuple[Collective, ...] = (
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute",
)  # fmt: skip
