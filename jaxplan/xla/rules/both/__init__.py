"""Rules that hold for every backend of XLA."""
