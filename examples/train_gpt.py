"""Train a byte-level GPT on Python's own sources, planned by jaxplan, and check it against one device.

    python examples/train_gpt.py                      # 8 virtual CPU devices, or the GPUs there are
    python examples/train_gpt.py --choose leanest     # another point of the frontier
    python examples/train_gpt.py --choose fsdp        # or a reference strategy
    cd examples && jaxplan plan train_gpt:train_step --args train_gpt:make_args --topology h100:8 --donate 0

Nothing in the model or in `train_step` knows of devices. At the end the same steps run unplanned on one
device, and the program exits with 1 if the two losses differ by more than the tolerance.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
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


def train(
    title: str, step: Callable, state: TrainState, batches: Iterator[Batch], num_steps: int
) -> np.ndarray:
    """Run the steps under a progress bar and return their losses."""
    losses = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.4f}")) as progress:
        task = progress.add_task(title, total=num_steps, loss=float("nan"))
        for batch in batches:
            state, loss = step(state, batch)
            losses.append(float(loss))
            progress.update(task, advance=1, loss=losses[-1])
    return np.array(losses)


def set_up_devices(num_devices: int) -> None:
    """Use the GPUs there are, or else this many virtual CPU devices; must run before JAX starts a backend."""
    if "device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", num_devices)
    has_gpu = any(os.path.exists(path) for path in ("/dev/nvidia0", "/dev/kfd"))
    if not has_gpu and "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices where there is no GPU")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--choose", default="fastest", help="fastest, knee, leanest, a number, or a reference")
    parser.add_argument("--memory", help="limit per device, such as 2GiB")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
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
    print(f"{len(corpus):,} bytes of Python, {jax.device_count()} x {jax.devices()[0].device_kind}")

    step = jaxplan.auto(train_step, choose=options.choose, memory=options.memory, donate_argnums=(0,))
    state = make_state(model)
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    print(f"planning and compiling a GPT of {num_parameters:,} parameters ...")
    started = time.perf_counter()
    batches = make(options.steps)
    # The first call plans, shards the state, compiles and runs; the later ones only run.
    state, first_loss = step(state, next(batches))
    first_loss = float(first_loss)
    report(step, options, time.perf_counter() - started)

    planned = np.append(first_loss, train("planned", step, state, batches, options.steps - 1))
    with jax.default_device(jax.devices()[0]):
        alone = train(
            "one device", jax.jit(train_step), make_state(model), make(options.steps), options.steps
        )
    return compare(planned, alone)


def report(step, options: argparse.Namespace, seconds: float) -> None:
    """Print the frontier, and which of its plans was taken and why."""
    frontier, plan = step.frontier, step.plan
    print(frontier.table())
    if options.plot:
        frontier.plot(options.plot)
    reason = (
        f"--choose {options.choose}"
        if options.choose != "fastest"
        else "the fastest that fits is the default"
    )
    print(
        f"took {frontier.label(plan)}, because {reason}; first step after {seconds:.1f} s"
    )


def compare(planned: np.ndarray, alone: np.ndarray) -> int:
    """Print the two losses and return 0 if they agree at every step, else 1."""
    difference = np.abs(planned - alone) / np.abs(alone)
    print(f"loss after {len(planned)} steps: {planned[-1]:.6f} planned, {alone[-1]:.6f} on one device")
    agree = bool(np.all(difference <= RELATIVE_TOLERANCE))
    verdict = "within" if agree else "OUTSIDE"
    print(
        f"relative difference {difference[-1]:.1e} at the end, {difference.max():.1e} at most: "
        f"{verdict} {RELATIVE_TOLERANCE:.0e}"
    )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
