"""The description language: an operator as a function of index variables, from which follows how it splits."""

from jaxplan.ir.tdl._analysis import Analysis as Analysis
from jaxplan.ir.tdl._analysis import analyse as analyse
from jaxplan.ir.tdl._interval import Interval as Interval
from jaxplan.ir.tdl._language import Max as Max
from jaxplan.ir.tdl._language import Min as Min
from jaxplan.ir.tdl._language import Opaque as Opaque
from jaxplan.ir.tdl._language import Prod as Prod
from jaxplan.ir.tdl._language import Sum as Sum
from jaxplan.ir.tdl._language import operands_and_options as operands_and_options
from jaxplan.ir.tdl._language import padded as padded
from jaxplan.ir.tdl._regions import Strategy as Strategy
