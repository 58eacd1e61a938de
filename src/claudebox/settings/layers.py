"""What a user asked for: flags and layers, merged by the rows of the table, each value with its origin.

And the `Policy` that follows, checked as far as possible without reading the machine.
"""

from __future__ import annotations

from claudebox import build_paths
from claudebox.agent import kinds
from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.network.tiers import TIERS, Tier
from claudebox.settings import parsers
from claudebox.settings.parsers import AUTO, NONE
from claudebox.settings.records import Constant, LimitRequest, NameRequest, Policy, Setting, UndoRequest
from claudebox.settings.table import SETTINGS
from claudebox.tables.environment import RESERVED_PORTS
from claudebox.tables.paths import UNKEPT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from claudebox.agent.record import AgentKind
    from claudebox.settings.files import SettingsReader
    from claudebox.settings.records import Program
    from claudebox.settings.verbs import Verb


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
    words: tuple[str, ...] = ()  # the agent's arguments, or the operands of a verb
    verb: str = ""
    argv: tuple[str, ...] = ()  # as they came
    agent: AgentKind = kinds.find_kind(kinds.USUAL)
    client: str = ""  # the client's own path, where an editor starts claudebox as its process wrapper
    start: str = ""  # the working directory, if the project is the whole repository around it
    reader: SettingsReader | None = None  # which has already read the user's files

    @property
    def action(self) -> Setting | None:
        """Return the row of a flag that does something else than starting the client."""
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
            if layer.origin == "flags" and key not in rows:  # a verb's own
                given[key] = values
            else:
                given[key] = (*given.get(key, ()), *values) if rows[key].grows else values
    return flags.replace(given=given, reader=None)


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


def parse_arguments(argv: Sequence[str], agent: AgentKind = Settings.agent) -> Settings:
    """Return the verb, the flags, and the arguments that are not ours."""
    if argv and argv[0].startswith("/") and argv[0].rpartition("/")[2] in (agent.name, f"{agent.name}.exe"):
        return Settings({}, tuple(argv[1:]), agent=agent, client=argv[0])  # an editor's: no flag of ours
    read = _Arguments(argv, agent)
    read.take_all()
    given = {key: tuple(values) for key, values in read.given.items()}
    words, verb = tuple(read.words), read.verb
    if verb is None:
        _check_actions(given, words)
    elif "help" not in given:
        verb.check_words(tuple(row.value for row in given.get(verb.word, ())) if verb.launches else words)
    return Settings(given, words, verb.word if verb else "", tuple(argv), read.agent)


