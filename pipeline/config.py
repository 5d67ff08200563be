"""The configuration: pydantic models of the YAML file. Unknown keys are refused, wrong values named with
their place.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from pipeline.errors import ConfigError
from pipeline.system.units import parse_bytes

ByteSize = Annotated[int, BeforeValidator(parse_bytes)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Section):
    """Which model, and in which numbers."""

    id: str = Field(
        min_length=1, description="Hub id, local folder, or the packaged demo model smollm2-135m-instruct"
    )
    revision: str | None = Field(
        None, description="branch, tag or commit of a Hub model; null: its default branch"
    )
    quantization: Literal["none", "int8", "nf4"] = Field(
        "nf4",
        description="how weights are kept: none, as they are; int8 and nf4 (4 bits, double quantization) by "
        "bitsandbytes, on cards and CPUs",
    )
    trust_remote_code: bool = Field(
        False, description="whether code from the model's repository may run; read it before"
    )
    template_options: dict[str, Any] = Field(
        {}, description="passed to the model's chat template, for example {enable_thinking: false}"
    )
    context_tokens: int | None = Field(
        None,
        ge=128,
        description="cap below the model's own context, prompt and answer together; documents that do not "
        "fit are read in parts",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="numbers that are computed with; auto: bfloat16 where the device computes it natively, "
        "float32 on other CPUs; what auto meant is kept for a run directory",
    )
    attention: Literal["auto", "sdpa", "eager"] = Field(
        "auto",
        description="the library's implementation of attention; auto: sdpa where the model's family has it, "
        "else eager",
    )
    device_map: Literal["auto", "cpu"] = Field(
        "auto", description="auto: weights go to the graphics cards first, then to RAM; cpu: no card is used"
    )
    max_memory: dict[int | str, ByteSize] | None = Field(
        None,
        description="the most bytes by device, for example {0: 7GiB, cpu: 24GiB}; a number is a card, and "
        "cards that are not named are not used; cpu bounds the weights in RAM, not what works beside them; "
        "null: what is free",
    )

    @field_validator("max_memory")
    @classmethod
    def _known_devices(cls, value: dict[int | str, int] | None) -> dict[int | str, int] | None:
        for device in value or {}:
            if not (isinstance(device, int) or device == "cpu"):
                raise ValueError(f"device {device!r} is neither a GPU number nor 'cpu'")
        return value


class StoreConfig(_Section):
    """Caches that outlive the process."""

    path: str | None = Field(
        None, description="folder of the store, which runs may share; null: inside the run directory"
    )
    quota: ByteSize = Field(
        20 * 10**9, description="the most bytes on the disk, of all runs that use this store; 0: no store"
    )
    keep_free: ByteSize = Field(2**30, description="bytes that always stay free on the disk")
    documents: Literal["auto", "always", "never"] = Field(
        "auto",
        description="whose caches are kept: auto, documents about which this run has further questions; "
        "always, every document, for "
        "tasks that are added later; never",
    )
    format: Literal["as_computed", "fp16", "bf16", "int8", "int4"] = Field(
        "as_computed",
        description="how keys and values are stored; all but as_computed are smaller and may change answers",
    )
    checkpoint_seconds: float = Field(
        10, gt=0, description="work on a long document is saved about so often; what a crash can cost"
    )

    @field_validator("path")
    @classmethod
    def _names_a_folder(cls, value: str | None) -> str | None:
        if value is not None:
            if not value.strip() or "\0" in value:
                raise ValueError("it names no folder; write null for one inside the run directory")
            try:
                Path(value).expanduser()
            except RuntimeError:
                raise ValueError(
                    f"the home directory of {Path(value).parts[0]} is not known here; write the whole path"
                ) from None
        return value


class KvCacheConfig(_Section):
    """Where keys and values live."""

    placement: Literal["auto", "device", "offloaded", "disk", "quantized"] = Field(
        "auto",
        description="while a batch runs: offloaded, in host memory, layer by layer; disk, layer by layer "
        "from files in the run directory; "
        "quantized, on the device in 8-bit floating point, which may change answers; auto never takes "
        "quantized",
    )
    lossy_last_resort: bool = Field(
        False,
        description="a document that does not fit in memory otherwise may be read with quantized keys and "
        "values",
    )
    store: StoreConfig = StoreConfig()


class GroupConfig(_Section):
    """Join consecutive rows (retrieved chunks, pages) that share a field into one document."""

    field: str = Field(
        description="rows that follow each other with the same value here are one document, whose id it is"
    )
    order_by: str | None = Field(
        None, description="field that rows of a group are sorted by; null: as they stand in the source"
    )
    separator: str = Field("\n\n", description="text between the rows of a group")


class SourceConfig(_Section):
    """Where documents come from."""

    path: str | list[str] = Field(
        description="a file, a folder, a glob pattern, hf://owner/name, an fsspec URL, or a list of these"
    )
    format: Literal["auto", "jsonl", "json", "parquet", "csv", "tsv", "text", "hub", "saved"] = Field(
        "auto",
        description="auto: by the ending of each name, .gz and .zst left out; text: a file is a document; "
        "hub: a Hub dataset; saved: a folder that datasets has written",
    )
    id_field: str = Field("id", description="field of a row that holds the document's id")
    text_field: str = Field("text", description="field of a row that holds the document's text")
    records_field: str | None = Field(
        None, description="in a .json file, the key that holds the list of records"
    )
    subset: str | None = Field(None, description="configuration name of a Hub dataset")
    split: str = Field("train", description="split of a Hub dataset, or of a saved one")
    revision: str | None = Field(
        None, description="branch, tag or commit of a Hub dataset; null: its default branch"
    )
    group_by: GroupConfig | None = Field(
        None,
        description="joins consecutive rows into one document; a field's name alone means {field: name}",
    )
    max_rejects: int = Field(
        1000, ge=0, description="more rejected rows than this stop the run before the model is asked"
    )

    @field_validator("group_by", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        return {"field": value} if isinstance(value, str) else value

    def anywhere(self) -> SourceConfig:
        """The same source with local paths made absolute, for commands that are run from another folder
        later.
        """
        return self.model_copy(update={"path": [_absolute(path) for path in self.paths]})

    @property
    def paths(self) -> list[str]:
        """``path`` as a list."""
        return [self.path] if isinstance(self.path, str) else list(self.path)


class _Task(_Section):
    name: str
    instructions: str | None = Field(
        None, description="text, or a Jinja2 template over the document's fields"
    )
    system: str | None = Field(
        None, description="a system message; folded into the first user turn where the template has none"
    )
    chunk_tokens: int | None = Field(
        None, ge=32, description="document tokens a part, for documents that do not fit in one prompt"
    )
    overlap_tokens: int = Field(0, ge=0)
    max_parts: int = Field(1000, ge=1, description="a document that needs more parts fails as too_long")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", value):
            raise ValueError(
                f"{value!r} is not a task name: a letter, then letters, digits, - and _, at most 64"
            )
        if value == "id":
            raise ValueError("'id' is taken: the export has a column of that name")
        return value

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> _Task:
        if self.chunk_tokens is not None and self.overlap_tokens * 2 > self.chunk_tokens:
            raise ValueError(
                f"overlap_tokens {self.overlap_tokens} is more than half of chunk_tokens {self.chunk_tokens}"
            )
        return self


class SummarizeTask(_Task):
    """Write a summary of every document."""

    kind: Literal["summarize"]
    max_output_tokens: int = Field(128, ge=1)
    long_documents: Literal["map_reduce", "refine", "fail", "truncate"] = "map_reduce"


class ShownExample(_Section):
    """An example written in the configuration itself."""

    text: str = Field(min_length=1)
    label: str
    id: str | None = Field(
        None,
        min_length=1,
        description="of the document it was taken from, so that it is not scored against gold",
    )


_ExamplesKey = Annotated[
    Annotated[str, Tag("file")] | Annotated[list[ShownExample], Tag("inline")],
    Discriminator(lambda value: "inline" if isinstance(value, list) else "file"),
]


class LabelTask(_Task):
    """Choose one of the labels (or any of them: ``multi``) for every document."""

    kind: Literal["label"]
    labels: dict[str, str | None]
    label_names: Literal["as_written", "spaced"] = Field(
        "as_written", description="how the model reads them; exports keep the names"
    )
    cue: str | None = Field(
        None, min_length=1, description="how the model's reply begins, before the label; null: as found best"
    )
    multi: bool = False
    examples: _ExamplesKey | None = Field(
        None, description="shown to the model: a file with id, text and label, or a list of text and label"
    )
    gold: str | None = Field(
        None,
        description="a file with id and label to calibrate by after the run; of its texts "
        "examples_per_label are shown to the model",
    )
    label_field: str = Field("label", min_length=1, description="the column of the label in these files")
    examples_per_label: int | None = Field(None, ge=1)
    examples_tokens: int = Field(
        1024, ge=16, description="texts of all examples together; longer ones are cut"
    )
    examples_seed: int = 0
    long_documents: Literal["aggregate", "fail", "truncate"] = "aggregate"
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
            value = (
                dict.fromkeys(value) if len(set(map(str, value))) == len(value) else _refuse_repeated(value)
            )
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
    def _enough_labels(self) -> LabelTask:
        if not self.multi and len(self.labels) < 2:
            raise ValueError("one label leaves nothing to choose: give at least two, or set multi: true")
        return self

    @model_validator(mode="after")
    def _read_names_differ(self) -> LabelTask:
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
    def _examples_make_sense(self) -> LabelTask:
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
    def _shares_can_be_met(self) -> LabelTask:
        if self.expected_shares is not None:
            _check_shares(self.expected_shares, self.labels, multi=self.multi)
        return self

    @property
    def read_names(self) -> dict[str, str]:
        """Each label with the name that the model reads and is scored on."""
        return {name: _spaced(name) if self.label_names == "spaced" else name for name in self.labels}

    def anywhere(self) -> LabelTask:
        """The same task with the paths of its files made absolute, for commands that are run from another
        folder later.
        """
        files = {"gold": self.gold, "examples": self.examples}
        return self.model_copy(
            update={key: _absolute(path) for key, path in files.items() if isinstance(path, str)}
        )


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


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _refuse_repeated(names: Sequence[object]) -> object:
    repeated = next(name for name in names if list(map(str, names)).count(str(name)) > 1)
    raise ValueError(f"label {repeated!r} is listed twice")


TaskConfig = Annotated[SummarizeTask | LabelTask, Field(discriminator="kind")]


class SamplingConfig(_Section):
    """Off unless asked for. Seeds are derived per document, so order and batch do not matter."""

    temperature: float = Field(
        gt=0, description="what logits are divided by; below 1 the likely gets likelier"
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="only the likeliest tokens that reach this probability together; 1: all"
    )
    top_k: int = Field(0, ge=0, description="only so many of the likeliest tokens; 0: all")
    seed: int = Field(0, description="another number gives other texts, the same number the same ones")


class GenerationConfig(_Section):
    """How answers are made."""

    layout: Literal["auto", "instructions_first", "document_first"] = Field(
        "auto",
        description="what prompts begin with, and so what they share; auto: the document where that saves a "
        "third of the reading (anything, where kv_cache.store.documents is always), else the instructions; "
        "what auto meant is kept for a run directory",
    )
    sampling: SamplingConfig | None = Field(
        None, description="how tokens of a text are drawn; null: always the likeliest one"
    )


class EngineConfig(_Section):
    """Speed and memory; nothing here changes an answer, so nothing here is part of a task's identity."""

    decoder: Literal["auto", "overnight", "transformers", "continuous"] = Field(
        "auto",
        description="who decodes: overnight (packed passes), transformers (generate on static batches), "
        "continuous (its generate_batch); "
        "auto: what was measured fastest on this device, else overnight",
    )
    backend: str = Field(
        "auto",
        pattern=r"^[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?$",
        description="what answers: transformers; a name that an installed package declares in the entry "
        "point group overnight.backends; or module:Class, whose code is then run; auto: transformers",
    )
    batch_rows: int | None = Field(None, ge=1, description="rows a batch; null: from memory")
    batch_tokens: int | None = Field(
        None, ge=128, description="rows x longest row of a batch; null: from memory"
    )
    prefill_chunk_tokens: int | None = Field(
        None,
        ge=16,
        description="tokens of a pass that reads prompts; null: 4,096 on a card, 1,024 on a CPU",
    )
    weights: Literal["auto", "resident", "streamed"] = Field(
        "auto",
        description="resident: loaded whole, or offloaded by the library where not quantized; streamed: "
        "prepared once on the disk, "
        "and read layer by layer, each layer once for a whole batch; auto: streamed where they do not "
        "fit, and are quantized or "
        "more than the page cache can hold",
    )
    prepared_quota: ByteSize | None = Field(
        None,
        description="the most bytes that prepared weights of all models may take; those used longest ago "
        "are removed; null: no bound",
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads of the model; null: the cores that exist"
    )
    stall_seconds: float = Field(
        1800, gt=0, description="a worker silent for longer is taken for hung and restarted"
    )


