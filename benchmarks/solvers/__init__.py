"""Solvers beside each other, beside proven optima, and on the networks of papers."""
