"""Errors that the library swallows while it loads a model: memory that runs out, or a card that fails, while
a weight is quantized.

It notes whatever a weight raises as a fault of its conversion, goes on to the next weight, and ends with one
error for all of them that names none. So memory would be taken for a wrong configuration, after every further
weight had been read for nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pipeline.engine.device_failure import is_device_lost
from pipeline.engine.out_of_memory import is_out_of_memory


@contextlib.contextmanager
def memory_errors_raised() -> Iterator[None]:
    """Inside, the library raises such an error at the first weight that meets it; others it notes as ever."""
    from transformers import core_model_loading

    noted: Any = core_model_loading.log_conversion_errors

    @contextlib.contextmanager
    def raised(*args: Any, **kwargs: Any) -> Iterator[None]:
        error: Exception | None = None
        with noted(*args, **kwargs):
            try:
                yield
            except Exception as met:
                if not (is_out_of_memory(met) or is_device_lost(met)):
                    raise
                error = met
        if error is not None:
            raise error

    core_model_loading.log_conversion_errors = raised
    try:
        yield
    finally:
        core_model_loading.log_conversion_errors = noted
