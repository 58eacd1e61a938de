"""Programs of the user's home that are not inside: what brings each in, for shells inside and for `--exec`."""

from __future__ import annotations

from claudebox.host import programs
from claudebox.plan.records import Mount, Variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.records import Host, KeptOut


_TABLE = "/run/claudebox/absent"  # inside: names, each with a sentence
_VARIABLE = "BASH_FUNC_command_not_found_handle%%"  # a function that bash calls
_HANDLER = f"""() {{
 local name words
 while IFS=$'\\t' read -r name words; do
  [ "$name" = "$1" ] && printf 'claudebox: %s\\n' "$words" >&2
 done <{_TABLE}
 printf 'bash: %s: command not found\\n' "$1" >&2
 return 127
}}"""


def find_absent(host: Host, outside: tuple[KeptOut, ...]) -> dict[str, str]:
    """Return the programs that are `outside`, each with a sentence that says what brings it in."""
    found: dict[str, str] = {}
    listed = dict(host.tools.outside)
    for row in outside:
        for name in listed.get(row.path, ()):
            place = programs.spell(row.path.removesuffix(f"/{name}"), host.home)
            sentence = f"{name} of {place} is not inside: {programs.describe(row, host.home)}"
            if sentence.isprintable():
                found.setdefault(name, sentence)
    return found


def plan_mounts(absent: dict[str, str]) -> Iterator[Mount]:
    """Yield the table that shells inside read."""
    if absent:
        content = "".join(f"{name}\t{sentence}\n" for name, sentence in absent.items())
        reason = "names programs that are not inside"
        yield Mount(_TABLE, "file", reason, content=content.encode("utf-8", "surrogateescape"), mode=0o444)


def plan_variables(absent: dict[str, str], host: Host) -> Iterator[Variable]:
    """Yield the function by which bash names what would bring a missing program in."""
    if absent and host.system.bash:
        yield Variable(_VARIABLE, _HANDLER, "claudebox", "lets bash say what brings a missing program in")
