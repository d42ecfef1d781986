"""The whole step as one manual program: every device runs the step's operators on its own pieces.

`jax.shard_map` over all atomic axes holds the replay of `jaxplan.partition.Run`. Each operator runs on pieces as its
factor rule says, each step of a resharding is one collective, and nothing is left to the compiler's partitioner.
"""

from jaxplan.partition.manual._program import run_manually as run_manually