class RunConfig(_Section):
    """The run directory and when to stop."""

    directory: str = Field(
        description="folder of the ledger, the report and the lock; the same one goes on with a run"
    )
    deadline: str | None = Field(
        None,
        description='time of day, local and in quotes ("07:00"), at which the run stops cleanly; the same '
        "command goes on",
    )
    max_attempts: int = Field(
        3, ge=1, description="times a document may take the worker down before it is quarantined"
    )
    keep_free_disk: ByteSize = Field(
        10**8, description="with less free on the disk of the directory, the run stops; 0: not watched"
    )
    keep_free_memory: ByteSize = Field(
        2**27,
        description="with less memory free on this machine, the worker is restarted, or the run stops; 0: "
        "not watched",
    )

    @field_validator("deadline")
    @classmethod
    def _clock_time(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d", value):
            raise ValueError(f'{value!r} is not a time of day; write for example "07:00", in quotes')
        return value


class Config(_Section):
    """A whole configuration file."""

    model: ModelConfig
    kv_cache: KvCacheConfig = KvCacheConfig()
    source: SourceConfig
    tasks: list[TaskConfig] = Field(min_length=1)
    generation: GenerationConfig = GenerationConfig()
    engine: EngineConfig = EngineConfig()
    run: RunConfig

    def anywhere(self) -> Config:
        """The same configuration with the local paths of everything it reads made absolute, and that of its
        KV store.
        """
        tasks = [task.anywhere() if isinstance(task, LabelTask) else task for task in self.tasks]
        path = self.kv_cache.store.path
        store = self.kv_cache.store.model_copy(
            update={"path": None if path is None else str(Path(path).expanduser().absolute())}
        )
        kv_cache = self.kv_cache.model_copy(update={"store": store})
        return self.model_copy(
            update={"source": self.source.anywhere(), "tasks": tasks, "kv_cache": kv_cache}
        )

    @field_validator("tasks")
    @classmethod
    def _distinct_names(cls, value: list[TaskConfig]) -> list[TaskConfig]:
        names = [task.name for task in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two tasks are called {name!r}; results are told apart by name")
            for suffix in ("status", "error", "finish_reason", "probability", "probabilities"):
                if f"{name}_{suffix}" in names:
                    raise ValueError(
                        f"the task name {name}_{suffix} is taken: the export has a column of that name "
                        f"for task {name!r}"
                    )
        return value


def store_folder(config: Config) -> Path:
    """Where the KV store of a configuration lies."""
    path = config.kv_cache.store.path
    return Path(config.run.directory) / "kv" if path is None else Path(path).expanduser()


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read ``path`` and apply ``overrides`` ("a.b=c", the value read as YAML). Raises ConfigError with the
    place of each fault.
    """
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; name the YAML file in it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{path} holds no configuration: its top level must be keys such as model, source, tasks and run"
        )
    for override in overrides:
        _apply(raw, override)
    return parse_config(raw, str(path))


def parse_config(raw: Mapping[str, Any], origin: str = "configuration") -> Config:
    """Validate a mapping. Raises ConfigError that lists every fault with its place."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        faults = [f"  {_place(fault['loc'])}: {_sentence(fault)}" for fault in error.errors()]
        raise ConfigError(f"{origin} is not valid:\n" + "\n".join(faults)) from None


def _place(location: tuple[int | str, ...]) -> str:
    """``tasks[1].labels`` of pydantic's location; the tag of a task's kind is left out."""
    text = ""
    for index, part in enumerate(location):
        if isinstance(part, int):
            text += f"[{part}]"
        elif not (index == 2 and location[0] == "tasks" and isinstance(location[1], int)):
            text += f".{part}" if text else str(part)
    return text or "(top level)"


def _sentence(fault: Any) -> str:
    kind, message = fault["type"], str(fault["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "missing":
        return "this key is required"
    return (
        message
        if kind == "value_error" or "found" in message
        else f"{message} (found {fault['input']!r:.80})"
    )


def _apply(raw: dict[str, Any], override: str) -> None:
    """Set one dotted key in place; list items by number ("tasks.0.name=x") or a task by its name
    ("tasks.topic.multi=true").
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r} is not of the form a.b=c")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--set {override!r}: the value is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    *path, last = key.strip().split(".")
    node: Any = raw
    for part in path:
        node = _child(node, part, override)
    if isinstance(node, list):
        node[_index(node, last, override)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"--set {override!r}: {'.'.join(path)} is a plain value and has no keys")


def _child(node: Any, part: str, override: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, override)]
    if not isinstance(node, dict):
        raise ConfigError(f"--set {override!r}: nothing called {part!r} can lie inside a plain value")
    if node.get(part) is None:
        node[part] = {}
    return node[part]


def _index(items: list[Any], part: str, override: str) -> int:
    for index, item in enumerate(items):
        if str(index) == part or (isinstance(item, dict) and item.get("name") == part):
            return index
    raise ConfigError(f"--set {override!r}: the list has no item {part!r} (it has {len(items)})")
