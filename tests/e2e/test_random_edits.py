"""Whatever is done to a source between the runs over it: what is exported is what a run would say that never
knew anything else, and beside it only the marked last answers of rows that cannot be read now.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.edited_sources import ACTIONS, EDITS, FORMATS, Step, Story, told

_NUMBERS = st.integers(0, 99)
_EDIT = st.tuples(st.sampled_from(EDITS), _NUMBERS, _NUMBERS, _NUMBERS)
_STEP = st.builds(Step, st.lists(_EDIT, max_size=4), st.sampled_from(ACTIONS), _NUMBERS)
_LAST = st.builds(Step, st.lists(_EDIT, max_size=4), st.just("whole"))
_STORY = st.builds(
    lambda files, steps, last: Story(files, [*steps, last]),
    st.lists(st.tuples(st.sampled_from(FORMATS), st.integers(0, 6)), min_size=1, max_size=6),
    st.lists(_STEP, min_size=2, max_size=7),
    _LAST,
)


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=[pytest.mark.full, pytest.mark.timeout(3600)])])
def test_after_any_edits_the_export_is_that_of_a_fresh_run(count: int) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count == 8,
        suppress_health_check=list(HealthCheck),
    )
    @given(_STORY)
    def holds(story: Story) -> None:
        with tempfile.TemporaryDirectory() as folder:
            told(story, Path(folder))

    holds()
