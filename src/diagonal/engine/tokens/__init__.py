"""Decoding of token models: the loop over decode steps, its KV cache, masks and CUDA graphs."""
