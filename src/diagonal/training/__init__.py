"""Training: one loop, one runner of stages, and what they train: tokenizers, worlds, students, judges."""
