"""Training runs that others measured and published, beside predictions of the same step, machine and sharding."""
