"""Run a planned program as one `jax.shard_map` over all atomic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxplan.ir import Offload
from jaxplan.partition._handed_back import computed
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition._run import outputs_of
from jaxplan.partition.manual._executor import ManualExecutor
from jaxplan.partition.manual._operators import ManualOperators


def run_manually(
    lowered: LoweredProgram,
    executor: ManualExecutor,
    arguments: Sequence[Any],
    handed: Mapping[int, int],
    offload: Offload | None,
) -> tuple[Any, ...]:
    """Outputs of the program for flat global arguments, without those that are ``handed`` back; under `jax.jit`.

    ``offload``: the arguments that are on the host.
    """
    program = lowered.program
    operators = ManualOperators(lowered, executor)

    def on_device(*pieces: Any) -> tuple[Any, ...]:
        outputs = outputs_of(lowered, executor, operators, pieces, offload)
        arrays = [
            _as_array(x, program.tensors[t].dtype) for x, t in zip(outputs, program.outputs, strict=True)
        ]
        return computed(arrays, handed)

    def specs(shardings: Sequence[Any]) -> tuple[PartitionSpec, ...]:
        return tuple(executor.spec(sharding) for sharding in shardings)

    mapped = jax.shard_map(
        on_device,
        mesh=executor.mesh,
        in_specs=specs([lowered.home(t) for t in program.inputs]),
        out_specs=specs(computed(lowered.output_shardings, handed)),
        check_vma=False,
    )
    with jax.sharding.use_abstract_mesh(getattr(executor.mesh, "abstract_mesh", executor.mesh)):
        return tuple(mapped(*arguments))


def _as_array(value: Any, dtype: Any) -> Any:
    return value if hasattr(value, "aval") else jnp.asarray(value, dtype)
