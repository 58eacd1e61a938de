"""What claudebox must know of an agent to start it: one row per agent, each in a file of this folder.

Texts marked as templates may name `{home}`, `{workdir}` and `{key}` (the end of a key that enters); those of an API
`{url}`, and those that become variables `{placeholder}`.
"""

from __future__ import annotations

from claudebox.base.records import Value


class ModelService(Value):
    """The API of an agent that reaches it through a Unix socket, with a login of its own."""

    host: str = ""
    official: str = ""  # the address that is asked if no other is named
    base_url: str = ""  # variable: another address
    credentials: tuple[str, ...] = ()  # variables, in the order in which the agent prefers them; a login comes last
    login_variable: str = ""  # the one of them that stands for a login
    certificate: tuple[str, ...] = ()  # variables: a certificate of the user's own, its key, the key's passphrase
    headers: str = ""  # variable: further headers, one per line
    clouds: tuple[tuple[str, str, str], ...] = ()  # variable that chooses another service, its name, what must enter
    login: LoginFile | None = None
    login_traits: tuple[tuple[str, str], ...] = ()  # fields of it that are no secrets, and their variables
    account: str = ""  # `PATH:FIELD`, in the instance: whose login was made inside
    socket: str = ""  # path inside, of the broker's socket
    socket_variable: str = ""
    placeholder: str = ""  # what the agent inside holds instead of a credential
    nowhere: str = ""  # what it takes for the API's address: it cannot be resolved
    first_party: str = ""  # variable: behind the broker is the official API
    api: Upstream | None = None  # what of it is open

    @property
    def brokered(self) -> tuple[str, ...]:
        """Variables that claudebox sets where a broker holds the credential."""
        return (*self.credentials, self.base_url, self.socket_variable) if self.socket else ()


class LoginFile(Value):
    """A login of an agent: a file of JSON on the host; its fields are named `FIELD.FIELD`."""

    path: str  # `~/PATH`
    access: str  # the field with the token that requests carry
    refresh: str  # the field with the token that brings a new one
    url: str  # where that is sent
    client: str  # the agent's public name there
    again: str  # what the user does where the login is no longer accepted
    secret: str = ""  # of that client: as public as its name
    form: bool = False  # it is sent as a form instead of JSON
    expires: str = ""  # the field with the end of the token, in milliseconds; else the token says so itself
    renewed: str = ""  # the field with the time of the last renewal
    more: tuple[tuple[str, str], ...] = ()  # other fields of an answer, and those of the file that they become
    headers: tuple[tuple[str, str], ...] = ()  # fields of the file, and those of the head that they become
    official: str = ""  # the API that takes the token, if not the one that takes keys
    # Directories by which the agent locks it, or at least we do: `{path}` is the file, wherever a link leads.
    locks: tuple[str, ...] = ("{path}.lock",)
    write_lock: str = ""  # the one around its writing
    flock: bool = False  # they are files, locked by flock(2)


class Seed(Value):
    """A file of the agent's state that answers its first questions."""

    path: str  # in the home, in one of the agent's directories
    content: str  # template; a JSON document is merged into what there is, other text is written where nothing is
    lock: str = ""  # the directory beside it by which the agent locks it


class Upstream(Value):
    """One API that an agent asks over plain HTTP on loopback, where the broker adds the key."""

    name: str
    keys: tuple[str, ...]  # variables of the host that hold the key, in the order of preference
    official: str  # the address that is asked if no other is named
    base_url: str = ""  # variable of the host: another address
    header: str = "authorization"
    prefix: str = "Bearer "
    env: tuple[tuple[str, str], ...] = ()  # variables inside; templates
    args: tuple[str, ...] = ()  # templates
    paths: tuple[tuple[str, str], ...] = ()  # method, path below the address; `*` is one part, or the rest of one
    fields: tuple[str, ...] = ()  # of the head, that pass besides the usual ones; `x-*` is any rest
    queries: tuple[str, ...] = ()  # `NAME`, or `NAME=VALUE`
    usage: str = "chat"  # how usage is read and errors are spelled: `anthropic`, `responses`, `chat`, `gemini`
    # Of the agent on the host, that may hold the key: `~/PATH:FIELD.FIELD`, where a FIELD may be `*`, or `~/.env:NAME`.
    files: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()  # variables of the host, and fields of the head that they become
    key_query: str = ""  # the part of the query that some clients send the key in
    placeholder: str = ""  # how it must begin
    login: LoginFile | None = None  # where no variable holds a key; without `keys`, where no other API has one
    seeds: tuple[Seed, ...] = ()  # besides the agent's, where this API is asked


