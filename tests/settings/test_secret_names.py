from __future__ import annotations

import pytest

from claudebox.tables import secrets as tables_secrets

SECRET_NAMES = [
    "ANTHROPIC_API_KEY", "GH_TOKEN", "github_token", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "MYSQL_PWD_PASSWD",
    "GPG_PASSPHRASE", "GOOGLE_APPLICATION_CREDENTIALS", "npm_config__authToken", "SESSION_COOKIE", "STRIPE_WEBHOOK_URL",
    "SSH_PRIVATE", "AZURE_DEVOPS_PAT", "GITLAB_PAT_FILE", "SENTRY_DSN", "DATABASE_URL", "X_CONNECTION_STRING",
]  # fmt: skip
INNOCENT_NAMES = [
    "HOME", "LANG", "TERM", "EDITOR", "PATH", "NODE_PATH", "LD_LIBRARY_PATH", "MAVEN_PATH_EXTRA", "XAUTHORITY",
    "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "XDG_SESSION_TYPE", "DESKTOP_SESSION", "SSH_AUTH_SOCK", "COLORTERM",
]  # fmt: skip
SECRET_VALUES = [
    "sk-ant-api03-abc", "sk_live_123", "ghp_0123456789abcdef", "github_pat_11ABC", "glpat-abc", "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123", "npm_abcdef", "pypi-AgEI", "AIzaSyD", "ya29.a0", "eyJhbGciOiJIUzI1NiJ9.e30.x", "hf_abc", "hvs.CAES",
    "AGE-SECRET-KEY-1QQ", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "-----BEGIN RSA PRIVATE KEY-----",
    "https://alice:hunter2@example.org/", "https://ghp_0123456789@example.org/x",
    "postgres://u:p@db/x?y", "http://:pw@proxy:3128", "socks5://u:p@[::1]:1080",
]  # fmt: skip
INNOCENT_VALUES = [
    "", "xterm-256color", "https://example.org/", "https://example.org/a:b@c", "https://alice@example.org/",
    "https://alice:@example.org/", "/usr/bin/vim", "en_GB.UTF-8", "desk-lamp", "a://", "://", "@", ":@",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_that_speaks_of_a_secret_is_recognised(name):
    # proves SEC-01
    assert tables_secrets.name_looks_secret(name)
    assert tables_secrets.looks_secret(name, "")


@pytest.mark.parametrize("name", INNOCENT_NAMES)
def test_an_ordinary_name_is_not_taken_for_a_secret(name):
    assert not tables_secrets.name_looks_secret(name)


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_the_shape_of_a_secret_is_recognised_under_any_name(value):
    # proves SEC-01, A13
    assert tables_secrets.value_looks_secret(value)
    assert tables_secrets.looks_secret("LANG", value)


@pytest.mark.parametrize("value", INNOCENT_VALUES)
def test_an_ordinary_value_is_not_taken_for_a_secret(value):
    assert not tables_secrets.value_looks_secret(value)
    assert not tables_secrets.looks_secret("LANG", value)
