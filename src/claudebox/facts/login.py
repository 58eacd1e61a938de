"""Which login or key the client inside would use, and what it says of itself; the tokens are not kept."""

from __future__ import annotations

import os

from claudebox import syscalls
from claudebox.errors import ClaudeboxError
from claudebox.files import read_small
from claudebox.tables import agent
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from claudebox.config.model import Policy
    from claudebox.state import Instance

_LIMIT = 1 << 20
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:.-")


class Login(Value):
    """Where the login comes from."""

    source: Literal["claudebox", "host", "none"] = "none"
    path: str = ""  # the file with the tokens, never mounted
    usable: bool = False  # it was read, and there are tokens in it
    traits: tuple[tuple[str, str], ...] = ()  # what else it says, as variables of the client

    @property
    def known(self) -> bool:
        """Return whether there is one."""
        return self.source != "none"


def find_login(home: str, instance: Instance) -> Login:
    """Return the login to use: claudebox's own before that of the host's client."""
    own = f"{instance.login}/credentials.json"
    if os.path.isfile(own):
        return Login("claudebox", own)
    host = f"{home}/.claude/.credentials.json"
    if os.path.isfile(host):
        return Login("host", host)
    return Login()


def read_login(login: Login) -> Login:
    """Return the same login with what it says of itself; the tokens are not kept."""
    document = syscalls.parse_json(read_small(login.path, limit=_LIMIT, follow=True) or b"")
    tokens = document.get(agent.TOKENS) if isinstance(document, dict) else None
    if not isinstance(tokens, dict) or not isinstance(tokens.get("accessToken"), str):
        return login
    found = []
    for field, variable in agent.LOGIN_TRAITS:
        value = tokens.get(field)
        words = [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
        if words and all(word and set(word) <= _PLAIN for word in words):
            found.append((variable, " ".join(words)))
    return login.replace(usable=True, traits=tuple(found))


def find_credential(environ: dict[str, str], login: Login) -> str:
    """Return the credential that the client would use: the name of a variable, or `login`, or nothing.

    Towards a gateway a certificate or headers of the user's own are one, too.
    """
    named = [name for name in agent.CREDENTIALS if environ.get(name)]
    if not named and not login.usable and environ.get(agent.BASE_URL):
        named = [name for name in (agent.CLIENT_CERTIFICATE, agent.CUSTOM_HEADERS) if environ.get(name)]
    return next(iter(named), "login" if login.usable else "")


def for_broker(
    policy: Policy, environ: dict[str, str], login: Login, *, certificates: bool = False
) -> tuple[Login, tuple[str, ...] | ClaudeboxError]:
    """Look at what a broker would hold, and for the libraries that it would need."""
    if policy.brokered and login.known and not find_credential(environ, login):
        login = read_login(login)
    if not certificates:
        return login, ()
    from claudebox.facts import broker_libraries

    try:
        return login, broker_libraries.find_libraries()
    except ClaudeboxError as problem:
        return login, problem
