"""Masked copies: no planted value can be read in them, and programs can still parse them."""

from __future__ import annotations

import configparser
import json
import time
import tomllib
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.conftest import few
from tests.support.strategies import strings

from claudebox.host import secret_scan, secret_values
from claudebox.tables.secret_files import file_looks_secret, find_kind

if TYPE_CHECKING:
    from collections.abc import Callable

_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
tokens = st.one_of(
    st.text(_ALPHABET, min_size=14, max_size=48).filter(
        lambda text: sum(map(str.isdigit, text.rstrip("0123456789"))) > 1
    ),
    st.builds("{}{}".format, st.sampled_from(["sk_live_", "ghp_", "xoxb-", "AKIA", "glpat-", "npm_"]),
              st.text(_ALPHABET, min_size=12, max_size=30)),
    st.binary(min_size=16, max_size=32).map(bytes.hex).filter(lambda text: len(set(text[:12]) - set("0123456789")) > 1),
)  # fmt: skip
passwords = st.one_of(
    tokens,
    st.sampled_from(["hunter2", "swordfish", "correct horse battery staple", "Tr0ub4dor&3", "p@ss:w0rd", "a=b;c=d",
                     "pa,ss{wo}rd", "üñíçødé", "12345678", "s3cr3t/with/slashes", "-_-_-_-!", "x" * 3 + "yyy"]),
    st.text(_ALPHABET + "!%^&*_+~.-", min_size=8, max_size=30).filter(
        lambda text: len(set(text)) > 3 and text[0] not in "!%&*-~.^+_" and not text.lower().startswith("example")
    ),
).filter(lambda text: text.lower() not in secret_values._NOTHING)  # fmt: skip
TELLING = ["password", "API_KEY", "client_secret", "dbPassword", "auth-token", "SECRET_KEY_BASE"]
QUIET = ["STRIPE", "value", "result", "gh", "field"]  # names that tell nothing
HARMLESS = {
    "port": "5432", "HOST": "localhost", "debug": "true", "adapter": "postgresql", "url": "https://example.com/v1/items",
    "pool": "5", "region": "eu-west-1", "log_level": "info", "database": "shop_development", "path": "./config/app.yml",
    "driver-class": "org.postgresql.Driver", "mail": "hello@example.com", "version": "1.2.3",
}  # fmt: skip

_SECRET = st.just(True)  # noqa: FBT003
rows = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(TELLING), passwords, _SECRET),
        st.tuples(st.sampled_from(QUIET), tokens, _SECRET),
        st.tuples(st.just("DATABASE_URL"), tokens.map(lambda text: f"postgres://alice:{text}@db.internal:5432/shop"),
                  _SECRET),
        st.sampled_from([(name, value, False) for name, value in HARMLESS.items()]),
    ),
    min_size=1, max_size=8, unique_by=lambda row: row[0],
)  # fmt: skip
Rows = list[tuple[str, str, bool]]


def quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _split(value: str) -> list[str]:
    return "".join(char if char.isalnum() or char in "!%^*_+~.-" else " " for char in value).split()


def nested(found: Rows) -> dict[str, object]:
    return {"production": {name: value for name, value, _ in found}, "list": ["a", {"inner": 1}]}