class _Arguments:
    """Reads arguments from left to right; what it has read decides what the next word means."""

    def __init__(self, argv: Sequence[str], agent: AgentKind) -> None:
        self.given: dict[str, list[SettingValue]] = {}
        self.words: list[str] = []
        self.verb: Verb | None = None
        self.agent = agent
        self._rows = {flag: row for row in SETTINGS for flag in row.flags}
        self._rest = list(reversed(argv))

    def take_all(self) -> None:
        while self._rest:
            word = self._rest.pop()
            if word == "--":
                self._take_rest()
            elif not self._take_flag(word):
                if self.verb is not None and not self.verb.launches:
                    self._take_operand(self.verb, word)
                elif self.verb is not None and self.verb.word not in self.given:
                    self._take_name(self.verb, word)
                elif self.words or self._runs_program() or not self._take_first(word):
                    self._take_word(word)

    def _runs_program(self) -> bool:
        """Return whether what is not ours belongs to a command or a shell instead of the agent."""
        return "exec" in self.given or "shell" in self.given

    def _take_rest(self) -> None:
        self.words += reversed(self._rest)
        self._rest = []

    def _take_flag(self, word: str) -> bool:
        """Take a flag of ours, with the word behind it if it needs a value."""
        flag, assigned, value = word.partition("=")
        if not (self._runs_program() or (self.verb and not self.verb.launches)):
            flag = self.agent.extras.background.get(flag, flag)
        row = self._rows.get(flag)
        if row is None:
            return False
        if row.shape == "switch":
            if assigned:
                raise ClaudeboxError(f"`{flag}` takes no value", hint=f"write `{flag}` alone")
            self.given[row.key] = [SettingValue("yes", flag)]
            return True
        if not assigned:
            if not self._rest:
                raise ClaudeboxError(f"`{flag}` needs a value: `{flag} {row.metavar}`")
            value = self._rest.pop()
        if row.key == "set":
            self._set(value, flag)
            return True
        if row.assigned and "=" in value:
            row = next(other for other in SETTINGS if other.key == row.assigned)
        self.given.setdefault(row.key, []).append(_checked(row, SettingValue(value, flag)))
        return True

    def _set(self, assignment: str, flag: str) -> None:
        """Take a setting by its key, checked as in a file."""
        from claudebox.settings import document

        row, values = document.read_assignment(assignment, flag)
        before = self.given.get(row.key, []) if row.grows else []
        self.given[row.key] = [*before, *values]

    def _take_first(self, word: str) -> bool:
        """Take a verb, or the name of an agent with everything behind it."""
        verb = _find_verb(word) if self.verb is None else None
        if verb is not None:
            verb.check_given(self.given, self._rows)
            self.verb, self._rows = verb, verb.rows(self._rows)
            return True
        agent = find_agent(word)
        if agent is not None:
            self.agent = agent
            self.given["agent"] = [SettingValue(agent.name, f"claudebox {agent.name}")]
            self._take_rest()
        return agent is not None

    def _take_operand(self, verb: Verb, word: str) -> None:
        if word[:1] == "-" and len(word) > 1:
            raise verb.unknown_flag(word)
        self.words.append(word)

    def _take_name(self, verb: Verb, word: str) -> None:
        """Take the operand of a verb that launches."""
        if word[:1] == "-":  # its value could become the name
            verb.check_words(())
        self.given[verb.word] = [SettingValue(word, verb.word)]

    def _take_word(self, word: str) -> None:
        """Take an argument of the agent, or of the program to run."""
        if word.startswith("--"):
            _refuse_former(word.partition("=")[0])
        self.words.append(word)
        own = len(self.words) == 1 and word in self.agent.subcommands
        if own or ("exec" in self.given and word[:1] != "-"):
            self._take_rest()  # of the program, or of a subcommand of the agent


def _find_verb(word: str) -> Verb | None:
    """Return the row of a first word; the table is loaded only for what may stand in it."""
    if not (word.isascii() and word.isalpha() and word.islower()):
        return None
    from claudebox.settings import verbs

    return verbs.find_verb(word)


def choose_agent(flags: Settings, environ: Mapping[str, str], layers: Sequence[Layer] = ()) -> Settings:
    """Read the arguments again if they are another agent's than they were taken for."""
    wanted = look_up("agent", flags, environ, layers)
    if not wanted or wanted[-1].value == flags.agent.name or flags.client:
        return flags
    name = wanted[-1].value
    agent = find_agent(name)
    if agent is None:
        known = ", ".join(kinds.list_names())
        raise ClaudeboxError(f"`{wanted[-1].origin}`: there is no agent `{name}`", hint=f"there are {known}")
    read = parse_arguments(flags.argv, agent) if flags.argv else flags.replace(agent=agent)
    return read.replace(start=flags.start, reader=flags.reader)


def find_agent(word: str) -> AgentKind | None:
    """Return the agent of this name; everything behind it is its own."""
    return kinds.find_kind(word) if word in kinds.list_names() else None


def _refuse_former(flag: str) -> None:
    from claudebox.settings import verbs

    verbs.refuse_former(flag)


def _checked(row: Setting, given: SettingValue) -> SettingValue:
    if row.choices and given.value not in row.choices:
        raise ClaudeboxError(f"`{given.origin}` must be {list_words(row.choices)}, not `{given.value}`")
    if "\0" in given.value or not given.value:
        raise ClaudeboxError(f"`{given.origin}` needs a value: `{given.origin} {row.metavar}`")
    return given


def _check_actions(given: Mapping[str, tuple[SettingValue, ...]], words: tuple[str, ...]) -> None:
    """Refuse flags of which each does something else, and flags without the one that they belong to."""
    actions = [row.flags[-1] for row in SETTINGS if row.runs and row.key in given]
    if "--help" in actions or "--version" in actions:
        return
    both = set(actions) & {"--exec", "--shell"} and set(actions) & {"--dry-run", "--explain"}
    if len(actions) > (2 if both else 1):
        raise ClaudeboxError(f"`{actions[0]}` and `{actions[1]}` cannot be combined")
    if words and actions in (["--check"], ["--verify"]):
        hint = "it starts no agent: leave out what is for the agent"
        raise ClaudeboxError(f"`{actions[0]}`: unexpected argument `{words[0]}`", hint=hint)
    flags = {flag for row in SETTINGS if row.key in given for flag in row.flags}
    for row in SETTINGS:
        if row.needs and row.key in given and flags.isdisjoint(row.needs):
            raise ClaudeboxError(f"`{row.flags[0]}` needs {list_words(row.needs)}")


