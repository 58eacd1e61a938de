"""The user's own settings, and the project's, cannot be changed from inside."""

from __future__ import annotations

import os
from pathlib import Path

ATTACK = """\
for path in "$@"; do
  echo 'network = "full"' >>"$path" && echo "appended to $path"
  rm -r "$path" && echo "removed $path"
  mv "$path" "$path.old" && echo "moved $path"
  ln -sfT /tmp/x "$path" && echo "linked $path"
done 2>/dev/null
exit 0
"""


def test_the_project_file_cannot_be_changed_created_or_replaced_from_inside(box):
    # proves EXT-01, E06
    box.write("attack.sh", ATTACK)
    control = box.sh(": >other; sh attack.sh other").stdout
    assert control == "appended to other\nremoved other\nlinked other\n"

    assert box.sh("sh attack.sh .claudebox.toml").stdout == ""
    assert not os.path.lexists(f"{box.project}/.claudebox.toml")
    path = box.write(".claudebox.toml", 'network = "none"\n')
    assert box.sh("sh attack.sh .claudebox.toml").stdout == ""
    assert Path(path).read_text() == 'network = "none"\n'


def test_settings_in_a_repository_of_dotfiles_cannot_be_changed_from_inside(box):
    # proves C09
    dotfiles = box.mkdir(f"{box.home}/dotfiles")
    box.write(f"{dotfiles}/attack.sh", ATTACK)
    config = box.write(f"{dotfiles}/box/config.toml", 'network = "none"\n')
    profile = box.write(f"{dotfiles}/box/profiles/mine.toml", "")
    box.mkdir(f"{box.home}/.claudebox")
    os.symlink("../dotfiles/box/config.toml", f"{box.home}/.claudebox/config.toml")
    os.symlink("../dotfiles/box/profiles", f"{box.home}/.claudebox/profiles")

    attacked = (config, profile, f"{dotfiles}/box/profiles/new.toml", f"{dotfiles}/box/profiles", f"{dotfiles}/box")
    result = box.sh(f"sh attack.sh {' '.join(attacked)}; echo fine >box/other; cat box/other", cwd=dotfiles)

    assert result.stdout == "fine\n"
    assert "is one of your own settings of claudebox, and read-only inside" in result.stderr
    assert Path(config).read_text() == 'network = "none"\n'
    assert sorted(os.listdir(f"{dotfiles}/box")) == ["config.toml", "other", "profiles"]
    assert os.listdir(f"{dotfiles}/box/profiles") == ["mine.toml"]
    # In another project they are not there at all, and still obeyed.
    assert box.sh(f"cat {config} 2>&1; grep -c : /proc/net/dev").stdout.endswith("No such file or directory\n1\n")


def test_the_cache_and_the_approvals_are_never_visible_inside(box):
    # proves EXT-01, E05
    box.write(f"{box.home}/.claudebox/config.toml", 'network = "none"\n')
    box.sh("true")
    assert os.listdir(f"{box.home}/.claudebox/config-cache")

    assert "No such file" in box.sh(f"ls {box.home}/.claudebox 2>&1").stdout
    assert box.sh("true", cwd=f"{box.home}/.claudebox/config-cache").returncode == 125
