"""Choosing formats: whole models within a budget of bits, measured on the job they are for."""