def _read_ini(text: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return dict(parser["main"])


def _read_dotenv(text: str) -> dict[str, str]:
    pairs = (line.removeprefix("export ").partition("=") for line in text.splitlines() if "=" in line)
    return {name: value.strip("\"'") for name, _, value in pairs if not name.startswith("#")}


def _plain(document: object) -> dict[str, str]:
    assert isinstance(document, dict)
    inner = document.get("production", document)
    assert isinstance(inner, dict)
    return {name: str(value) for name, value in inner.items()}


# name of the file: how rows are written, and how a program reads them
FORMATS: dict[str, tuple[Callable[[Rows], str], Callable[[str], dict[str, str]]]] = {
    ".env": (lambda found: "".join(f"{name}={quote(value)}\n" for name, value, _ in found), _read_dotenv),
    ".env.local": (
        lambda found: "# comment\n" + "".join(f"export {name}='{value}' # mine\n" for name, value, _ in found
                                              if "'" not in value),
        lambda text: {name: value.partition("'")[0] for name, value in _read_dotenv(text).items()},
    ),
    "secrets.json": (lambda found: json.dumps(nested(found), indent=2), lambda text: _plain(json.loads(text))),
    "credentials.json": (lambda found: json.dumps(nested(found)), lambda text: _plain(json.loads(text))),
    "appsettings.json": (
        lambda found: json.dumps(nested(found), indent=4, ensure_ascii=False), lambda text: _plain(json.loads(text)),
    ),
    "secrets.yml": (lambda found: yaml.safe_dump(nested(found)), lambda text: _plain(yaml.safe_load(text))),
    "database.yml": (
        lambda found: "production:\n" + "".join(f"  {name}: {quote(value)}\n" for name, value, _ in found),
        lambda text: _plain(yaml.safe_load(text)),
    ),
    "application.yml": (
        lambda found: yaml.safe_dump(nested(found), default_flow_style=True, width=1000),
        lambda text: _plain(yaml.safe_load(text)),
    ),
    "secrets.toml": (
        lambda found: "[production]\n" + "".join(f"{name} = {quote(value)}\n" for name, value, _ in found),
        lambda text: _plain(tomllib.loads(text)),
    ),
    "prod.tfvars": (  # as TOML, which it looks like
        lambda found: "production = { " + ", ".join(f"{name} = {quote(value)}" for name, value, _ in found) + " }\n",
        lambda text: _plain(tomllib.loads(text)),
    ),
    ".my.cnf": (
        lambda found: "[main]\n" + "".join(f"{name} = {value}\n" for name, value, _ in found), _read_ini,
    ),
    "application.properties": (
        lambda found: "[main]\n" + "".join(f"{name}={value}\n" for name, value, _ in found), _read_ini,
    ),
}  # fmt: skip


def mask(name: str, text: str) -> str:
    kind = find_kind(name)
    assert kind
    masked = secret_scan.mask_text(text, kind)
    assert len(masked) == len(text)
    return masked


@pytest.mark.parametrize("name", FORMATS)
@given(found=rows)
@example(found=[("password", "a=b;c=d", True), ("port", "5432", False)])
@example(found=[("password", "correct horse battery staple", True), ("HOST", "localhost", False)])
def test_no_planted_value_survives_and_the_copy_parses(name, found):
    # proves MASK-01, A20
    write, read = FORMATS[name]
    mixed = find_kind(name) == "mixed"
    found = [row for row in found if not (mixed and row[0] in QUIET and len(row[1]) < 20)]
    assume(found)
    text = write(found)
    before = read(text)
    assume(all(before.get(key) == value for key, value, _ in found))  # the format can hold it
    masked = mask(name, text)
    after = read(masked)

    assert list(after) == list(before)
    for key, value, is_secret in found:
        if is_secret:
            secret = value.partition("alice:")[2].partition("@")[0] or value
            assert secret not in masked, (key, value)
            assert secret not in text or set(secret_scan.find_values(text, masked)) & set(_split(secret))
            assert after[key] != value
        else:
            assert after[key] == value


BARE = {
    ".vault-token": "{}\n", "master.key": "{}", ".pgpass": "localhost:5432:*:alice:{}\n", ".htpasswd": "alice:{}\n",
    ".netrc": "machine example.org\n  login alice\n  password {}\n", ".git-credentials": "https://alice:{}@example.org\n",
    "password.txt": "{}\n", ".curlrc": 'user = "alice:{}"\n', ".pgpass.bak": "# mine\n*:*:*:bob:{}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", BARE)
@given(value=passwords)
def test_nothing_of_a_bare_file_survives(name, value):
    # proves MASK-01
    if not any(char in value for char in " :/@"):
        masked = mask(name, BARE[name].format(value))
        assert value not in masked
        assert ("localhost:5432:" in masked) == (name == ".pgpass")
        assert ("machine" in masked) == (name == ".netrc")


@given(value=tokens, name=st.sampled_from([*TELLING, *QUIET]))
def test_comments_lists_and_addresses_are_masked(name, value):
    # proves MASK-01
    text = (
        f"#{name}={value}\n# {name}: {value}\nlist:\n- {value}\n  - {value}\n  - '{value}'\n"
        f"plain_list: [{value}, 'x']\n"
        f"url: https://example.org/hook/{value}?token={value}&page=2\nuser: https://{value}@example.org/x\n"
        f'flow: {{a: {value}, b: [{value}]}}\njson: \'{{"token": "{value}"}}\'\n'
    )
    masked = mask("secrets.yml", text)

    assert value not in masked
    assert "url: https://example.org/hook/" in masked
    assert "&page=2" in masked
    assert list(yaml.safe_load(masked)) == list(yaml.safe_load(text))


@pytest.mark.parametrize(
    "line",
    [
        "a.token\t{}", "a.key {}", "a.secret : {}", "a.password=\\\n  {}", "!old.password={}",
        "u=jdbc:sqlserver://h;user=u;password={};encrypt=true",
        "u=jdbc:mysql://h/d?user=u&password={}", "u=Server=h;Database=d;Password={}", "m: {{password: {}}}",
        "'db' => ['password' => '{}'],", "x.secret=${{FOO:-{}}}", "token:\n- {}", "tokens: [a, {}]",
        "redis=h:6379,password={},ssl=true", 'jaas=a.b.LoginModule required user="u" password="{}";', "keys[0]={}",
        "password:\n  value: {}", '{{"password": {{"value": "{}"}}}}', "PIN={}", "seed_phrase={}",
        "token = <<EOT\n  my {} is\nEOT\n", "<c><password>{}</password></c>", "<c><password>\n{}\n</password></c>",
        "<c>\n<s n='it' password=\"{}\"/>\n</c>",
        '<c><add key="ClearTextPassword" value="{}"/></c>', "x: 1 # password: {}",
        '{{\n  "a": 1, // "password": "{}"\n}}', '{{\n  /* "password": "{}" */\n}}',
    ],
)  # fmt: skip
@given(value=passwords.filter(lambda text: text.isalnum()))
def test_settings_hide_what_a_name_tells_of_in_every_spelling(line, value):
    # proves MASK-01
    for name in ("application.properties", ".env"):
        assert value not in mask(name, line.format(value))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("secret.yaml", "apiVersion: v1\nkind: Secret\nstringData:\n  user: {}\n  x.conf: |\n    a {} b\n"),
        ("prod.tfstate", '{{"terraform_version": "1", "outputs": {{"x": {{"value": "{}", "sensitive": true}}}}}}'),
        ("prod.tfstate", '{{"terraform_version": "1", "r": [{{"attributes": {{"result": "{}"}}}}]}}'),
        ("secrets.xml", "<resources><string name='maps'>{}</string></resources>"),
        ("secrets.plist", "<?xml version='1.0'?>\n<plist><dict><key>Pin</key><string>{}</string></dict></plist>"),
        ("credentials.xml", "<a><add key='maps' value='{}'/></a>"),
        (".env", "PASSWORD={}"), (".pgpass", "localhost:5432:db:alice:{}\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["swordfish", "correct horse battery", "1234"])
def test_a_plain_word_is_hidden_where_a_program_keeps_secrets(name, text, value):
    # proves MASK-01
    masked = mask(name, text.format(value, value))
    assert value not in masked
    assert [char for char in masked if char in "<>{}"] == [char for char in text.format("", "") if char in "<>{}"]


@pytest.mark.parametrize("line", ["x=Basic {}", "x=Authorization: Bearer {}", "url=https://{}@h/x", "x={}", "# {}"])
@given(value=tokens.filter(lambda text: len(text) >= 20))
def test_what_looks_like_a_token_is_hidden_under_any_name(line, value):
    # proves MASK-01
    for name in ("application.properties", ".env"):
        assert value not in mask(name, line.format(value))


@given(lines=st.lists(st.text(_ALPHABET + "+/", min_size=4, max_size=64), min_size=1, max_size=6))
def test_private_keys_are_masked_in_every_format_and_certificates_are_not(lines):
    # proves MASK-01
    lines = [line for line in lines if "PRIVATE" not in line] or ["MIIEvQ"]
    key = "\n".join(("-----BEGIN RSA PRIVATE KEY-----", *lines, "-----END RSA PRIVATE KEY-----", ""))
    certificate = key.replace("RSA PRIVATE KEY", "CERTIFICATE")
    texts = {
        "server.pem": certificate + key,
        "secrets.yml": "key: |\n" + "".join(f"  {line}\n" for line in key.splitlines()) + "port: 1\n",
        ".env": f'PEM="{key}"\nPORT=1\n',
        "credentials.json": json.dumps({"private_key": key, "port": "1"}),
        "application.yml": json.dumps({"x": [{"y": key}]}),
    }
    for name, text in texts.items():
        masked = mask(name, text)
        assert "-----BEGIN RSA PRIVATE KEY-----" in masked
        assert "-----END RSA PRIVATE KEY-----" in masked
        shown = masked.replace(certificate, "")
        assert not [line for line in lines if len(line) >= 8 and line in shown], name
    assert mask("server.pem", texts["server.pem"]).startswith(certificate)
    assert mask("cert.pem", f"subject=CN = x\n{certificate}") == f"subject=CN = x\n{certificate}"
    assert mask("secrets.yml", texts["secrets.yml"]).endswith("port: 1\n")
    assert mask(".env", texts[".env"]).endswith("PORT=1\n")


# What an agent can leave in a file that holds no secret yet.
_AROUND = st.lists(
    st.sampled_from([
        '"', "'", "`", '"""', "{", "}", "[", "]", "|", ">", "- ", "#", "//", "/*", "x: ", "x=", "x: |", "x: '", 'X="',
        "X={", "X: [", "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----", "-----BEGIN PRIVATE KEY-----", "\\",
        ",", ";",
        "<<EOT", "export ", "<%", "{{", "${", "abc", "---", "? ", ": ", "= ", "\t", "    ", "<!--", "\n", "\n", "\r",
    ]),
    max_size=8,
).map("".join)  # fmt: skip


@given(
    before=_AROUND,
    after=_AROUND,
    line=st.sampled_from([
        "API_KEY={}", "password: {}", "  password: {}", "token = '{}'", 'secret: "{}"', '"password": "{}",',
        "db.password={}", "export TOKEN={}",
    ]),
    value=st.sampled_from(["swordfish", "hunter2xyz", "Qz7pL9xK2mN4vB8cR5tY"]),
    name=st.sampled_from([".env", "database.yml"]),
)  # fmt: skip
@example(before='x: "', after='"', line='secret: "{}"', value="swordfish", name="database.yml")
@example(before="- ", after="", line="API_KEY={}", value="swordfish", name=".env")
def test_a_line_that_tells_is_masked_whatever_stands_around_it(before, after, line, value, name):
    # proves MASK-01
    assert value not in mask(name, f"{before}\n{line.format(value)}\n{after}")


@given(text=st.lists(strings, max_size=12).map("\n".join), name=st.sampled_from([".env", "a.key", "database.yml"]))
def test_any_text_has_a_copy_of_the_same_shape(text, name):
    # proves E16
    masked = mask(name, text)

    assert masked.count("\n") == text.count("\n")
    assert mask(name, masked) is not None
    lines = secret_scan.find_lines(text, masked)
    assert bool(lines) == (masked != text)
    assert bool(secret_scan.find_values(text, masked)) == bool(lines)


@pytest.mark.parametrize(
    "text",
    few([
        "A=" + "x" * 100_000, "A=x" + " " * 100_000 + "y", '"' * 40_000, "'\n" * 20_000, '{"a":' * 16_000,
        "{" + "a=" * 40_000, "\\" * 60_000 + '"', '"' + '\\"' * 40_000, "-----BEGIN X-----\n" * 6_000,
        "-----BEGIN RSA PRIVATE KEY-----\n" + "abc\n" * 20_000, "a://" * 20_000, "a://b:c@" * 12_000, "- " * 40_000,
        "A=" + ";x=" * 20_000, "Server=" + ";" * 60_000, "#" * 80_000, " " * 80_000 + "x", ": " * 40_000,
        "a: '\n" * 16_000, "k:\n " * 12_000, "\r" * 40_000, "A=${" + ":" * 40_000 + "}", "{a:" * 20_000,
        "<a " + 'b="c" ' * 16_000 + ">", "<a>b</a>" * 12_000, "a=<<X\n" * 16_000, "a=" + "token" * 20_000 + "=b",
    ], 9),
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_no_text_keeps_the_launcher_busy(text):
    # proves E16
    assert all(any(_is_linear(name, text) for _ in range(4)) for name in (".env", "x.key", "database.yml"))


def _is_linear(name: str, text: str) -> bool:
    once = min(_time(name, text[: len(text) // 4]) for _ in range(2))
    return _time(name, text) < 4 * 4 * max(once, 0.02)


def _time(name: str, text: str) -> float:
    began = time.process_time()
    mask(name, text)
    return time.process_time() - began


HARMLESS_FILES = {
    ".env": """\
APP_NAME='My Shop'
APP_ENV=local
SESSION_DRIVER=database
DB_PASSWORD=
REDIS_PASSWORD=null
MAIL_FROM="${APP_NAME}"
DJANGO_SETTINGS_MODULE=shop.settings.dev
ALLOWED_HOSTS=.example.com,127.0.0.1
NODE_OPTIONS=--max-old-space-size=4096
TOKEN_TTL=3600
MAX_TOKENS=4096
RANDOM_SEED=12345
LED_PIN=17
DB_URL=postgres://postgres:postgres@localhost/shop
# API_KEY= # get it from the dashboard
# Note: set DEBUG=true to see more
TZ=Europe/Berlin
""",
    "database.yml": """\
default: &default
  adapter: postgresql
  pool: <%= ENV.fetch("RAILS_MAX_THREADS") { 5 } %>
  password: <%= ENV["DB_PASSWORD"] %>
  <<: *default
  port: 5432
""",
    "application.properties": """\
server.port=8080
server.servlet.session.timeout=30m
spring.datasource.password=${DB_PASSWORD}
spring.jpa.hibernate.ddl-auto=update
""",
    "appsettings.json": """\
{"Logging": {"LogLevel": {"Default": "Information"}}, "AllowedHosts": "*",
 "ConnectionStrings": {"Shop": "Server=localhost,1433;Database=Shop;User Id=sa;Trusted_Connection=True"}}
""",
    ".npmrc": """\
registry=https://registry.npmjs.org/
//registry.npmjs.org/:_authToken=${NPM_TOKEN}
save-exact=true
""",
    ".yarnrc.yml": "nodeLinker: node-modules\nyarnPath: .yarn/releases/yarn-4.1.0.cjs\n",
    "secrets.toml": "port = 5432\nday = 2026-01-01\nfrom = 2026-01-01T08:00:00Z\n",
    "secrets.plist": "<plist>\n<key>Mail</key><true/><key>From</key><date>2026-01-01T08:00:00Z</date>\n</plist>\n",
    "settings.xml": '<settings xmlns="http://a.org">\n  <offline>false</offline><!-- <a>b</a> -->\n</settings>\n',
    "pip.conf": "[global]\nindex-url = https://pypi.example.org/simple\ntimeout = 60\n",
    ".envrc": "use flake\nexport AWS_PROFILE=dev\nPATH_add bin\nif [ -f .env ]; then\n  dotenv\nfi\n",
}


def test_settings_of_programs_stay_as_they_are():
    # proves MASK-01
    for name, text in HARMLESS_FILES.items():
        assert mask(name, text) == text, name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (".env", "keyed"), (".ENV", "keyed"), (".env~", "keyed"), (".env.bak", "keyed"), (".env.swp", "keyed"),
        ("#.env#", "keyed"), (".secrets.yml.swp", "keyed"), (".env.example", ""), ("env.py", ""), (".npmrc", "keyed"),
        ("master.key", "bare"), ("id_ed25519_work", "bare"), ("id_rsa.pub", ""), ("database.yml.orig", "mixed"),
        ("appsettings.Development.json", "mixed"), ("application-prod.yml", "mixed"), ("secrets.ts", ""),
        ("shop-0123456789ab.json", "maybe"), ("my-service-account.json", "keyed"), ("package.json", ""),
        ("prod.tfvars.json", "keyed"), (".secrets.toml", "keyed"), ("terraform.tfstate.backup", "keyed"),
        ("credentials.yml.enc", ""), (".env (1)", "keyed"), (".env_old", "keyed"), ("..env.kate-swp", "keyed"),
        (".env___jb_tmp___", "keyed"), (".envrc.local", "keyed"), ("app.env.prod", "keyed"), ("vite.env.d.ts", ""),
        (".environment", ""), (".env.prod.example", ""),
        ("db_password.txt", "bare"), ("github_token", "bare"), ("server.crt", "bare"), ("secrets.xml", "keyed"),
        ("token.json", "maybe"), (".database.yml.un~", "mixed"), ("bob_accessKeys.csv", "keyed"), ("run.sh", ""),
    ],
)  # fmt: skip
def test_names_say_how_a_file_is_read(name, kind):
    # proves MASK-01
    assert find_kind(name) == kind
    assert file_looks_secret(name) == (kind in ("bare", "keyed"))


@given(strings)
def test_any_name_is_judged(name):
    assert find_kind(name) in ("bare", "keyed", "mixed", "maybe", "")
    assert not file_looks_secret(f"{name}.example")
