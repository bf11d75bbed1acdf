"""Trains tokenizers, and worlds of tokens under any mixture of schedules."""
