"""The packet filter of a sandbox: rules of nf_tables, put in force over netlink, and read back.

An output hook sees every packet after its address was decided, whatever an unprivileged program does to routes with
SO_BINDTODEVICE or IP_PKTINFO. The chains `machine` and `near` hold the addresses of the host and its neighbourhood, and
grow while the sandbox runs; what a user has opened stands between the two. Refused addresses are kept in a set.
"""

from __future__ import annotations

from sys import byteorder

from claudebox.base import addresses, netlink
from claudebox.base.netlink import attribute, attributes, nest
from claudebox.base.records import Value
from claudebox.base.syscalls import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from claudebox.base.addresses import Prefix
    from claudebox.network.records import Ranges


_TABLE = "claudebox"
OUT, MACHINE, NEAR, REFUSE = "out", "machine", "near", "refuse"
_REFUSED = "refused"  # a set of address and port
_MOST_REFUSED = 512
FAMILIES = (socket.AF_INET, socket.AF_INET6)
_DNS_PORT = 53

# linux/netfilter/nfnetlink.h and nf_tables.h
_SUBSYSTEM = 10
_NEW_TABLE, _NEW_CHAIN, _GET_CHAIN, _NEW_RULE, _GET_RULE, _NEW_SET, _GET_ELEMENTS = 0, 3, 4, 6, 7, 9, 13
_BATCH_BEGIN, _BATCH_END = 16, 17
_OUTPUT_HOOK, _DROP, _ACCEPT = 3, 0, 1
_BEFORE_ROUTING = -100  # the priority of destination NAT
_JUMP, _GOTO = -3, -4
_META_OIF, _META_L4PROTO = 5, 16
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_ICMPV6 = 58
_TCP, _UDP = 6, 17
_SOLICITATIONS = (133, 135, 136)  # of routers and neighbours: without them there is no IPv6
_REJECT_ICMP, _REJECT_RESET = 0, 1
_PROHIBITED: dict[int, int] = {socket.AF_INET: 13, socket.AF_INET6: 1}
_CHANGED_BY_RULES = 0x20  # NFT_SET_EVAL
# Bytes of an address, and the register behind it, for the port.
_REFUSED_KEY: dict[int, tuple[int, int]] = {socket.AF_INET: (4, 9), socket.AF_INET6: (16, 2)}
_LOOPBACK = 1  # index of `lo` in every network namespace


class Chain(Value):
    """A chain of our table."""

    family: int
    name: str
    hooked: bool = False  # it sees every packet that leaves, and drops what its rules do not decide
    redirecting: bool = False  # it sees the first packet of every connection


class Rule(Value):
    """One rule: its expressions, encoded."""

    family: int
    chain: str
    expressions: tuple[bytes, ...]


def chains(families: Iterable[int]) -> tuple[Chain, ...]:
    """Return the chains; those that are jumped to come first."""
    return tuple(Chain(family, name, name == OUT) for family in families for name in (REFUSE, MACHINE, NEAR, OUT))


