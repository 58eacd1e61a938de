"""Become a program in the mount namespace of another process, as an account: enter.py PID UID GID DIRECTORY WORDS.

The namespace may have no program that could do this; so everything is loaded before.
"""

import ctypes
import os
import sys
import warnings  # noqa: F401 - execvp wants it

CLONE_NEWNS = 0x20000

os.environ.pop("LC_CTYPE", None)  # which Python sets for itself
process, uid, gid, directory, *words = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
descriptor = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
if libc.setns(descriptor, CLONE_NEWNS):
    sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")
os.setgroups([])
os.setresgid(int(gid), int(gid), int(gid))
os.setresuid(int(uid), int(uid), int(uid))
os.chdir(directory)
try:
    os.execvp(words[0], words)
except OSError as error:
    sys.exit(f"{words[0]}: {error.strerror}")
