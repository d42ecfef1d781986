"""Train a byte-level GPT on Python's own sources, planned by jaxplan, and check it against one device.

    python examples/train_gpt.py                      # 8 virtual CPU devices, or the GPUs there are
    python examples/train_gpt.py --choose leanest     # another point of the frontier
    python examples/train_gpt.py --choose fsdp        # or a reference strategy
    python examples/train_gpt.py --devices 2 --checkpoints run --save-every 10    # start it again: it resumes
    srun python examples/train_gpt.py                 # several hosts: see examples/train_gpt.slurm and docs/hosts.md
    cd examples && jaxplan plan train_gpt:train_step --args train_gpt:make_args --topology h100:8 --donate 0

Nothing in the model or in `train_step` knows of devices or processes. At the end the same steps run unplanned on one
device, and the program exits with 1 if the two losses differ by more than the tolerance.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
import os
import pathlib
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import jaxplan

VOCABULARY = 256  # bytes
CORPUS_BYTES = 4_000_000
# Float32 sums in another order, and training amplifies the difference from step to step.
RELATIVE_TOLERANCE = 1e-4

Batch = dict[str, np.ndarray]


class Block(nn.Module):
    """One pre-norm transformer layer."""

    width: int
    num_heads: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        normed = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.num_heads)(normed, mask=mask)
        hidden = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
        return x + nn.Dense(self.width)(hidden)


class GPT(nn.Module):
    """A decoder on bytes: int32 tokens (batch, length) to float32 logits (batch, length, vocabulary)."""

    num_layers: int = 4
    width: int = 128
    num_heads: int = 4
    length: int = 128

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        positions = self.param("positions", nn.initializers.normal(0.02), (self.length, self.width))
        x = nn.Embed(VOCABULARY, self.width)(tokens) + positions
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.num_layers):
            x = Block(self.width, self.num_heads)(x, mask)
        return nn.Dense(VOCABULARY)(nn.LayerNorm()(x))


def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
    """One AdamW step on the mean cross entropy, in nats per byte."""

    def loss_fn(params):
        logits = state.apply_fn({"params": params}, batch["inputs"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    loss, gradients = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=gradients), loss


def make_state(model: GPT) -> TrainState:
    """Return the state before the first step; the same model gives the same state."""
    params = model.init(jax.random.key(0), jnp.zeros((1, model.length), jnp.int32))["params"]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.01))
    return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)


def make_args() -> tuple[TrainState, dict[str, jax.ShapeDtypeStruct]]:
    """Return the arguments of `train_step` as shapes: enough to plan it, and nothing is allocated."""
    model = GPT()
    tokens = jax.ShapeDtypeStruct((16, model.length), jnp.int32)
    return jax.eval_shape(functools.partial(make_state, model)), {"inputs": tokens, "targets": tokens}


def read_corpus() -> np.ndarray:
    """Return the first megabytes of the standard library's sources, in alphabetical order, as bytes."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    chunks, num_bytes = [], 0
    for path in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        if "site-packages" in path.parts or num_bytes >= CORPUS_BYTES:
            continue
        chunks.append(path.read_bytes())
        num_bytes += len(chunks[-1])
    return np.frombuffer(b"".join(chunks)[:CORPUS_BYTES], np.uint8)


def make_batches(corpus: np.ndarray, batch_size: int, length: int, num_steps: int) -> Iterator[Batch]:
    """Yield windows of the corpus at places drawn from a fixed seed."""
    random = np.random.default_rng(0)
    for _ in range(num_steps):
        starts = random.integers(0, len(corpus) - length, size=(batch_size, 1))
        windows = corpus[starts + np.arange(length + 1)].astype(np.int32)
        yield {"inputs": windows[:, :-1], "targets": windows[:, 1:]}


def rows_of_this_process(batch: Batch) -> Batch:
    """Return the part of a batch that this process loads: as many rows in each, in the order of processes."""
    num_rows = len(batch["inputs"]) // jax.process_count()
    start = jax.process_index() * num_rows
    return {name: rows[start : start + num_rows] for name, rows in batch.items()}


def train(
    title: str,
    step: Callable,
    state: TrainState,
    batches: Iterator[Batch],
    num_steps: int,
    save: Callable[[int, TrainState], None] = lambda number, state: None,
) -> np.ndarray:
    """Run the steps under a progress bar, print their median time, and return their losses.

    ``save`` is given each new state.
    """
    losses, seconds = [], []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = TextColumn("loss {task.fields[loss]:.4f}")
    with Progress(*columns, shown, disable=jax.process_index() > 0) as progress:
        task = progress.add_task(title, total=num_steps, loss=float("nan"))
        for batch in batches:
            started = time.perf_counter()
            state, loss = step(state, batch)
            losses.append(float(loss))
            seconds.append(time.perf_counter() - started)
            save(len(losses), state)
            progress.update(task, advance=1, loss=losses[-1])
    if seconds:
        num_tokens = batch["inputs"].size  # of all devices
        median = float(np.median(seconds))
        say(f"{title}: {1e3 * median:.2f} ms a step, {num_tokens / median:,.0f} tokens/s")
    return np.array(losses)


