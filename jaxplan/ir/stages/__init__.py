"""A step cut into stages of a pipeline, each a program of its own."""

from jaxplan.ir.stages._cut import Cut as Cut
from jaxplan.ir.stages._cut import cut as cut
from jaxplan.ir.stages._needs import Port as Port
from jaxplan.ir.stages._part import BACKWARD as BACKWARD
from jaxplan.ir.stages._part import FORWARD as FORWARD
from jaxplan.ir.stages._part import ONCE as ONCE
from jaxplan.ir.stages._part import UPDATE as UPDATE
from jaxplan.ir.stages._part import Part as Part
from jaxplan.ir.stages._part import parts_of as parts_of
from jaxplan.ir.stages._part import segments_of as segments_of
from jaxplan.ir.stages._step import PipelineStep as PipelineStep
from jaxplan.ir.stages._step import cut_places as cut_places
from jaxplan.ir.stages._step import pipeline_step as pipeline_step
from jaxplan.ir.stages._units import unit_kinds as unit_kinds
from jaxplan.ir.stages._units import units_of as units_of
