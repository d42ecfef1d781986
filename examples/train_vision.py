"""Train a ResNet or a ViT on scikit-learn's handwritten digits, planned by jaxplan, and check it against one device.

    python examples/train_vision.py                     # 8 virtual CPU devices, or the GPUs there are
    python examples/train_vision.py --model vit --choose leanest

Nothing in the models or in `train_step` knows of devices; the ResNet keeps the statistics of its batch
normalisation in the state. At the end the same steps run unplanned on one device, and the program exits with 1 if
the two losses differ by more than the tolerance.

It computes in float64: this training amplifies differences, and in float32 a change in the last bit of the parameters
alone, on one device, moves the ResNet's loss by 7% within 60 steps.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits

import jaxplan

NUM_CLASSES = 10
NUM_TEST_IMAGES = 256  # of 1797
DTYPE = jnp.float64
# Sums in another order, and training amplifies the difference from step to step.
RELATIVE_TOLERANCE = 1e-6

Batch = dict[str, np.ndarray]


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, each normalised, around a shortcut that is projected where shapes differ."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        strides = (self.stride, self.stride)
        conv = functools.partial(nn.Conv, use_bias=False, param_dtype=DTYPE)
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, param_dtype=DTYPE)
        y = nn.relu(norm()(conv(self.width, (3, 3), strides)(x)))
        y = norm()(conv(self.width, (3, 3))(y))
        if x.shape != y.shape:
            x = conv(self.width, (1, 1), strides)(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Images (batch, 8, 8, 1) to logits (batch, 10)."""

    width: int = 16

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        x = nn.relu(nn.Conv(self.width, (3, 3), param_dtype=DTYPE)(images))
        x = ResidualBlock(self.width, stride=1)(x, train)
        x = ResidualBlock(2 * self.width, stride=2)(x, train)
        return nn.Dense(NUM_CLASSES, param_dtype=DTYPE)(x.mean(axis=(1, 2)))


class ViT(nn.Module):
    """The same by attention between patches of 2x2 pixels."""

    width: int = 64
    num_layers: int = 2
    num_heads: int = 4

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        dense = functools.partial(nn.Dense, param_dtype=DTYPE)
        norm = functools.partial(nn.LayerNorm, param_dtype=DTYPE)
        attention = functools.partial(nn.MultiHeadDotProductAttention, self.num_heads, param_dtype=DTYPE)
        x = nn.Conv(self.width, (2, 2), strides=(2, 2), param_dtype=DTYPE)(images)
        x = x.reshape(x.shape[0], -1, self.width)
        x = x + self.param("positions", nn.initializers.normal(0.02), x.shape[1:], DTYPE)
        for _ in range(self.num_layers):
            x = x + attention()(norm()(x))
            x = x + dense(self.width)(nn.gelu(dense(4 * self.width)(norm()(x))))
        return dense(NUM_CLASSES)(norm()(x).mean(axis=1))


MODELS: dict[str, Callable[[], nn.Module]] = {"resnet": ResNet, "vit": ViT}


class State(TrainState):
    """With the running statistics of the batch normalisation; empty where there is none."""

    batch_stats: Any


def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
    """One step of Nesterov momentum on the mean cross entropy, in nats per image."""

    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, batch["images"], True, mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()
        return loss, updates.get("batch_stats", {})

    (loss, batch_stats), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradients, batch_stats=batch_stats), loss


def evaluate(state: State, batch: Batch) -> jax.Array:
    """Share of images that are told right, with the running statistics."""
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, batch["images"])
    return jnp.mean(jnp.argmax(logits, axis=-1) == batch["labels"])


def make_state(model: nn.Module) -> State:
    """Return the state before the first step; the same model gives the same state."""
    variables = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1), DTYPE))
    # Flax makes the first statistics float32 whatever the parameters are.
    batch_stats = jax.tree.map(lambda x: x.astype(DTYPE), variables.get("batch_stats", {}))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.05, warmup_steps=5, decay_steps=200)
    return State.create(
        apply_fn=model.apply,
        params=variables["params"],
        batch_stats=batch_stats,
        tx=optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(schedule, momentum=0.9, nesterov=True)),
    )


