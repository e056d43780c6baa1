"""Files and folders that appear whole or not at all, locks that die with their process, child processes, streams."""
