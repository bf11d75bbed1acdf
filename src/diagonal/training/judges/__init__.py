"""Trains the networks that judge generated videos."""