def list_words(words: Iterable[str]) -> str:
    """Return "`a`, `b` or `c`"."""
    *front, last = [f"`{word}`" for word in words]
    return f"{', '.join(front)} or {last}" if front else last


def decide_policy(settings: Settings, *, home: str, workdir: str) -> Policy:
    """Return what the settings ask for."""
    workdir = settings.start or workdir
    program: Program = "exec" if settings.on("exec") else "shell" if settings.on("shell") else "client"
    if program == "exec" and not any(settings.words[:1]):
        raise ClaudeboxError("`--exec` needs a command", hint="write it after `--`: `claudebox --exec -- make test`")
    if program == "exec" and settings.words[0].startswith("-"):
        raise ClaudeboxError(
            f"`--exec`: `{settings.words[0]}` is not the name of a program",
            hint="write `./-name` for a file of the project",
        )
    if program == "shell" and settings.words and not settings.words[0].startswith("-"):
        hint = f"`claudebox --exec -- {settings.words[0]}` runs a command"
        raise ClaudeboxError(f"`--shell` does not take `{settings.words[0]}`", hint=hint)
    if program == "client":
        _check_words(settings.agent, settings.words)
    network, asked = settings.one("network"), _read_fields(settings)
    limits, undo, budget = (_record(asked, name) for name in ("limits", "undo", "budget"))
    mounts = (parsers.resolve(request, home, workdir) for request in asked.pop("mounts", ()))
    shows_path, toolchains = _decide_toolchains(asked.pop("toolchains", ()))
    policy = Policy(
        program=program,
        agent=settings.agent,
        agent_named=bool(settings.all("agent")),
        words=settings.words,
        client=settings.client,
        start=settings.start,
        network_origin=network.origin,
        nix_origin=settings.one("nix").origin,
        project_secrets_origin=settings.one("project_secrets").origin,
        domains=_domains(settings, network),
        mounts=_distinct(mounts),
        hides_path=not shows_path,
        toolchains=toolchains,
        budget=(budget.get("dollars", 0), budget.get("tokens", 0)),
        refuse_secrets=settings.on("yes") and settings.one("secret_variables").value == "refuse",
        limits=LimitRequest(**limits) if limits else None,
        undo=_undo(undo, program),
        **asked,
    )
    _check_network(settings, policy)
    for request in policy.inherit:
        if request.name in policy.agent.extras.not_inherited:
            raise ClaudeboxError(f"`{request.origin}`: `{request.name}` is state of the host's client and stays there")
    if not (policy.tier.uplink or policy.tier.listed):
        policy = policy.replace(addresses=())
    if settings.all("scratch_size") and policy.scratch == "disk":
        raise ClaudeboxError(
            "`scratch_size` limits memory, and `--set scratch=disk` takes none", hint="use one of them"
        )
    if settings.all("secrets"):
        from claudebox.settings import secrets as settings_secrets

        policy = policy.replace(
            secrets=settings_secrets.decide_secrets(settings, network, policy.names, policy.constants)
        )
    return policy


def _decide_toolchains(requests: Iterable[NameRequest]) -> tuple[bool, tuple[NameRequest, ...]]:
    """Return whether the host's PATH is shown, and toolchains by name; what a project adds takes nothing away.

    The package for Nix has a PATH of its own, and shows another by choice only.
    """
    shows_path, untouched = not build_paths.STORE_PATH, True
    named: list[NameRequest] = []
    for request in requests:
        if request.name in (AUTO, NONE) or (untouched and not request.untrusted):
            shows_path = request.name == AUTO
            named = named if shows_path else [row for row in named if row.untrusted]
        untouched = untouched and request.untrusted
        if request.name not in (AUTO, NONE):
            named.append(request)
    return shows_path, tuple(named)


def _read_fields(settings: Settings) -> dict[str, Any]:
    """Return the fields of the policy that rows of the table fill."""
    found: dict[str, Any] = {}
    for row in SETTINGS:
        given = settings.all(row.key)
        if not row.field or not given or (row.shape == "switch" and not settings.on(row.key)):
            continue
        if row.grows:
            read = tuple(row.parse(value) if row.parse else value.value for value in given)
            found[row.field] = _distinct((*found.get(row.field, ()), *read))
        elif row.parse is not None:
            found[row.field] = row.parse(given[-1])
        else:
            found[row.field] = row.shape == "switch" or given[-1].value
    return found


