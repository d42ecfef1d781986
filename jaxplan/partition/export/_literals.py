"""Python source of the values that equations have as parameters, and of arrays that the program holds."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import layout
from jax.extend.core import primitives
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxplan.core import _compat
from jaxplan.partition.export._axis_names import AxisNames

MOST_INLINE = 32
"""Elements of an array that is written into the script; larger ones go into a file beside it."""
_PUBLIC = {
    "lax": lax,
    "jax": jax,
    "jnp": jnp,
    "jax.sharding": jax.sharding,
    "jax.memory": jax.memory,
    "primitives": primitives,
}
"""Modules that a script imports, by the names it has for them."""


class NotWritable(Exception):
    """A value that has no Python source; its text says why."""


class Literals:
    """Source of values, with the imports and arrays that it needs.

    Attributes:
      axis_names: of the mesh.
      mesh: the mesh of the plan, `MESH` in the script.
      imports: (module, name) of objects that are imported from elsewhere.
      arrays: name -> array that is too large to be written.
      meshes: other meshes of the step's own, by their source.
    """

    def __init__(self, axis_names: AxisNames, mesh: Mesh) -> None:
        self.axis_names, self.mesh = axis_names, mesh
        self.imports: set[tuple[str, str]] = set()
        self.arrays: dict[str, np.ndarray] = {}
        self.meshes: dict[str, str] = {}
        self._known_arrays: dict[tuple[Any, ...], str] = {}

    def of(self, value: Any) -> str:
        """Source of a value.

        Raises:
          NotWritable: functions, programs, and objects of unknown classes.
        """
        if isinstance(value, enum.Enum):
            return f"{self.named(type(value))}.{value.name}"
        if isinstance(value, np.generic):
            return self.array(value)
        if value is None or isinstance(value, bool | int | str | bytes):
            return repr(value)
        if isinstance(value, float):
            return _bare(value)
        implementation = _key_implementation(value)  # a tuple of functions
        if implementation:
            return implementation
        for kinds, write in _WRITERS:
            if isinstance(value, kinds):
                return write(self, value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            return f"{self.named(type(value))}({self._keywords(fields)})"
        raise NotWritable(f"a {type(value).__module__}.{type(value).__qualname__}")

    def named(self, value: Any) -> str:
        """Source of a class or primitive, by a public name where it has one."""
        name = getattr(value, "__name__", None)
        for module, public in _PUBLIC.items():
            names = [name] if isinstance(value, type) else [n for n in dir(public) if n.endswith("_p")]
            for n in names:
                if n and getattr(public, n, None) is value:
                    return f"{module}.{n}"
        if isinstance(value, type):
            module, name = value.__module__, value.__qualname__
            if "<locals>" in name or getattr(sys.modules.get(module), name.partition(".")[0], None) is None:
                raise NotWritable(f"the class {module}.{name}, which cannot be imported")
            return self._imported(module, name)
        for module, loaded in sorted(sys.modules.items()):
            for name, found in vars(loaded).items() if loaded is not None and module != "__main__" else ():
                if found is value:
                    return self._imported(module, name)
        raise NotWritable(f"{value}, which no module holds")

    def axes(self, names: Any) -> str:
        """Source of the mesh axes that a collective names."""
        given = (names,) if isinstance(names, str) else tuple(names)
        found = self.axis_names.names(given)
        return repr(found[0] if len(found) == 1 else found)

    def spec(self, spec: Any) -> str:
        """Source of a PartitionSpec, with the script's names of axes."""
        return f"P({', '.join(self._entry(entry) for entry in spec)})"

    def mesh_name(self, mesh: Any) -> str:
        """The script's name of a mesh."""
        names = tuple(map(str, mesh.axis_names))
        if names == tuple(self.mesh.axis_names):
            return "MESH"
        order = ""
        if isinstance(mesh, Mesh):
            place = {device.id: i for i, device in enumerate(self.mesh.devices.flat)}
            found = [place[device.id] for device in mesh.devices.flat]
            order = "" if found == sorted(found) else f"[np.array({found})]"
        source = f"Mesh(MESH.devices.ravel(){order}.reshape({tuple(mesh.axis_sizes)}), {names})"
        return self.meshes.setdefault(source, f"MESH_{len(self.meshes) + 1}")

    def array(self, value: Any) -> str:
        """Source of an array that the program holds: a scalar, a short list, or an entry of the file beside."""
        if isinstance(value, jax.Array) and _compat.is_key_dtype(value.dtype):
            name = _compat.key_implementation(value.dtype)
            return f"jax.random.wrap_key_data({self.array(jax.random.key_data(value))}, impl={name!r})"
        value = np.asarray(value)
        if not value.shape:
            return _number(value[()])
        dtype = self.of(value.dtype)
        if value.size <= MOST_INLINE:
            return f"np.array([{', '.join(map(_bare, value.ravel()))}], {dtype}).reshape({value.shape})"
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
        key = (value.shape, str(value.dtype), digest)
        name = self._known_arrays.setdefault(key, f"array_{len(self._known_arrays)}")
        is_native = value.dtype.kind in "biufc"
        self.arrays[name] = value if is_native else np.ascontiguousarray(value).view(np.uint8)
        return f"ARRAYS[{name!r}]" if is_native else f"ARRAYS[{name!r}].view({dtype})"

    def _imported(self, module: str, name: str) -> str:
        self.imports.add((module, name.partition(".")[0]))
        return name

    def _keywords(self, fields: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}={self.of(value)}" for name, value in fields.items())

    def _entry(self, entry: Any) -> str:
        if entry is PartitionSpec.UNCONSTRAINED:
            return "P.UNCONSTRAINED"
        return "None" if entry is None or entry == () else self.axes(entry)

    def _tuple(self, value: tuple[Any, ...]) -> str:
        if isinstance(value, PartitionSpec):
            return self.spec(value)
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return f"{self.named(type(value))}({self._keywords(dict(zip(fields, value)))})"
        return f"({', '.join(map(self.of, value))}{',' if len(value) == 1 else ''})"

    def _sharding(self, value: NamedSharding) -> str:
        kind = "" if value.memory_kind in (None, "device") else f", memory_kind={value.memory_kind!r}"
        return f"NamedSharding({self.mesh_name(value.mesh)}, {self.spec(value.spec)}{kind})"

    def _layout(self, value: Any) -> str:
        if value.tiling is not None:
            raise NotWritable("a layout with tiles")
        self.imports.add(("jax.experimental.layout", "Layout"))
        return f"Layout(major_to_minor={value.major_to_minor})"

    def _mapping(self, value: Mapping[Any, Any]) -> str:
        return f"{{{', '.join(f'{self.of(k)}: {self.of(v)}' for k, v in value.items())}}}"


