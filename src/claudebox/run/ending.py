"""The end of a session: every step stands by itself, whatever the ones before it raised."""

from __future__ import annotations

from claudebox.base import console

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


class Steps:
    """Steps that are done in order; one that fails is named, and the others go on."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def step(self, name: str, action: Callable[[], T] | None) -> T | None:
        """Do one step, if there is one, and return its result; nothing if it failed, whatever it was that it raised."""
        try:
            return action() if action is not None else None
        except BaseException as error:  # noqa: BLE001 - MemoryError, RecursionError and signals count as well
            self.tell(name, error)
            return None

    def tell(self, name: str, error: BaseException) -> None:
        """Say that a step has failed."""
        self.failed.append(name)
        try:
            said = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
            problem = type(error).__name__ if isinstance(error, (MemoryError, RecursionError)) else said
            console.warn(f"the end of this session is not complete: {name} failed: {console.shorten(problem, 200)}")
        except BaseException:  # noqa: BLE001, S110 - there is not even memory for a line; the step is in `failed`
            pass
