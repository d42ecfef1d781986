"""Seconds of planning and of compiling."""
