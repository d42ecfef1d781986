"""Benchmarks of jaxplan: models to plan, baselines to beat, prices independent of the planner."""
