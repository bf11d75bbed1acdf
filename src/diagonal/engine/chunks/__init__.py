"""Denoising of chunks of latent frames: the loop over noise levels, its rolling KV cache, masks and CUDA graphs."""
