"""Plans beside reference strategies and baselines, on compiled programs."""
