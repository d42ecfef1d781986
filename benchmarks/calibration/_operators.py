"""Operators that `benchmarks.calibration` times, by kind, shape and dtype, and the prediction of each."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from benchmarks.calibration._record import Operator
from jaxplan.cost import Predictor, build_cost_model
from jaxplan.mesh import ChipSpec, Topology
from jaxplan.mesh.profile import Settings
from jaxplan.mesh.profile._programs import lower_repeated, varied
from jaxplan.mesh.profile._timing import seconds_per_operation
from jaxplan.search._traced import analyse_step

DTYPES = ("float32", "bfloat16")
# Rows that are looked up lie apart by this many, a prime, so that none is in a cache because its neighbour was.
_STRIDE = 7919


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operator on arrays of one shape.

    Attributes:
      shape: as its kind counts it: `SHAPES`.
      function: of the arrays, each (dimensions, dtype); integers are row numbers.
      num_rows: of the table that row numbers point into; 0 where there are none.
      flops: multiplications and additions of products; 0 for operators that move bytes.
      num_bytes: read and written, each array once.
      repeated: timed instead, where a compiler would take something out of repetitions of the function.
    """

    operator: str
    dtype: str
    shape: tuple[int, ...]
    function: Callable[..., Any]
    arrays: tuple[tuple[tuple[int, ...], str], ...]
    num_bytes: int
    flops: int = 0
    num_rows: int = 0
    repeated: Callable[..., Any] | None = None

    @property
    def work(self) -> int:
        """The amount that its seconds grow with."""
        return self.flops or self.num_bytes

    def abstract(self) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct(dims, dtype) for dims, dtype in self.arrays]


def _matmul(dtype: str, m: int, k: int, n: int) -> Case:
    return _product("matrix product", dtype, (m, k, n), ((m, k), (k, n)), (m, n), 2 * m * k * n, jnp.matmul)


def _gradient_of_weights(dtype: str, m: int, k: int, n: int) -> Case:
    """Contracts the rows of both: a batch, as of a dense layer's weights."""
    arrays = ((k, m), (k, n))
    return _product("product x^T y", dtype, (m, k, n), arrays, (m, n), 2 * m * k * n, lambda x, y: x.T @ y)


def _gradient_of_inputs(dtype: str, m: int, k: int, n: int) -> Case:
    """Contracts the columns of both."""
    arrays = ((m, k), (n, k))
    return _product("product x y^T", dtype, (m, k, n), arrays, (m, n), 2 * m * k * n, lambda x, y: x @ y.T)


def _batched(dtype: str, b: int, m: int, k: int, n: int) -> Case:
    arrays = ((b, m, k), (b, k, n))
    return _product("batched product", dtype, (b, m, k, n), arrays, (b, m, n), 2 * b * m * k * n, jnp.matmul)


def _convolution(
    dtype: str, window: int, images: int, side: int, features: int, made: int, stride: int = 1
) -> Case:
    arrays, result, flops = _convolved(window, images, side, features, made, stride)
    shape = (images, side, features, made)
    name = f"convolution {window}x{window}" + (f" stride {stride}" if stride > 1 else "")
    return _product(name, dtype, shape, arrays, result, flops, _convolve(stride))


def _convolution_gradients(
    dtype: str, window: int, images: int, side: int, features: int, made: int, stride: int = 1
) -> Case:
    """Of the image and of the kernel, by the gradient of the result."""

    def function(x: Any, kernel: Any, gradient: Any) -> Any:
        return jax.vjp(_convolve(stride), x, kernel)[1](gradient)

    arrays, result, flops = _convolved(window, images, side, features, made, stride)
    name = f"gradients of convolution {window}x{window}" + (f" stride {stride}" if stride > 1 else "")
    shape = (images, side, features, made)
    return _product(name, dtype, shape, (*arrays, result), arrays[0], 2 * flops, function)


