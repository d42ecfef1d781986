"""Arrays that no machine holds are refused before the analysis: their counts of bytes would overflow it."""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.core import _compat
from jaxplan.core._paths import readable_path
from jaxplan.errors import ArgumentError
from jaxplan.ir._program import Program

MOST_BYTES = 1 << 50
"""Of one array: 1 PiB, far above the memory of the largest machines, while sums over a program still fit 64 bits."""

_TOO_LARGE_MSG = (
    "{what} is {aval}, which are {num_bytes} bytes; an array of at most {most} bytes (1 PiB) is expected.\n"
    "  likely cause: {cause}\n"
    "  fix:          {fix}"
)


def check_sizes(program: Program, names: Sequence[str]) -> None:
    """Raise ArgumentError for the first array above `MOST_BYTES`: an argument by its path, a result by its line.

    ``names`` are those of the positional arguments.
    """
    if all(tensor.num_bytes <= MOST_BYTES for tensor in program.tensors):
        return
    for path, index in zip(program.in_paths, program.inputs, strict=True):
        if program.tensors[index].num_bytes > MOST_BYTES:
            what = f"argument {readable_path(path, names)}"
            raise _error(program, index, what, "a dimension was mistyped", "mend its shape")
    for eqn in program.equations:
        for index in eqn.results:
            if program.tensors[index].num_bytes > MOST_BYTES:
                where = _compat.eqn_source_line(eqn.origin) or "an unknown line"
                cause = "an outer product or a broadcast over dimensions that are too large together"
                raise _error(program, index, f"the result of {eqn.name!r} at {where}", cause, "mend that line")


def _error(program: Program, index: int, what: str, cause: str, fix: str) -> ArgumentError:
    tensor = program.tensors[index]
    aval = f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
    text = _TOO_LARGE_MSG.format(
        what=what, aval=aval, num_bytes=tensor.num_bytes, most=MOST_BYTES, cause=cause, fix=fix
    )
    return ArgumentError(text)
