"""The ways in: `plan`, on parts of a machine `min_devices` and `scaling`, on several machines `compare`.

They are shortcuts of the staged form (`jaxplan.trace`), for one trace and one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxplan._api._traced import step_to_plan
from jaxplan.frontend._options import PARTS, PLAN, takes_options
from jaxplan.mesh import Topology
from jaxplan.plans._frontier import Frontier
from jaxplan.search._compare import Comparison
from jaxplan.search._entry import compare_for, min_devices_of, plan_on, scaling_of
from jaxplan.search._scaling import MinDevices, Scaling


@takes_options(PLAN)
def plan(step: Callable[..., Any], *args: Any, **keywords: Any) -> Frontier:
    """Plan a single-device step for several devices; nothing is allocated, and compiled only to verify.

    Args:
      step: the step, as `jax.jit` accepts it.
      args, keywords: its arguments: arrays, `jax.ShapeDtypeStruct`, or pytrees of them.
      {options}

    Returns:
      The frontier: every plan that nothing beats in both time and memory, reference strategies beside it.

    Raises:
      TraceError: the step cannot be traced; names the user's line.
      TopologyError: the topology cannot be read.
      InfeasibleError: no plan fits; names the smallest feasible memory.
      MissingExtraError, UnsupportedError: to verify, the compiler of the topology is needed; names the extra.

    >>> import jax, jax.numpy as jnp, jaxplan
    >>> def step(w, x):
    ...     return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    >>> w, x = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((2**20, 64), "float32")
    >>> frontier = jaxplan.plan(step, w, x, topology="h100:8")
    >>> frontier.fastest().in_specs[1]  # the batch over all three axes of size 2
    P(('gpu0', 'gpu1', 'gpu2'), None)
    """
    return plan_on(*step_to_plan(step, args, keywords, PLAN, "jaxplan.plan"))


@takes_options(PARTS)
def min_devices(step: Callable[..., Any], *args: Any, **keywords: Any) -> MinDevices:
    """Find the fewest devices of a machine on which the step fits (TensorOpt's mini-parallelism).

    The step is traced once and planned on ever larger even parts of the machine until a plan fits: 1, 2, ... devices
    of one node, by the divisors of its devices; then those numbers of whole nodes that divide the number of nodes; on
    a torus the most compact slices. Parts that could not hold the arguments alone are passed over.

    Args:
      step, args, keywords: as in `plan`.
      {options}

    Returns:
      That number (``int(found)``, ``found.num_devices``), with its plans (``found.plan``, the fastest that fits;
      ``found.frontier``) and all parts that were planned (``found.points``, ``found.table()``).

    Raises:
      InfeasibleError: nothing fits on the whole machine either; names the smallest memory there is.
      TraceError, TopologyError: as `plan`.

    >>> import jax, jaxplan
    >>> x = jax.ShapeDtypeStruct((4096, 4096), "float32")  # 64 MiB
    >>> int(jaxplan.min_devices(lambda x: x * 2, x, topology="h100:8", memory="40MiB"))
    4
    """
    return min_devices_of(*step_to_plan(step, args, keywords, PARTS, "jaxplan.min_devices"))


@takes_options(PARTS)
def scaling(
    step: Callable[..., Any], *args: Any, device_counts: Sequence[int] | None = None, **keywords: Any
) -> Scaling:
    """Find the best time of the step for each number of devices of a machine (TensorOpt's profiling).

    The step is traced once and planned on a part of the machine for each number: a divisor of the devices of one node,
    or whole nodes; on a torus the most compact slice.

    Args:
      step, args, keywords: as in `plan`.
      device_counts: numbers of devices; default: all even parts (see `min_devices`).
      {options}

    Returns:
      A point for each number, ascending (``found[8].plan``, ``found.table()``); one on which nothing fits says so.

    Raises:
      ArgumentError: ``device_counts`` are no numbers.
      TraceError, TopologyError: as `plan`; TopologyError also names the numbers where the machine has no such part.

    >>> import jax, jaxplan
    >>> x = jax.ShapeDtypeStruct((4096, 4096), "float32")
    >>> found = jaxplan.scaling(lambda x: x * 2, x, topology="h100:4", device_counts=[1, 4])
    >>> found[4].plan.time_seconds < found[1].plan.time_seconds / 3
    True
    """
    found, options = step_to_plan(step, args, keywords, PARTS, "jaxplan.scaling", ["device_counts"])
    return scaling_of(found, options, device_counts)


@takes_options(PARTS - {"topology"})
def compare(
    step: Callable[..., Any],
    *args: Any,
    topologies: Sequence[str | Topology],
    prices: Mapping[str, float] | None = None,
    **keywords: Any,
) -> Comparison:
    """Plan a step on several machines, to see which one to rent; it is traced once.

    Args:
      step, args, keywords: as in `plan`.
      topologies: the machines, such as ``["h100:8", "a100:16", "v5e:4x4"]``.
      prices: of one device for one hour, in any currency, by chip (``"h100"``) or by topology (``"h100:2x8"``).
      {options}

    Returns:
      An offer for each machine (``found["h100:8"].plan``, ``found.fastest()``, ``found.cheapest()``,
      ``found.table()``); one on which nothing fits says so.

    Raises:
      ArgumentError: no machines, or prices that name none of them.
      TraceError, TopologyError: as `plan`.

    >>> import jax, jaxplan
    >>> x = jax.ShapeDtypeStruct((4096, 4096), "float32")
    >>> found = jaxplan.compare(lambda x: x * 2, x, topologies=["h100:2", "a100:2"])
    >>> found.fastest().topology.name
    'h100:2'
    """
    names = PARTS - {"topology"}
    found, options = step_to_plan(step, args, keywords, names, "jaxplan.compare", ["topologies", "prices"])
    return compare_for(found, options, topologies, prices)
