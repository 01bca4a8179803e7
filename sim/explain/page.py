"""A story as one self-contained HTML page that can be stepped through."""

from __future__ import annotations

import html
from collections.abc import Sequence

from sim.explain.story import Story
from sim.pages import as_data, fill, read


def page(stories: Sequence[Story], title: str, command: str) -> str:
    """Lay out one or several stories of the same requests side by side.

    Parameters
    ----------
    stories
        One per policy.
    title
        Heading.
    command
        What made it, shown at the end.

    Returns
    -------
    HTML that needs nothing from elsewhere: no network, no other file.
    """
    data = {
        "stories": [story.to_dict() for story in stories],
        "frames": frames(stories),
    }
    return fill(
        read("sim.explain", "page.html"),
        {"TITLE": html.escape(title), "COMMAND": html.escape(command), "DATA": as_data(data)},
    )


def frames(stories: Sequence[Story]) -> list[list[int]]:
    """Line the stories up in time: for each frame, the moment that each story is at; -1 before."""
    order = sorted(
        (moment.time_ns, moment.number, index)
        for index, story in enumerate(stories)
        for moment in story.moments
    )
    at = [-1] * len(stories)
    found: list[list[int]] = []
    for position, (time_ns, number, index) in enumerate(order):
        at[index] = number
        following = order[position + 1] if position + 1 < len(order) else None
        # What happens to several policies as the same event at the same time is one frame.
        if following is None or following[:2] != (time_ns, number):
            found.append(list(at))
    return found
