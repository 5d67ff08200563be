"""KV caches that outlive the process: what a model computed over some token ids, found again by token ids.

    STORE/v1/lock              held for the few milliseconds in which the store changes, by every process
    STORE/v1/journal           one id a line for each entry that changed: other processes read no more
    STORE/v1/speeds.json       what reading and writing were measured to take
    STORE/v1/entries/ID/       manifest.json, which makes the segments count, and the segments: safetensors
    STORE/v1/staging/WRITER/   what a living process is writing; its lock tells it from what a dead one left

``store.KvStore`` is the store, ``writer.BackgroundWriter`` writes to it beside a run, ``admin`` lists,
verifies and prunes, ``sizes.entry_bytes`` and ``io_speed.worth_loading`` are for plans. Only ``store``,
``writer``, ``formats`` and ``entry`` import torch.

Whatever is wrong with the files costs time, never a result: a damaged entry is removed and counted, a write
that does not fit is declined and counted. Nothing here knows texts or tasks: an owner is a mapping that is
compared and handed back.
"""
