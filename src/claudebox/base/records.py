"""Immutable records that cost a launch nothing.

`typing.NamedTuple` takes 10 ms to import and `dataclasses` 16 ms, which is more than everything else that a
launch imports. `Value` is the part of them that we use: fields from annotations, defaults from the class body,
equality by content, no assignment. Type checkers see an ordinary frozen dataclass.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_options):  # noqa: ANN003, ANN201 - checkers see the real one
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Value:
    """A record whose fields never change after it was made."""

    if not TYPE_CHECKING:

        def __init__(self, *args, **kwargs):  # noqa: ANN002, ANN003, ANN204 - synthesised for checkers
            given = self.__dict__  # what is not given is found in the class
            given.update(zip(self._fields, args))  # noqa: B905 - counted below
            given.update(kwargs)
            if len(given) != len(args) + len(kwargs) or not self._needed <= given.keys() <= self._names:
                raise TypeError(self._complaint(args, kwargs))

        def _complaint(self, args, kwargs):  # noqa: ANN001, ANN202 - not seen by checkers
            name, fields = type(self).__name__, self._fields
            if len(args) > len(fields):
                return f"{name} takes {len(fields)} values, {len(args)} given"
            strange = next((key for key in kwargs if key not in fields[len(args) :]), None)
            if strange is not None:
                return f"{name} does not take {strange!r} here"
            missing = (key for key in fields[len(args) :] if key not in kwargs and key in self._needed)
            return f"{name} needs {next(missing)!r}"

    _fields: ClassVar[tuple[str, ...]] = ()
    _names: ClassVar[frozenset[str]] = frozenset()  # the same
    _needed: ClassVar[frozenset[str]] = frozenset()  # those without a default
    _unprinted: ClassVar[tuple[str, ...]] = ()  # fields that hold secrets: no trace and no message shows them

    def __init_subclass__(cls) -> None:
        """Collect the fields of the class and of the one that it extends."""
        cls._fields = (*cls._fields, *[name for name in cls.__annotations__ if not name.startswith("_")])
        cls._names = frozenset(cls._fields)
        cls._needed = frozenset(name for name in cls._fields if not hasattr(cls, name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and (self.__dict__ == other.__dict__ or self.as_tuple() == other.as_tuple())

    def __hash__(self) -> int:
        return hash((type(self), *self.as_tuple()))

    def __repr__(self) -> str:
        shown = (name for name in self._fields if name not in self._unprinted)
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__name__}({inside})"

    def as_tuple(self) -> tuple[object, ...]:
        """Return what is in the fields, in their order."""
        return tuple(getattr(self, name) for name in self._fields)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return type(self)(**{**self.__dict__, **changes})
