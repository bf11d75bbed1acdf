"""Runs plans on token models (`tokens`) and schedules on chunk diffusion (`chunks`), with caches and kernels."""