def _number(value: Any) -> str:
    """A scalar of its dtype."""
    dtype = np.dtype(value.dtype)
    if dtype.kind == "b":
        return f"np.bool_({bool(value)})"
    if dtype.kind in "iufc":
        return f"np.{dtype.name}({_bare(value)})"
    return f"np.array({_bare(value)}, jnp.{dtype.name})"


def _bare(value: Any) -> str:
    """A Python number."""
    number = value.item() if isinstance(value, np.generic) and value.dtype.kind in "biufc" else value
    if isinstance(number, bool | int):
        return repr(number)
    if isinstance(number, complex):
        return f"complex({_bare(number.real)}, {_bare(number.imag)})"
    number = float(number)
    return repr(number) if math.isfinite(number) else f"float('{number}')"


def _key_implementation(value: Any) -> str:
    """Source of a generator of random numbers, '' for anything else."""
    from jax.extend import random

    found = [name for name in dir(random) if name.endswith("_prng_impl") and getattr(random, name) is value]
    return f"jax.extend.random.{found[0]}" if found else ""


_WRITERS: tuple[tuple[Any, Any], ...] = (
    (PartitionSpec, Literals.spec),
    (NamedSharding, Literals._sharding),
    (layout.Layout, Literals._layout),
    (tuple, Literals._tuple),
    (list, lambda self, value: f"[{', '.join(map(self.of, value))}]"),
    (frozenset, lambda self, value: f"frozenset([{', '.join(sorted(map(self.of, value)))}])"),
    (Mapping, Literals._mapping),
    (np.dtype, lambda self, value: f"jnp.dtype({value.name!r})"),
    (_compat.Primitive, Literals.named),
    (type, Literals.named),
    (complex, lambda self, value: _bare(value)),
    ((np.ndarray, jax.Array), Literals.array),
    (_compat.ClosedJaxpr | _compat.Jaxpr, lambda self, value: _refuse("a program")),
)


def _refuse(text: str) -> str:
    raise NotWritable(text)
