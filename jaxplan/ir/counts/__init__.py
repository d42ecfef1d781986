"""Counts of operators by family; importing this package registers them all."""

from jaxplan.ir.counts import _attention as _attention
from jaxplan.ir.counts import _elementwise as _elementwise
from jaxplan.ir.counts import _linalg as _linalg
from jaxplan.ir.counts import _products as _products
from jaxplan.ir.counts import _programs as _programs
from jaxplan.ir.counts import _random as _random
from jaxplan.ir.counts import _reductions as _reductions
from jaxplan.ir.counts import _rows as _rows
from jaxplan.ir.counts import _sparse as _sparse
from jaxplan.ir.counts import _transforms as _transforms
from jaxplan.ir.counts._products import Border as Border
from jaxplan.ir.counts._products import convolution_products as convolution_products
from jaxplan.ir.counts._products import pairs as pairs
from jaxplan.ir.counts._products import window_sizes as window_sizes
