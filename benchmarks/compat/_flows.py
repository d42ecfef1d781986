"""Densities: flows of FlowJAX and Distrax, a neural ODE of Diffrax, a variational step of NumPyro."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.compat._case import Case, stateless


def _points(count: int, width: int) -> Any:
    return lambda key: jax.random.normal(key, (count, width))


def masked_autoregressive(small: bool) -> Case:
    """`flowjax.flows.masked_autoregressive_flow` with rational quadratic splines."""
    import flowjax.bijections
    import flowjax.distributions
    import flowjax.flows
    import paramax

    from benchmarks.compat._equinox import from_module

    width, count, hidden, layers = (4, 64, 16, 2) if small else (64, 8192, 1024, 4)

    def make(key: jax.Array) -> Any:
        return flowjax.flows.masked_autoregressive_flow(
            key,
            base_dist=paramax.non_trainable(flowjax.distributions.Normal(jnp.zeros(width))),
            transformer=flowjax.bijections.RationalQuadraticSpline(knots=8, interval=4),
            flow_layers=layers,
            nn_width=hidden,
            nn_depth=2,
        )

    def loss(flow: Any, points: jax.Array, key: jax.Array) -> jax.Array:
        return -paramax.unwrap(flow).log_prob(points).mean()

    return from_module(make, loss, _points(count, width))


def coupling(small: bool) -> Case:
    """A `distrax` chain of masked couplings, conditioned by Haiku perceptrons."""
    import distrax
    import haiku as hk

    width, count, hidden, layers = (4, 64, 16, 2) if small else (256, 16384, 2048, 6)

    def log_density(points: jax.Array) -> jax.Array:
        bijectors = []
        for layer in range(layers):
            conditioner = hk.Sequential(
                [
                    hk.nets.MLP([hidden, hidden], activate_final=True),
                    hk.Linear(2 * width),
                    hk.Reshape((width, 2)),
                ]
            )
            bijectors.append(
                distrax.MaskedCoupling(
                    mask=jnp.arange(width) % 2 == layer % 2,
                    bijector=lambda shift: distrax.ScalarAffine(
                        shift[..., 0], log_scale=jnp.tanh(shift[..., 1])
                    ),
                    conditioner=conditioner,
                )
            )
        base = distrax.Independent(distrax.Normal(jnp.zeros(width), jnp.ones(width)), 1)
        return distrax.Transformed(base, distrax.Chain(bijectors)).log_prob(points)

    net, batch = hk.without_apply_rng(hk.transform(log_density)), _points(count, width)
    return stateless(
        lambda key: net.init(key, batch(key)),
        lambda params, points, key: -jnp.mean(net.apply(params, points)),
        batch,
    )


def neural_ode(small: bool) -> Case:
    """A `diffrax` neural ODE: adaptive steps of Tsit5 through an Equinox perceptron, checkpointed adjoint.

    Each sample takes steps of its own, so its adjoint loop sums a gradient of all weights of its own: 1.25 MiB here,
    5 GiB of the batch. `throw=False`: a program that calls back into Python is not compiled without its devices.
    """
    import diffrax
    import equinox as eqx

    from benchmarks.compat._equinox import from_module

    width, hidden, count = (4, 16, 16) if small else (64, 512, 4096)

    def make(key: jax.Array) -> Any:
        return eqx.nn.MLP(width, width, hidden, depth=2, activation=jax.nn.softplus, key=key)

    def solve(model: Any, start: jax.Array) -> jax.Array:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: jnp.tanh(model(y))),
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=0.1,
            y0=start,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
            max_steps=64,
            throw=False,
        )
        return found.ys[-1]

    def loss(model: Any, batch: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.mean((jax.vmap(solve, in_axes=(None, 0))(model, batch[0]) - batch[1]) ** 2)

    return from_module(make, loss, lambda key: jax.random.normal(key, (2, count, width)))


def variational(small: bool) -> Case:
    """A `numpyro` ELBO: a Bayesian two-layer regression under a mean-field normal guide."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import Trace_ELBO

    width, count, hidden = (4, 32, 8) if small else (1024, 16384, 4096)
    sites = {"first": (width, hidden), "second": (hidden,)}

    def model(batch: Any) -> None:
        first, second = (numpyro.sample(n, dist.Normal(0, 1).expand(s).to_event()) for n, s in sites.items())
        mean = jnp.tanh(batch["x"] @ first / width**0.5) @ second / hidden**0.5
        with numpyro.plate("data", count):
            numpyro.sample("y", dist.Normal(mean, 0.1), obs=batch["y"])

    def guide(batch: Any) -> None:
        for name in sites:
            place, scale = numpyro.param(f"{name}_place"), numpyro.param(f"{name}_scale")
            numpyro.sample(name, dist.Normal(place, scale).to_event())

    def init(key: jax.Array) -> Any:
        parts = {"place": 0.0, "scale": -2.0}
        return {f"{n}_{part}": jnp.full(s, value) for n, s in sites.items() for part, value in parts.items()}

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        positive = {k: jax.nn.softplus(v) if k.endswith("scale") else v for k, v in params.items()}
        return Trace_ELBO().loss(key, positive, model, guide, batch) / count

    def batch(key: jax.Array) -> Any:
        return {"x": jax.random.normal(key, (count, width)), "y": jax.random.normal(key, (count,))}

    return stateless(init, loss, batch)
