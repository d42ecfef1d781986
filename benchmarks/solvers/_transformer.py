"""A layout problem of the size of a Transformer (6 + 6 layers) by PaSE's cost model, for any device count.

Configurations split the iteration space of an operator into at most `num_devices` parts; costs are FLOP, bytes
counted at 5,000 FLOP for eight of them (10 TFLOP/s against 16 GB/s). Source: PaSE, section II and equation (1).
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from jaxplan.solvers import Problem

# Batch, positions, model width, heads, width of a head, positions attended to, inner width, vocabulary, q/k/v.
SIZES = {"b": 64, "s": 256, "d": 512, "h": 8, "e": 64, "t": 256, "f": 2048, "v": 50000, "q": 3}
_FLOP_PER_VALUE = 2_500.0  # a float32 on a 16 GB/s link


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator: the dimensions of its loops, of its result and of its weight, FLOP of an iteration."""

    loops: str
    result: str
    weight: str = ""
    flop: int = 2


_ENCODE = {
    "qkv": Operator(loops="qbhsed", result="qbhse", weight="qdhe"),
    "unstack": Operator(loops="qbhse", result="bhse", flop=0),
    "scores": Operator(loops="bhste", result="bhst"),
    "softmax": Operator(loops="bhst", result="bhst", flop=4),
    "mix": Operator(loops="bhset", result="bhse"),
    "out": Operator(loops="bsdhe", result="bsd", weight="hed"),
    "add": Operator(loops="bsd", result="bsd", flop=1),
    "norm": Operator(loops="bsd", result="bsd", weight="d", flop=6),
    "up": Operator(loops="bsfd", result="bsf", weight="df"),
    "down": Operator(loops="bsdf", result="bsd", weight="fd"),
    "query": Operator(loops="bhsed", result="bhse", weight="dhe"),
    "key": Operator(loops="bhted", result="bhte", weight="dhe"),
    "embed": Operator(loops="bsdv", result="bsd", weight="vd", flop=1),
    "logits": Operator(loops="bsvd", result="bsv", weight="dv"),
    "loss": Operator(loops="bsv", result="bsv", flop=4),
}


class _Builder:
    def __init__(self, num_devices: int, jitter: float) -> None:
        self.num_devices, self.jitter = num_devices, jitter
        self.rng = np.random.default_rng(0)
        self.names: list[str] = []
        self.edges: list[tuple[int, int, np.ndarray]] = []

    def add(self, name: str, *inputs: int) -> int:
        """Append an operator that reads the results of others; return its place."""
        node = len(self.names)
        self.names.append(name)
        for source in inputs:
            table = edge_costs(self.names[source], name, self.num_devices)
            self.edges.append((source, node, self._vary(table)))
        return node

    def _vary(self, costs: np.ndarray) -> np.ndarray:
        return costs * self.rng.uniform(1, 1 + self.jitter, costs.shape) if self.jitter else costs

    def attention(self, stream: int, memory: int | None = None) -> int:
        if memory is None:
            packed = self.add("unstack", self.add("qkv", stream))
            query = key = value = packed
        else:
            query, key, value = self.add("query", stream), self.add("key", memory), self.add("key", memory)
        scores = self.add("softmax", self.add("scores", query, key))
        return self._residual(stream, self.add("out", self.add("mix", scores, value)))

    def perceptron(self, stream: int) -> int:
        return self._residual(stream, self.add("down", self.add("up", stream)))

    def _residual(self, stream: int, branch: int) -> int:
        return self.add("norm", self.add("add", stream, branch))

    def problem(self) -> Problem:
        time = [self._vary(node_costs(name, self.num_devices)) for name in self.names]
        return Problem(time=time, edges=self.edges)


def transformer_problem(num_devices: int, *, layers: int = 6, jitter: float = 0.0) -> Problem:
    """Return the problem of `layers` encoder and as many decoder layers.

    Args:
      num_devices: parts of an iteration space at most.
      layers: layers on each side.
      jitter: every cost grows by a random factor up to 1 + this, so that no two layers are equal.
    """
    build = _Builder(num_devices, jitter)
    memory = build.add("embed")
    for _ in range(layers):
        memory = build.perceptron(build.attention(memory))
    stream = build.add("embed")
    for _ in range(layers):
        stream = build.attention(build.attention(stream), memory)
        stream = build.perceptron(stream)
    build.add("loss", build.add("logits", stream))
    return build.problem()


@functools.cache
def configurations(loops: str, num_devices: int) -> np.ndarray:
    """Return (K, dimensions) splits of the loops into at most `num_devices` parts."""
    options = [
        [n for n in range(1, num_devices + 1) if SIZES[name] % n == 0 and (n & (n - 1) == 0 or n == 3)]
        for name in loops
    ]
    return np.array([splits for splits in itertools.product(*options) if math.prod(splits) <= num_devices])


def _volume(name: str, dims: str, num_devices: int) -> np.ndarray:
    """Return (K,) values of a tensor that one device has, for each configuration of an operator."""
    loops = _ENCODE[name].loops
    splits = configurations(loops, num_devices)
    columns = [loops.index(dim) for dim in dims]
    return math.prod(SIZES[dim] for dim in dims) / splits[:, columns].prod(axis=1)


@functools.cache
def node_costs(name: str, num_devices: int) -> np.ndarray:
    """Return (K,) FLOP: own work three times over, partial results and weight gradients reduced."""
    operator = _ENCODE[name]
    splits = configurations(operator.loops, num_devices)
    work = 3 * operator.flop * _volume(name, operator.loops, num_devices)
    parts = splits.prod(axis=1)
    for dims in (operator.result, operator.weight):
        if dims:
            copies = parts / splits[:, [operator.loops.index(dim) for dim in dims]].prod(axis=1)
            work = work + 2 * _FLOP_PER_VALUE * _volume(name, dims, num_devices) * (copies - 1) / copies
    return work


@functools.cache
def edge_costs(source: str, target: str, num_devices: int) -> np.ndarray:
    """Return (K_u, K_v) FLOP: values that a consumer needs and does not hold, forward and backward."""
    result, loops = _ENCODE[source].result, _ENCODE[target].loops
    # A result in positions attended to is read where positions were written, and packed q, k, v by their heads.
    dims = [(dim, dim if dim in loops else {"s": "t"}.get(dim, "")) for dim in result]
    pairs = [(a, b) for a, b in dims if b in loops and b]
    from_splits = configurations(_ENCODE[source].loops, num_devices)
    to_splits = configurations(loops, num_devices)
    size = math.prod(SIZES[dim] for dim in result)
    needed = np.full((len(from_splits), len(to_splits)), float(size))
    held = needed.copy()
    for dim, other in pairs:
        mine = from_splits[:, _ENCODE[source].loops.index(dim)][:, None]
        theirs = to_splits[:, loops.index(other)][None]
        needed /= theirs
        held /= np.lcm(mine, theirs)
    return 2 * _FLOP_PER_VALUE * (needed - held)
