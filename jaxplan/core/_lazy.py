"""Names of a package that are imported when they are first used, so that the package itself is quick to import."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package.

    Args:
      package: its name.
      homes: name -> the module that defines it.

    Example:
      >>> find, names = lazy_names("jaxplan", {"Topology": "jaxplan.mesh"})
      >>> find("Topology").__name__, "Topology" in names()
      ('Topology', True)
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *homes})
