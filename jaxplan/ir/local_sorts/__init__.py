"""Rows that are sorted for ragged dots, sorted in blocks: `sort_in_blocks` rewrites the jaxpr of a step."""

from jaxplan.ir.local_sorts._rewrite import sort_in_blocks as sort_in_blocks
