"""Quality of videos and speed of making them. Metrics see videos, never the models that made them."""
