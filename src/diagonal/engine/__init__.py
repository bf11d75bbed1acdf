"""Runs plans: owns the buffers and the loop. Models own the maths, plans own the order."""
