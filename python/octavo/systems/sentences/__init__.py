"""Sentences: the text encoder that is compressed, and classifiers trained on labelled ones."""
