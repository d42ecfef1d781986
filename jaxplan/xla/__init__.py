"""A model of the compiler: fusion, residuals, layouts, order of execution, live ranges."""

from jaxplan.xla._buffers import Buffers as Buffers
from jaxplan.xla._buffers import analyse_buffers as analyse_buffers
from jaxplan.xla._effects import PadMatrices as PadMatrices
from jaxplan.xla._lifetimes import COUNTED_GAPS as COUNTED_GAPS
from jaxplan.xla._lifetimes import GAPS as GAPS
from jaxplan.xla._target import Target as Target
from jaxplan.xla._target import is_gpu as is_gpu
from jaxplan.xla._target import is_host as is_host
from jaxplan.xla.rules.both.deferred import is_gradient as is_gradient
from jaxplan.xla.rules.both.schedule import LARGE_PARAMETER_BYTES as LARGE_PARAMETER_BYTES
from jaxplan.xla.rules.gpu.library_sums import MERGED_BYTES as MERGED_BYTES
from jaxplan.xla.rules.gpu.padding import is_padded as is_padded
from jaxplan.xla.rules.gpu.padding import matrix_dims as matrix_dims
from jaxplan.xla.rules.gpu.pooling import UNPOOLING as UNPOOLING
from jaxplan.xla.rules.tpu.slices import takes_every_other as takes_every_other
