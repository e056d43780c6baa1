"""Whole jobs on one subject, each with its data, runs and measures."""
