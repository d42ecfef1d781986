"""Rules of XLA for GPUs."""
