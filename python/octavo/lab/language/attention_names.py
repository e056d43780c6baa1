"""Names of torch's kernels of attention, as a run is configured with them."""

AUTO = "auto"
ATTENTION = (AUTO, "flash", "efficient", "math", "cudnn")