def read_digits() -> tuple[Batch, Batch]:
    """Return images to train on and to test on, 8 x 8 pixels from 0 to 1, in an order drawn from a fixed seed."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images[order] / 16).reshape(-1, 8, 8, 1)
    labels = labels[order].astype(np.int32)
    test, rest = slice(NUM_TEST_IMAGES), slice(NUM_TEST_IMAGES, None)
    return (
        {"images": images[rest], "labels": labels[rest]},
        {"images": images[test], "labels": labels[test]},
    )


def make_batches(digits: Batch, batch_size: int, num_steps: int) -> Iterator[Batch]:
    """Yield batches drawn from a fixed seed."""
    random = np.random.default_rng(1)
    for _ in range(num_steps):
        chosen = random.integers(0, len(digits["labels"]), size=batch_size)
        yield {name: values[chosen] for name, values in digits.items()}


def train(
    title: str, step: Callable, state: State, batches: Iterator[Batch], num_steps: int
) -> tuple[State, np.ndarray]:
    """Run the steps under a progress bar and return the last state and the losses."""
    losses = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.4f}")) as progress:
        task = progress.add_task(title, total=num_steps, loss=float("nan"))
        for batch in batches:
            state, loss = step(state, batch)
            losses.append(float(loss))
            progress.update(task, advance=1, loss=losses[-1])
    return state, np.array(losses)


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
    parser.add_argument("--model", choices=list(MODELS), default="resnet")
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices where there is no GPU")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--choose", default="fastest", help="fastest, knee, leanest, a number, or a reference")
    parser.add_argument("--memory", help="limit per device, such as 2GiB")
    parser.add_argument("--batch", type=int, default=128)
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    set_up_devices(options.devices)
    jax.config.update("jax_enable_x64", True)
    digits, test = read_digits()
    print(f"{len(digits['labels'])} digits, {jax.device_count()} x {jax.devices()[0].device_kind}")

    step = jaxplan.auto(train_step, choose=options.choose, memory=options.memory, donate_argnums=(0,))
    measure = jaxplan.auto(evaluate, memory=options.memory)  # its frontier is another one: numbers and names differ
    model = MODELS[options.model]()
    print(f"planning and compiling the {options.model} ...")
    started = time.perf_counter()
    batches = make_batches(digits, options.batch, options.steps)
    # The first call plans, shards the state, compiles and runs; the later ones only run.
    state, first_loss = step(make_state(model), next(batches))
    first_loss = float(first_loss)
    print(step.frontier.table())
    print(f"took {step.plan}; first step after {time.perf_counter() - started:.1f} s")

    state, losses = train("planned", step, state, batches, options.steps - 1)
    planned = (np.append(first_loss, losses), float(measure(state, test)))
    with jax.default_device(jax.devices()[0]):
        batches = make_batches(digits, options.batch, options.steps)
        state, losses = train("one device", jax.jit(train_step), make_state(model), batches, options.steps)
        alone = (losses, float(jax.jit(evaluate)(state, test)))
    return compare(planned, alone)


def compare(planned: tuple[np.ndarray, float], alone: tuple[np.ndarray, float]) -> int:
    """Print the two losses and accuracies and return 0 if the losses agree at every step, else 1."""
    (losses, accuracy), (losses_alone, accuracy_alone) = planned, alone
    difference = np.abs(losses - losses_alone) / np.abs(losses_alone)
    print(f"loss after {len(losses)} steps: {losses[-1]:.6f} planned, {losses_alone[-1]:.6f} on one device")
    print(
        f"accuracy on {NUM_TEST_IMAGES} digits not seen: {accuracy:.1%} planned, {accuracy_alone:.1%} on one device"
    )
    agree = bool(np.all(difference <= RELATIVE_TOLERANCE))
    verdict = "within" if agree else "OUTSIDE"
    print(
        f"relative difference {difference[-1]:.1e} at the end, {difference.max():.1e} at most: "
        f"{verdict} {RELATIVE_TOLERANCE:.0e}"
    )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
