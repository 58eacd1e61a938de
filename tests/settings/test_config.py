"""Files of settings: what they may say, what is said about those that are wrong, and how little is believed."""

from __future__ import annotations

import json
import marshal
import os
import re
import stat
import time
import tomllib
from hashlib import sha256

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.settings import document as settings_document
from claudebox.settings import files as settings_files
from claudebox.settings import layers as settings_layers
from claudebox.settings.layers import SettingValue
from claudebox.settings.table import SETTINGS


class Person:
    """A home with files of claudebox, and a project."""

    def __init__(self, base):
        self.home = str(base / "home")
        self.project = str(base / "project")
        self.state = f"{self.home}/.claudebox"
        os.makedirs(f"{self.state}/profiles", mode=0o700)
        os.makedirs(self.project)
        os.chmod(self.state, 0o700)

    def reader(self):
        return settings_files.SettingsReader(self.home)

    def defaults(self, text):
        return self._write(f"{self.state}/config.toml", text)

    def profile(self, name, text):
        return self._write(f"{self.state}/profiles/{name}", text)

    def file(self, text):
        return self._write(f"{self.project}/.claudebox.toml", text)

    def _write(self, path, text):
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        os.chmod(path, 0o644)
        return path

    def read(self, *argv, environ=None):
        flags, reader = settings_layers.parse_arguments(argv), self.reader()
        read = settings_layers.merge(flags, environ or {}, settings_files.layers(flags, environ or {}, reader))
        reader.save()
        return read

    def read_file(self):
        return self.reader().layer(self.reader().project(self.project))

    def refusal(self, *argv):
        with pytest.raises(ClaudeboxError) as caught:
            self.read(*argv)
        assert caught.value.status == 125
        return [caught.value.message, *caught.value.more]


@pytest.fixture
def person(tmp_path):
    return Person(tmp_path)


def test_layers_are_merged_in_their_order_and_each_value_knows_its_origin(person):
    # proves PROF-01, D-03
    person.defaults('network = "none"\nextra_env_passthrough = ["A"]\nprofile = "mine"\n')
    person.profile("mine.toml", '# why\nextends = "base"\nextra_env_passthrough = ["C"]\n')
    person.profile("base.json", '{"network": "full",\n "extra_env_passthrough": ["B"]}')

    read = person.read("--env", "E", environ={"CLAUDEBOX_EXTRA_ENV": "D"})

    assert read.one("network") == SettingValue("full", "~/.claudebox/profiles/base.json:1")
    assert [(given.value, given.origin) for given in read.all("env")] == [
        ("A", "~/.claudebox/config.toml:2"),
        ("B", "~/.claudebox/profiles/base.json:2"),
        ("C", "~/.claudebox/profiles/mine.toml:3"),
        ("D", "CLAUDEBOX_EXTRA_ENV"),
        ("E", "--env"),
    ]


def test_the_files_of_the_user_are_read_once(person, monkeypatch):
    person.defaults('profile = "mine"\n')
    person.profile("mine.toml", 'project = "repository"\n')
    flags, reader = settings_layers.parse_arguments([]), person.reader()
    layers = settings_files.layers(flags, {}, reader)
    monkeypatch.setattr(os, "open", None)

    assert settings_files.layers(flags, {}, reader) is layers
    (found,) = settings_layers.look_up("project", flags, {}, layers)
    assert found == settings_layers.merge(flags, {}, layers).one("project")


def test_a_flag_wins_over_the_variable_and_the_variable_over_the_file(person):
    # proves PROF-01
    for name in ("one", "two", "three"):
        person.profile(f"{name}.toml", f'description = "{name}"\n')
    person.defaults('profile = "one"\n')

    assert person.read().one("description").value == "one"
    assert person.read(environ={"CLAUDEBOX_PROFILE": "two"}).one("description").value == "two"
    assert person.read("--profile", "three", environ={"CLAUDEBOX_PROFILE": "two"}).one("description").value == "three"


