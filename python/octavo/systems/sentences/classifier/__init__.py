"""Classifiers of sentences: a tiny BERT from fresh weights, and MiniLM with a head; studies of formats measure them."""
