"""The one seam to JAX internals: everything private or version-dependent, each branch with its JAX version.

Tested with jax 0.10.2 and 0.12.0; ``pyproject.toml`` caps the range at the newest tested version.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import distributed as jax_distributed
from jax._src import effects as jax_effects
from jax._src import source_info_util, xla_bridge
from jax._src.array import ArrayImpl as ArrayImpl
from jax._src.lax import lax as lax_internal
from jax._src.lax import windowed_reductions
from jax.core import Tracer as Tracer
from jax.extend import core as jex_core
from jax.sharding import AbstractMesh, AxisType

_OWN_FOLDER = f"{Path(__file__).parents[1]}/"
_MODEL_LIBRARIES = (
    "site-packages/flax",
    "site-packages/optax",
    "site-packages/haiku",
    "site-packages/equinox",
)

Literal = jex_core.Literal
ClosedJaxpr = jex_core.ClosedJaxpr
Jaxpr = jex_core.Jaxpr
Primitive = jex_core.Primitive


def setting(name: str) -> Any:
    """A setting of JAX such as ``jax_debug_nans``, as this thread sees it: context managers change it too."""
    return getattr(jax.config, name)


trace_context = jax_config.trace_context
"""The settings that change the result of a trace, hashable: the part of `jax.jit`'s cache key beside avals."""
debug_nans, debug_infs = jax_config.debug_nans, jax_config.debug_infs
"""Settings of these names; ``value`` as this thread sees it, without the property of `jax.config` in between."""


trace_state_clean = jax_core.trace_state_clean
"""Whether nothing is being traced."""
JaxRuntimeError = jax.errors.JaxRuntimeError


def distributed_client() -> Any:
    """The client of the store of keys and values that `jax.distributed.initialize` connected to; None without one."""
    return jax_distributed.global_state.client


def runs_on(platform: str) -> bool:
    """Whether JAX has started, and on devices of this platform (``"cuda"``, ``"tpu"``, ``"cpu"``); starts nothing."""
    names = {"gpu": "cuda"}
    return xla_bridge.backends_are_initialized() and names.get(jax.default_backend(), jax.default_backend()) == platform


def process_id() -> int:
    """The number of this process; 0 where there is one."""
    return jax_distributed.global_state.process_id or 0


def num_processes() -> int:
    """Processes of the run that `jax.distributed.initialize` joined; 1 without it."""
    return jax_distributed.global_state.num_processes or 1


def dispatch_of(compiled: Any) -> Any:
    """The function behind `jax.stages.Compiled` over flat arrays, dispatched by the C++ code of `jax.jit`.

    None where this version of JAX, or a program with callbacks, has no such dispatch.
    """
    try:
        return compiled._executable.create_cpp_call(compiled._params)
    except AttributeError:
        return None


class JitOptions(NamedTuple):
    """The options of `jax.jit` for a function's arguments, completed from its signature."""

    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    donate_argnums: tuple[int, ...]
    donate_argnames: tuple[str, ...]


def jit_options(function: Any) -> JitOptions | None:
    """The options of a function that `jax.jit` returned; None for every other object."""
    info = getattr(function, "_jit_info", None)
    if info is None or not hasattr(info, "static_argnums"):
        return None
    return JitOptions(*(tuple(getattr(info, name)) for name in JitOptions._fields))


def is_drop_var(var: Any) -> bool:
    """Whether a jaxpr binder is ``_`` (its value is never read)."""
    return type(var).__name__ == "DropVar"


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """The open jaxpr and constants of an open or closed jaxpr."""
    if hasattr(jaxpr, "consts"):
        return getattr(jaxpr, "jaxpr", jaxpr), jaxpr.consts
    return jaxpr, ()


def scan_counts(params: Any, num_operands: int) -> tuple[int, int]:
    """Numbers of constants and of carries of a ``scan``, the first of its operands; the carries lead its results."""
    if "num_consts" in params:  # jax 0.10
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = (list(part) for part in params["ft_in"].update(range(num_operands)).unpack())
    return len(consts), len(carry)


_CUDNN_VERSION = 91100
"""Of cuDNN where none is installed: 9.11, which knows all forms of attention that JAX 0.10 to 0.12 ask for."""
_cudnn_lock = threading.RLock()


