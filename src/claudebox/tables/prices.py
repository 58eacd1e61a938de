"""What models cost, in millionths of a US dollar per thousand tokens, and since when that is known.

A model that is not here has no price: its tokens are counted, and towards a budget they count as the dearest here.
"""

from __future__ import annotations

AS_OF = "2025-11"  # the published prices of Anthropic's API
# The beginning of a model's name: input, output. The longest beginning that fits counts.
PRICES: dict[str, tuple[int, int]] = {
    "claude-opus-4-5": (5_000, 25_000),
    "claude-opus-4": (15_000, 75_000),
    "claude-sonnet-4": (3_000, 15_000),
    "claude-haiku-4": (1_000, 5_000),
    "claude-3-7-sonnet": (3_000, 15_000),
    "claude-3-5-sonnet": (3_000, 15_000),
    "claude-3-5-haiku": (800, 4_000),
    "claude-3-opus": (15_000, 75_000),
    "claude-3-haiku": (250, 1_250),
}
# Input that is written to a cache, for five minutes and for an hour, and input that is read from one, in percent of
# the price of input.
CACHE_WRITE, CACHE_WRITE_LONG, CACHE_READ = 125, 200, 10
# Requests with more input than this cost so much more where a model has a larger window, in percent: input, output.
LONG_INPUT, LONG_PRICES = 200_000, (200, 150)