def test_every_shape_is_understood(person):
    # proves PROF-01
    person.defaults("""\
yes = true
allow_userns = false
network = "none"
packages = ["jq", "python3Packages.requests"]
notify = ["notify-send", "--icon face"]
path = ["/opt/tools", "~/bin"]

[env]
PAGER = "cat"

[git_credential]
host = "git.example.org:8443"
token = "env:GH_TOKEN"

[[mounts]]
host = "~/data"

[[mounts]]
host = "/srv/models"
sandbox = "/models"
mode = "rw"
""")
    read = person.read()

    assert read.on("yes")
    assert not read.on("allow_userns")
    assert [given.value for given in read.all("package")] == ["jq", "python3Packages.requests"]
    assert list(read.one("notify").fields.values()) == ["notify-send", "--icon face"]
    assert read.one("set_env") == SettingValue("PAGER=cat", "~/.claudebox/config.toml:9")
    assert read.one("git_credential").fields["username"] == "x-access-token"
    first, second = read.all("mounts")
    assert first.fields == {"host": "~/data", "sandbox": "", "mode": "ro"}
    assert second == SettingValue(
        "/srv/models /models rw",
        "~/.claudebox/config.toml:18",
        {"host": "/srv/models", "sandbox": "/models", "mode": "rw"},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('netwrok = "full"', "config.toml:1: `netwrok` is not a setting; did you mean `network`?"),
        ("weather = 1", "`weather` is not a setting; `claudebox help settings`"),
        ('network = "nnone"', "config.toml:1: `network` must be .*`none`, not `nnone`.* `none`"),
        ("\nnetwork = 3", "config.toml:2: `network` must be `full`"),
        ("network = []", "`network` must be `full`"),
        ('yes = "true"', "`yes` must be true or false"),
        ("extra_env_passthrough = true", "`extra_env_passthrough` must be a string or an array of strings"),
        ("extra_env_passthrough = [true]", "`extra_env_passthrough`: each element must be a string"),
        (
            'extra_env_passthrough = [\n "A",\n "A B",\n]',
            r"config.toml:3: `extra_env_passthrough`: `A B` is not the name",
        ),
        ('env = ["A"]', "`env` must be a table of strings: `.env.`, not an array"),
        ("[env]\nA = 1", "config.toml:2: `env.A` must be a string"),
        ('[env]\nPATH = "/x"', "config.toml:2: `env`: `PATH` is made by claudebox"),
        ('[env]\n"A B" = "x"', "`A B` is not the name of a variable"),
        ('[[mounts]]\nmode = "ro"', "config.toml:1: `mounts` needs `host`"),
        ('[[mounts]]\nhost = "/a"\nmod = "rw"', "config.toml:3: `mounts` has no `mod`; did you mean `mode`?"),
        ('[[mounts]]\nhost = "/a"\nmode = "w"', "config.toml:3: `mounts.mode` must be `ro` or `rw`, not `w`"),
        ('[[mounts]]\nhost = "a"', "`mounts`: `a` is relative"),
        ('[[mounts]]\nhost = "/a"\nsandbox = "b"', "the destination `b` is not an absolute path"),
        ('mounts = "x"', "`mounts` must be an array of tables"),
        ('mount_ro = ["/a"]', r"`mount_ro` is a flag for the command line; write `\[\[mounts\]\]` here"),
        ("dry_run = true", "`dry_run` is a flag for the command line"),
        ('toolchain = ["rust"]', "`toolchain` is called `toolchains` here"),
        ('toolchains = ["cobol"]', "`toolchains`: there is no toolchain `cobol`; .*`rust`"),
        ('packages = ["$(x)"]', "is not the name of a package"),
        ('extends = "x"', "`extends` belongs in a profile"),
        ('allow = ["/etc"]', "`allow`: `/etc` is not protected"),
        ("notify = []", "`notify` must be .*program"),
        ('[git_credential]\nhost = "h"\ntoken = "ghp_x"', "the token does not come from `env:NAME`"),
        ('[git_credential]\nhost = "h;x"\ntoken = "env:A"', "`h;x` is not the name of a host"),
        ("[git_credential]\nhost = 1", "`git_credential.host` must be a string"),
        ("network", "config.toml:1: expected '=' after a key"),
        ("network =", "config.toml:1: .*write `network = "),
        ("= 3", "config.toml:1: .*KEY = VALUE"),
        ("a = 1\na = 2", "config.toml:2: `a` is set twice"),
        ("description = 2020-01-01", "`description` belongs in a profile"),
        ("yes = 2020-01-01", "`yes` must be true or false, not a date"),
    ],
)
def test_an_error_names_the_file_the_key_the_line_and_what_would_be_right(person, text, message):
    # proves PROF-01
    person.defaults(text)

    found = person.refusal()[0]
    assert found.startswith("~/.claudebox/config.toml")
    assert re.search(message, found), found