def set_up_devices(num_devices: int) -> None:
    """Use the GPUs there are, or else this many virtual CPU devices; must run before JAX starts a backend.

    Where several processes were started, they are connected: by Slurm or Open MPI, or by hand with
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
    """
    if "device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", num_devices)
    has_gpu = any(os.path.exists(path) for path in ("/dev/nvidia0", "/dev/kfd"))
    if not has_gpu and "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    num_processes = int(os.environ.get("JAX_NUM_PROCESSES", 0)) or None
    process_id = int(os.environ["JAX_PROCESS_ID"]) if "JAX_PROCESS_ID" in os.environ else None
    started = max(int(os.environ.get(name, 1)) for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"))
    if num_processes or started > 1:
        jax.distributed.initialize(
            num_processes=num_processes, process_id=process_id, heartbeat_timeout_seconds=30
        )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices of a process without GPUs")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--choose", default="fastest", help="fastest, knee, leanest, a number, or a reference")
    parser.add_argument("--memory", help="limit per device, such as 2GiB")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--checkpoints", help="folder of this run: save the state there, and resume from it")
    parser.add_argument("--save-every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--plot", help="draw the frontier to this file (.svg, .pdf, .png)")
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install 'jaxplan[plot]'")
    if options.plot and not os.access(os.path.dirname(os.path.abspath(options.plot)), os.W_OK):
        parser.error(f"--plot {options.plot}: its folder does not exist, or may not be written")
    return options


def main() -> int:
    options = parse_options()
    set_up_devices(options.devices)
    model = GPT(options.layers, options.width, options.heads, options.length)
    corpus = read_corpus()
    make = functools.partial(make_batches, corpus, options.batch, options.length)
    say(f"{len(corpus):,} bytes of Python, {jax.device_count()} x {jax.devices()[0].device_kind}")
    planned = train_planned(model, make, options)
    with jax.default_device(jax.local_devices()[0]):
        alone = train("one device", jax.jit(train_step), make_state(model), make(options.steps), options.steps)
    return compare(planned, alone[-len(planned) :])


def say(text: str) -> None:
    """Print once, however many processes run."""
    if jax.process_index() == 0:
        print(text, flush=True)


def saved_plan(options: argparse.Namespace) -> str | None:
    """Return the file of the plan beside the checkpoints, if it is for as many devices as there are now."""
    path = os.path.join(options.checkpoints or "", "plan.json")
    if not options.checkpoints or not os.path.exists(path):
        return None
    plan = jaxplan.load(path)
    assert isinstance(plan, jaxplan.Plan)
    return path if plan.topology == jaxplan.Topology.detect() else None


def train_planned(model: GPT, make: Callable, options: argparse.Namespace) -> np.ndarray:
    """Train by plan, from the latest checkpoint if there is one, and return the losses of these steps."""
    saved = saved_plan(options)
    step = jaxplan.auto(
        train_step, choose=options.choose, memory=options.memory, donate_argnums=(0,), plan=saved
    )
    started = time.perf_counter()
    state = jax.eval_shape(functools.partial(make_state, model))
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    say(f"planning and compiling a GPT of {num_parameters:,} parameters ...")
    # From shapes alone: each process then creates its own part of the state.
    plan = step.plan_for(state, next(make(1)))
    with contextlib.ExitStack() as stack:
        checkpoints, first = None, 0
        if options.checkpoints:
            checkpoints = stack.enter_context(plan.checkpoints(options.checkpoints, keep=2))
            first = min(checkpoints.latest or 0, options.steps - 1)
        if checkpoints and first:
            state = checkpoints.restore(first)
            say(f"resumed after step {first}, {f'with the plan of {saved}' if saved else 'planned anew'}")
        else:
            state = plan.init(functools.partial(make_state, model))
        parts = map(rows_of_this_process, itertools.islice(make(options.steps), first, None))
        batches = plan.batches(parts)
        state, loss = step(state, next(batches))  # compiles and runs; later calls only run
        losses = [float(loss)]
        report(step, options, time.perf_counter() - started)

        def save(number: int, state: TrainState) -> None:
            done = first + 1 + number
            if checkpoints and (done % options.save_every == 0 or done == options.steps):
                checkpoints.save(done, state)

        return np.append(losses, train("planned", step, state, batches, options.steps - first - 1, save))


def report(step, options: argparse.Namespace, seconds: float) -> None:
    """Print the frontier, and which of its plans was taken and why."""
    frontier, plan = step.frontier, step.plan
    say(str(frontier.table()))
    if options.plot and jax.process_index() == 0:
        frontier.plot(options.plot)
    reason = (
        f"--choose {options.choose}"
        if options.choose != "fastest"
        else "the fastest that fits is the default"
    )
    say(
        f"took {frontier.label(plan)}, because {reason}; first step after {seconds:.1f} s"
    )


def compare(planned: np.ndarray, alone: np.ndarray) -> int:
    """Print the two losses and return 0 if they agree at every step, else 1."""
    difference = np.abs(planned - alone) / np.abs(alone)
    say(f"loss after {len(planned)} steps: {planned[-1]:.6f} planned, {alone[-1]:.6f} on one device")
    agree = bool(np.all(difference <= RELATIVE_TOLERANCE))
    verdict = "within" if agree else "OUTSIDE"
    say(
        f"relative difference {difference[-1]:.1e} at the end, {difference.max():.1e} at most: "
        f"{verdict} {RELATIVE_TOLERANCE:.0e}"
    )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
