"""Plans in stages: parts of the step on devices of their own, in a pipeline."""

from jaxplan.search.stages._bind import bound_in_stages as bound_in_stages
from jaxplan.search.stages._priced_stage import StagePricer as StagePricer
from jaxplan.search.stages._search import StageSearch as StageSearch
from jaxplan.search.stages._search import plan_with_stages as plan_with_stages
