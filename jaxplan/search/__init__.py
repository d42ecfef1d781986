"""From a step to its frontier: open configurations, solve, recompute, verify, scale."""
