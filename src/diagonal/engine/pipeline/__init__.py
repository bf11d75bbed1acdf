"""Chunks of a video that are denoised together, each at its own noise level: MAGI-1's pipeline."""
