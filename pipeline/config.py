"""The configuration: pydantic models of the YAML file. Unknown keys are refused, wrong values named with their place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(value: int | str) -> int:
    """Bytes of ``20GB`` (10**9) or ``7GiB`` (2**30); a bare number is bytes. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a size; write for example 20GB or 7GiB")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{value!r} is not a size; write for example 20GB or 7GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


ByteSize = Annotated[int, BeforeValidator(parse_bytes)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Section):
    """Which model, and in which numbers."""

    id: str = Field(min_length=1, description="Hub id, local folder, or the packaged demo model smollm2-135m-instruct")
    revision: str | None = None
    quantization: Literal["none", "int8", "nf4"] = "nf4"
    trust_remote_code: bool = False
    template_options: dict[str, Any] = {}
    context_tokens: int | None = Field(None, ge=128, description="cap below the model's own context")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    device_map: Literal["auto", "cpu"] = "auto"
    max_memory: dict[int | str, ByteSize] | None = None

    @field_validator("max_memory")
    @classmethod
    def _known_devices(cls, value: dict[int | str, int] | None) -> dict[int | str, int] | None:
        for device in value or {}:
            if not (isinstance(device, int) or device == "cpu"):
                raise ValueError(f"device {device!r} is neither a GPU number nor 'cpu'")
        return value


class StoreConfig(_Section):
    """Caches that outlive the process."""

    path: str | None = None
    quota: ByteSize = 20 * 10**9
    documents: Literal["auto", "always", "never"] = "auto"


class KvCacheConfig(_Section):
    """Where keys and values live."""

    placement: Literal["auto", "device", "offloaded", "disk"] = "auto"
    store: StoreConfig = StoreConfig()


class GroupConfig(_Section):
    """Join consecutive rows (retrieved chunks, pages) that share a field into one document."""

    field: str
    order_by: str | None = None
    separator: str = "\n\n"


