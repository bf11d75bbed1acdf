"""Prompts as embeddings: text encoders, and files of embeddings."""
