"""Secrets that stay outside, as a user meets them: what is refused, and in which words."""

from __future__ import annotations

import json

VALUE = "ghp_0aA1bB2cC3dD4eE5fF6gG7hH8iI9jJ0kK1lL"
ROW = '[[secrets]]\nenv = "GH_TOKEN"\nhosts = ["api.github.com"]\nfrom = "{}"\n'


def configure(box, source: str = "env:GH_TOKEN", *, network: str = "inet", more: str = "") -> None:
    text = f'network = "{network}"\n{more}{ROW.format(source)}'
    box.write(f"{box.home}/.claudebox/config.toml", text, mode=0o600)


def refused(result) -> str:
    assert result.returncode == 125
    assert "Traceback" not in result.stderr
    assert VALUE not in result.stdout + result.stderr
    return str(result.stderr)


def test_letting_the_variable_in_as_well_is_a_contradiction(user_box):
    configure(user_box)

    said = refused(user_box.run("true", flags=("--env", "GH_TOKEN"), env={"GH_TOKEN": VALUE}))
    assert "`--env` lets `GH_TOKEN` in" in said
    other = refused(user_box.run("true", flags=("--env", "COPY"), env={"GH_TOKEN": VALUE, "COPY": f"x{VALUE}"}))
    assert "`COPY`" in other


def test_tier_none_goes_on_without_and_says_so(user_box):
    configure(user_box)
    result = user_box.sh("echo ${GH_TOKEN-unset}", flags=("--network", "none"), env={"GH_TOKEN": VALUE})

    assert result.stdout == "unset\n"
    assert "secrets (GH_TOKEN) are for hosts, and tier none reaches no host" in result.stderr


def test_every_rendering_tells_of_it_and_none_shows_it(user_box):
    # proves B13, UX-01
    configure(user_box, f"command:printf {VALUE[::-1]}")
    user_box.environ["GH_TOKEN"] = VALUE
    shown = [user_box.claudebox(*words, "--exec", "--", "true") for words in (
        ("--explain",), ("--explain", "--json"), ("--dry-run",))]  # fmt: skip

    assert all(result.returncode == 0 for result in shown), shown[0].stderr
    assert "a placeholder: the value goes to api.github.com alone" in shown[0].stdout
    for result in shown:
        assert VALUE not in result.stdout
        assert VALUE[::-1] not in result.stdout.replace(f"command:printf {VALUE[::-1]}", "")


def test_what_a_secret_is_good_for_is_shown_and_checked(user_box):
    # proves NEW-N8
    row = f'network = "inet"\n{ROW.format("env:GH_TOKEN")}permit = {{}}\n'
    path = f"{user_box.home}/.claudebox/config.toml"
    user_box.environ["GH_TOKEN"] = VALUE
    user_box.write(path, row.format('["github:push acme/shop", "GET /user"]'), mode=0o600)
    shown, document = (user_box.claudebox("--explain", *more, "--exec", "--", "true") for more in ((), ("--json",)))
    assert "POST /acme/shop.git/git-receive-pack, POST /acme/shop/git-receive-pack, GET /user" in shown.stdout
    (secret,) = json.loads(document.stdout)["broker"]["secrets"]
    assert "GET /user" in secret["permit"]

    for wrong, named in (
        ('["GET repos"]', "GET repos"), ('["github:own x/y"]', "github:own"), ('["POST /a/**/b"]', "**"),
        ("[]", "permit"), ("[7]", "permit"),
    ):  # fmt: skip
        user_box.write(path, row.format(wrong), mode=0o600)
        said = refused(user_box.run("true"))
        assert named in said
        assert "config.toml:" in said


def test_several_mistakes_of_a_row_are_told_with_their_lines(user_box):
    text = '[[secrets]]\nenv = "A B"\nhosts = 3\n\n[[secrets]]\nenv = "X"\nhost = ["a.b"]\nfrom = "env:X"\n'
    user_box.write(f"{user_box.home}/.claudebox/config.toml", text, mode=0o600)
    said = refused(user_box.run("true"))

    assert "config.toml:3: `secrets.hosts` must be an array of strings" in said
    assert "`secrets` needs `from`" in said
    assert "config.toml:7: `secrets` has no `host`; did you mean `hosts`?" in said
