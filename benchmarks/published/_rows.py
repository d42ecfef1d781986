"""A table of published runs, and the step, machine and sharding of each row."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.published._sources import is_held_out
from jaxplan.mesh import Topology

TABLE = Path(__file__).parent / "runs.csv"

_CHIPS = {
    "H100-80GB": "h100", "H100-80GB on A3": "h100-a3", "H100": "h100", "H200-141GB": "h200", "A100-80GB": "a100",
    "A100-40GB": "a100-40", "GB200": "gb200", "TPU v4": "v4", "TPU v5e": "v5e", "TPU v5p": "v5p", "TPU v6e": "v6e",
    "TPU7x": "v7x",
}  # fmt: skip
_PER_NODE = 8
_SLICES = {
    "v5e": {32: (4, 8), 256: (16, 16)},
    "v6e": {256: (16, 16)},
    "v5p": {
        64: (4, 4, 4), 128: (4, 4, 8), 256: (4, 8, 8), 512: (8, 8, 8), 1024: (8, 8, 16), 2048: (8, 16, 16),
        1536: (8, 12, 16), 6144: (16, 16, 24),
    },
}  # fmt: skip
"""Shapes in which the cloud gives out slices of so many chips: https://cloud.google.com/tpu/docs/v5p , .../v5e ."""


class UnknownRowError(ValueError):
    """A row that cannot be built; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published run; ``fields`` are the columns of the table, by name."""

    fields: dict[str, str]

    @property
    def name(self) -> str:
        return self.fields["id"]

    @property
    def chip(self) -> str:
        """The preset that the run's hardware is."""
        hardware, _, where = self.fields["hardware"].partition(" (")
        if where.startswith("GCP A3"):
            hardware += " on A3"
        if hardware not in _CHIPS:
            raise UnknownRowError(f"the hardware {hardware!r} has no preset that it is compared with")
        return _CHIPS[hardware]

    @property
    def kind(self) -> str:
        """The chip whatever its network, for figures of its own."""
        return self.chip.partition("-")[0]

    @property
    def is_held_out(self) -> bool:
        return is_held_out(self.fields["source"])

    @property
    def is_pytorch(self) -> bool:
        """Whether another framework ran it: a band, not an error."""
        return "PyTorch" in self.fields["framework"] or self.fields["framework"] in (
            "torchtitan",
            "Megatron-Bridge",
        )

    @property
    def seconds(self) -> float:
        return float(self.fields["step_s"])

    @property
    def memory_gib(self) -> float | None:
        return float(self.fields["memory_gib"]) if self.fields["memory_gib"] else None

    def number(self, name: str, default: int | None = None) -> int:
        """An integer column; raises `UnknownRowError` where it is empty and has no default."""
        if self.fields[name]:
            return int(float(self.fields[name]))
        if default is None:
            raise UnknownRowError(f"the column {name} is empty")
        return default

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Devices of data parallelism, of sharded parameters, and of a tensor; all devices together."""
        devices, tensor = self.number("devices"), self.number("tp", 1)
        fsdp = self.number("fsdp", 1)
        data = self.number("dp", 0) or devices // (fsdp * tensor)
        if data * fsdp * tensor != devices:
            raise UnknownRowError(f"{data} x {fsdp} x {tensor} degrees are not {devices} devices")
        return data, fsdp, tensor

    @property
    def topology(self) -> Topology:
        """Nodes of eight GPUs, or slices of TPUs; data parallelism lies across slices where there are several."""
        chip, devices = self.chip, self.number("devices")
        if chip not in _SLICES:
            nodes = max(1, devices // _PER_NODE)
            return Topology.parse(f"{chip}:{nodes}x{devices // nodes}" if nodes > 1 else f"{chip}:{devices}")
        data, *_ = self.degrees
        slices = data if devices // data in _SLICES[chip] else 1
        shape = _SLICES[chip].get(devices // slices)
        if shape is None:
            raise UnknownRowError(f"no slice of {chip} has {devices // slices} chips")
        sizes = (slices, *shape) if slices > 1 else shape
        return Topology.parse(f"{chip}:{'x'.join(map(str, sizes))}")

    @property
    def overrides(self) -> dict[str, Any]:
        """Fields of `PlainDecoderConfig`."""
        heads, framework = self.number("heads"), self.fields["framework"]
        is_mosaic = "llm-foundry" in framework
        has_rotation = self.fields["mlp"] == "swiglu"
        return {
            "num_layers": self.number("layers"),
            "width": self.number("d_model"),
            "num_heads": heads,
            "num_kv_heads": self.number("kv_heads", heads),
            "head_width": self.number("head_dim", self.number("d_model") // heads),
            "ffn_width": self.number("ffn"),
            "vocab_size": self.number("vocab"),
            "batch_size": self.number("global_batch"),
            "sequence_length": self.number("seq"),
            "mlp": self.fields["mlp"],
            "norm": "rms" if has_rotation else "layer",
            "positions": "rotary" if has_rotation else "none" if is_mosaic else "learned",
            "tied": is_mosaic,
            "remat": _policy(self.fields["remat"], framework),
            "scan": not _is_written_out(self.fields),
            "fused": "126m" not in self.fields["model"],
            "micro_batches": self.number("grad_accum", 1),
        }


def _is_written_out(fields: dict[str, str]) -> bool:
    """Whether the program has every layer, and no loop over them: PyTorch's all."""
    return (
        "PyTorch" in fields["framework"]
        or "written out" in fields["notes"]
        or "not scanned" in fields["notes"]
    )


def _policy(remat: str, framework: str) -> str:
    """The policy of `PlainDecoderConfig` for the source's words.

    MaxText: src/maxtext/layers/decoders.py ``get_remat_policy``; Pax: ``AutodiffCheckpointType``; AXLearn:
    ``build_remat_spec``, the default of its Fuji models, keeps the products of attention.
    """
    words = remat.lower()
    if words in ("none", "full"):
        return words
    if words in ("minimal_with_context", "minimal_flash"):
        return "minimal and mixed"
    if words == "minimal":
        return "minimal"
    if words.startswith("save_dot_except"):  # MLPerf: dots of parameters but one or two; the nearest there is
        return "parameter dots"
    if "no_batch" in words:
        return "parameter dots"
    if "dots_saveable" in words:
        return "dots"
    if words.startswith("see configs"):
        return "none"
    if not words and framework == "AXLearn":
        return "attention"
    if not words:
        return "parameter dots"
    raise UnknownRowError(f"the rematerialisation {remat!r} is none that is known")


def read_rows(path: Path = TABLE) -> list[Row]:
    """The rows of a table with the columns of `TABLE`."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(fields=fields) for fields in csv.DictReader(file)]
