"""Who sees whom where frames are decoded in a ring: the place of the oldest one is taken when a new one begins.

A plan of a long video, seen through a ring, is what a live session with `context="roll"` decodes. Training under it
teaches a world what its keys are like there: they were made when they saw frames that have left.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagonal.planning.plan import Plan


def rolled(plan: Plan, places: int) -> Plan:
    """The same plan in a ring of so many frames; what is in front of the frames, the prefix, stays."""
    layout, entries, known = plan.layout, plan.entries, plan.known
    begins = np.concatenate([[0], plan.completed[:-1] + 1])  # of each decoded frame
    if (plan.times.reshape(len(begins), -1).min(1) < begins).any():
        raise ValueError(f"frames overlap in the schedule {plan.order}: they are not decoded in a ring; leave out d")
    if not 1 <= known < places:
        raise ValueError(f"{known} frames given in a ring of {places}; it holds at least one, and one that is decoded")
    taken_by = (entries.position - layout.prefix) // layout.unit + places - known  # the decoded frame in its place
    leaves = (entries.position >= layout.prefix) & (taken_by < len(begins))
    until = np.where(leaves, np.minimum(entries.until, begins[np.where(leaves, taken_by, 0)]), entries.until)
    return replace(plan, entries=replace(entries, until=until))
