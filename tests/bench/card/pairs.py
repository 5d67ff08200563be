"""Which models spend a dry night on which cards, and what passes may cost."""

from __future__ import annotations

MODELS = ("qwen3-4b", "qwen3-8b", "llama-70b", "gpt-oss-20b")
SIZES = ("8GiB", "12GiB", "24GiB")

# Bars: kernels of a layer, and of one whose rows share a beginning; of a pass that is replayed, launches
# beside the replay; waits of the host a pass; bytes over the link by those that must be read; transfers of a
# label batch.
LAYER_LAUNCHES, SHARED_LAYER_LAUNCHES = 30, 35
REPLAYED_LAUNCHES, HOST_WAITS, LINK_SHARE, LABEL_TRANSFERS = 10, 1, 1.05, 2
# The card's fullest moment by the plan's.
LEAST_OF_PLAN, MOST_OF_PLAN = 0.9, 1.0
# Useful bytes by bandwidth by predicted time, on the cards for which it is a bar.
SHARE, SHARE_CARDS = 0.6, ("rtx4060", "rtx3090")
