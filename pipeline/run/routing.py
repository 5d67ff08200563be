"""Which worker is asked what: a pure function of what waits and of what each worker holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pipeline.records import Request

Assignments = dict[int, list[Request]]
"""Requests to lease, by the number of the worker."""


def assign(waiting: Sequence[Request], held: Mapping[int, Collection[int]]) -> Assignments:
    """Lease all of ``waiting``, in its order, each request to the worker that holds the fewest; ``held``
    are the ids of requests leased to each loaded worker. A single worker gets all.
    """
    counts = {number: len(requests) for number, requests in held.items()}
    assignments: Assignments = {number: [] for number in counts}
    for request in waiting if counts else ():
        fewest = min(counts, key=lambda number: (counts[number], number))
        assignments[fewest].append(request)
        counts[fewest] += 1
    return assignments
