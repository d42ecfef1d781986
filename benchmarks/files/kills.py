"""Kill writers at random moments: `python -m benchmarks.kills --kills 10000`.

Plans, frontiers, topologies and traces of two versions are saved over one another without end by forked processes, one
or two at a time, which are killed (SIGKILL) after random microseconds. Counted are files that hold anything but one
whole version, after a kill or while the writers run, and temporary files that are left at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Save = Callable[[Path], object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Results of the kills.

    Attributes:
      kills: processes that were killed.
      during_write: kills after which a temporary file lay there, so that they struck while a file was written.
      reads: files that were read, after a kill or while writers ran.
      torn: reads that found no file, or anything but one whole version.
      left: temporary files after one more save of each file.
    """

    kills: int
    during_write: int
    reads: int
    torn: int
    left: int


def kill_writers(
    versions: Mapping[str, Sequence[Save]], folder: Path, *, kills: int, seed: int = 0
) -> Tally:
    """Fork writers and kill them.

    Args:
      versions: file name -> functions that save one version of it each.
      folder: an empty one, where the files are written.
    """
    rng, reads, torn, during_write = random.Random(seed), 0, 0, 0
    whole, longest = _whole_versions(versions, folder)
    for number in range(kills):
        writers = [_start_writer(versions, folder, rng.random()) for _ in range(1 + number % 2)]
        until = time.perf_counter() + rng.uniform(0, 2 * longest)
        while (left := until - time.perf_counter()) > 0:
            if left > longest / 4:
                name = rng.choice(list(versions))
                reads, torn = reads + 1, torn + (_content(folder / name) not in whole[name])
            time.sleep(min(left, longest / 4))
        _kill(writers[0])
        for name in versions:
            reads, torn = reads + 1, torn + (_content(folder / name) not in whole[name])
        for writer in writers[1:]:
            _kill(writer)
        during_write += bool(_temporaries(folder))
    for name, (save, *_) in versions.items():
        save(folder / name)
    return Tally(
        kills=sum(1 + number % 2 for number in range(kills)),
        during_write=during_write,
        reads=reads,
        torn=torn,
        left=len(_temporaries(folder)),
    )


def _whole_versions(
    versions: Mapping[str, Sequence[Save]], folder: Path
) -> tuple[dict[str, set[bytes | None]], float]:
    """The contents of every file when nothing interrupts its writer, and the seconds of the slowest save."""
    whole: dict[str, set[bytes | None]] = {}
    longest = 0.0
    for name, saves in versions.items():
        contents = []
        for save in saves:
            start = time.perf_counter()
            save(folder / name)
            longest = max(longest, time.perf_counter() - start)
            contents.append(_content(folder / name))
        whole[name] = set(contents)
        assert len(whole[name]) == len(saves), f"the versions of {name} are equal: nothing would be seen"
    return whole, longest


def _start_writer(versions: Mapping[str, Sequence[Save]], folder: Path, seed: float) -> int:
    process = os.fork()
    if process:
        return process
    rng = random.Random(seed)
    try:
        while True:
            name = rng.choice(list(versions))
            rng.choice(versions[name])(folder / name)
    finally:
        os._exit(1)


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("a writer ended by itself: a save failed while another one ran")


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _temporaries(folder: Path) -> list[Path]:
    return list(folder.glob(".*.tmp"))


def saves_of_plans() -> dict[str, tuple[Save, Save]]:
    """Two versions of each kind of file, of a small step that is planned here."""
    import jax
    import jax.numpy as jnp

    import jaxplan

    def step(weights: jax.Array, batch: jax.Array) -> jax.Array:
        return weights - 0.1 * jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(weights)

    def planned(batch: int) -> jaxplan.Frontier:
        shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (batch, 64))]
        return jaxplan.plan(step, *shapes, topology="cpu:8", progress=False)

    one, two = planned(64), planned(128)
    simulated = [frontier.fastest().simulate() for frontier in (one, two)]
    topologies = [jaxplan.Topology.parse(text) for text in ("h100:8", "v5e:2x4")]
    return {
        "plan.json": (one.fastest().save, two.fastest().save),
        "frontier.json": (one.save, two.save),
        "topology.json": (topologies[0].save, topologies[1].save),
        "trace.json": (simulated[0].save_timeline, simulated[1].save_timeline),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the results of the kills; 1 where a file was torn or temporary files are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10_000, help="rounds; every other one has two writers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore", message=".*fork.*")  # the forked processes only write files
    versions, start = saves_of_plans(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="jaxplan-kills-") as folder:
        tally = kill_writers(versions, Path(folder), kills=options.kills, seed=options.seed)
    print(
        f"{tally.kills} writers killed, {tally.during_write} rounds of kills during a write; {tally.reads} reads, "
        f"{tally.torn} of them torn; {tally.left} temporary files left; {time.perf_counter() - start:.0f} s"
    )
    return int(tally.torn > 0 or tally.left > 0)


if __name__ == "__main__":
    raise SystemExit(main())
