"""A step of your own, as small as one can be: the file that examples/first_steps.sh plans, steers and runs.

Replace `train_step` and `make_args` by yours. Shapes are enough to plan; `main` runs the plan on the devices present.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import optax

import jaxplan

WIDTH, HIDDEN, BATCH = 1024, 4096, 8192
optimizer = optax.adam(1e-3)


def init(key: jax.Array, width: int = WIDTH, hidden: int = HIDDEN):
    """Parameters and optimizer state."""
    up, down = jax.random.split(key)
    params = {
        "up": jax.random.normal(up, (width, hidden)) / width**0.5,
        "down": jax.random.normal(down, (hidden, width)) / hidden**0.5,
    }
    return params, optimizer.init(params)


def train_step(params, slots, batch):
    """One step of regression with a hidden layer; for one device."""

    def loss_fn(params):
        hidden = jax.nn.gelu(batch["x"] @ params["up"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    updates, slots = optimizer.update(gradients, slots, params)
    return optax.apply_updates(params, updates), slots, loss


def make_args():
    """Shapes of the arguments; nothing is allocated."""
    data = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    return *jax.eval_shape(init, jax.random.key(0)), {"x": data, "y": data}


def pins():
    """Further options for the command line: the batch is split over all eight devices."""
    return {"pins": {"batch": jaxplan.Split(8)}}


def main() -> None:
    """Train on the devices present for some steps, as planned, and check the last loss against one device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", help="a saved plan to run; default: plan here")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    key = jax.random.key(0)
    batch = {name: jax.random.normal(jax.random.fold_in(key, i), (BATCH, WIDTH)) for i, name in enumerate("xy")}
    step = jaxplan.auto(train_step, plan=arguments.plan, donate_argnums=())
    losses = []
    for run in (step, jax.jit(train_step)):
        params, slots = init(key)
        for _ in range(arguments.steps):
            params, slots, loss = run(params, slots, batch)
        losses.append(float(loss))
    assert abs(losses[0] - losses[1]) <= 1e-4 * abs(losses[1]), losses
    print(f"{step.plan.summary}: loss {losses[0]:.6f}, on one device {losses[1]:.6f}")


if __name__ == "__main__":
    main()