def fixed(ranges: Ranges, forwarder: str, families: Iterable[int]) -> Iterator[Rule]:
    """Yield the rules of the plan's ranges; only the forwarder of names is excepted, and only for names."""
    dns = addresses.parse_prefix(forwarder)
    for family in families:
        size = 4 if family == socket.AF_INET else 16

        def out(*expressions: bytes, family: int = family) -> Rule:
            return Rule(family, OUT, expressions)

        yield Rule(family, REFUSE, (*_protocol(_TCP), _reject(_REJECT_RESET)))
        yield Rule(family, REFUSE, (_reject(_REJECT_ICMP, _PROHIBITED[family]),))
        yield out(_meta(_META_OIF), _equals(_LOOPBACK.to_bytes(4, byteorder)), _verdict(_ACCEPT))
        if len(dns[0]) == size:
            for protocol in (_UDP, _TCP):
                port = (_payload(_TRANSPORT_HEADER, 2, 2), _equals(_DNS_PORT.to_bytes(2, "big")))
                yield out(*_destination(dns), *_protocol(protocol), *port, _verdict(_ACCEPT))
        if family == socket.AF_INET6:
            for kind in _SOLICITATIONS:
                body = (_payload(_TRANSPORT_HEADER, 0, 1), _equals(bytes([kind])))
                yield out(*_protocol(_ICMPV6), *body, _verdict(_ACCEPT))
        yield from _closed(ranges, family, always=True)
        yield out(_verdict(_JUMP, MACHINE))
        for row in ranges.opened:
            place = addresses.parse_prefix(row.prefix)
            if len(place[0]) != size:
                continue
            if not row.port:
                yield out(*_destination(place), _verdict(_ACCEPT))
                continue
            port = (_payload(_TRANSPORT_HEADER, 2, 2), _equals(row.port.to_bytes(2, "big")))
            for protocol in (_TCP, _UDP):
                yield out(*_destination(place), *_protocol(protocol), *port, _verdict(_ACCEPT))
        yield out(_verdict(_JUMP, NEAR))
        yield from _closed(ranges, family, always=False)
        for opened in ranges.open6 if family == socket.AF_INET6 else ("0.0.0.0/0",):
            yield out(*_destination(addresses.parse_prefix(opened)), _verdict(_ACCEPT))
        yield out(_verdict(_GOTO, REFUSE))


def _closed(ranges: Ranges, family: int, *, always: bool) -> Iterator[Rule]:
    """Yield the rules against ranges of one family, NAT64's form of the others too."""
    for row in ranges.barred:
        prefix = addresses.parse_prefix(row.prefix)
        if row.always != always or (len(prefix[0]) == 16 and family == socket.AF_INET):
            continue
        wide = addresses.embedded(prefix) if len(prefix[0]) == 4 and family == socket.AF_INET6 else prefix
        yield Rule(family, OUT, (*_destination(wide), _verdict(_GOTO, REFUSE)))


def redirect(prefix: Prefix, port: int, chain: str) -> Rule:
    """Return the rule that redirects every TCP connection to these addresses to a port of the loopback."""
    load = _expression("immediate", attribute(1, _number(1)), nest(2, attribute(1, port.to_bytes(2, "big"))))
    to_port = _expression("redir", attribute(1, _number(1)))
    return Rule(socket.AF_INET, chain, (*_destination(prefix), *_protocol(_TCP), load, to_port))


def machine(prefixes: Iterable[Prefix], families: Iterable[int], chain: str) -> Iterator[Rule]:
    """Yield the rules against addresses of the host or its neighbourhood, NAT64's form of them too."""
    for prefix in prefixes:
        if len(prefix[0]) == 4:
            yield Rule(socket.AF_INET, chain, (*_destination(prefix), _verdict(_GOTO, REFUSE)))
        if socket.AF_INET6 in families:
            wide = addresses.embedded(prefix) if len(prefix[0]) == 4 else prefix
            yield Rule(socket.AF_INET6, chain, (*_destination(wide), _verdict(_GOTO, REFUSE)))


def recording(families: Iterable[int]) -> Iterator[Rule]:
    """Yield the rules that keep what is refused, for the front of their chain; they decide nothing."""
    for family in families:
        size, second = _REFUSED_KEY[family]
        key = (_payload(_NETWORK_HEADER, 16 if size == 4 else 24, size), _payload(_TRANSPORT_HEADER, 2, 2, second))
        keep = _expression("dynset", attribute(1, _name(_REFUSED)), attribute(3, _number(0)), attribute(4, _number(1)))
        for protocol in (_TCP, _UDP):
            yield Rule(family, REFUSE, (*_protocol(protocol), *key, keep))


def find_unbarred(found: set[Prefix], known: set[Prefix], ranges: Ranges, *, own: bool) -> list[Prefix]:
    """Return the prefixes found that neither the plan nor a known one bars yet, shortest first.

    The host's own addresses are barred in front of what a user has opened, the others behind that.
    """
    fixed = [addresses.parse_prefix(row.prefix) for row in ranges.barred if row.always or not own or not ranges.opened]
    opened = [addresses.parse_prefix(text) for text in (*ranges.open6, *(row.prefix for row in ranges.opened if own))]
    kept: list[Prefix] = []
    for prefix in sorted(found, key=lambda prefix: (len(prefix[0]), prefix[1], prefix[0])):
        inside = any(addresses.covers(one, prefix) or addresses.covers(prefix, one) for one in opened)
        if len(prefix[0]) == 16 and not inside:
            continue
        if not any(addresses.covers(one, prefix) for one in (*fixed, *known, *kept)):
            kept.append(prefix)
    return kept


