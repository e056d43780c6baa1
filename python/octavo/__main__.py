"""``python -m octavo``: the command line."""

from octavo.cli import main

main()