class SourceConfig(_Section):
    """Where documents come from."""

    path: str | list[str]
    format: Literal["auto", "jsonl", "json", "parquet", "csv", "tsv", "text", "hub", "saved"] = "auto"
    id_field: str = "id"
    text_field: str = "text"
    records_field: str | None = Field(None, description="in a .json file, the key that holds the list of records")
    subset: str | None = Field(None, description="configuration name of a Hub dataset")
    split: str = "train"
    revision: str | None = None
    group_by: GroupConfig | None = None
    max_rejects: int = Field(1000, ge=0, description="more rejected rows than this stop the run before the model is asked")

    @field_validator("group_by", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        return {"field": value} if isinstance(value, str) else value

    def anywhere(self) -> SourceConfig:
        """The same source with local paths made absolute, for commands that are run from another folder later."""
        absolute = [path if "://" in path else str(Path(path).absolute()) for path in self.paths]
        return self.model_copy(update={"path": absolute})

    @property
    def paths(self) -> list[str]:
        """``path`` as a list."""
        return [self.path] if isinstance(self.path, str) else list(self.path)


class _Task(_Section):
    name: str
    instructions: str | None = Field(None, description="text, or a Jinja2 template over the document's fields")
    system: str | None = Field(None, description="a system message; folded into the first user turn where the template has none")
    chunk_tokens: int | None = Field(None, ge=32, description="document tokens a part, for documents that do not fit in one prompt")
    overlap_tokens: int = Field(0, ge=0)
    max_parts: int = Field(1000, ge=1, description="a document that needs more parts fails as too_long")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", value):
            raise ValueError(f"{value!r} is not a task name: a letter, then letters, digits, - and _, at most 64")
        if value == "id":
            raise ValueError("'id' is taken: the export has a column of that name")
        return value

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> _Task:
        if self.chunk_tokens is not None and self.overlap_tokens * 2 > self.chunk_tokens:
            raise ValueError(f"overlap_tokens {self.overlap_tokens} is more than half of chunk_tokens {self.chunk_tokens}")
        return self


class SummarizeTask(_Task):
    """Write a summary of every document."""

    kind: Literal["summarize"]
    max_output_tokens: int = Field(128, ge=1)
    long_documents: Literal["map_reduce", "refine", "fail", "truncate"] = "map_reduce"


class LabelTask(_Task):
    """Choose one of the labels (or any of them: ``multi``) for every document."""

    kind: Literal["label"]
    labels: dict[str, str | None]
    multi: bool = False
    long_documents: Literal["aggregate", "fail", "truncate"] = "aggregate"
    abstain_below: float | None = Field(None, ge=0, le=1, description="below this probability the answer is null")
    score_tolerance: float = Field(0.001, ge=0, lt=0.5, description="how far a probability may be off to save work; 0 is exact")

    @field_validator("labels", mode="before")
    @classmethod
    def _names_as_text(cls, value: object) -> object:
        if isinstance(value, list):
            value = dict.fromkeys(value) if len(set(map(str, value))) == len(value) else _refuse_repeated(value)
        if isinstance(value, dict):  # YAML reads yes, no and 1 as booleans and numbers
            wrong = [name for name in value if not isinstance(name, str)]
            if wrong:
                raise ValueError(f"label {wrong[0]!r} was read as {type(wrong[0]).__name__}; put it in quotes")
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
            if shown.casefold() in folded:
                raise ValueError(f"labels {folded[shown.casefold()]!r} and {name!r} differ only in case; a reader cannot tell them apart")
            folded[shown.casefold()] = name
        return value

    @model_validator(mode="after")
    def _enough_labels(self) -> LabelTask:
        if not self.multi and len(self.labels) < 2:
            raise ValueError("one label leaves nothing to choose: give at least two, or set multi: true")
        return self


def _refuse_repeated(names: Sequence[object]) -> object:
    repeated = next(name for name in names if list(map(str, names)).count(str(name)) > 1)
    raise ValueError(f"label {repeated!r} is listed twice")


TaskConfig = Annotated[SummarizeTask | LabelTask, Field(discriminator="kind")]


class SamplingConfig(_Section):
    """Off unless asked for. Seeds are derived per document, so order and batch do not matter."""

    temperature: float = Field(gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    seed: int = 0


class GenerationConfig(_Section):
    """How answers are made."""

    layout: Literal["auto", "instructions_first", "document_first"] = "auto"
    sampling: SamplingConfig | None = None


class EngineConfig(_Section):
    """Speed and memory; nothing here changes an answer, so nothing here is part of a task's identity."""

    decoder: Literal["auto", "overnight", "transformers", "continuous"] = Field(
        "auto",
        description="who decodes: overnight (packed passes), transformers (generate on static batches), continuous (its generate_batch); "
        "auto: what was measured fastest on this device, else overnight",
    )
    batch_rows: int | None = Field(None, ge=1, description="rows a batch; null: from memory")
    batch_tokens: int | None = Field(None, ge=128, description="rows x longest row of a batch; null: from memory")
    prefill_chunk_tokens: int | None = Field(None, ge=16)
    threads: int | None = Field(None, ge=1, description="CPU threads of the model; null: the cores that exist")
    stall_seconds: float = Field(1800, gt=0, description="a worker silent for longer is taken for hung and restarted")


class RunConfig(_Section):
    """The run directory and when to stop."""

    directory: str
    deadline: str | None = None
    max_attempts: int = Field(3, ge=1, description="times a document may take the worker down before it is quarantined")

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

    @field_validator("tasks")
    @classmethod
    def _distinct_names(cls, value: list[TaskConfig]) -> list[TaskConfig]:
        names = [task.name for task in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two tasks are called {name!r}; results are told apart by name")
            for suffix in ("status", "error", "finish_reason", "probability", "probabilities"):
                if f"{name}_{suffix}" in names:
                    raise ValueError(f"the task name {name}_{suffix} is taken: the export has a column of that name for task {name!r}")
        return value


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read ``path`` and apply ``overrides`` ("a.b=c", the value read as YAML). Raises ConfigError with the place of each fault."""
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
        raise ConfigError(f"{path} holds no configuration: its top level must be keys such as model, source, tasks and run")
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
        elif not (index >= 2 and location[0] == "tasks" and isinstance(location[index - 1], int)):
            text += f".{part}" if text else str(part)
    return text or "(top level)"


def _sentence(fault: Any) -> str:
    kind, message = fault["type"], str(fault["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "missing":
        return "this key is required"
    return message if kind == "value_error" or "found" in message else f"{message} (found {fault['input']!r:.80})"


def _apply(raw: dict[str, Any], override: str) -> None:
    """Set one dotted key in place; list items by number ("tasks.0.name=x") or a task by its name ("tasks.topic.multi=true")."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r} is not of the form a.b=c")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not valid YAML: {' '.join(str(error).split())}") from None
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
