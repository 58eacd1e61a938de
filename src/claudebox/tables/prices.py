"""What models cost, in millionths of a US dollar per thousand tokens, and since when that is known.

A model that is not here has no price: its tokens are counted, and towards a budget they count as its maker's dearest.
Prices change; what an invoice says counts. Discounts for batches are not known here.
"""

from __future__ import annotations

# The tables of platform.claude.com, "Pricing" and the overview of each model. Certain are input and output, and what
# is read from a cache but for the newest models, where it was lowered after they had come out (Sonnet 5.5). For OpenAI
# and Google: the standard prices of openai.com and ai.google.dev, as others quoted them in June 2026.
AS_OF = "2026-10"
# The beginning of a model's name: input, output, input that is read from a cache. The longest beginning that fits, if
# nothing but numbers and VARIANTS follows.
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
    **dict.fromkeys(("gpt-5", "gpt-5.1"), (1_250, 10_000, 125)),
    **dict.fromkeys(("gpt-5-mini", "gpt-5.1-codex-mini"), (250, 2_000, 25)),
    "gpt-5-nano": (50, 400, 5),
    "gpt-5-pro": (15_000, 120_000, 15_000),
    **dict.fromkeys(("gpt-5.2", "gpt-5.3"), (1_750, 14_000, 175)),
    "gpt-5.2-pro": (21_000, 168_000, 21_000),
    "gpt-5.4": (2_500, 15_000, 250),
    "gpt-5.4-mini": (750, 4_500, 75),
    "gpt-5.4-nano": (200, 1_250, 20),
    "gpt-5.5": (5_000, 30_000, 500),
    **dict.fromkeys(("gpt-5.4-pro", "gpt-5.5-pro"), (30_000, 180_000, 30_000)),
    "codex-mini": (1_500, 6_000, 375),
    "gpt-4.1": (2_000, 8_000, 500),
    "gpt-4.1-mini": (400, 1_600, 100),
    "gpt-4.1-nano": (100, 400, 25),
    "gpt-4o": (2_500, 10_000, 1_250),
    "gpt-4o-2024-05-13": (5_000, 15_000, 5_000),
    "gpt-4o-mini": (150, 600, 75),
    "o1": (15_000, 60_000, 7_500),
    "o1-pro": (150_000, 600_000, 150_000),
    "o3": (2_000, 8_000, 500),
    "o3-pro": (20_000, 80_000, 20_000),
    **dict.fromkeys(("o3-mini", "o4-mini"), (1_100, 4_400, 550)),
    "gemini-2.0-flash": (100, 400, 25),
    "gemini-2.5-pro": (1_250, 10_000, 125),
    "gemini-2.5-flash": (300, 2_500, 30),
    "gemini-2.5-flash-lite": (100, 400, 10),
    **dict.fromkeys(("gemini-3-pro", "gemini-3.1-pro"), (2_000, 12_000, 200)),
    **dict.fromkeys(("gemini-3-flash", "gemini-3.1-flash"), (500, 3_000, 50)),
    "gemini-3.1-flash-lite": (250, 1_500, 25),
    "gemini-2.5-flash-image": (300, 30_000, 300),
    "gemini-3-pro-image": (2_000, 120_000, 2_000),
}
# What follows a model's name without a higher price, besides numbers: not `audio`, `deep-research`, `image`, `pro`.
VARIANTS = frozenset((
    "1m", "api", "chat", "codex", "customtools", "exp", "latest", "lite", "max", "mini", "nano", "preview", "search",
    "thinking", "v1", "v2",
))  # fmt: skip
# What a model that is not here counts as towards a budget, by who makes it: their dearest, but for one that is long
# superseded (o1-pro).
DEAREST = {
    "anthropic": max(row for name, row in PRICES.items() if name.startswith("claude-")),
    "openai": PRICES["gpt-5.5-pro"],
    "gemini": PRICES["gemini-3-pro"],
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
    **dict.fromkeys(("gpt-5.4", "gpt-5.4-pro", "gpt-5.5", "gpt-5.5-pro"), (272_000, 200, 150)),
    **dict.fromkeys(("gemini-2.5-pro", "gemini-3-pro", "gemini-3.1-pro"), (200_000, 200, 150)),
}
# OpenAI's tiers of service, in percent; one that is not here counts as the dearest.
TIERS = {"": 100, "auto": 100, "default": 100, "flex": 100, "scale": 100, "priority": 250}
# What models of OpenAI and Google use themselves, in millionths of a dollar each: rather too much than too little.
HOSTED_TOOLS = {
    "web_search_call": 25_000, "file_search_call": 2_500, "code_interpreter_call": 30_000,
    "image_generation_call": 250_000,
}  # fmt: skip
SEARCH = 50_000  # of a model that searches in every answer, or of a search by Google


def known_maker(name: object) -> str:
    """Return the maker of a model, as a log names it."""
    return name if isinstance(name, str) and name in DEAREST else "anthropic"


def as_dollars(millionths: int) -> str:
    """Return an amount for people."""
    cents = (millionths + 5_000) // 10_000
    return f"{cents // 100}.{cents % 100:02d}"
