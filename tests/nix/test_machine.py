"""The machines that the tests build are what they say."""

from __future__ import annotations


def test_a_machine_without_usr_runs_programs_of_the_store_alone(nixos_box):
    shown = nixos_box.host("sh", "-c", "ls / /usr/bin; ls -l /proc/self/exe; readlink -f $(command -v ls)")
    nothing = nixos_box.host("/usr/bin/python3", "-c", "")
    version = nixos_box.host("python3", "-IS", "-c", "import ssl, _ctypes, sys; print(sys.prefix)")
    nix = nixos_box.host("nix", "store", "info", "--json", env={"NIX_REMOTE": "daemon"})

    assert shown.returncode == 0, shown.stderr
    assert "/nix/store/" in shown.stdout
    assert nothing.returncode != 0
    assert version.stdout.startswith("/nix/store/"), version.stderr
    assert '"url":"daemon"' in nix.stdout, nix.stderr
