"""The configuration: what the YAML file may say (``sections``), how it is read (``loading``), and what its
faults are called. What is given is used or refused: an unknown key, one that is given twice and one that
nothing would obey are refused with their line.
"""

from pipeline.config.loading import load_config, parse_config
from pipeline.config.paths import FilePath, absolute_path, as_written
from pipeline.config.recorded import RETIRED, upgraded
from pipeline.config.sections import (
    Added,
    ByteSize,
    Config,
    Device,
    EngineConfig,
    GenerationConfig,
    GroupConfig,
    KvCacheConfig,
    ModelConfig,
    OutputConfig,
    RunConfig,
    SamplingConfig,
    SourceConfig,
    StoreConfig,
    TaskConfig,
    TaskSection,
    identity_of,
    store_folder,
)

__all__ = [
    "RETIRED",
    "Added",
    "ByteSize",
    "Config",
    "Device",
    "EngineConfig",
    "FilePath",
    "GenerationConfig",
    "GroupConfig",
    "KvCacheConfig",
    "ModelConfig",
    "OutputConfig",
    "RunConfig",
    "SamplingConfig",
    "SourceConfig",
    "StoreConfig",
    "TaskConfig",
    "TaskSection",
    "absolute_path",
    "as_written",
    "identity_of",
    "load_config",
    "parse_config",
    "store_folder",
    "upgraded",
]
