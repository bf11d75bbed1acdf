"""How fast a model makes videos, beside how fast it could."""
