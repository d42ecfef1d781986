"""Benchmarks of jaxplan: models to plan, baselines to beat, prices independent of the planner.

A command is run by its name alone, in whichever of the folders it lies: ``python -m benchmarks.compile_time``.
"""

from pathlib import Path

__path__ += sorted(str(marker.parent) for marker in Path(__path__[0]).glob("*/__init__.py"))
