"""Errors, logging, units, progress, and the seam to JAX internals: used by every other folder."""
