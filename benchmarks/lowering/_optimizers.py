"""One update by every gradient transformation of `optax` and `optax.contrib`, found in the packages themselves.

Required arguments of a constructor are taken from tables by the name of the parameter; one that cannot be built so is
an error, so that an optimizer that a new version brings is not passed over in silence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import optax.transforms

from tests.fuzz._check import Subject

_MODULES = (optax, optax.contrib, optax.transforms)
_OTHER_FUNCTIONS = frozenset(
    {
        "bias_correction",
        "matrix_inverse_pth_root",
        "schedule_free_eval_params",
        "sigmoid_binary_cross_entropy",
        "update_infinity_moment",
        "update_moment",
        "update_moment_per_elem_norm",
    }
)
"""Functions without an annotation that return no gradient transformation."""
_OTHER_CLASSES = frozenset({"GradientTransformation", "GradientTransformationExtraArgs", "WrappedSchedule"})
"""Classes with an ``update`` that are none, or the type itself."""

_RATE = 1e-2
_ARGUMENTS: dict[str, Callable[[], Any]] = {
    "adv_optimizer": lambda: optax.chain(optax.contrib.normalize(), optax.sgd(0.05)),
    "base_optimizer": lambda: optax.adam(_RATE),
    "clipping": lambda: 0.1,
    "decay": lambda: 0.9,
    "eta": lambda: 0.01,
    "every_k_schedule": lambda: 2,
    "f": lambda: lambda *leaves: jax.tree.map(lambda g: -_RATE * jnp.tanh(g), leaves[0]),
    "fast_optimizer": lambda: optax.adam(_RATE),
    "freeze_mask": lambda: {"a": True, "b": False, "bias": False, "kernel": True},
    "gamma": lambda: 0.55,
    "inner": lambda: optax.adam(_RATE),
    "inner_factory": lambda: optax.adam,
    "l2_norm_clip": lambda: 0.5,
    "learning_rate": lambda: _RATE,
    "mask": lambda: {"a": True, "b": False, "bias": True, "kernel": False},
    "max_backtracking_steps": lambda: 4,
    "max_consecutive_errors": lambda: 3,
    "max_delta": lambda: 0.1,
    "max_linesearch_steps": lambda: 4,
    "max_norm": lambda: 0.5,
    "measure": lambda: lambda updates: jax.tree.map(jnp.abs, updates),
    "measure_name": lambda: "norm",
    "measures": lambda: {"norm": optax.tree.norm},
    "noise_multiplier": lambda: 0.1,
    "opt": lambda: optax.adam(_RATE),
    "optimizer": lambda: optax.sgd(_RATE),
    "param_labels": lambda: {"a": "one", "b": "two", "bias": "one", "kernel": "two"},
    "seed": lambda: 0,
    "should_transform_fn": lambda: lambda step, **extra: step % 2 == 0,
    "slow_step_size": lambda: 0.5,
    "step_size": lambda: -_RATE,
    "step_size_fn": lambda: optax.linear_schedule(_RATE, 0.0, 10),
    "sync_period": lambda: 2,
    "threshold": lambda: 0.5,
    "transforms": lambda: {"one": optax.sgd(_RATE), "two": optax.adam(_RATE)},
    "tx": lambda: optax.sgd(_RATE),
}
"""Required parameters by name -> a value."""


def _matrices(params: Any) -> Any:
    numbers = optax.contrib.MuonDimensionNumbers()
    return jax.tree.map(lambda p: numbers if p.ndim == 2 else None, params)


_OPTIONS: dict[str, Any] = {"min_dim_size_to_factor": 4, "key": 0, "weight_dimension_numbers": _matrices}
"""Optional parameters that are set where a constructor has them: matrices of a test are small."""


def constructors() -> dict[str, Callable[..., Any]]:
    """Every public constructor of a gradient transformation, by its qualified name; aliases once."""
    found: dict[int, tuple[str, Callable[..., Any]]] = {}
    for module in _MODULES:
        for name, value in sorted(vars(module).items()):
            if not name.startswith("_") and callable(value) and _is_constructor(name, value):
                found.setdefault(id(value), (f"{module.__name__}.{name}", value))
    return dict(sorted(found.values()))


def _is_constructor(name: str, value: Any) -> bool:
    if inspect.isclass(value):
        return hasattr(value, "update") and hasattr(value, "init") and name not in _OTHER_CLASSES
    try:
        annotation = inspect.signature(value).return_annotation
    except (TypeError, ValueError):
        return False
    if annotation is inspect.Signature.empty:
        return inspect.isfunction(value) and name not in _OTHER_FUNCTIONS
    return "GradientTransformation" in str(annotation)


def built(constructor: Callable[..., Any], *, flipped: bool = False) -> Any:
    """A gradient transformation with arguments of the tables.

    Args:
      flipped: boolean options are the opposite of their defaults.

    Raises:
      KeyError: a required parameter has no value in the table.
    """
    given: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(constructor).parameters.values():
        name, default = parameter.name, parameter.default
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts = {"clip": optax.clip(1.0), "adam": optax.adam(_RATE)}
            given += parts.items() if constructor is optax.named_chain else parts.values()
        elif name in _OPTIONS:
            named[name] = _OPTIONS[name]
        elif flipped and isinstance(default, bool):
            named[name] = not default
        elif default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            named[name] = _ARGUMENTS[name]()
    made = constructor(*given, **named)
    if not hasattr(made, "init"):  # of injected hyperparameters: a constructor again
        made = made(_RATE)
    if isinstance(made, optax.MultiSteps):
        made = made.gradient_transformation()
    return optax.with_extra_args_support(made)


def has_flags(constructor: Callable[..., Any]) -> bool:
    """Whether a constructor has boolean options."""
    return any(isinstance(p.default, bool) for p in inspect.signature(constructor).parameters.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The inputs of a transformation: some expect matrices, a copy of the parameters, or a gradient of each example.

    Attributes:
      params: as the transformation is initialised with them.
      read: those that the loss reads.
      per_example: gradients have a first dimension of examples.
    """

    params: Any
    read: Callable[[Any], Any] = lambda params: params
    per_example: bool = False


