"""The parameters that all flows take. Their bounds are checked by the server before a run is created, and
shown as a form in its UI.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

ConfigPath = Annotated[str, Field(min_length=1)]
Overrides = Annotated[list[Annotated[str, Field(pattern=r"^[^=]+=")]], Field(max_length=1000)]
Limit = Annotated[int | None, Field(ge=1)]