@pytest.mark.parametrize(
    "row", [row for row in SETTINGS if row.in_files in ("user", "project")], ids=lambda row: row.key
)
def test_a_value_without_quotes_is_answered_with_the_line_that_would_be_right(person, row):
    # proves CLI-01
    person.defaults(f"# settings\n{row.file_key} = word\n")

    found = person.refusal()[0]

    assert found.startswith("~/.claudebox/config.toml:2: ")
    if row.shape in ("switch", "choice", "text", "list"):
        right = found.rpartition(": write ")[2].split("`")[1]
        wanted = {"switch": True, "list": "word"}.get(row.shape, "word")
        assert tomllib.loads(right) == {row.file_key: wanted}


@pytest.mark.parametrize(("text", "key", "values"), [
    ("pids = 99", "pids", ["99"]), ("budget = 0.5", "budget", ["0.5"]), ("publish = 3000", "publish", ["3000"]),
    ("publish = [3000, '80:81']", "publish", ["3000", "80:81"]), ("allow_domains = 'pypi'", "allow_domain", ["pypi"]),
])  # fmt: skip
def test_a_number_needs_no_quotes_and_a_list_of_one_no_brackets(person, text, key, values):
    # proves CLI-01
    person.defaults(text)

    assert [given.value for given in person.read().all(key)] == values


def test_several_errors_are_reported_together(person):
    # proves PROF-01
    person.defaults('netwrok = "x"\nyes = 1\n[env]\nA = 2\n[[mounts]]\nhost = "/x"\nmode = "x"\n')

    errors = person.refusal()

    assert [error.split(": ")[0].rpartition(":")[2] for error in errors] == ["1", "2", "4", "7"]


def test_keys_of_a_profile_and_of_the_defaults_are_told_apart(person):
    person.profile("mine.toml", 'profile = "x"\n')

    (found,) = person.refusal("--profile", "mine")

    assert found == "~/.claudebox/profiles/mine.toml:1: `profile` is called `extends` in a profile"


def test_an_unknown_profile_is_told_with_the_nearest(person):
    # proves PROF-01, EXT-03
    with pytest.raises(ClaudeboxError, match="`--profile`: there is no profile `stirct`") as caught:
        person.read("--profile", "stirct")

    assert "did you mean `strict`?" in caught.value.hint


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "", ".hidden", "a b", "a\0b", "ü"])
def test_the_name_of_a_profile_leads_nowhere_else(person, name):
    # proves PROF-01
    with pytest.raises(ClaudeboxError, match="cannot be the name of a profile"):
        person.reader().find(name, "--profile")


def test_profiles_that_extend_each_other_in_a_circle_are_refused(person):
    # proves PROF-01
    person.profile("a.toml", 'extends = "b"\n')
    person.profile("b.toml", 'extends = "c"\n')
    person.profile("c.toml", 'extends = "a"\n')

    (found,) = person.refusal("--profile", "a")

    assert "in a circle: a -> b -> c -> a" in found


def test_a_profile_of_the_user_can_extend_the_built_in_one_of_the_same_name(person):
    # proves EXT-03
    person.profile("strict.toml", 'extends = "strict"\nextra_env_passthrough = ["A"]\n')

    read = person.read("--profile", "strict")

    assert read.one("terminal") == SettingValue("filtered", read.one("terminal").origin)
    assert read.one("terminal").origin.startswith("built-in strict.toml:")
    assert [given.value for given in read.all("env")] == ["A"]


def test_a_profile_that_is_there_twice_is_refused(person):
    person.profile("a.toml", "")
    person.profile("a.json", "{}")

    assert "`a`" in person.refusal("--profile", "a")[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "is an array, and settings are a table"),
        ("{", "profiles/x.json:1: expecting property name"),
        ('{"yes": true,\n "yes": false}', "`yes` is set twice"),
        ('{"a": ' + "[" * 60_000, "nested too deeply"),
        ('{"yes": NaN}', "`yes` must be true or false"),
    ],
)
def test_json_is_held_to_the_same_rules(person, text, message):
    # proves PROF-01
    person.profile("x.json", text)

    assert message in person.refusal("--profile", "x")[0]


