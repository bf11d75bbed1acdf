"""The order in which a video is computed, as data."""
