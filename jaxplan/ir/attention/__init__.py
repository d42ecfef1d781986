"""Attention as one operator for each pass, found by structure: `fused_attention` rewrites a program."""

from jaxplan.ir.attention._blocks import block_keys as block_keys
from jaxplan.ir.attention._exchange import SUM_BYTES as SUM_BYTES
from jaxplan.ir.attention._exchange import Exchange as Exchange
from jaxplan.ir.attention._exchange import exchange_of as exchange_of
from jaxplan.ir.attention._exchange import exchanged_arrays as exchanged_arrays
from jaxplan.ir.attention._exchange import move_of as move_of
from jaxplan.ir.attention._exchange import places_of as places_of
from jaxplan.ir.attention._operator import ATTENTIONS as ATTENTIONS
from jaxplan.ir.attention._operator import BACKWARD as BACKWARD
from jaxplan.ir.attention._operator import FORMS as FORMS
from jaxplan.ir.attention._operator import FORWARD as FORWARD
from jaxplan.ir.attention._operator import GATHER as GATHER
from jaxplan.ir.attention._operator import HEADS as HEADS
from jaxplan.ir.attention._operator import ONE as ONE
from jaxplan.ir.attention._operator import RING as RING
from jaxplan.ir.attention._operator import VALUE_WIDTH as VALUE_WIDTH
from jaxplan.ir.attention._operator import WIDTH as WIDTH
from jaxplan.ir.attention._operator import Attention as Attention
from jaxplan.ir.attention._operator import Labels as Labels
from jaxplan.ir.attention._operator import Score as Score
from jaxplan.ir.attention._operator import sequence_factor as sequence_factor
from jaxplan.ir.attention._rewrite import find_attentions as find_attentions
from jaxplan.ir.attention._rewrite import fused_attention as fused_attention
from jaxplan.ir.attention._step import Sequences as Sequences
from jaxplan.ir.attention._step import attention_graph as attention_graph
from jaxplan.ir.attention._step import largest_scores as largest_scores
