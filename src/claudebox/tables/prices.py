"""What models cost, in millionths of a US dollar per thousand tokens, and since when that is known.

A model that is not here has no price: its tokens are counted, and towards a budget they count as the dearest here.
Prices change; what an invoice says counts. Discounts for batches are not known here.
"""

from __future__ import annotations

# The tables of platform.claude.com, "Pricing" and the overview of each model. Certain are input and output, and what
# is read from a cache but for the newest models, where it was lowered after they had come out (Sonnet 5.5).
AS_OF = "2026-10"
# The beginning of a model's name: input, output, input that is read from a cache. The longest beginning that fits.
PRICES: dict[str, tuple[int, int, int]] = {
    "claude-fable-5": (10_000, 50_000, 1_000),
    "claude-fable-5-1": (10_000, 50_000, 250),
    "claude-mythos-5": (10_000, 50_000, 1_000),
    "claude-mythos-5-1": (10_000, 50_000, 250),
    "claude-opus-5": (5_000, 25_000, 500),
    "claude-opus-5-5": (4_000, 20_000, 200),
    "claude-sonnet-5": (2_000, 10_000, 200),
    "claude-sonnet-5-5": (2_000, 10_000, 100),
    "claude-haiku-5-5": (100, 500, 10),
    "claude-opus-4": (15_000, 75_000, 1_500),
    **dict.fromkeys((f"claude-opus-4-{number}" for number in (5, 6, 7, 8)), (5_000, 25_000, 500)),
    "claude-sonnet-4": (3_000, 15_000, 300),
    "claude-haiku-4": (1_000, 5_000, 100),
    "claude-3-7-sonnet": (3_000, 15_000, 300),
    "claude-3-5-sonnet": (3_000, 15_000, 300),
    "claude-3-5-haiku": (800, 4_000, 80),
    "claude-3-opus": (15_000, 75_000, 1_500),
    "claude-3-haiku": (250, 1_250, 30),
}
# Input that is written to a cache, for five minutes and for an hour, in percent of the price of input.
CACHE_WRITE, CACHE_WRITE_LONG = 125, 200
# Each use of a tool that the API runs itself, in millionths of a dollar; one that is not here counts as the dearest.
SERVER_TOOLS = {"web_search_requests": 10_000, "web_fetch_requests": 0}
# An answer at another speed than the standard one, and one that is made in a chosen country: percent of everything
# but tools. No model's fast mode costs more than this; for some it is less.
SPEED, PLACE = 600, 110
USUAL_SPEEDS, USUAL_PLACES = (None, "standard"), (None, "", "global", "not_available")
# Requests with more input than this cost more, in percent of input and output. Whether Sonnet 4.6 still does is not
# certain: rather too much than too little.
LONG: dict[str, tuple[int, int, int]] = {
    "claude-sonnet-4": (200_000, 200, 150),
    "claude-haiku-5-5": (100_000, 500, 500),
}


def as_dollars(millionths: int) -> str:
    """Return an amount for people."""
    cents = (millionths + 5_000) // 10_000
    return f"{cents // 100}.{cents % 100:02d}"
