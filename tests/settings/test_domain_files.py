"""Domains in files of settings: what is understood, and what is said about mistakes."""

from __future__ import annotations

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.settings import files as settings_files
from claudebox.settings import layers as settings_layers


def layers(home, text, *, role="config.toml"):
    (home / ".claudebox").mkdir(mode=0o700, exist_ok=True)
    path = home / ".claudebox" / role
    path.write_text(text)
    path.chmod(0o600)
    return settings_files.layers(settings_layers.parse_arguments([]), {}, settings_files.SettingsReader(str(home)))


def listed(home, text, *argv):
    found = settings_layers.merge(settings_layers.parse_arguments(argv), {}, layers(home, text))
    return [row.name for row in settings_layers.decide_policy(found, home="/h", workdir="/w").domains]


def test_groups_are_defined_once_and_used_by_name(tmp_path):
    # proves PROF-01
    text = """
network = "allow"
allow_domains = ["work", "github.example.org"]
[domains.work]
hosts = ["git.example.org", "*.build.example.org:8443"]
[domains.unused]
hosts = "unused.example"
"""
    assert listed(tmp_path, text) == ["git.example.org", "*.build.example.org:8443", "github.example.org"]
    assert "unused.example" in listed(tmp_path, text, "--allow-domain", "unused")


@pytest.mark.parametrize(("text", "said"), [
    ('allow_domains = ["https://a.example/x"]', "config.toml:1: `allow_domains`: `https://a.example/x` is not"),
    ('allow_domains = ["10.0.0.1"]', "`10.0.0.1` is not a domain name"),
    ("allow_domains = true", "`allow_domains` must be a string or an array of strings"),
    ('[domains]\nwork = ["a.example"]', "`domains` must be tables with names of your own: `[domains.work]`"),
    ("[domains.work]\n", "`domains.work` needs `hosts`, an array of strings"),
    ("[domains.work]\nhosts = []", "`domains.work` needs `hosts`"),
    ('[domains.work]\nhost = ["a.example"]', "`domains.work` has no `host`; there is `hosts`"),
    ('[domains.work]\nhosts = ["*"]', "`*` is not a domain name"),
    ('[domains.work]\nhosts = ["github"]', "`github` is not a domain name"),
    ('[domains."a.b"]\nhosts = ["a.example"]', "`a.b` cannot be the name of a group"),
    ("[domains.work]\nhosts = [1]", "each element must be a string"),
])  # fmt: skip
def test_a_mistake_is_told_with_its_place(tmp_path, text, said):
    with pytest.raises(ClaudeboxError) as caught:
        layers(tmp_path, text)

    assert said in " ".join((caught.value.message, *caught.value.more))


def test_an_unknown_group_of_a_file_is_told_where_it_counts(tmp_path):
    assert listed(tmp_path, 'network = "none"\nallow_domains = ["nosuch"]') == []
    with pytest.raises(ClaudeboxError, match=r"config\.toml:2`: there is no group of domains `nosuch`"):
        listed(tmp_path, 'network = "allow"\nallow_domains = ["nosuch"]')
