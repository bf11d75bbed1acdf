"""Trains codecs, bidirectional teachers and causal students of latent video."""