# Hostile files


def hostile(person, make, path):
    """Refuse a file that something else stands in for, within a second and with one line."""
    if os.path.lexists(path):
        os.unlink(path)
    make(path)
    begin = time.process_time()
    with pytest.raises(ClaudeboxError) as caught:
        person.read_file() if path.startswith(person.project) else person.read()
    assert time.process_time() - begin < 2  # of this process: other work of the machine does not count
    assert "\n" not in caught.value.message
    return caught.value.message


def fill(content):
    def write(path):
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o644)

    return write


def shared(path):
    fill(b"yes = true")(path)
    os.chmod(path, 0o666 if os.getuid() else 0o664)  # the group of a user's own name is the user


def sparse(path):
    fill(b"")(path)
    os.truncate(path, 1 << 40)


HOSTILE = {
    "fifo": (os.mkfifo, "is not a file"),
    "socket": (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), "is not a file|cannot be read"),
    "directory": (os.mkdir, "is not a file"),
    "device": (lambda path: os.symlink("/dev/zero", path), "is not a file|is a link"),
    "dangling link": (lambda path: os.symlink("/nowhere", path), "cannot be read: No such file|is a link"),
    "loop": (lambda path: os.symlink(path, path), "Too many levels|is a link"),
    "huge": (fill(b"#" * (settings_files.LIMIT + 1)), "is larger than 64 KiB"),
    "sparse": (sparse, "is larger than 64 KiB"),
    "deep array": (fill(b"a = " + b"[" * 60_000), "nested too deeply"),
    "deep table": (fill(b"a = " + b"{b=" * 20_000), "nested too deeply"),
    "deep key": (fill(b"a" + b".a" * 30_000 + b" = 1"), "nested too deeply"),
    "deep inline key": (fill(b"a = [\n{ b = 1, a" + b".a" * 30_000 + b" = 1}]"), "nested too deeply"),
    "many keys": (
        fill(b"".join(b"%s = 1\n" % (b".".join([b"a%d" % n] + [b"b"] * 200)) for n in range(150))),
        "nested too deeply",
    ),
    "keys that are not too deep": (
        fill(b"".join(b"%s = 1\n" % (b".".join([b"a%d" % n] + [b"b"] * 90)) for n in range(300))),
        "is not a setting",
    ),
    "quoted keys": (fill(b'"="' + b".'a'" * 10_000 + b" = 1"), "nested too deeply"),
    "deep header": (fill(b"[[ a" + b" . a" * 10_000 + b"]]"), "nested too deeply"),
    "long header": (fill(b'["a' + b" " * 60_000 + b'x"]'), "is not a setting"),
    "long number": (fill(b"a = " + b"1" * 60_000), "."),
    "not UTF-8": (fill(b"yes = true\n# \xff"), ":2: byte 0xff is not UTF-8"),
    "escape": (fill(b'"\x1b]52;c;x\x07" = 1'), "illegal character|control"),
    "NUL": (fill(b"yes = true\0"), ":1: "),
    "shared": (shared, "can be changed by other users"),
}


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        (where, kind)
        for where in ("defaults", "project")
        for kind in HOSTILE
        if where != "project" or kind != "directory"  # see the next test
    ],
)
def test_a_hostile_file_is_refused_within_a_second(person, where, kind):
    # proves PROF-01, EXT-01, E05, C18
    make, message = HOSTILE[kind]
    path = f"{person.project}/.claudebox.toml" if where == "project" else f"{person.state}/config.toml"
    found = hostile(person, make, path)

    assert re.search(message, found), found
    assert os.path.basename(path) in found


def test_an_empty_directory_is_the_stub_of_another_session(person, capfd):
    # proves C21
    os.mkdir(f"{person.project}/.claudebox.toml")

    assert person.reader().project(person.project) is None
    assert capfd.readouterr().err == ""


def test_a_directory_with_something_in_it_says_nothing_in_a_project(person, capfd):
    # proves EXT-01, C18
    os.makedirs(f"{person.project}/.claudebox.toml/full")

    assert person.reader().project(person.project) is None
    assert capfd.readouterr().err == "warning: .claudebox.toml is not a file; ignored\n"


