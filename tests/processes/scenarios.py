"""Parts of programs that several processes run; each returns plain data."""

import hashlib
import json
import os
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

import jaxplan
from jaxplan.core import _processes

WIDTH, BATCH, STEPS = 32, 16, 3


def loss_of(params: Any, batch: Any) -> jax.Array:
    hidden = jax.nn.relu(batch["x"] @ params["up"])
    return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)


def train(state: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
    return {**state, "params": params, "key": jax.random.split(state["key"])[0]}, loss


def make_state() -> Any:
    up, down = (0.1 * jax.random.normal(jax.random.key(i), (WIDTH, 4 * WIDTH)) for i in range(2))
    down = down.T
    return {"params": {"up": up, "down": jax.device_put(down, jax.local_devices()[0])}, "key": jax.random.key(7)}


def make_batch(number: int) -> Any:
    random = np.random.default_rng(number)
    return {name: random.normal(size=(BATCH, WIDTH)).astype(np.float32) for name in "xy"}


def part_of(batch: Any, rank: int) -> Any:
    rows = BATCH // 2
    return jax.tree.map(lambda a: a[rank * rows : (rank + 1) * rows], batch)


def auto(step: Any = train, **options: Any) -> Any:
    return jaxplan.auto(step, **{"memory": "1GiB", "choose": "leanest", **options})


def error_of(function: Any) -> Any:
    started = time.perf_counter()
    try:
        function()
    except jaxplan.JaxplanError as error:
        return {"type": type(error).__name__, "text": str(error), "seconds": time.perf_counter() - started}
    return None


def _trained(step: Any, place: Any = lambda step, batch: batch) -> Any:
    state, losses = make_state(), []
    for number in range(STEPS):
        state, loss = step(state, place(step, make_batch(number)))
        losses.append(float(loss))
    data = jax.random.key_data(state["key"])
    up, key = (multihost_utils.process_allgather(x, tiled=True) for x in (state["params"]["up"], data))
    return {"losses": losses, "up": np.asarray(up)[:4, ::16].tolist(), "key": np.asarray(key).tolist()}


def training(rank: int) -> Any:
    """All processes give the whole batch."""
    step = auto()
    found = _trained(step)
    plan = hashlib.sha256(json.dumps(step.plan.to_json(), sort_keys=True).encode()).hexdigest()
    sharding = step.plan.in_shardings()[0]["params"]["up"]
    return {
        **found,
        "plan": plan,
        "topology": step.plan.topology.name,
        "points": len(step.frontier.points),
        "counts": [step.counts.plans, step.counts.compiles],
        "is_split": not sharding.is_fully_replicated,
    }


def parts(rank: int) -> Any:
    """Each process gives its rows, under plans that split the batch over processes and others that do not."""
    found = {}
    shapes = jax.eval_shape(make_state), jax.eval_shape(lambda: jax.tree.map(jnp.asarray, make_batch(0)))
    for choose in ("data", "megatron"):
        step = auto(choose=choose)
        plan = step.plan_for(*shapes)
        batches = plan.batches(part_of(make_batch(number), rank) for number in range(STEPS))
        state, losses = plan.init(make_state), []
        for batch in batches:
            assert batch["x"].shape == (BATCH, WIDTH) and batch["x"].sharding == plan.batch_sharding["x"]
            state, loss = step(state, batch)
            losses.append(float(loss))
        found[choose] = losses
    return found


def checkpoints(rank: int) -> Any:
    """Both processes save their state under one plan, and restore it under another."""
    folder = os.environ["SCENARIO_FOLDER"]
    shapes = jax.eval_shape(make_state), make_batch(0)
    one, other = (auto(choose=choose).plan_for(*shapes) for choose in ("leanest", "megatron"))
    state = one.init(make_state)
    with one.checkpoints(folder) as saved:
        saved.save(1, state)
    found = other.restore(folder)
    moved = found["params"]["up"].sharding != state["params"]["up"].sharding
    sums = [checksum(multihost_utils.process_allgather(of["params"]["up"], tiled=True)) for of in (found, state)]
    return {"is_moved": moved, "checksums": sums}


def checksum(array: Any) -> str:
    return hashlib.sha256(np.asarray(array).tobytes()).hexdigest()


def halves(rank: int) -> Any:
    """Each process gives its rows as if they were the batch."""
    return error_of(lambda: auto()(make_state(), part_of(make_batch(0), rank)))


def uneven(rank: int) -> Any:
    """One process has fewer rows, or fewer batches, or wrong values of a leaf that all share."""
    step = auto()
    plan = step.plan_for(jax.eval_shape(make_state), make_batch(0))
    part = part_of(make_batch(0), rank)
    short = jax.tree.map(lambda a: a[: len(a) - rank], part)
    loader = [part] * (3 - rank)
    whole = {**part, "y": make_batch(rank)["y"]}
    return {
        "rows": error_of(lambda: plan.batch(short)),
        "batches": error_of(lambda: list(plan.batches(loader))),
        "whole": error_of(lambda: plan.batch(whole)),
    }


def _scaled(rank: int) -> Any:
    def scaled(state: Any, batch: Any) -> Any:
        state, loss = train(state, batch)
        return state, loss * (1.0 + rank)

    return scaled


def evaluate(state: Any, batch: Any) -> Any:
    return loss_of(state["params"], batch)


def different(rank: int) -> Any:
    """The processes differ in options, code, or in the step that they call."""
    args = make_state(), make_batch(0)
    return {
        "options": error_of(lambda: auto(choose=("leanest", "fastest")[rank])(*args)),
        "code": error_of(lambda: auto(_scaled(rank))(*args)),
        "steps": error_of(lambda: auto((train, evaluate)[rank])(*args)),
    }


def different_inside(rank: int) -> Any:
    """The processes differ in what only the compiled program shows; or none differs, and nothing fits."""
    constant = np.full((BATCH, WIDTH), float(rank), np.float32)

    def closed(state: Any, batch: Any) -> Any:
        return train(state, {**batch, "x": batch["x"] + constant})

    args = make_state(), make_batch(0)
    plan = jaxplan.plan(train, *args, memory="1GiB", pins={"up": "whole" if rank else "split"}).fastest()
    return {
        "shapes": error_of(lambda: auto()(args[0], make_batch(0) if rank else part_of(make_batch(0), 0))),
        "constants": error_of(lambda: auto(closed)(*args)),
        "plans": error_of(lambda: plan.jit()(*args)),
        "initialisers": error_of(lambda: plan.init(lambda: {**make_state(), "key": jax.random.key(rank)})),
        "infeasible": error_of(lambda: auto(memory="1KiB")(*args)),
    }


def absent(rank: int) -> Any:
    """The second process comes too late."""
    _processes.WAIT_SECONDS = 2
    step, args = auto(), (make_state(), make_batch(0))
    if rank:
        time.sleep(6)
    return error_of(lambda: step(*args))


def killed_0(rank: int) -> None:
    """The first process, which keeps the store of keys and values, dies in the middle of training."""
    _killed(rank == 0)


def killed_1(rank: int) -> None:
    """The second process dies in the middle of training."""
    _killed(rank == 1)


def _killed(is_victim: bool) -> None:
    step, state = auto(), make_state()
    for number in range(1000):
        state, loss = step(state, make_batch(number))
        loss.block_until_ready()
        print("STEP", number, flush=True)
        if is_victim and number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
