"""The model folder: models written and read, checkpoints of transformers converted, without pickle or a dense copy."""
