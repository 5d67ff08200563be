"""The keys of the configuration, as pydantic models: what each may be, its default, and what it means."""

from __future__ import annotations

import functools
import operator
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from pipeline.config.paths import FilePath, FolderOrName, absolute_path, with_paths
from pipeline.system.repeated import first_repeated
from pipeline.system.units import parse_bytes

ByteSize = Annotated[int, BeforeValidator(parse_bytes)]


def _device(key: object) -> int | str:
    """A card's number, also as text: what was written down as JSON has no other keys."""
    if isinstance(key, str) and re.fullmatch(r"0|[1-9]\d{0,3}", key, re.ASCII):
        return int(key)
    if key == "cpu" or (isinstance(key, int) and not isinstance(key, bool) and 0 <= key < 10_000):
        return key
    raise ValueError(f"device {key!r} is neither a GPU number nor 'cpu'")


Device = Annotated[int | str, BeforeValidator(_device)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


@dataclass(frozen=True, slots=True)
class Added:
    """Marks a key that a section gained after such sections had been recorded: ``mood: Annotated[str,
    Added("none")] = "none"``.

    At ``before``, the value with which the program does what it did without the key, the key does not enter a
    task's identity, so that run directories made without it go on.
    """

    before: Any


def identity_of(section: BaseModel) -> dict[str, Any]:
    """The keys of ``section`` as they enter a task's identity: all, but for those ``Added`` and at their old
    behaviour. Plain values.
    """
    dumped = section.model_dump(mode="json")
    fields = type(section).model_fields
    return {
        key: _plain(getattr(section, key), value)
        for key, value in dumped.items()
        if not any(
            isinstance(mark, Added) and mark.before == getattr(section, key) for mark in fields[key].metadata
        )
    }


def _plain(value: Any, dumped: Any) -> Any:
    """``dumped``, with the sections in it as ``identity_of`` has them."""
    if isinstance(value, BaseModel):
        return identity_of(value)
    if isinstance(value, list):
        return [_plain(*pair) for pair in zip(value, dumped, strict=True)]
    if isinstance(value, dict):
        return dict(zip(dumped, map(_plain, value.values(), dumped.values()), strict=True))
    return dumped


class ModelConfig(_Section):
    """Which model, and in which numbers."""

    id: FolderOrName = Field(
        description="Hub id, local folder, or the packaged demo model smollm2-135m-instruct"
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
    template_options: dict[str, JsonValue] = Field(
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
        description="attention where the library computes it (packed passes have their own); auto: sdpa "
        "where the model's family has it, else eager",
    )
    device_map: Literal["auto", "cpu"] = Field(
        "auto", description="auto: weights go to the graphics cards first, then to RAM; cpu: no card is used"
    )
    max_memory: dict[Device, ByteSize] | None = Field(
        None,
        description="the most bytes by device, for example {0: 7GiB, cpu: 24GiB}; a number is a card, and "
        "where one is named the others are not used; cpu bounds the weights in RAM, not what works beside "
        "them; null: what is free",
    )

    @field_validator("max_memory", mode="before")
    @classmethod
    def _each_device_once(cls, value: object) -> object:
        if isinstance(value, Mapping) and len({str(key) for key in value}) < len(value):
            raise ValueError("a device is named twice, as a number and as text")
        return value


class StoreConfig(_Section):
    """Caches that outlive the process."""

    path: FilePath | None = Field(
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
    """Join consecutive rows (retrieved chunks, pages) that share a field into one document. ``short_form`` is
    the key that a text alone says.
    """

    short_form: ClassVar[str] = "field"

    field: str = Field(
        description="rows that follow each other with the same value here are one document, whose id it is"
    )
    order_by: str | None = Field(
        None, description="field that rows of a group are sorted by; null: as they stand in the source"
    )
    separator: str = Field("\n\n", description="text between the rows of a group")


class SourceConfig(_Section):
    """Where documents come from."""

    path: FilePath | list[FilePath] = Field(
        description="a file, a folder, a glob pattern, hf://owner/name, an fsspec URL, or a list of these"
    )
    format: Literal["auto", "jsonl", "json", "parquet", "csv", "tsv", "text", "hub", "saved"] = Field(
        "auto",
        description="auto: by the place and the ending of each name, .gz and .zst left out; text: a file is "
        "a document; hub: a Hub dataset; saved: a folder that datasets has written",
    )
    id_field: str = Field("id", description="field of a row that holds the document's id")
    text_field: str = Field("text", description="field of a row that holds the document's text")
    records_field: str | None = Field(
        None, description="in a .json file, the key that holds the list of records"
    )
    subset: str | None = Field(None, description="configuration name of a Hub dataset")
    split: str | None = Field(
        None,
        description="split of a dataset: on the Hub, saved, or in a folder, where the dataset's card or the "
        "names of files and folders tell (train, test, validation); null: train on the Hub and of a saved "
        "one, else all files",
    )
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
        return {GroupConfig.short_form: value} if isinstance(value, str) else value

    def idle_keys(self) -> Iterator[tuple[str, str]]:
        """Keys that say something about another kind of source than this one, each with the reason."""
        on_hub = self.format == "hub" or any(path.startswith("hf://") for path in self.paths)
        for key in ("subset", "revision"):
            if getattr(self, key) is not None and not on_hub:
                yield key, "nothing obeys it: the source is no Hub dataset; delete it"

    @property
    def paths(self) -> list[str]:
        """``path`` as a list."""
        return [self.path] if isinstance(self.path, str) else list(self.path)


class TaskSection(_Section):
    """An entry of ``tasks``: the keys that every kind has. A kind adds its own, and a Literal ``kind``."""

    name: str = Field(
        description="the user's own: a letter, then letters, digits, - and _; its columns are called by it"
    )
    kind: str = Field(description="what is asked of every document")
    instructions: str | None = Field(
        None, description="text, or a Jinja2 template over the document's fields"
    )
    system: str | None = Field(
        None, description="a system message; folded into the first user turn where the template has none"
    )
    chunk_tokens: int | None = Field(
        None, ge=32, description="document tokens a part, for documents that do not fit in one prompt"
    )
    overlap_tokens: int = Field(
        0, ge=0, description="tokens that a part shares with the one before; at most half of chunk_tokens"
    )
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
    def _overlap_is_smaller(self) -> Self:
        if self.chunk_tokens is not None and self.overlap_tokens * 2 > self.chunk_tokens:
            raise ValueError(
                f"overlap_tokens {self.overlap_tokens} is more than half of chunk_tokens {self.chunk_tokens}"
            )
        return self

    @property
    def most_new_tokens(self) -> int:
        """The most tokens that an answer may take; 0 for a kind that writes no text."""
        return 0

    def questions(self) -> Iterator[tuple[object, int]]:
        """Each question about a document: the texts that stand in it besides the document, in any nesting,
        and how many tokens are shown with them. One, of all that is configured, unless a kind knows better.
        """
        yield self.own_texts(), 0

    def idle_keys(self) -> Iterator[tuple[str, str]]:
        """Keys that say something which nothing obeys, as the others are, each with the reason: they are
        refused.
        """
        how = getattr(self, "long_documents", None)
        if how in ("fail", "truncate"):
            for key in ("overlap_tokens", "max_parts"):
                if getattr(self, key) != TaskSection.model_fields[key].default:
                    yield key, f"nothing obeys it: with long_documents: {how} there are no parts; delete it"

    def own_texts(self) -> dict[str, Any]:
        """Everything configured but the name and the kind, as plain values."""
        return self.model_dump(mode="json", exclude={"name", "kind"})


class _OfARegisteredKind:
    """Told apart by ``kind``. Kinds lie above the configuration, so their registry is found by its name, and
    only when a configuration is read.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        union: Any = functools.reduce(operator.or_, (kind.section for kind in registered_kinds().values()))
        return handler.generate_schema(Annotated[union, Field(discriminator="kind")])


def registered_kinds() -> Mapping[str, Any]:
    """The kinds of task by name; see ``pipeline.tasks.registry``."""
    found: Mapping[str, Any] = pkgutil.resolve_name("pipeline.tasks.registry:kinds")()
    return found


def why_no_kind(name: str) -> str:
    """Why there is no kind of task of that name, a sentence."""
    said: str = pkgutil.resolve_name("pipeline.tasks.registry:why_not")(name)
    return said


TaskConfig = Annotated[TaskSection, _OfARegisteredKind()]


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


class OutputConfig(_Section):
    """A table that a run writes at its end."""

    path: FilePath = Field(description="the file: .jsonl, .csv, .tsv or .parquet")
    format: Literal["auto", "jsonl", "csv", "tsv", "parquet"] = Field(
        "auto", description="auto: by the ending of the name"
    )
    fields: Literal["all"] | list[str] = Field(
        [], description="columns of the source beside the answers; all: all that it has"
    )
    flat: bool = Field(
        False, description="a column for the probability of each label, the second label and the margin"
    )


class RunConfig(_Section):
    """The run directory, the tables that a run leaves, and when to stop."""

    directory: FilePath = Field(
        description="folder of the ledger, the report and the lock; the same one goes on with a run"
    )
    output: list[OutputConfig] = Field(
        [],
        description="tables of the answers, written whenever a run ends: a name, {path: name, ...}, or "
        "a list of these; --output adds to them",
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

    @field_validator("output", mode="before")
    @classmethod
    def _short_forms(cls, value: object) -> object:
        listed = value if isinstance(value, list) else [] if value is None else [value]
        return [{"path": item} if isinstance(item, str) else item for item in listed]

    @field_validator("output")
    @classmethod
    def _distinct_files(cls, value: list[OutputConfig]) -> list[OutputConfig]:
        if (path := first_repeated(output.path for output in value)) is not None:
            raise ValueError(f"the file {path} is named twice; a table needs a file of its own")
        return value

    @field_validator("deadline", mode="before")
    @classmethod
    def _not_minutes(cls, value: object) -> object:
        if isinstance(value, int | float):
            raise ValueError(f'YAML has read a number, {value}; write for example "07:00", in quotes')
        return value

    @field_validator("deadline")
    @classmethod
    def _clock_time(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d", value):
            raise ValueError(f'{value!r} is not a time of day; write for example "07:00", in quotes')
        return value


class Config(_Section):
    """A whole configuration file."""

    model_config = ConfigDict(defer_build=True)  # the kinds of task are not known yet; see _OfARegisteredKind

    model: ModelConfig
    kv_cache: KvCacheConfig = KvCacheConfig()
    source: SourceConfig
    tasks: list[TaskConfig] = Field(min_length=1)
    generation: GenerationConfig = GenerationConfig()
    engine: EngineConfig = EngineConfig()
    run: RunConfig

    def anywhere(self) -> Config:
        """The same configuration with its local paths made absolute, for commands that are run from another
        folder later.
        """
        return with_paths(self, absolute_path)

    @field_validator("tasks")
    @classmethod
    def _distinct_names(cls, value: list[TaskConfig]) -> list[TaskConfig]:
        names = [task.name for task in value]
        if (name := first_repeated(names)) is not None:
            raise ValueError(f"two tasks are called {name!r}; results are told apart by name")
        for name, kind in ((task.name, task.kind) for task in value):
            for ending in ("_status", "_error", "_finish_reason", *registered_kinds()[kind].endings):
                if name + ending in names:
                    raise ValueError(
                        f"the task name {name}{ending} is taken: the export has a column of that name "
                        f"for task {name!r}"
                    )
        return value


def store_folder(config: Config) -> Path:
    """Where the KV store of a configuration lies."""
    path = config.kv_cache.store.path
    return Path(config.run.directory) / "kv" if path is None else Path(path)
