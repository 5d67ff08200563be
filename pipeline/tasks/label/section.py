"""The keys of a task of ``kind: label``."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from pipeline.config import FilePath, TaskSection
from pipeline.system.repeated import first_repeated


class ShownExample(BaseModel):
    """An example written in the configuration itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(min_length=1, description="what the model is shown as a document")
    label: str = Field(description="the label that it is shown with, one of the task's")
    id: str | None = Field(
        None,
        min_length=1,
        description="of the document it was taken from, so that it is not scored against gold",
    )


_ExamplesKey = Annotated[
    Annotated[FilePath, Tag("file")] | Annotated[list[ShownExample], Tag("inline")],
    Discriminator(lambda value: "inline" if isinstance(value, list) else "file"),
]


class LabelTask(TaskSection):
    """Choose one of the labels (or any of them: ``multi``) for every document."""

    kind: Literal["label"] = Field(description="choose among labels, each with its probability")
    labels: dict[str, str | None] = Field(
        description="a list of names, or a mapping from each name to what it means; the model reads both"
    )
    label_names: Literal["as_written", "spaced"] = Field(
        "as_written", description="how the model reads them; exports keep the names"
    )
    cue: str | None = Field(
        None, min_length=1, description="how the model's reply begins, before the label; null: as found best"
    )
    multi: bool = Field(
        False, description="any number of labels a document, each a yes or no; else exactly one"
    )
    examples: _ExamplesKey | None = Field(
        None, description="shown to the model: a file with id, text and label, or a list of text and label"
    )
    gold: FilePath | list[FilePath] | None = Field(
        None,
        description="files with id and label to calibrate by after the run; of their texts "
        "examples_per_label are shown to the model",
    )
    label_field: str = Field("label", min_length=1, description="the column of the label in these files")
    examples_per_label: int | None = Field(
        None, ge=1, description="so many texts of gold are shown to the model for each label; null: none"
    )
    examples_tokens: int = Field(
        1024, ge=16, description="texts of all examples together; longer ones are cut"
    )
    examples_seed: int = Field(0, description="of what is drawn from gold")
    long_documents: Literal["aggregate", "fail", "truncate"] = Field(
        "aggregate",
        description="a document that does not fit in one prompt: aggregate, the mean of its parts' "
        "probabilities; fail; truncate, which is counted and reported",
    )
    abstain_below: float | None = Field(
        None, ge=0, le=1, description="below this probability the answer is null"
    )
    target_accuracy: float | None = Field(
        None, gt=0, lt=1, description="abstain so that the rest is right this often; needs gold"
    )
    calibration: Literal["auto", "none"] = Field(
        "auto",
        description="auto: every label is scored, and answers are calibrated over the run's documents or "
        "by gold labels",
    )
    expected_shares: dict[str, float] | None = Field(
        None, description="how frequent each label is expected to be; null: no assumption"
    )
    score_tolerance: float = Field(
        0.001,
        ge=0,
        lt=0.5,
        description="with calibration none: how far a probability may be off to save work",
    )

    @field_validator("labels", mode="before")
    @classmethod
    def _names_as_text(cls, value: object) -> object:
        if isinstance(value, list):
            if any(isinstance(name, list | dict) for name in value):
                raise ValueError("a label is a word or a few; a list or a mapping is none")
            if (repeated := first_repeated(map(str, value))) is not None:
                raise ValueError(f"label {repeated!r} is listed twice")
            value = dict.fromkeys(value)
        if isinstance(value, dict):  # YAML reads yes, no and 1 as booleans and numbers
            wrong = [name for name in value if not isinstance(name, str)]
            if wrong:
                raise ValueError(
                    f"label {wrong[0]!r} was read as {type(wrong[0]).__name__}; put it in quotes"
                )
        return value

    @field_validator("labels")
    @classmethod
    def _distinct(cls, value: dict[str, str | None]) -> dict[str, str | None]:
        if not value:
            raise ValueError("a label task needs at least one label")
        folded: dict[str, str] = {}
        for name in value:
            shown = name.strip()
            if not shown or shown != name:
                raise ValueError(f"label {name!r} is empty or has spaces around it")
            first = folded.setdefault(unicodedata.normalize("NFC", shown.casefold()), name)
            if first != name:
                how = "case" if first.casefold() == shown.casefold() else "how their accents are encoded"
                raise ValueError(
                    f"labels {first!a} and {name!a} differ only in {how}; a reader cannot tell them apart"
                )
        return value

    @model_validator(mode="after")
    def _enough_labels(self) -> Self:
        if not self.multi and len(self.labels) < 2:
            raise ValueError("one label leaves nothing to choose: give at least two, or set multi: true")
        return self

    @model_validator(mode="after")
    def _read_names_differ(self) -> Self:
        folded: dict[str, str] = {}
        for name, shown in self.read_names.items():
            first = folded.setdefault(shown.casefold(), name)
            if first != name:
                raise ValueError(
                    f"labels {first!r} and {name!r} are both read as {shown!r}; rename one, or set "
                    f"label_names: as_written"
                )
        return self

    @model_validator(mode="after")
    def _examples_make_sense(self) -> Self:
        if self.examples is not None and self.examples_per_label is not None:
            raise ValueError(
                "examples are given and examples_per_label asks to draw them: keep one of the two keys"
            )
        if self.examples_per_label is not None and self.gold is None:
            raise ValueError("examples_per_label needs gold, the file that the examples are drawn from")
        if (
            self.gold is not None
            and self.examples_per_label is None
            and self.calibration == "none"
            and self.target_accuracy is None
        ):
            raise ValueError(
                "gold is read to calibrate by, which calibration: none leaves out: drop one of the two keys"
            )
        if self.multi and (self.examples is not None or self.examples_per_label is not None):
            raise ValueError("examples cannot be shown with multi: true; they hold one label each")
        if self.target_accuracy is not None and self.gold is None:
            raise ValueError(
                "target_accuracy needs gold, a file with true labels to set the threshold by; or use "
                "abstain_below"
            )
        if self.target_accuracy is not None and self.abstain_below is not None:
            raise ValueError(
                "target_accuracy and abstain_below both set the threshold: keep one of the two keys"
            )
        return self

    @model_validator(mode="after")
    def _shares_can_be_met(self) -> Self:
        if self.expected_shares is not None:
            _check_shares(self.expected_shares, self.labels, multi=self.multi)
        return self

    @property
    def gold_files(self) -> list[str]:
        """``gold`` as a list."""
        return [self.gold] if isinstance(self.gold, str) else list(self.gold or ())

    def idle_keys(self) -> Iterator[tuple[str, str]]:
        """See TaskSection."""
        yield from super().idle_keys()
        files = self.gold is not None or isinstance(self.examples, str)
        shown = self.examples is not None or self.examples_per_label is not None
        obeyed = {
            "label_field": (files, "there is neither gold nor a file of examples"),
            "examples_tokens": (shown, "no examples are shown"),
            "examples_seed": (self.examples_per_label is not None, "examples_per_label draws none"),
            "score_tolerance": (self.calibration == "none", "only calibration: none saves that work"),
            "expected_shares": (self.calibration != "none", "calibration: none uses no shares"),
        }
        for key, (used, why) in obeyed.items():
            if not used and getattr(self, key) != type(self).model_fields[key].default:
                yield key, f"nothing obeys it: {why}; delete it"

    @property
    def read_names(self) -> dict[str, str]:
        """Each label with the name that the model reads and is scored on."""
        return {name: _spaced(name) if self.label_names == "spaced" else name for name in self.labels}

    def questions(self) -> Iterator[tuple[object, int]]:
        """One, or with ``multi`` one a label; the examples stand before each."""
        shown = self.examples is not None or self.examples_per_label is not None
        beside = self.examples_tokens if shown else 0
        own = self.own_texts()
        if not self.multi:
            yield own, beside
            return
        for label, about in own.pop("labels").items():
            yield [own, label, about], beside


