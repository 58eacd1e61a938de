"""How programs inside use the proxy of this machine: as on the host, or by an entrance that holds its password.

In tier `inet` the proxy is mostly in the LAN, and a password of it never enters: then the broker listens inside, or on
this machine's loopback in tier `full`, and asks the real one. In tier `allow` that is the only way out anyway.
"""

from __future__ import annotations

from claudebox.host_proxy import find_proxy, has_login
from claudebox.plan.model import ENTRANCE, Fetched, Variable
from claudebox.plan.network_model import ProxyConfig, Served
from claudebox.tables.inside import PROXY_PORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.facts.host import Host
    from claudebox.host_proxy import HostProxy
    from claudebox.plan.network_model import Ranges

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")
_HERE = ("localhost", "127.0.0.1", "::1")
_OTHER_PORTS = (3130, 3131, 3132)
_REASON = "the proxy of this machine"


def usable_proxy(environ: dict[str, str]) -> tuple[HostProxy | None, str]:
    """Return the proxy that the broker can ask for connections, and what is wrong with the one that is named."""
    problem = ""
    for scheme in ("https", "http"):
        proxy, said = find_proxy(environ, scheme)
        if proxy is not None and not proxy.tls:
            return proxy, ""
        secure = "HTTPS_PROXY of this machine is a https proxy, and is not used: connections take http alone"
        problem = problem or (secure if proxy is not None else said)
    return None, problem


def plan_entrance(policy: Policy, host: Host, ranges: Ranges) -> ProxyConfig | None:
    """Return what the broker does to lead programs to the proxy of this machine, where it must."""
    proxy, _ = usable_proxy(host.environ)
    if proxy is not None and policy.tier.uplink:
        return ProxyConfig((), ranges, proxy, reach="internet")
    if proxy is not None and policy.tier.shared and _hidden(host):
        return ProxyConfig((), proxy=proxy, reach="everything")
    return None


def served(policy: Policy) -> Served:
    """Return the listener of the entrance in the sandbox's own network, on a port that the user has not given away."""
    taken = (*policy.host_ports, *policy.published)
    return Served("proxy", "stream", next(port for port in (PROXY_PORT, *_OTHER_PORTS) if port not in taken))


def _hidden(host: Host) -> list[str]:
    """Return the variables whose proxy has a login in it."""
    return [name for name in PROXIES if has_login(host.environ.get(name, ""))]


def plan_variables(policy: Policy, host: Host) -> Iterator[Variable]:
    """Yield the variables that lead programs to the proxy."""
    environ = host.environ
    proxy, _ = usable_proxy(environ)
    if policy.tier.uplink:
        if proxy is None:
            return
        bypass = ",".join(dict.fromkeys((*proxy.bypass, *_HERE)))
        for name in PROXIES:
            yield Variable(name, f"http://127.0.0.1:{served(policy).port}", "claudebox", _REASON)
        for name in ("NO_PROXY", "no_proxy"):
            yield Variable(name, bypass, "claudebox", "what is not reached by the proxy")
        return
    hidden = _hidden(host)
    for name in PROXIES:
        if name in hidden and proxy is not None:
            reason = f"{_REASON}; its password stays outside"
            yield Variable(name, "the entrance of the broker", "claudebox", reason, fetched=Fetched(ENTRANCE))
        elif environ.get(name) and name not in hidden:
            yield Variable(name, environ[name], "host", _REASON)
    for name in ("NO_PROXY", "no_proxy"):
        if environ.get(name):
            yield Variable(name, environ[name], "host", "what is not reached by the proxy")


def git_proxy(policy: Policy, host: Host) -> str:
    """Return the proxy that git alone is told of."""
    value = host.company.git_proxy if host.company is not None else ""
    return value if policy.tier.shared and not has_login(value) else ""


def warnings(policy: Policy, host: Host) -> Iterator[str]:
    """Say what of the proxies is not used inside."""
    if policy.tier.isolated:
        return
    if host.company is not None:
        yield from host.company.problems
        unused = host.company.git_proxy and not git_proxy(policy, host)
        if unused and not any(map(host.environ.get, PROXIES)):
            yield "git's http.proxy is not used inside: set HTTPS_PROXY on the host, which counts in every tier"
    proxy, problem = usable_proxy(host.environ)
    if policy.tier.shared:
        if _hidden(host) and proxy is None:
            yield problem or "the proxy of this machine has a password, and is not used inside"
    elif problem:
        yield problem
