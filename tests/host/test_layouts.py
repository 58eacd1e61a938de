"""Other distributions keep names and certificates elsewhere: an /etc of the test stands in for theirs."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from tests.conftest import need

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
SERVERS = "# made by the test\nnameserver 192.0.2.53\nsearch example.org\noptions edns0 trust-ad\n"


@pytest.fixture
def elsewhere(box):
    """Return a directory that stands in for /etc, and what runs claudebox where it does."""
    need(os.getuid() == 0, "privileges of root")
    etc = f"{box.base}/etc"
    os.makedirs(f"{etc}/ssl/certs")
    for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache"):
        shutil.copy(f"/etc/{name}", f"{etc}/{name}")
    shutil.copytree("/etc/alternatives", f"{etc}/alternatives", symlinks=True)

    def run(script: str) -> subprocess.CompletedProcess[str]:
        account = f"--reuid {box.account.uid} --regid {box.account.gid} --clear-groups"
        mount = f'mount --bind {etc} /etc && exec setpriv {account} -- "$@"'
        words = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", mount, "sh"]
        return subprocess.run(
            [*words, box.program, "-y", "--exec", "--", "sh", "-c", script], cwd=box.project, env=box.variables(),
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return etc, run


@pytest.mark.parametrize("target", ["{base}/outside/stub-resolv.conf", "chain/one"])
def test_name_servers_are_found_where_resolv_conf_is_a_link(box, elsewhere, target):
    # proves SAND-12
    etc, run = elsewhere
    box.write(f"{box.base}/outside/stub-resolv.conf", SERVERS)
    os.symlink(f"{box.base}/outside", f"{etc}/chain")
    os.symlink("stub-resolv.conf", f"{box.base}/outside/one")
    os.symlink(target.format(base=box.base), f"{etc}/resolv.conf")

    result = run("cat /etc/resolv.conf; ls -ld /etc/resolv.conf")

    assert result.returncode == 0, result.stderr
    *lines, listing = result.stdout.splitlines()
    assert lines == SERVERS.splitlines()[1:]
    assert listing.startswith("-")


def test_a_resolv_conf_that_leads_nowhere_does_no_harm(box, elsewhere):
    # proves SAND-12
    etc, run = elsewhere
    os.symlink("/nonexistent/resolv.conf", f"{etc}/resolv.conf")

    result = run("cat /etc/resolv.conf; echo ran")

    assert result.stdout == "ran\n", result.stderr


@pytest.mark.parametrize("place", [
    "ssl/certs/ca-certificates.crt", "pki/tls/certs/ca-bundle.crt", "pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "ssl/ca-bundle.pem", "ssl/cert.pem",
])  # fmt: skip
def test_authorities_are_found_where_the_distribution_keeps_them(box, elsewhere, place):
    # proves SAND-13
    need(os.path.exists(BUNDLE), "bundle of certificate authorities")
    etc, run = elsewhere
    os.makedirs(os.path.dirname(f"{etc}/{place}"), exist_ok=True)
    shutil.copy(BUNDLE, f"{etc}/{place}")
    script = (
        "echo $SSL_CERT_FILE; cmp $SSL_CERT_FILE $NIX_SSL_CERT_FILE && "
        "python3 -c 'import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 50)'"
    )

    result = run(script)

    assert result.stdout.split() == ["/run/claudebox/ca-bundle.crt", "True"], result.stderr


def test_authorities_are_found_through_links_out_of_etc(box, elsewhere):
    # proves SAND-13
    etc, run = elsewhere
    outside = f"{box.base}/static/bundle.crt"
    box.write(outside, "certificates")
    os.symlink(outside, f"{etc}/ssl/certs/ca-certificates.crt")

    result = run("cat $SSL_CERT_FILE; ls -A /etc; cat /etc/ssl/certs/ca-certificates.crt 2>/dev/null")

    assert result.stdout.startswith("certificates"), result.stderr
    assert "static" not in result.stdout


@pytest.mark.root
def test_settings_with_tokens_below_usr_are_empty_and_no_obstacle(box):
    # proves SAND-02
    os.makedirs("/usr/local/etc", exist_ok=True)
    account = f"--reuid {box.account.uid} --regid {box.account.gid} --clear-groups"
    mount = (
        "mount -t tmpfs none /usr/local/etc && chmod 755 /usr/local/etc && "
        f'echo _authToken=CANARY | tee /usr/local/etc/npmrc >/usr/local/etc/gitconfig && exec setpriv {account} -- "$@"'
    )
    script = ("sh", "-c", "wc -c /usr/local/etc/npmrc /usr/local/etc/gitconfig | cut -c1-2; : >>/usr/local/etc/npmrc")
    outside, inside = (
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", mount, "sh", *words, *script],
            cwd=box.project, env=box.variables(), capture_output=True, text=True, check=False, timeout=60,
        )
        for words in ((), (box.program, "-y", "--quiet", "--exec", "--"))
    )  # fmt: skip

    assert outside.stdout.split() == ["18", "18", "36"]
    assert inside.stdout.split() == ["0", "0", "0"], inside.stderr
    assert inside.returncode != 0
