"""The order in which a video is computed, as data: grids, plans, schedules, presets. Numpy only."""