def _convolve(stride: int) -> Callable[[Any, Any], Any]:
    def function(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return function


def _convolved(
    window: int, images: int, side: int, features: int, made: int, stride: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], int]:
    """Shapes of image and kernel, that of the result, and FLOPs."""
    arrays = ((images, side, side, features), (window, window, features, made))
    result = (images, side // stride, side // stride, made)
    if stride > 1:  # windows that reach over an edge count as whole ones
        return arrays, result, 2 * math.prod(result) * window**2 * features
    # Pairs of a pixel and a tap where there is input, along one side: the outer taps lack one pixel at an edge.
    pairs = window * side - 2 * sum(range(1, window // 2 + 1))
    return arrays, result, 2 * images * pairs**2 * features * made


def _product(
    operator: str,
    dtype: str,
    shape: tuple[int, ...],
    operands: tuple[tuple[int, ...], ...],
    result: tuple[int, ...],
    flops: int,
    function: Callable[..., Any],
) -> Case:
    elements = sum(math.prod(dims) for dims in (*operands, result))
    return Case(
        operator=operator,
        dtype=dtype,
        shape=shape,
        function=function,
        arrays=tuple((dims, dtype) for dims in operands),
        num_bytes=elements * jnp.dtype(dtype).itemsize,
        flops=flops,
    )


def _elementwise(dtype: str, size: int) -> Case:
    return _moving("element-wise pass", dtype, (size,), 2 * size, lambda x: x * 0.5 + 1, (size,))


def _reduction(dtype: str, rows: int, columns: int) -> Case:
    shape = (rows, columns)
    return _moving("sum over rows", dtype, shape, rows * columns + rows, lambda x: jnp.sum(x, axis=-1), shape)


def _column_sum(dtype: str, rows: int, columns: int) -> Case:
    shape = (rows, columns)
    return _moving(
        "sum over columns", dtype, shape, rows * columns + columns, lambda x: jnp.sum(x, axis=0), shape
    )


def _norm_gradients(dtype: str, rows: int, columns: int) -> Case:
    """Of a layer norm's input, scale and offset, by the gradient of its result; statistics in float32."""

    def norm(x: Any, scale: Any, offset: Any) -> Any:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return (centred * lax.rsqrt(variance + 1e-6) * scale + offset).astype(x.dtype)

    def function(x: Any, gradient: Any, scale: Any, offset: Any) -> Any:
        return jax.vjp(norm, x, scale, offset)[1](gradient)

    shape = (rows, columns)
    return _moving(
        "gradients of a norm", dtype, shape, 3 * rows * columns, function, shape, shape, (columns,), (columns,)
    )


def _softmax_gradient(dtype: str, rows: int, columns: int) -> Case:
    def function(x: Any, gradient: Any) -> Any:
        return jax.vjp(lambda x: jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype), x)[1](gradient)

    shape = (rows, columns)
    return _moving("gradient of a softmax", dtype, shape, 3 * rows * columns, function, shape, shape)


def _transposition(dtype: str, rows: int, columns: int) -> Case:
    # The sum has the layout of one summand, so the other is really transposed.
    shape = (rows, columns)
    return _moving(
        "transposition", dtype, shape, 3 * rows * columns, lambda x, y: x.T + y, shape, (columns, rows)
    )


def _lookup(dtype: str, rows: int, width: int, count: int) -> Case:
    return _moving(
        "look-up",
        dtype,
        (rows, width, count),
        2 * count * width,
        lambda table, indices: jnp.take(table, indices, axis=0),
        (rows, width),
        num_indices=count,
        num_rows=rows,
    )


def _scatter(dtype: str, rows: int, width: int, count: int) -> Case:
    def function(updates: Any, indices: Any) -> Any:
        return jnp.zeros((rows, width), dtype).at[indices].add(updates)

    def repeated(updates: Any, indices: Any) -> Any:
        # Of the results of the round before, since zeros of a constant would be made once and copied.
        return jnp.full((rows, width), updates[0, 0] * 0, dtype).at[indices].add(updates)

    # Zeros are written; updates are read, and the rows that they are added to are read and written.
    return _moving(
        "scatter-add",
        dtype,
        (rows, width, count),
        rows * width + 3 * count * width,
        function,
        (count, width),
        num_indices=count,
        num_rows=rows,
        repeated=repeated,
    )


def _moving(
    operator: str,
    dtype: str,
    shape: tuple[int, ...],
    elements: int,
    function: Callable[..., Any],
    *arrays: tuple[int, ...],
    num_indices: int = 0,
    num_rows: int = 0,
    repeated: Callable[..., Any] | None = None,
) -> Case:
    indices = (((num_indices,), "int32"),) if num_indices else ()
    return Case(
        operator=operator,
        dtype=dtype,
        shape=shape,
        function=function,
        arrays=(*((dims, dtype) for dims in arrays), *indices),
        num_bytes=elements * jnp.dtype(dtype).itemsize + num_indices * jnp.dtype("int32").itemsize,
        num_rows=num_rows,
        repeated=repeated,
    )


_SQUARES = ((1024,) * 3, (4096,) * 3)

SHAPES: tuple[tuple[Callable[..., Case], tuple[tuple[int, ...], ...]], ...] = (
    # m, k, n: squares, a transformer's perceptron, and one token for each of 64 sequences.
    (_matmul, ((256,) * 3, *_SQUARES, (8192,) * 3, (8192, 768, 3072), (64, 4096, 4096))),
    (_gradient_of_weights, (*_SQUARES, (768, 8192, 3072))),
    (_gradient_of_inputs, (*_SQUARES, (8192, 3072, 768))),
    # Batch, m, k, n: both products of attention, 96 heads.
    (_batched, ((96, 128, 64, 128), (96, 512, 64, 512), (96, 512, 512, 64))),
    # Window, images, pixels of a side, features read and made: three stages of a ResNet, its first layer, and patches.
    (_convolution, ((1, 32, 56, 64, 256), (1, 32, 28, 512, 128), (1, 32, 14, 1024, 256))),
    (_convolution, ((3, 32, 56, 64, 64), (3, 32, 28, 128, 128), (3, 32, 14, 256, 256))),
    (_convolution, ((7, 32, 224, 3, 64, 2),)),
    (_convolution, ((16, 32, 224, 3, 768, 16),)),
    (_convolution_gradients, ((3, 32, 56, 64, 64), (3, 32, 14, 256, 256))),
    (_convolution_gradients, ((7, 32, 224, 3, 64, 2),)),
    (_elementwise, ((1 << 16,), (1 << 20,), (1 << 24,), (1 << 26,))),
    # Rows, columns: of a narrow and a wide transformer, and logits.
    (_reduction, ((32768, 256), (8192, 4096), (8192, 50304))),
    (_column_sum, ((4096, 768), (32768, 256), (8192, 4096))),
    (_norm_gradients, ((4096, 768), (32768, 256), (8192, 4096))),
    (_softmax_gradient, ((49152, 512), (8192, 4096))),
    (_transposition, ((1024, 1024), (8192, 8192))),
    # Rows of the table, columns, rows looked up or added to: a vocabulary, a table of a recommender; positions that few
    # rows hold, which many add to.
    (_lookup, ((50304, 768, 8192), (200_000, 64, 65536))),
    (_scatter, ((50304, 768, 8192), (200_000, 64, 65536), (512, 768, 8192), (2, 768, 8192))),
)


def cases() -> Iterator[Case]:
    """Everything that is timed, in each dtype; small things first within an operator."""
    for dtype in DTYPES:
        for make, shapes in SHAPES:
            yield from sorted((make(dtype, *shape) for shape in shapes), key=lambda case: case.work)


def sustained_cases() -> tuple[Case, ...]:
    """Those that are run for seconds."""
    return tuple(_matmul(dtype, 8192, 8192, 8192) for dtype in reversed(DTYPES))


def is_too_long(case: Case, records: Sequence[Operator], settings: Settings) -> bool:
    """Whether it is expected to take longer than `Settings.longest_seconds`, as the largest of its kind did."""
    alike = [r for r in records if (r.operator, r.dtype) == (case.operator, case.dtype)]
    if not alike:
        return False
    largest = max(alike, key=lambda r: r.flops or r.num_bytes)
    return case.work * largest.seconds / (largest.flops or largest.num_bytes) > settings.longest_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A case as a program that repeats it `unroll` times a round, and shapes of its arguments behind the rounds."""

    case: Case
    program: Any
    abstract: tuple[jax.ShapeDtypeStruct, ...]
    unroll: int

    def arrays(self) -> tuple[jax.Array, ...]:
        """Arguments of numbers that differ."""
        return jax.jit(
            lambda: tuple(_values(x.shape, x.dtype, self.case.num_rows) for x in self.abstract),
            out_shardings=tuple(x.sharding for x in self.abstract),
        )()


def compile_case(case: Case, device: Any) -> Compiled:
    """For one device."""
    mesh = Mesh(np.array([device]), ("device",))
    lowered, abstract, unroll = lower_repeated(case.repeated or case.function, case.abstract(), mesh)
    return Compiled(case=case, program=lowered.compile(), abstract=abstract, unroll=unroll)


def measure_operator(
    compiled: Compiled, topology: Topology, priced: Topology | None, settings: Settings
) -> Operator:
    """Time one operator on one device.

    Args:
      topology: of one device, without a profile.
      priced: the same with one, or None.
    """
    seconds = seconds_per_operation(compiled.program, compiled.arrays(), compiled.unroll, settings)
    return _operator(compiled.case, seconds, topology, priced)


def measure_sustained(compiled: Compiled, topology: Topology, seconds: float) -> Operator:
    """The median of the last quarter of so many seconds without a pause, in which a device may lower its clock."""
    arrays, taken = compiled.arrays(), list[float]()
    rounds, started = np.int32(8), time.perf_counter()
    while (now := time.perf_counter()) - started < seconds:
        jax.block_until_ready(compiled.program(rounds, *arrays))
        taken.append((time.perf_counter() - now) / (int(rounds) * compiled.unroll))
    last = statistics.median(taken[-max(1, len(taken) // 4) :])
    case = replace(compiled.case, operator=f"{compiled.case.operator}, {seconds:.0f} s")
    return _operator(case, last, topology, None)


def _operator(case: Case, seconds: float, topology: Topology, priced: Topology | None) -> Operator:
    return Operator(
        operator=case.operator,
        dtype=case.dtype,
        shape=case.shape,
        flops=case.flops,
        num_bytes=case.num_bytes,
        seconds=seconds,
        peak_per_second=_peak(case, topology.chip),
        predicted_seconds=predicted_seconds(case, topology),
        profile_seconds=None if priced is None else predicted_seconds(case, priced),
    )


def _values(shape: tuple[int, ...], dtype: Any, num_rows: int) -> Any:
    if jnp.issubdtype(dtype, jnp.integer):
        # Wraps around before it is taken modulo the rows, which keeps rows apart all the same.
        return (jnp.arange(shape[0], dtype=jnp.uint32) * _STRIDE % num_rows).astype(dtype)
    return varied(shape, dtype)


def _peak(case: Case, chip: ChipSpec) -> float:
    return chip.matmul_flops_per_second(case.dtype) if case.flops else chip.memory_bytes_per_second


def predicted_seconds(case: Case, topology: Topology) -> float:
    """The prediction of a step that is this operator alone, on one device."""
    graph = analyse_step(case.function, case.abstract(), {}, donate_argnums=(), static_argnums=())
    model = build_cost_model(graph, topology)
    whole = [0] * len(model.configurations), [0] * len(model.problem.edges)
    return Predictor(model).predict(*whole)[0].compute_seconds
