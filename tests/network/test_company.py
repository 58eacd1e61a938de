"""A company's network: a proxy in the LAN that wants a password and ends TLS, and an authority that only it has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.conftest import need
from tests.network.conftest import PYTHON
from tests.network.test_web import rust, web  # noqa: F401 - a fixture
from tests.support.certificates import TestAuthority

PROXY = str(Path(__file__).with_name("intercepting_proxy.py"))
PLACE, PORT, LOGIN = "192.168.77.50", 3128, "me:pass-word-of-the-proxy"
TIERS = {
    "full": ("--network", "full"),
    "inet": ("--network", "inet"),
    "allow": ("--network", "allow", "--allow-domain", "public.example"),
}
# Programs that people use, none of them configured inside.
CLIENTS = {
    "curl": ("curl -sS --max-time 10 https://public.example/page", "page of public.example"),
    "git": ("git clone -q https://public.example/repo.git cloned && cat cloned/file", "cloned"),
    "pip": (
        "python3 -m pip --retries 0 install -q --target t -i https://public.example/simple pkg && python3 t/pkg.py",
        "from the wheel",
    ),
    "npm": (
        "npm i --silent --fetch-retries=0 --registry=https://public.example/npm pkg; cat node_modules/pkg/*",
        '"version": "1.0.0"',
    ),
    "cargo": (
        "CARGO_REGISTRIES_OURS_INDEX=sparse+https://public.example/index/ RUST/bin/cargo fetch && echo fetched",
        "fetched",
    ),
}


@pytest.fixture(scope="module")
def company(world, web, tmp_path_factory):  # noqa: F811
    """Start the proxy in the LAN; return its log and the certificate of its authority."""
    root = tmp_path_factory.mktemp("company")
    authority = TestAuthority("company")
    key = authority._key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (root / "authority.pem").write_bytes(key + authority.certificate)
    resolver = Path(f"/etc/netns/{world.name('lan')}/resolv.conf")
    resolver.parent.mkdir(parents=True, exist_ok=True)
    resolver.write_text("nameserver 192.168.77.1\n")
    process = world.start(
        "lan", sys.executable, PROXY, PLACE, str(PORT), str(root / "authority.pem"), LOGIN, str(root / "log")
    )
    assert process.stdout.readline() == "listening\n"
    yield root / "log", authority.certificate
    process.kill()
    process.wait()
    resolver.unlink()
    resolver.parent.rmdir()


@pytest.fixture
def companybox(plain_netbox, company):
    """Return a box on a host that is configured as the company says: by one variable each."""
    log, certificate = company
    log.unlink(missing_ok=True)
    box = plain_netbox
    # A key beside the certificate must not enter.
    private = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0LW9mLXRoZS1jb21wYW55\n-----END PRIVATE KEY-----\n"
    ca = Path(box.home, "company.pem")
    ca.write_bytes(private.encode() + certificate)
    ca.chmod(0o644)
    box.environ["NODE_EXTRA_CA_CERTS"] = str(ca)
    box.environ["HTTPS_PROXY"] = f"http://{LOGIN}@{PLACE}:{PORT}"
    return box


@pytest.mark.parametrize("tier", ["inet", *(pytest.param(tier, marks=pytest.mark.slow) for tier in ("full", "allow"))])
def test_programs_inside_get_out_by_the_proxy_and_trust_the_authority(companybox, company, tier):
    # proves NET-06, SAND-13
    box, log = companybox, company[0]
    commands = dict(CLIENTS)
    found = subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False)
    need(found.returncode == 0, "pip for the system's Python")
    place, tools = rust(box) if tier == "inet" else ("", ())
    if not place:
        del commands["cargo"]
    if tier == "full":  # which alone has a password inside; npm of Debian 13 sends none, not even outside
        words = ("npm", "i", "--fetch-retries=0", "--registry=https://public.example/npm", "pkg")
        if "npm ERR! code E407" in box.host(*words, cwd=box.home).stderr:
            del commands["npm"]
    script = "\n".join(f"echo == {name}; {command}" for name, (command, _) in commands.items())
    script = script.replace("RUST", place)

    result = box.sh(f"{script}\necho == environment; env; cat $SSL_CERT_FILE", flags=(*TIERS[tier], *tools))

    assert result.returncode == 0, result.stderr
    parts = dict(part.split("\n", 1) for part in result.stdout.split("== ")[1:])
    for name, (_, printed) in commands.items():
        assert printed in parts[name], f"{name}: {parts[name]}{result.stderr}"
    assert "pass-word-of-the-proxy" not in parts["environment"]
    assert "c2VjcmV0" not in parts["environment"]
    assert company[1].decode().split("\n")[1] in parts["environment"]
    seen = log.read_text().splitlines()
    assert "CONNECT public.example:443" in seen
    assert "read public.example" in seen  # it did end TLS
    assert not [line for line in seen if line.startswith("407") and len(line.split()) > 3]
    for leftover in ("cloned", "t", "node_modules", "Cargo.lock"):
        shutil.rmtree(f"{box.project}/{leftover}", ignore_errors=True)


def test_without_the_settings_of_the_host_nothing_is_trusted(companybox):
    # proves NET-06
    del companybox.environ["NODE_EXTRA_CA_CERTS"]

    result = companybox.sh("curl -sS --max-time 10 https://public.example/page", flags=TIERS["inet"])

    assert "page of" not in result.stdout
    assert "certificate" in result.stderr


@pytest.mark.parametrize("tier", ["full", "inet"])
def test_the_entrance_is_for_the_sandbox_alone(companybox, company, world, tier):
    # proves NET-06
    box = companybox
    ask = "curl -sS -o /dev/null -w '%{http_connect}' --max-time 5 https://public.example/page"
    near = "curl -sS -o /dev/null -w ' %{http_connect}' --max-time 5 https://inner.example/page"
    with box.start(
        "sh", "-c", f'echo "$HTTPS_PROXY"; {ask}; {near}; echo; read x', flags=TIERS[tier], stdin=subprocess.PIPE
    ) as process:
        address = process.stdout.readline().strip()
        answers = process.stdout.readline().split()
        place = address.rpartition("@")[2].removeprefix("http://")
        stranger = subprocess.run(
            [*world.within("host"), "curl", "-sS", "--max-time", "3", "-x", place, "-o", "/dev/null",
             "-w", "%{http_connect}", "https://public.example/page"], capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert answers[0] == "200"
    assert "pass-word" not in address
    if tier == "full":  # on this machine's loopback others could come too
        assert address.startswith("http://claudebox:")
        assert stranger.stdout == "407"
        assert answers[1] == "502"  # nobody answers there, and that is the proxy's word
    else:
        assert address == "http://127.0.0.1:3128"
        assert stranger.stdout == "000"
        assert answers[1] == "403"  # what the host knows to be in the LAN stays closed
    asked = "CONNECT inner.example:443" in company[0].read_text().splitlines()
    assert asked == (tier == "full")