def _check_shares(shares: Mapping[str, float], labels: Collection[str], *, multi: bool) -> None:
    """Everything that calibration asks of shares, so that it cannot fail on them at the end of a night.
    Raises ValueError.
    """
    unknown, missing = sorted(set(shares) - set(labels)), [label for label in labels if label not in shares]
    if unknown:
        raise ValueError(f"expected_shares names {unknown[0]!r}, which is none of the labels")
    if missing:
        raise ValueError(
            f"expected_shares lacks {missing[0]!r}: give the share of every label, {len(labels)} in all"
        )
    for label, share in shares.items():
        if not (math.isfinite(share) and 0 < share < 1):
            raise ValueError(
                f"expected_shares: the share of {label!r}, {share}, is not between 0 and 1; a label "
                f"without one is no label"
            )
    if not multi and abs(sum(shares.values()) - 1) > 0.01:
        raise ValueError(f"expected_shares add up to {sum(shares.values()):.3f}, not to 1")


def _spaced(name: str) -> str:
    """``card_arrival``, ``card-arrival`` and ``cardArrival`` as words; capitals stay, and names such as
    iPhone.
    """
    parted = re.sub(r"(?<=[a-z]{2})(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", " ", re.sub(r"[_-]+", " ", name))
    return " ".join(parted.split()) or name