def test_a_file_of_somebody_else_is_refused(person):
    # proves PROF-01, EXT-01
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    path = person.defaults("yes = true\n")
    assert person.read().on("yes")

    os.chown(path, 12345, 12345)
    assert person.refusal() == ["~/.claudebox/config.toml belongs to another user"]

    os.chown(path, 0, 0)
    os.rename(path, f"{person.home}/elsewhere")
    os.symlink(f"{person.home}/elsewhere", path)
    assert person.read().on("yes")
    os.chown(path, 12345, 12345, follow_symlinks=False)
    assert person.refusal() == ["~/.claudebox/config.toml is a link of another user"]


def test_a_project_file_may_not_be_a_link_even_to_a_good_file(person):
    # proves EXT-01
    target = person.defaults("yes = true\n")
    os.symlink(target, f"{person.project}/.claudebox.toml")

    with pytest.raises(ClaudeboxError, match=r"\.claudebox\.toml is a link"):
        person.reader().project(person.project)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('notify = ["sh"]', "`notify` cannot come from a project"),
        ("yes = true", "`yes` cannot come from a project"),
        ("unsafe_mounts = true", "`unsafe_mounts` cannot come from a project"),
        ('allow = ["git-config"]', "`allow` cannot come from a project"),
        ('profile = "strict"', "`profile` cannot come from a project"),
        ('path = ["/opt/tools"]', "`path` cannot come from a project"),
        ('devices = ["/dev/net/tun"]', "`devices` cannot come from a project"),
        ('[[secrets]]\nenv = "A"\nhosts = ["h.org"]\nfrom = "env:A"', "`secrets` cannot come from a project"),
        ('[git_credential]\nhost = "h"\ntoken = "env:A"', "`git_credential` cannot come from a project"),
        ('extra_env_passthrough = ["LD_PRELOAD"]', "a project cannot ask for `LD_PRELOAD`"),
        ('[env]\nNODE_OPTIONS = "--require ./x"', "a project cannot set `NODE_OPTIONS`"),
        ('[env]\nLD_LIBRARY_PATH = "."', "a project cannot set `LD_LIBRARY_PATH`"),
        ('[env]\nANTHROPIC_BASE_URL = "https://example.org"', "a project cannot set `ANTHROPIC_BASE_URL`"),
        ('[env]\nOPENAI_BASE_URL = "https://example.org"', "a project cannot set `OPENAI_BASE_URL`"),
        ('[env]\nhttps_proxy = "http://example.org"', "a project cannot set `https_proxy`"),
        ('[env]\nGIT_CONFIG_COUNT = "1"', "a project cannot set `GIT_CONFIG_COUNT`"),
        ('[env]\nPATH = "./bin"', "`PATH` is made by claudebox"),
    ],
)
def test_some_settings_never_come_from_a_project(person, text, message):
    # proves EXT-01, E05, A16
    person.file(text)
    reader = person.reader()

    with pytest.raises(ClaudeboxError, match=message):
        reader.layer(reader.project(person.project))
    if "\nPATH" not in text:
        person.defaults(text.replace('"strict"', '"default"'))
        assert person.read()  # the same is fine where the user says it


# The cache


def test_a_file_that_was_read_before_is_not_parsed_again(person, monkeypatch):
    path = person.defaults('network = "none"\n')
    before = person.read()
    monkeypatch.setattr(settings_document, "read_document", lambda _source: pytest.fail("parsed again"))

    assert person.read().given == before.given

    monkeypatch.undo()
    with open(path, "a", encoding="utf-8") as file:
        file.write("yes = true\n")
    assert person.read().on("yes")


def test_nothing_is_written_before_it_is_saved(person):
    # proves UX-04, HOUSE-01
    person.defaults('network = "none"\n')
    reader = person.reader()

    assert reader.defaults().given["network"][0].value == "none"
    assert set(os.listdir(person.state)) == {"profiles", "config.toml"}
    reader.save()
    assert len(os.listdir(f"{person.state}/config-cache")) == 1