# Putting rules in force.


def install(channel: socket.socket, new_chains: Sequence[Chain], rules: Sequence[Rule]) -> None:
    """Put chains and rules in force, all or nothing, and read them back; raise OSError if that fails."""
    families = tuple(dict.fromkeys(chain.family for chain in new_chains))
    messages = [_message(_NEW_TABLE, family, attribute(1, _name(_TABLE))) for family in families]
    messages += [_message(_NEW_CHAIN, chain.family, described(chain)) for chain in new_chains]
    _transact(channel, [*messages, *(_rule_message(rule, netlink.APPEND) for rule in rules)])
    for chain in new_chains:
        sent = [expressions(rule) for rule in rules if (rule.family, rule.chain) == (chain.family, chain.name)]
        found = [body for body in _list(channel, _GET_RULE, chain.family) if _chain_of(body) == chain.name]
        if len(sent) != len(found) or not all(map(holds, sent, found)):
            raise OSError(f"the kernel does not hold the rules that it was given (chain `{chain.name}`)")
        if not any(holds(described(chain), body) for body in _list(channel, _GET_CHAIN, chain.family)):
            raise OSError(f"the kernel does not hold the chain `{chain.name}` that it was given")


def add(channel: socket.socket, rules: Iterable[Rule]) -> None:
    """Append rules to chains that are in force."""
    _transact(channel, [_rule_message(rule, netlink.APPEND) for rule in rules])


def record(channel: socket.socket, families: Iterable[int]) -> None:
    """Have the kernel keep what is refused; raise OSError if it has no dynamic sets."""
    messages = []
    for family in families:
        numbers = ((3, _CHANGED_BY_RULES), (5, _REFUSED_KEY[family][0] + 4), (10, 1))
        body = attribute(1, _name(_TABLE)) + attribute(2, _name(_REFUSED))
        body += b"".join(attribute(kind, _number(value)) for kind, value in numbers)
        messages.append(_message(_NEW_SET, family, body + nest(9, attribute(1, _number(_MOST_REFUSED)))))
        messages += [_rule_message(rule, 0) for rule in recording((family,))]
    _transact(channel, messages)


def refused(channel: socket.socket, families: Iterable[int]) -> Iterator[tuple[bytes, int]]:
    """Yield address and port of what was refused since the set was made."""
    for body in (body for family in families for body in _list(channel, _GET_ELEMENTS, family)):
        for _, _, element in (row for kind, _, rows in attributes(body) if kind == 3 for row in attributes(rows)):
            parts = {kind: value for kind, _, value in attributes(element)}
            key = next((value for kind, _, value in attributes(parts.get(1, b"")) if kind == 1), b"")
            if len(key) in (8, 20):
                yield key[:-4], int.from_bytes(key[-4:-2], "big")


def _transact(channel: socket.socket, messages: list[bytes]) -> None:
    """Send messages as one transaction."""
    begin, end = (
        netlink.header(kind, netlink.REQUEST, bytes(3) + bytes([_SUBSYSTEM])) for kind in (_BATCH_BEGIN, _BATCH_END)
    )
    netlink.transact(channel, b"".join((begin, *messages, end)), len(messages))


def _list(channel: socket.socket, kind: int, family: int) -> list[bytes]:
    """Return what our table holds of a kind, as attributes."""
    body = bytes([family, 0, 0, 0])
    if kind != _GET_CHAIN:  # which takes no table
        body += attribute(1, _name(_TABLE))
    if kind == _GET_ELEMENTS:
        body += attribute(2, _name(_REFUSED))
    return [answer[4:] for _, answer in netlink.dump(channel, _SUBSYSTEM << 8 | kind, body)]