def _forms() -> Iterator[_Form]:
    rng = np.random.default_rng(0)
    shapes = {"a": (8, 16), "b": (16, 8), "bias": (16,), "kernel": (2, 1, 3)}
    params = {name: rng.normal(size=shape) / 4 for name, shape in shapes.items()}
    yield _Form(params=params)
    yield _Form(params={name: params[name] for name in ("a", "b")})
    yield _Form(params=optax.LookaheadParams.init_synced(params), read=lambda params: params.fast)
    yield _Form(params=params, per_example=True)


def _loss(params: dict[str, Any], x: Any) -> jax.Array:
    """A linear layer, a convolution over the columns of its result, and another linear layer."""
    hidden = jnp.tanh(x @ params["a"] + params.get("bias", 0.0))
    if "kernel" in params:
        hidden = jax.lax.conv_general_dilated(hidden[:, None, :], params["kernel"], (1,), "SAME").mean(1)
    return jnp.mean((hidden @ params["b"] - jnp.sin(x)) ** 2)


def _step(transformation: Any, form: _Form) -> Callable[..., Any]:
    accepted = inspect.signature(transformation.update).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())

    def step(params: Any, state: Any, x: Any) -> Any:
        def objective(p: Any, *_: Any, loss: Any = None, obj_fn: Any = None, grad_fn: Any = None) -> jax.Array:
            return _loss(p, x)  # line searches pass unread arguments on, by name

        read = form.read(params)
        loss, grads = jax.value_and_grad(objective)(read)
        further = {"value": loss, "grad": grads, "value_fn": objective, "obj_fn": objective, "loss": loss}
        further["grad_fn"] = lambda p, _: jax.grad(objective)(p)
        further = {name: value for name, value in further.items() if takes_any or name in accepted}
        if form.per_example:
            grads = jax.vmap(lambda row: jax.grad(_loss)(read, row[None]))(x)
        updates, state = transformation.update(grads, state, params, **further)
        return optax.apply_updates(params, updates), state, loss

    return step


def subject_of(name: str, *, flipped: bool = False) -> Subject:
    """The third update by a transformation, which is given every further argument that there is.

    Raises:
      ValueError: no form of arguments suits the transformation; says why not.
    """
    transformation = built(constructors()[name], flipped=flipped)
    batch, errors = np.random.default_rng(1).normal(size=(24, 8)), []
    for form in _forms():
        step = _step(transformation, form)
        try:
            params, state = form.params, transformation.init(jax.tree.map(jnp.asarray, form.params))
            for _ in range(2):
                params, state, _ = jax.jit(step)(params, state, batch)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {str(error)[:200]}")
        else:
            return Subject(step, (*jax.device_get((params, state)), batch))
    raise ValueError(f"{name} takes none of the forms of arguments: {errors}")
