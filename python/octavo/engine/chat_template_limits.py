"""What one rendering of a chat template may take."""

SECONDS = 10
"""Of processor time."""
WAIT_S = SECONDS + 5
"""Of any time: processes wait for each other."""
MEMORY = 1 << 28
"""Bytes by which the process may grow."""
TEXT_BYTES = 1 << 24
"""Of the rendered text."""
MESSAGE = 500
"""Characters of a message of the template, or of an error."""