def _record(asked: dict[str, Any], name: str) -> dict[str, Any]:
    """Remove the fields of one record, and return them."""
    keys = [key for key in asked if key.startswith(f"{name}.")]
    return {key.removeprefix(f"{name}."): asked.pop(key) for key in keys}


def _distinct(requests: Iterable[Any]) -> tuple[Any, ...]:
    """Return each request once: the user's before a project's, but the last value of a variable."""
    found: dict[object, Any] = {}
    for request in requests:
        subject = _subject(request)
        first = found.get(subject)
        if isinstance(request, Constant) or first is None or (first.untrusted and not request.untrusted):
            found[subject] = request
        if getattr(request, "programs", False) or getattr(first, "programs", False):
            found[subject] = found[subject].replace(programs=True)
    return tuple(found.values())


def _subject(request: Any) -> object:
    """Return what requests for the same thing have in common."""
    if not isinstance(request, Value):
        return request
    rest = ("origin", "untrusted", "programs", "value")
    return tuple(getattr(request, name) for name in type(request).__annotations__ if name not in rest)


def _check_words(agent: AgentKind, words: tuple[str, ...]) -> None:
    """Refuse what the agent cannot do inside, before it fails there with advice for another machine."""
    for number, word in enumerate(words):
        name = word.partition("=")[0]
        if name in agent.not_inside and (not number or name.startswith("-")):
            why, instead = agent.not_inside[name]
            raise ClaudeboxError(f"`{agent.name} {name}` is switched off: {why}", hint=instead)


def _undo(asked: dict[str, Any], program: Program) -> UndoRequest | None:
    """Return what a snapshot keeps; a command or a shell gets one only if `undo_keep` was set."""
    if program != "client" and "keep" not in asked:
        return None
    excluded = (*UNKEPT, *asked.pop("excluded", ()))
    undo = UndoRequest(**asked, excluded=excluded, patient=program == "client")
    return undo if undo.keep else None


def _check_network(settings: Settings, policy: Policy) -> None:
    """Refuse flags without effect in this tier; addresses and domains in files are for other tiers."""
    tier = policy.tier
    opened = [(given, parsers.port(given)) for given in settings.all("allow_host_port")]
    opened += [(given, parsers.published(given).inside) for given in settings.all("publish")]
    for given, port in opened:
        if tier.shared:
            hint = "remove it, or choose `--network inet`, `allow` or `none`"
            raise _no_effect(given, tier, "host and sandbox share all ports", hint)
        if tier.listed and port in RESERVED_PORTS:
            raise parsers.refusal(given, f"port {port} inside is claudebox's own in tier `{tier.name}`")
    for port in policy.host_ports:
        if any(port == row.inside for row in policy.published):
            problem = f"port {port} cannot be both the host's and the sandbox's"
            raise ClaudeboxError(problem, hint="publish another port")
    for given in settings.all("allow_address"):
        if given.origin.startswith("-") and not (tier.uplink or tier.listed):
            raise _no_effect(given, tier, tier.closed, "add `--network inet`")
    for given in settings.all("allow_domain"):
        if given.origin.startswith("-") and not tier.listed:
            raise _no_effect(given, tier, "no domains are listed", "add `--network allow`")


def _no_effect(given: SettingValue, tier: Tier, why: str, hint: str) -> ClaudeboxError:
    return ClaudeboxError(f"`{given.origin}` has no effect with `--network {tier.name}`: {why}", hint=hint)


def _domains(settings: Settings, network: SettingValue) -> tuple[NameRequest, ...]:
    wanted = settings.all("allow_domain")
    if not wanted or not TIERS[network.value].listed:
        return ()
    from claudebox.settings import domains as settings_domains

    groups = read_groups(settings)
    found = (
        NameRequest(str(domain), origin, given.untrusted)
        for given in wanted
        for domain, origin in settings_domains.expand(((given.value, given.origin),), groups)
    )
    return _distinct(found)


def read_groups(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the user's own groups of domains."""
    groups: dict[str, tuple[str, ...]] = {}
    for given in settings.all("domains"):
        group, _, host = given.value.partition("=")
        groups[group] = (*groups.get(group, ()), host)
    return groups
