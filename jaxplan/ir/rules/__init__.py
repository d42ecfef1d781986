"""Operator rules by family; importing this package registers them all."""

from jaxplan.ir._factor_string import factor_rule as factor_rule
from jaxplan.ir._registry import has_rule as has_rule
from jaxplan.ir._registry import operator_rule as operator_rule
from jaxplan.ir._registry import register_rule as register_rule
from jaxplan.ir._registry import registered_primitives as registered_primitives
from jaxplan.ir._rule import Factor as Factor
from jaxplan.ir._rule import OperatorRule as OperatorRule
from jaxplan.ir.rules import _attention as _attention
from jaxplan.ir.rules import _contraction as _contraction
from jaxplan.ir.rules import _custom_partitioning as _custom_partitioning
from jaxplan.ir.rules import _elementwise as _elementwise
from jaxplan.ir.rules import _gather as _gather
from jaxplan.ir.rules import _linalg as _linalg
from jaxplan.ir.rules import _opaque as _opaque
from jaxplan.ir.rules import _pallas as _pallas
from jaxplan.ir.rules import _quantised as _quantised
from jaxplan.ir.rules import _random as _random
from jaxplan.ir.rules import _reduction as _reduction
from jaxplan.ir.rules import _region as _region
from jaxplan.ir.rules import _shape as _shape
from jaxplan.ir.rules import _sparse as _sparse
from jaxplan.ir.rules import _user_sharding as _user_sharding
from jaxplan.ir.rules import _window as _window
