"""What a user asked for: flags and layers, merged by the rows of the table, each value with its origin."""

from __future__ import annotations

from claudebox.agent.claude import CLAUDE
from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.settings.table import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from claudebox.agent.record import AgentKind
    from claudebox.settings.files import SettingsReader
    from claudebox.settings.records import Setting


class SettingValue(Value):
    """A value and where it came from."""

    value: str
    origin: str
    fields: dict[str, str] = {}  # noqa: RUF012 - values are never changed; of a record or row
    untrusted: bool = False  # from the project, not from the user


class Layer(Value):
    """What one file says."""

    origin: str
    given: dict[str, tuple[SettingValue, ...]]


class Settings(Value):
    """All settings of a launch with their origins, and the arguments that are not ours."""

    given: dict[str, tuple[SettingValue, ...]]
    words: tuple[str, ...] = ()
    agent: AgentKind = CLAUDE
    client: str = ""  # the client's own path, where an editor starts claudebox as its process wrapper
    start: str = ""  # the working directory, if the project is the whole repository around it
    reader: SettingsReader | None = None  # which has already read the user's files

    @property
    def verb(self) -> Setting | None:
        """Return the row of what to do instead of starting the client."""
        return next((row for row in SETTINGS if row.runs and row.key in self.given), None)

    def on(self, key: str) -> bool:
        """Return whether a switch was given."""
        return key in self.given and self.given[key][-1].value != "no"

    def one(self, key: str) -> SettingValue:
        """Return a single value; the last one given wins."""
        return self.given[key][-1]

    def all(self, key: str) -> tuple[SettingValue, ...]:
        """Return every value of a list."""
        return self.given.get(key, ())


def read_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings without files."""
    return merge(parse_arguments(argv), environ)


def merge(flags: Settings, environ: Mapping[str, str], layers: Sequence[Layer] = ()) -> Settings:
    """Merge the layers: defaults, then files, then the environment, then the flags."""
    given: dict[str, tuple[SettingValue, ...]] = {}
    rows = {row.key: row for row in SETTINGS}
    for row in SETTINGS:
        if row.shape == "choice":
            given[row.key] = (SettingValue(row.default, "default"),)
    for layer in (*layers, Layer("environment", _from_environment(environ)), Layer("flags", flags.given)):
        for key, values in layer.given.items():
            given[key] = (*given.get(key, ()), *values) if rows[key].grows else values
    return Settings(given, flags.words, flags.agent, flags.client, flags.start)


def look_up(
    key: str, flags: Settings, environ: Mapping[str, str], layers: Sequence[Layer] = ()
) -> tuple[SettingValue, ...]:
    """Return what `merge` would return for one setting that does not grow, without its default."""
    for given in (flags.given, _from_environment(environ), *(layer.given for layer in reversed(layers))):
        if key in given:
            return given[key]
    return ()


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[SettingValue, ...]]:
    given = {}
    for row in SETTINGS:
        if row.variable and (value := environ.get(row.variable)):
            names = [name.strip() for name in value.split(",")] if row.grows else [value]
            if values := tuple(_checked(row, SettingValue(name, row.variable)) for name in names if name):
                given[row.key] = values
    return given


def parse_arguments(argv: Sequence[str], agent: AgentKind = CLAUDE) -> Settings:
    """Return the flags, and the arguments that are not ours."""
    if argv and argv[0].startswith("/") and argv[0].rpartition("/")[2] in (agent.name, f"{agent.name}.exe"):
        return Settings({}, tuple(argv[1:]), agent, argv[0])  # an editor's: no flag of ours
    by_flag = {flag: row for row in SETTINGS for flag in row.flags}
    running = {"exec", "shell"}
    given: dict[str, list[SettingValue]] = {}
    words: list[str] = []
    rest = list(reversed(argv))
    while rest:
        word = rest.pop()
        if word == "--":
            words += reversed(rest)
            break
        flag, assigned, value = word.partition("=")
        own = by_flag.get(flag)
        if own is None and flag in agent.background and (flag[0] == "-" or not words) and not running & given.keys():
            flag = agent.background[flag]
            own = by_flag[flag]
        if own is None:
            words.append(word)
            if ("exec" in given and word[:1] != "-") or (len(words) == 1 and word in agent.subcommands):
                words += reversed(rest)  # the program's own, or those of a subcommand of the client
                break
        elif own.shape == "switch":
            if assigned:
                raise ClaudeboxError(f"`{flag}` takes no value", hint=f"write `{flag}` alone")
            given[own.key] = [SettingValue("yes", flag)]
        else:
            if not assigned:
                if not rest:
                    raise ClaudeboxError(f"`{flag}` needs a value: `{flag} {own.metavar}`")
                value = rest.pop()
            given.setdefault(own.key, []).append(_checked(own, SettingValue(value, flag)))
    merged = {key: tuple(values) for key, values in given.items()}
    _check_verbs(merged)
    return Settings(merged, tuple(words), agent)


def _checked(row: Setting, given: SettingValue) -> SettingValue:
    if row.choices and given.value not in row.choices:
        former = dict(row.former).get(given.value, "")
        allowed = list_words(row.choices)
        raise ClaudeboxError(f"`{given.origin}` is {allowed}, not `{given.value}`{former and f': {former}'}")
    if "\0" in given.value or not given.value:
        raise ClaudeboxError(f"`{given.origin}` needs a value: `{given.origin} {row.metavar}`")
    return given


def _check_verbs(given: Mapping[str, tuple[SettingValue, ...]]) -> None:
    verbs = [row.flags[-1] for row in SETTINGS if row.runs and row.key in given]
    if "--help" in verbs or "--version" in verbs:
        return
    both = set(verbs) & {"--exec", "--shell"} and set(verbs) & {"--dry-run", "--explain"}
    if len(verbs) > (2 if both else 1):
        raise ClaudeboxError(f"`{verbs[0]}` and `{verbs[1]}` cannot be combined")
    flags = {flag for row in SETTINGS if row.key in given for flag in row.flags}
    for row in SETTINGS:
        if row.needs and row.key in given and flags.isdisjoint(row.needs):
            raise ClaudeboxError(f"`{row.flags[0]}` needs {list_words(row.needs)}")


def list_words(words: Iterable[str]) -> str:
    """Return "`a`, `b` or `c`"."""
    *front, last = [f"`{word}`" for word in words]
    return f"{', '.join(front)} or {last}" if front else last
