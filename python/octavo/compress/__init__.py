"""Making models smaller or cheaper to train: low-rank adapters (``octavo.compress.lora``)."""
