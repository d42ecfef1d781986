"""Edit saved files at random and load them: `python -m benchmarks.bad_files --mutants 5000`.

Files of each kind (plan, frontier, topology, profile) lose a field, get a value of another type, an extreme one or one
from another place, and are loaded and used as people do: printed, explained, placed on a mesh, planned with. Counted
are those that are refused with a `JaxplanError` and those that still work; anything else, and whatever takes longer
than a limit, is printed with the edit.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxplan
from jaxplan import JaxplanError
from jaxplan.cost import build_cost_model
from jaxplan.mesh import COLLECTIVES, Machine, ProfileTable, Topology, collective_seconds
from jaxplan.mesh._profile_check import group_shapes
from jaxplan.search._traced import analyse_step

LIMIT_SECONDS = 20
"""Of the processor: a mutant that takes longer hangs."""
VALUES: tuple[Any, ...] = (
    None, True, False, "", "x", "g0", "\ud800", "\0", [], {}, [[]], [None], {"a": 1}, [0, 0], [[0], [0]], [["g0"]],
    0, 1, -1, 3, 99, 2**31, 2**53, 2**63, -(2**63), 10**400, -(10**400),
    0.5, -0.5, 5e-324, 1e-300, 1e-30, 1e30, 1e300, 1e308, math.inf, -math.inf, math.nan, "1", "1e400",
)  # fmt: skip
"""Replacements of a value; numbers that JSON can spell and arrays cannot hold among them."""


class HangError(BaseException):
    """The time of a mutant is over; no Exception, so that nothing answers it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of file.

    Attributes:
      body: of a valid file.
      use: loads a file and uses its content.
    """

    body: Any
    use: Callable[[Path], object]


def step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A descent step of one layer."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(batch @ w) ** 2))(weights)
    return weights - 0.1 * gradient, loss


ARGUMENTS = (jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((8, 16), jnp.float32))


def kinds() -> dict[str, Kind]:
    """All kinds of files, of small examples."""
    frontier = jaxplan.plan(step, *ARGUMENTS, topology="h100:2x2", progress=False)
    profiled = Topology.parse("h100:2x2").with_profile(_profile(Topology.parse("h100:2x2")))
    assert profiled.profile is not None
    return {
        "plan": Kind(body=_plain(frontier.fastest().to_json()), use=_use_plan),
        "plan with its step": Kind(body=_plain(frontier.fastest().to_json()), use=_use_bound),
        "frontier": Kind(body=_plain(frontier.to_json()), use=_use_frontier),
        "topology": Kind(body=_plain(Topology.parse("h100:2x2").to_json()), use=_use_topology),
        "slice": Kind(body=_plain(Topology.parse("v5e:2x2").to_json()), use=_use_topology),
        "profile": Kind(body=_plain(profiled.profile.to_json()), use=_use_profile),
        "topology with profile": Kind(body=_plain(profiled.to_json()), use=_use_topology),
    }


def _plain(data: Any) -> Any:
    return json.loads(json.dumps(data))


def _profile(topology: Topology) -> ProfileTable:
    """A complete table with the prices of data sheets."""
    machine = Machine(
        device_kind="NVIDIA H100", num_devices=4, num_processes=1, processor="x", num_cores=1, jax="0", jaxlib="0"
    )
    sizes = [axis.size for axis in topology.axes]
    entries: list[Any] = [(("memory", 1 << 10), 1e-6), (("memory", 1 << 20), 2e-6)]
    entries += [(("matmul", "float32", 1, m, 8, 8), 1e-6 * m) for m in (8, 64)]
    for kind in COLLECTIVES:
        for shape in group_shapes(topology):
            axes = tuple(level for level, size in enumerate(shape) if size > 1)
            assert math.prod(sizes[a] for a in axes) == math.prod(shape)
            for num_bytes in (1 << 10, 1 << 20):
                seconds = float(collective_seconds(topology, kind, num_bytes, axes))
                entries.append((("collective", kind, shape, num_bytes), seconds))
    return ProfileTable(machine=machine, topology=topology.name, entries=tuple(entries))


def _look_at(plan: jaxplan.Plan) -> None:
    _ = repr(plan), plan.explain(), plan.in_specs, plan.out_specs, plan.time_seconds, plan.memory_bytes
    json.dumps(plan.to_json(), allow_nan=False)


def _use_plan(path: Path) -> None:
    plan = jaxplan.load(path)
    assert isinstance(plan, jaxplan.Plan)
    _look_at(plan)


def _use_bound(path: Path) -> None:
    """A plan that a step is bound to can be lowered."""
    plan = jaxplan.load(path, step, *ARGUMENTS)
    assert isinstance(plan, jaxplan.Plan)
    _look_at(plan)
    if plan.topology.num_devices <= len(jax.devices()):
        plan.jit().lower(*ARGUMENTS)


def _use_frontier(path: Path) -> None:
    frontier = jaxplan.load(path)
    assert isinstance(frontier, jaxplan.Frontier)
    _ = frontier.table(), repr(frontier), frontier.knee(), frontier.within("1TiB")
    for plan in (*frontier, *frontier.references.values()):
        _look_at(plan)


def _use_topology(path: Path) -> None:
    _price(Topology.load(path))


def _use_profile(path: Path) -> None:
    _price(Topology.parse("h100:2x2").with_profile(path))


def _price(topology: Topology) -> None:
    """Plan a step where that takes no time, and price one on a larger machine."""
    _ = repr(topology), hash(topology), topology.memory_limit_bytes, topology.axes
    json.dumps(topology.to_json(), allow_nan=False)
    if topology.num_devices <= 16:
        frontier = jaxplan.plan(step, *ARGUMENTS, topology=topology, progress=False)
        _ = frontier.table(), frontier.fastest().explain()
    elif topology.num_devices <= 1 << 10:
        build_cost_model(analyse_step(step, ARGUMENTS, {}, donate_argnums=None, static_argnums=()), topology)


def mutant(body: Any, rng: random.Random) -> tuple[Any, str]:
    """A copy with one edit, and the place of the edit."""
    body = copy.deepcopy(body)
    places = list(_places(body, ()))
    path = rng.choice(places)
    parent = _at(body, path[:-1])
    where = "".join(f"[{key!r}]" for key in path)
    edit = rng.randrange(6)
    if edit == 0:
        del parent[path[-1]]
        return body, f"{where} left out"
    if edit == 1 and isinstance(parent, list):
        parent.insert(path[-1], copy.deepcopy(parent[path[-1]]))
        return body, f"{where} twice"
    if edit == 2:
        other = rng.choice(places)
        parent[path[-1]] = copy.deepcopy(_at(body, other))
        return body, f"{where} is what {other} is"
    value = copy.deepcopy(rng.choice(VALUES))
    parent[path[-1]] = value
    return body, f"{where} = {str(value)[:40]!r}"


def _places(data: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _at(data: Any, path: Sequence[Any]) -> Any:
    for key in path:
        data = data[key]
    return data


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise HangError after so many seconds of this process."""

    def give_up(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(kind: Kind, body: Any, path: Path) -> str:
    """``refused``, ``works``, or the error that should not be."""
    path.write_text(json.dumps(body))
    try:
        with at_most(LIMIT_SECONDS), np.errstate(all="raise", under="ignore"):
            kind.use(path)
    except JaxplanError:
        return "refused"
    except HangError:
        return f"takes more than {LIMIT_SECONDS} s"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"


def try_mutants(num_mutants: int, seed: int, folder: Path) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Numbers of mutants by (kind, outcome), and a line for each that ends otherwise than it should."""
    rng, counts, wrong = random.Random(seed), Counter(), []
    for name, kind in kinds().items():
        assert outcome(kind, kind.body, folder / "file.json") == "works", name
        for _ in range(num_mutants):
            body, edit = mutant(kind.body, rng)
            found = outcome(kind, body, folder / "file.json")
            if found not in ("refused", "works"):
                wrong.append(f"{name}: {edit}: {found}")
                found = "wrong"
            counts[name, found] += 1
    return counts, wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Print the counts and everything that escaped; 1 if anything did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=500, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="jaxplan-bad-files-") as folder:
        counts, wrong = try_mutants(options.mutants, options.seed, Path(folder))
    print("\n".join(wrong))
    for name in dict.fromkeys(name for name, _ in counts):
        said = ", ".join(f"{counts[name, found]} {found}" for found in ("refused", "works", "wrong"))
        print(f"{name}: {said}")
    return int(bool(wrong))


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    raise SystemExit(main())