def test_another_format_or_version_of_claudebox_reads_a_file_again(person, monkeypatch):
    person.defaults('network = "none"\n')
    person.read()
    for name, value in (("_FORMAT", 0), ("__version__", "0.0.0")):
        monkeypatch.setattr(settings_files, name, value)
        monkeypatch.setattr(settings_document, "read_document", lambda _source: {"network": [("inet", 1, {})]})
        assert person.read().one("network").value == "inet", name
        monkeypatch.undo()
    assert person.read().one("network").value == "none"


SAMPLE = """\
network = "allow"
yes = true
packages = ["jq"]
allow_domains = ["example.org"]
notify = ["agent", "--word"]
[env]
A = "b"
[domains.mine]
hosts = ["example.org", "*.example.com"]
[git_credential]
host = "example.org"
token = "env:TOKEN"
[[mounts]]
host = "~/data"
[[secrets]]
env = "KEY"
hosts = ["api.example.org"]
from = "env:KEY"
"""


def test_the_format_changes_when_a_file_is_read_as_something_else():
    # What is kept is trusted until format or version change. If this digest has to change, so has the number beside it.
    rows = settings_document.read_document(
        settings_files.Source("/x/config.toml", "config.toml", "user", SAMPLE.encode())
    )

    assert (settings_files._FORMAT, sha256(repr(rows).encode()).hexdigest()[:16]) == (5, "a5a8ec026e5565aa")


def test_the_cache_is_private_and_a_damaged_or_foreign_one_is_not_believed(person):
    person.defaults('network = "none"\n')
    person.read()
    (name,) = os.listdir(f"{person.state}/config-cache")
    path = f"{person.state}/config-cache/{name}"
    assert os.stat(f"{person.state}/config-cache").st_mode & 0o777 == 0o700
    assert os.stat(path).st_mode & 0o777 == 0o600
    forged = marshal.dumps({"network": [("full", 1, {})]})

    # The right digest in front makes it ours: this is the control.
    good = sha256(forged).hexdigest().encode() + forged
    fill(good)(path)
    assert person.read().one("network").value == "full"

    for damaged in (good[:-1], good[:70], b"", b"0" * 64 + forged, forged):
        fill(damaged)(path)
        assert person.read().one("network").value == "none"

    fill(good)(path)
    os.chmod(path, 0o666)
    assert person.read().one("network").value == "none"
    if os.getuid() == 0:
        fill(good)(path)
        os.chown(path, 12345, 12345)
        assert person.read().one("network").value == "none"
    os.unlink(path)
    os.symlink(person.profile("forged", good), path)
    assert person.read().one("network").value == "none"
    fill(good)(f"{person.state}/other")
    os.chmod(f"{person.state}/config-cache", 0o777)
    assert person.read().one("network").value == "none"


def test_the_cache_does_not_grow_without_end_and_leaves_others_alone(person):
    other = f"{person.state}/cache/nix-daemon"
    os.mkdir(os.path.dirname(other))
    fill(b"kept")(other)
    for number in range(150):
        person.defaults(f'[env]\nA = "{number}"\n')
        person.read()

    assert 0 < len(os.listdir(f"{person.state}/config-cache")) <= 64
    with open(other, "rb") as file:
        assert file.read() == b"kept"


def test_what_a_project_says_is_kept_apart_from_what_the_user_says(person):
    # proves E05
    text = 'network = "full"\n'
    person.defaults(text)
    person.file(text)
    reader = person.reader()

    assert not reader.defaults().given["network"][0].untrusted
    assert reader.layer(reader.project(person.project)).given["network"][0].untrusted


def test_json_and_toml_say_the_same(person):
    # proves PROF-01
    document = {
        "network": "none",
        "env": {"A": "b"},
        "mounts": [{"host": "/srv", "mode": "rw"}],
        "extra_env_passthrough": ["X"],
        "packages": ["jq"],
        "name": "x",
    }
    person.profile("j.json", json.dumps(document))
    person.profile(
        "t.toml",
        'network = "none"\nextra_env_passthrough = ["X"]\npackages = ["jq"]\nname = "x"\n'
        '[env]\nA = "b"\n[[mounts]]\nhost = "/srv"\nmode = "rw"\n',
    )

    def plain(name):
        (layer,) = person.reader().profile(name, "--profile")
        return {key: [(given.value, given.fields) for given in values] for key, values in layer.given.items()}

    assert plain("j") == plain("t")
