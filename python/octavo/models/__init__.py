"""Networks that Octavo finds, runs or trains."""