def _rule_message(rule: Rule, flags: int) -> bytes:
    body = attribute(1, _name(_TABLE)) + attribute(2, _name(rule.chain)) + expressions(rule)
    return _message(_NEW_RULE, rule.family, body, flags)


def _message(kind: int, family: int, body: bytes, flags: int = 0) -> bytes:
    flags |= netlink.REQUEST | netlink.ACK | netlink.CREATE
    return netlink.header(_SUBSYSTEM << 8 | kind, flags, bytes([family, 0, 0, 0]) + body)


def described(chain: Chain) -> bytes:
    """Return the attributes of a chain, as they are sent and as they must come back."""
    body = attribute(1, _name(_TABLE)) + attribute(3, _name(chain.name))
    if chain.redirecting:
        body += nest(4, attribute(1, _number(_OUTPUT_HOOK)), attribute(2, _number(_BEFORE_ROUTING)))
        return body + attribute(5, _number(_ACCEPT)) + attribute(7, _name("nat"))
    if not chain.hooked:
        return body
    body += nest(4, attribute(1, _number(_OUTPUT_HOOK)), attribute(2, _number(0)))
    return body + attribute(5, _number(_DROP)) + attribute(7, _name("filter"))


def _chain_of(body: bytes) -> str:
    """Return the name of the chain of a rule, as the kernel describes it."""
    return next((value.rstrip(b"\0").decode() for kind, _, value in attributes(body) if kind == 2), "")


def expressions(rule: Rule) -> bytes:
    """Return the list of expressions of a rule, as it is sent and as it must come back."""
    return nest(4, *(nest(1, expression) for expression in rule.expressions))


def holds(sent: bytes, returned: bytes) -> bool:
    """Return whether the kernel's attributes contain all of ours, in our order; it may add some of its own."""
    theirs = list(attributes(returned))
    for kind, nested, value in attributes(sent):
        while theirs and theirs[0][0] != kind:
            theirs.pop(0)
        if not theirs:
            return False
        other = theirs.pop(0)[2]
        if not (holds(value, other) if nested else value == other):
            return False
    return True


# Attributes and expressions.


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=value < 0)


def _name(text: str) -> bytes:
    return text.encode() + b"\0"


def _expression(name: str, *parts: bytes) -> bytes:
    return attribute(1, _name(name)) + nest(2, *parts)


def _payload(base: int, offset: int, length: int, register: int = 1) -> bytes:
    parts = (register, base, offset, length)
    return _expression("payload", *(attribute(index + 1, _number(part)) for index, part in enumerate(parts)))


def _meta(key: int) -> bytes:
    return _expression("meta", attribute(2, _number(key)), attribute(1, _number(1)))


def _equals(value: bytes) -> bytes:
    return _expression("cmp", attribute(1, _number(1)), attribute(2, _number(0)), nest(3, attribute(1, value)))


def _protocol(number: int) -> tuple[bytes, ...]:
    return _meta(_META_L4PROTO), _equals(bytes([number]))


def _destination(prefix: Prefix) -> tuple[bytes, ...]:
    packed, length = prefix
    size = len(packed)
    if length == 0:
        return ()
    load = _payload(_NETWORK_HEADER, 16 if size == 4 else 24, size)
    if length == size * 8:
        return load, _equals(packed)
    registers = attribute(1, _number(1)) + attribute(2, _number(1)) + attribute(3, _number(size))
    mask = nest(4, attribute(1, addresses.netmask(prefix))) + nest(5, attribute(1, bytes(size)))
    return load, _expression("bitwise", registers + mask), _equals(packed)


def _verdict(code: int, chain: str = "") -> bytes:
    target = attribute(2, _name(chain)) if chain else b""
    return _expression("immediate", attribute(1, _number(0)), nest(2, nest(2, attribute(1, _number(code)) + target)))


def _reject(kind: int, code: int | None = None) -> bytes:
    icmp = b"" if code is None else attribute(2, bytes([code]))
    return _expression("reject", attribute(1, _number(kind)), icmp)
