"""Saved files under attack: edited at random, and writers that are killed."""
