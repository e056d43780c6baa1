"""Networks, and the functions that give their configurations."""