class Extras(Value):
    """What an agent has that shares settings and a login with the host: Claude Code alone, so far."""

    background: dict[str, str] = {}  # noqa: RUF012 - flags for sessions in the background, and ours instead
    own_search: frozenset[str] = frozenset()  # words that look for the agent's own programs in the home
    resume_hint: bytes = b""  # the line before the one that says how to resume
    servers: str = ""  # subcommand for MCP servers, and the name that brings them in with `inherit`
    server_lists: frozenset[str] = frozenset()  # what follows it to look at the list or change it
    servers_home: str = ""  # file in the home of the host that has them
    servers_file: str = ""  # path inside
    answers: tuple[tuple[str, str], ...] = ()  # path inside and content of files that answer what a conversation asks
    login: str = ""  # directory inside, around the login's own
    statuses: str = ""  # directory below the instance, with files of JSON whose `status` says whether it waits
    managed: str = ""  # settings of the machine's administrator
    not_inherited: frozenset[str] = frozenset()  # in its directory: state, caches and logins, which never come in
    texts: tuple[str, ...] = ()  # in its directory: instructions, commands and the like, which the user is asked about
    env_of_root: tuple[tuple[str, str, str], ...] = ()


class AgentKind(Value):
    """An agent: its program, its words, its files and its API."""

    name: str  # of the program
    title: str = ""  # for people
    install: str = ""  # the command that installs it
    package: str = ""  # as npm or PyPI calls it
    places: tuple[str, ...] = ()  # where it is found besides PATH
    native: tuple[str, ...] = ()  # below node_modules: the program itself, where npm has left a stub; `{machine}`
    interpreted: bool = True  # it may be a script; else only a program of its own will do
    least: tuple[int, ...] = ()  # the oldest version that works
    tried: tuple[int, ...] = ()  # the newest that was tried

    always: tuple[str, ...] = ()  # arguments of every start; templates
    printing: frozenset[str] = frozenset()  # words that ask for an answer without a conversation
    subcommands: frozenset[str] = frozenset()  # words that take everything after them (D-01)
    unarmed: frozenset[str] = frozenset()  # subcommands that do not take `always`
    not_inside: dict[str, tuple[str, str]] = {}  # noqa: RUF012 - never changed; words: why not, and what to do instead
    task: tuple[str, ...] = ()  # words for an answer as JSON; the prompt comes on standard input
    task_env: tuple[tuple[str, str], ...] = ()  # numbers for a task, where the host has no other
    said: str = ""  # the field of that with the last words; without it they are the end of a text
    resume: tuple[str, ...] = ()  # words that continue the last conversation, or the one called `{id}`

    directory: str = ""  # the agent's own in the home of the host
    state: tuple[tuple[str, str], ...] = ()  # path in the home inside, and directory of the instance that is kept there
    seeds: tuple[Seed, ...] = ()
    transcripts: str = ""  # files of conversations, below the instance; `*` in a part of the path
    instructions: str = ""  # read at every start, in the home unless absolute

    env: tuple[tuple[str, str, str], ...] = ()  # variables inside: name, template, reason
    keys: tuple[str, ...] = ()  # variables that enter with the credential where no broker holds it
    passed: tuple[tuple[str, str, str], ...] = ()  # that pass from the host, as in `tables/environment.py`
    protected: tuple[tuple[str, str], ...] = ()  # paths of a project that it executes or obeys, and why
    hidden: tuple[tuple[str, str], ...] = ()  # paths of the home with its logins and conversations, and why

    extras: Extras = Extras()
    upstream: ModelService = ModelService()
    upstreams: tuple[Upstream, ...] = ()

    @property
    def logins(self) -> tuple[LoginFile, ...]:
        """Return the logins of the host that it uses."""
        found = (self.upstream.login, *(row.login for row in self.upstreams))
        return tuple(login for login in found if login is not None)

    @property
    def hides(self) -> tuple[tuple[str, str], ...]:
        """Return what is hidden, and why: files with logins and keys also by themselves, as each may be a link."""
        files = (
            *(row.path for row in self.logins),
            *(row.rpartition(":")[0] for api in self.upstreams for row in api.files),
        )
        beneath = tuple(f"~/{path}/" for path, _ in self.hidden)
        return (*self.hidden, *((path[2:], f"a login of {self.name}") for path in files if path.startswith(beneath)))

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Return the variables of the host that hold keys for models."""
        return (*self.upstream.credentials, *(name for row in self.upstreams for name in row.keys))

    @property
    def brokered(self) -> tuple[str, ...]:
        """Return the variables that claudebox sets where a broker holds the credential."""
        return (*self.upstream.brokered, *(name for row in self.upstreams for name, _ in row.env))

    @property
    def program(self) -> str:
        """Return its path inside."""
        return f"/run/claudebox/bin/{self.name}"
