"""The description language, for `jaxplan.register_rule`: how an own operator reads its operands.

An operator is a function of operands that returns, per result, a function of index variables::

    from jaxplan.tdl import Sum

    jaxplan.register_rule("my_conv", lambda data, filters: lambda b, co, x:
        Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx]))

docs/operators.md has the whole language. `analyse` tells the meaning of a description: its factor rule, the strategies
with the regions that each worker reads, and the reason for every variable that cannot be split.
"""

from jaxplan.ir.tdl import Analysis as Analysis
from jaxplan.ir.tdl import Max as Max
from jaxplan.ir.tdl import Min as Min
from jaxplan.ir.tdl import Opaque as Opaque
from jaxplan.ir.tdl import Prod as Prod
from jaxplan.ir.tdl import Strategy as Strategy
from jaxplan.ir.tdl import Sum as Sum
from jaxplan.ir.tdl import analyse as analyse
from jaxplan.ir.tdl import padded as padded
