"""The polynomial exercise: train a small model to expand ``(7-3*z)*(2*z+5)``, measure it, and ship it."""
