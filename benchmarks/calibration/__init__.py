"""Predicted seconds and bytes beside those of the device present."""