@contextlib.contextmanager
def cudnn_assumed(capability: tuple[int, int]) -> Iterator[list[str]]:
    """Where there is no cuDNN, tracing goes on as on a GPU of that compute capability (major, minor).

    Gives a list to which the names of JAX's questions about GPUs are added.
    """
    asked: list[str] = []
    try:
        module = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
        original = {
            name: getattr(module, name)
            for name in ("check_cudnn_version", "check_compute_capability", "is_cuda_compute_capability_equal")
        }
    except (ImportError, AttributeError):  # another version of JAX: it asks in another way, or not at all
        yield asked
        return
    answers = dict(original) if _has_cudnn(original) else _answers(capability)

    def heard(name: str) -> Any:
        def answer(*args: Any) -> Any:
            asked.append(name)
            return answers[name](*args)

        return answer

    with _cudnn_lock:
        try:
            for name in original:
                setattr(module, name, heard(name))
            yield asked
        finally:
            for name, function in original.items():
                setattr(module, name, function)


def _has_cudnn(original: dict[str, Any]) -> bool:
    try:
        original["check_cudnn_version"]()
    except RuntimeError:
        return False
    return True


def _answers(capability: tuple[int, int]) -> dict[str, Any]:
    """JAX's questions as a GPU of that compute capability answers them."""

    def wanted(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    return {
        "check_cudnn_version": lambda: _CUDNN_VERSION,
        "check_compute_capability": lambda text: capability >= wanted(text),
        "is_cuda_compute_capability_equal": lambda text: capability == wanted(text),
    }


def has_effects(eqn: Any) -> bool:
    """Whether an equation does more than compute its results; naming a mesh axis (`jax.lax.psum`) is not more."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)


def named_axes(eqn: Any) -> frozenset[str]:
    """The mesh axes that an equation names, in itself or in a program that it holds."""
    return frozenset(str(e.name) for e in eqn.effects if type(e).__name__ == "NamedAxisEffect")


def has_ordered_effects(eqn: Any) -> bool:
    """Whether an equation, such as an ordered debug callback, has effects that JAX runs on one device alone."""
    return any(jax_effects.ordered_effects.contains(effect) for effect in eqn.effects)


def eqn_name_stack(eqn: Any) -> str:
    """The name stack of one equation, relative to its own jaxpr, '' when there is none."""
    return str(eqn.source_info.name_stack)


def eqn_source_line(eqn: Any) -> str:
    """``file:line (function)`` of the user's frame of one equation, '' when unknown.

    The innermost frame outside the model libraries; inside them when there is no other. An operator that this package
    put in (the loop over micro-batches) has no line.
    """
    all_frames = source_info_util.user_frames(eqn.source_info.traceback)
    frames = list(itertools.takewhile(lambda f: not f.file_name.startswith(_OWN_FOLDER), all_frames))
    if not frames:
        return ""
    own = (f for f in frames if not any(f"/{library}/" in f.file_name for library in _MODEL_LIBRARIES))
    frame = next(own, frames[0])
    return f"{frame.file_name}:{frame.start_line} ({frame.function_name})"


def fresh_equation(eqn: Any) -> Any:
    """A copy of an equation that is another object, has no effects and comes from the same line."""
    return eqn.replace(effects=frozenset())


_MESH_PRIMITIVES = frozenset({"shard_map", "sharding_constraint", "reshard", "mesh_cast"})


def _is_open_sharding(value: Any) -> bool:
    """Whether a parameter of an equation is a sharding over axes that are the partitioner's: it says nothing."""
    is_named = isinstance(value, jax.sharding.NamedSharding)
    return is_named and all(kind == AxisType.Auto for kind in value.mesh.axis_types)


def bind_like(eqn: Any, primitive: Any, params: dict, operands: Sequence[Any], name_stack: str) -> list[Any]:
    """Bind a primitive in the context of ``eqn`` as ``jax.core.eval_jaxpr`` does; always a list of results.

    The mesh around stays, whatever mesh the step was traced under, but for what the step itself says about sharding.
    """
    keeps_mesh = primitive.name not in _MESH_PRIMITIVES
    if keeps_mesh:
        params = {name: None if _is_open_sharding(value) else value for name, value in params.items()}
    bind_params = primitive.get_bind_params(params)
    with context_of(eqn, name_stack, keeps_mesh=keeps_mesh):
        results = primitive.bind(*operands, **bind_params)
    return list(results) if primitive.multiple_results else [results]


def scan_like(eqn: Any, body: Any, carry: Any, slices: Any, name_stack: str, length: int) -> Any:
    """`jax.lax.scan` of another body in the context of a ``scan``, in its direction."""
    names = {"reverse", "unroll"} & eqn.params.keys()
    with context_of(eqn, name_stack, keeps_mesh=True):
        return jax.lax.scan(body, carry, slices, length=length, **{name: eqn.params[name] for name in names})


@contextlib.contextmanager
def context_of(eqn: Any, name_stack: str, *, keeps_mesh: bool) -> Iterator[None]:
    """Operations bound here get the source line and settings of ``eqn``, with the surrounding mesh if wanted."""
    stack = source_info_util.current_name_stack()
    if name_stack:
        stack = stack + source_info_util.new_name_stack(name_stack)
    around = jax.sharding.get_abstract_mesh()
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(source_info_util.user_context(eqn.source_info.traceback, name_stack=stack))
        contexts.enter_context(eqn.ctx.manager)
        if keeps_mesh:
            if around.size != jax.sharding.get_abstract_mesh().size:  # a part of the devices: JAX asks to unset first
                contexts.enter_context(jax.sharding.use_abstract_mesh(AbstractMesh((), ())))
            contexts.enter_context(jax.sharding.use_abstract_mesh(around))
        yield


def select_and_scatter_add(
    eqn: Any, params: Mapping[str, Any], operands: Sequence[Any], name_stack: str
) -> Any:
    """The primitive of that name, as it is lowered for GPUs, with a third operand: the scalar that sums begin with.

    Gradient, pooled operand, and the scalar; in the context of ``eqn`` like `bind_like`.
    """
    source, operand, start = operands
    is_max = params["select_prim"].name == "ge"
    identity = lax_internal._get_max_identity if is_max else lax_internal._get_min_identity
    padding = params["padding"]
    with context_of(eqn, name_stack, keeps_mesh=True):
        padded = jax.lax.pad(operand, identity(operand.dtype), [(low, high, 0) for low, high in padding])
        result = windowed_reductions._select_and_scatter(
            padded,
            params["select_prim"].bind,
            params["window_dimensions"],
            params["window_strides"],
            [(0, 0)] * len(padding),
            source,
            start,
            jax.lax.add,
        )
        low = [low for low, _ in padding]
        return jax.lax.slice(result, low, [a + n for a, n in zip(low, operand.shape, strict=True)])


def auto_abstract_mesh(sizes: Sequence[int], names: Sequence[str]) -> AbstractMesh:
    """A device-free mesh of axes that the compiler's partitioner owns (`AxisType.Auto`)."""
    return AbstractMesh(tuple(sizes), tuple(names), axis_types=(AxisType.Auto,) * len(tuple(names)))


def is_key_dtype(dtype: Any) -> bool:
    """Whether a dtype is a PRNG key type (extended dtype, no NumPy equivalent)."""
    return jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def key_implementation(dtype: Any) -> str:
    """Name of the generator of a PRNG key type, such as ``threefry2x32``."""
    return str(getattr(getattr(dtype, "_impl", None), "name", ""))


def itemsize(dtype: Any) -> int:
    """Bytes of one element; a PRNG key counts its underlying uint32 words."""
    if is_key_dtype(dtype):
        shape = getattr(getattr(dtype, "_impl", None), "key_shape", (2,))
        return 4 * int(shape[0] if shape else 1)
    return int(dtype.itemsize)


def callee_name(primitive_name: str, params: Any) -> str:
    """The name of a calling primitive's callee, '' for every other primitive and for a callee without a name."""
    if primitive_name == "ffi_call":
        return str(params["target_name"])
    if primitive_name == "pallas_call":
        return str(params.get("name") or "")
    return ""


def buffer_spans(array: jax.Array) -> list[tuple[Any, int, int]]:
    """(device id, first byte, end) of each buffer that an array has on the devices of this process.

    Empty where the backend does not tell addresses, as for arrays of size 0.
    """
    if is_key_dtype(array.dtype):
        array = getattr(array, "_base_array", array)
    shards = [(shard.device.id, shard.data) for shard in array.addressable_shards if shard.data.nbytes]
    try:
        starts = [data.unsafe_buffer_pointer() for _, data in shards]
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return []
    return [
        (device, start, start + data.nbytes) for (device, data), start in zip(shards, starts, strict=True)
    ]
