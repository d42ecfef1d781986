"""A step with its batch worked through in slices, exact to the sum: `split_batch` rewrites its jaxpr."""

from jaxplan.ir.microbatch._loop import sorted_strata as sorted_strata
from jaxplan.ir.microbatch._loop import split_batch as split_batch
from jaxplan.ir.microbatch._pairs import NotSeparableError as NotSeparableError
from jaxplan.ir.microbatch._pairs import not_separable as not_separable
from jaxplan.ir.microbatch._strata import Strata as Strata
