"""Sources of video with actions: their files, and their actions as tokens."""
