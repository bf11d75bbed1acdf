"""How many replicas there should be, by the seats that are taken. Serve copies this module into its controller."""

from __future__ import annotations

import math
from typing import Any

FULL = 0.8  # share of all seats that may be taken before there is another replica


def by_seats(context: Any) -> tuple[int, dict[str, Any]]:
    """A policy of Serve's autoscaling: so many replicas that a fifth of their seats is free. Serve keeps it within
    `min_replicas` and `max_replicas`, and waits for its delays. Before a replica has told its seats, nothing changes.
    """
    told = context.aggregated_metrics or {}
    seats, taken = told.get("seats", {}), told.get("seats_taken", {})
    if not seats:
        return int(context.target_num_replicas), {}
    return max(1, math.ceil(sum(taken.values()) / (FULL * max(seats.values())))), {}
