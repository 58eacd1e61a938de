#!/bin/sh
# The command that pip, pipx and uv install: find the Python of this installation and run it isolated (-IS) from the
# first instruction, so that neither PYTHONPATH nor a file of the project is imported. Runs no program found in PATH.
self=$0
[ ! -h "$self" ] || self=$(PATH=/usr/bin:/bin:/run/current-system/sw/bin && readlink -f -- "$0")
case $self in
  */*) bin=${self%/*} ;;
  *) bin=. ;; # `sh claudebox` in its own directory
esac

# The package lies below the same prefix; the name of its directory tells which Python it was installed for.
for package in "$bin"/../lib/python3.*/site-packages "$bin"/../lib/python3.*/dist-packages; do
  [ -f "$package/claudebox/cli.py" ] || continue
  version=${package%/*-packages}
  version=${version##*/}
  for python in "$bin/$version" "$bin/python3" "/usr/bin/$version" "/usr/local/bin/$version"; do
    [ ! -x "$python" ] ||
      exec "$python" -IS -c \
        'import gc, sys; gc.disable(); sys.path.insert(0, sys.argv.pop(1))
from claudebox.cli import entry; entry()' \
        "$package" "$@"
  done
done
echo "claudebox: error: the Python that claudebox was installed for is gone" >&2
echo "hint: install it again, for example with \`pipx reinstall claudebox\` or \`uv tool install --reinstall claudebox\`" >&2
exit 125
