"""Commands of the laboratory, one file per command: ``octavo lab ...``."""
