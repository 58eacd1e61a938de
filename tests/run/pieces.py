"""Pieces of real work: what a developer does in a day, each with the files that it starts from and the script."""
# ruff: noqa: E501 - a script is easier to read in one line

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Piece:
    """One piece: it must have the same output, the same exit status and the same results outside and inside."""

    script: str
    files: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # programs
    flags: tuple[str, ...] = ()  # of claudebox
    results: tuple[str, ...] = ()  # files that are compared byte by byte
    status: int = 0


C = '#include <stdio.h>\nint twice(int);\nint main(void) { printf("%d\\n", twice(21)); return 0; }\n'
LIBRARY = "int twice(int x) { return 2 * x; }\n"
MAKEFILE = "OBJECTS = main.o twice.o\nprogram: $(OBJECTS)\n\t$(CC) -o $@ $(OBJECTS)\ncheck: program\n\t./program\n"
SERVER = """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/page").read())
"""
INOTIFY = """
import ctypes, os, struct
libc = ctypes.CDLL(None)
descriptor = libc.inotify_init1(0)
assert libc.inotify_add_watch(descriptor, b".", 0x100 | 0x2) >= 0
open("seen", "w").write("x")
print(sorted({struct.unpack("iIII", os.read(descriptor, 4096)[:16])[1] for _ in range(1)}))
"""
POOL = """
import multiprocessing as m
def square(x): return x * x
if __name__ == "__main__":
    with m.Pool(4) as pool: print(sum(pool.map(square, range(1000))))
    queue = m.Queue(); lock = m.Lock()
    with lock: queue.put(1)
    print(queue.get())
"""
SOCKETS = """
import os, socket, threading
server = socket.socket(socket.AF_UNIX); server.bind("service.sock"); server.listen()
threading.Thread(target=lambda: server.accept()[0].sendall(b"answered")).start()
client = socket.socket(socket.AF_UNIX); client.connect("service.sock"); print(client.recv(99)); os.unlink("service.sock")
"""
LOCKS = """
import fcntl, os
first, second = open("lock", "w"), open("lock", "w")
fcntl.flock(first, fcntl.LOCK_EX)
try: fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError: print("locked")
fcntl.lockf(first, fcntl.LOCK_EX); print(os.posix_fallocate(first.fileno(), 0, 4096))
"""
SQLITE = """
import sqlite3
base = sqlite3.connect("data.sqlite"); print(base.execute("pragma journal_mode=wal").fetchall())
base.execute("create table t(x)"); base.executemany("insert into t values (?)", [(i,) for i in range(1000)]); base.commit()
print(sqlite3.connect("data.sqlite").execute("select sum(x) from t").fetchall())
"""
ASYNC = """
import asyncio
async def main():
    processes = [await asyncio.create_subprocess_exec("sh", "-c", f"exit {i % 3}") for i in range(60)]
    print(sum([await process.wait() for process in processes]))
asyncio.run(main())
"""
# A backend of its own: environments have no setuptools any more since Python 3.12.
BUILD = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """import zipfile
def build_wheel(directory, *settings):
    with zipfile.ZipFile(f"{directory}/greeting-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write("greeting.py")
        info = "greeting-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: greeting\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return "greeting-1.0-py3-none-any.whl"
"""
PACKAGE = (
    '{"name": "greeting", "version": "1.0.0", "main": "index.js", "scripts": {"fail": "exit 3", "test": "node t.js"}}'
)
GIT = "git init -q -b main . && git config user.name A && git config user.email a@b && "
COMMIT = "GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000' git commit -q "
JAVA = 'public class Main { public static void main(String[] a) { System.out.println("from Java " + 6 * 7); } }\n'
NODE_TEST = 'const t = require("node:test");\nt("adds", () => { if (1 + 1 !== 2) throw 1; });\n'
WORKER = """
const { Worker, isMainThread, parentPort } = require("node:worker_threads");
if (isMainThread) new Worker(__filename).on("message", (m) => console.log(m)); else parentPort.postMessage("from a worker");
"""
BROWSER = """
const { chromium } = require("playwright-core");
const server = require("http").createServer((_, answer) => answer.end("<title>served</title><h1>here</h1>")).listen(0, "127.0.0.1", async () => {
  const browser = await chromium.launch({ executablePath: process.env.CHROME_PATH || "/usr/bin/chromium" });
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  await page.screenshot({ path: "shot.png" });
  console.log(await page.title(), require("fs").readFileSync("shot.png").subarray(1, 4).toString());
  await browser.close();
  server.close();
});
"""

LIGHT: dict[str, Piece] = {
    "gcc": Piece("gcc -O2 -o p main.c twice.c && ./p", {"main.c": C, "twice.c": LIBRARY}, ("gcc",)),
    "make": Piece("make -j4 check CC=gcc | tail -1; touch twice.c; make -q; echo $?",
                  {"main.c": C, "twice.c": LIBRARY, "Makefile": MAKEFILE}, ("make", "gcc")),
    "shared library": Piece("gcc -shared -fPIC -o libtwice.so twice.c && gcc -o p main.c -L. -ltwice && "
                            "LD_LIBRARY_PATH=. ./p; ./p 2>/dev/null; echo $?",
                            {"main.c": C, "twice.c": LIBRARY}, ("gcc",)),
    "a crash": Piece("gcc -o p main.c && ./p; exit $?", {"main.c": "int main(void) { return *(volatile int *)0; }\n"}, ("gcc",),
                     status=139),
    "sanitizer": Piece("gcc -fsanitize=address -g -o p main.c && ./p 2>&1 | grep -c heap-use-after-free",
                       {"main.c": "#include <stdlib.h>\nint main(void) { char *p = malloc(9); free(p); return *p; }\n"},
                       ("gcc",)),
    "strace": Piece("strace -f -e trace=openat -o log cat page >/dev/null; grep -c 'page' log", {"page": "x"},
                    ("strace",)),
    "venv and pip": Piece("python3 -m venv v && v/bin/pip install -q --no-index ./g 2>&1; "
                          "v/bin/python -c 'import greeting; print(greeting.WORD)'; v/bin/pip list 2>/dev/null | grep gree",
                          {"g/pyproject.toml": BUILD, "g/backend.py": BACKEND, "g/greeting.py": "WORD = 'hello'\n"},
                          ("python3",)),
    "unittest": Piece("python3 -m unittest -q t 2>&1 | sed 's/ in .*//'; python3 -m unittest -q t 2>/dev/null",
                      {"t.py": "import unittest\nclass T(unittest.TestCase):\n def test_it(self): self.assertTrue(0)\n"},
                      ("python3",), status=1),
    "multiprocessing": Piece("python3 p.py", {"p.py": POOL}, ("python3",)),
    "asyncio": Piece("python3 p.py", {"p.py": ASYNC}, ("python3",)),
    "a web server": Piece("python3 p.py 2>/dev/null", {"p.py": SERVER, "page": "served"}, ("python3",)),
    "inotify": Piece("python3 p.py", {"p.py": INOTIFY}, ("python3",)),
    "a socket of one's own": Piece("python3 p.py", {"p.py": SOCKETS}, ("python3",)),
    "locks": Piece("python3 p.py", {"p.py": LOCKS}, ("python3",)),
    "sqlite": Piece("python3 p.py", {"p.py": SQLITE}, ("python3",)),
    "node": Piece("node -e 'console.log(process.argv.length, os.EOL.length, require(\"fs\").readFileSync(\"page\", \"utf8\"))' a b",
                  {"page": "x"}, ("node",)),
    "node tests": Piece("node --test t.js >log 2>&1; echo $?; grep -c '^# pass 1\\|pass 1' log", {"t.js": NODE_TEST},
                        ("node",)),
    "node workers": Piece("node p.js", {"p.js": WORKER}, ("node",)),
    "npm": Piece("npm pack --silent ./g && npm install --silent --offline --no-audit --no-fund ./greeting-1.0.0.tgz && "
                 "node -e 'console.log(require(\"greeting\"))' && npm --silent run fail --prefix g",
                 {"g/package.json": PACKAGE, "g/index.js": "module.exports = 'hello'\n"}, ("npm",), status=3),
    "java": Piece("javac Main.java && java -Xshare:auto Main", {"Main.java": JAVA}, ("javac",)),
    "git": Piece(GIT + "git add a && " + COMMIT + "-m one && git switch -qc side && echo 2 >>a && " + COMMIT +
                 "-am two && git switch -q main && git merge -q --no-edit side && git rebase -q HEAD~1 && "
                 "git stash -q 2>/dev/null; git log --format='%s %H' && git status --short && git diff HEAD~1 --stat",
                 {"a": "1\n"}, ("git",)),
    "git bisect": Piece(GIT + "for i in 1 2 3 4 5; do echo $i >a; git add a; " + COMMIT + "-m $i; done; "
                        "git bisect start HEAD HEAD~4 >/dev/null 2>&1; git bisect run sh -c '[ $(cat a) -lt 3 ]' | "
                        "grep 'is the first' | cut -c1-40", {}, ("git",)),
    "archives": Piece("tar -cJf a.tar.xz --sort=name --mtime=@0 --owner=0 --group=0 d && zip -qrX a.zip d && "
                      "gzip -kn d/x && tar -tJf a.tar.xz && sha256sum a.tar.xz d/x.gz && unzip -qo a.zip -d out 2>/dev/null"
                      "; cat d/x.gz | gunzip", {"d/x": "content\n"}, ("xz", "zip")),
    "openssl": Piece("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout k -out c -days 2 "
                     "-subj /CN=x 2>/dev/null && openssl verify -CAfile c c", {}, ("openssl",)),
    "jq, sed, awk": Piece("jq -c '.a|map(.+1)' x.json; seq 100 | awk '{s+=$1} END {print s}'; sed -i s/1/9/ x.json; cat x.json",
                          {"x.json": '{"a":[1,2]}\n'}, ("jq",), results=("x.json",)),
    "perl": Piece("perl -MData::Dumper -e 'print scalar(localtime(0)), Dumper([1])'", {}, ("perl",)),
    "patch": Piece("cp a b; sed -i s/old/new/ b; diff -u a b >p; patch -s a p; cat a; diff a missing", {"a": "old\n"},
                   ("patch",), status=2),
    "links and modes": Piece("ln -s a l; ln a h; chmod 751 a; cp -a l m; truncate -s 10M s; umask 027; touch n; "
                             "stat -c '%n %F %a %h %s' a l h m s n; readlink m; du -k s | cut -f1", {"a": "x"}),
    "pipes and jobs": Piece("mkfifo p; (echo one >p &); cat p; sleep 9 & kill $!; wait $!; echo $?; trap 'echo bye' EXIT; "
                            "timeout 0.1 sleep 9; echo $?; exit 42", status=42),
    "zsh and fish": Piece("zsh -c 'print ${(U):-up} **/*(.)'; fish -c 'string upper up; count *'", {"d/x": ""},
                          ("zsh", "fish")),
    "tmux": Piece("tmux -L w -f /dev/null new -d -x 60 -y 5 'echo in tmux; sleep 9'; sleep 0.3; "
                  "tmux -L w capture-pane -p | head -1; tmux -L w kill-server", {}, ("tmux",)),
    "many processes": Piece("seq 400 | xargs -P 8 -n 1 sh -c 'echo $((0 * $0))' | sort | uniq -c"),
    "time zones": Piece("TZ=Asia/Tokyo date -d @0; TZ=America/New_York date -d @0; date -u -d '2026-11-16 +1 day' +%F"),
    "find and xargs": Piece("mkdir -p d/{1..20}; touch d/{1..20}/{1..20}.c; find d -name '*.c' -print0 | xargs -0 ls | wc -l; "
                            "find d -newer a -type d | wc -l", {"a": "x"}),
}  # fmt: skip

# What needs a registry, or packages and minutes that the usual run has not: `scripts/test --work`.
HEAVY: dict[str, Piece] = {
    "pip from the index": Piece("python3 -m venv v && v/bin/pip install -q --disable-pip-version-check 'requests==2.32.3' && "
                                "v/bin/pip freeze | grep -c . && v/bin/python -c 'import requests; print(requests.codes.ok)'",
                                {}, ("python3",)),
    "uv": Piece("python3 -m venv v && v/bin/pip install -q --disable-pip-version-check uv && v/bin/uv venv -q e && "
                "v/bin/uv pip install -q --python e/bin/python 'requests==2.32.3' && e/bin/python -c 'import requests; print(requests.__version__)'",
                {}, ("python3",)),
    "poetry": Piece("python3 -m venv v && v/bin/pip install -q --disable-pip-version-check poetry && "
                    "POETRY_VIRTUALENVS_IN_PROJECT=1 v/bin/poetry -q install && .venv/bin/python -c 'import greeting; print(greeting.WORD)' && "
                    "v/bin/poetry -q build -f wheel && ls dist",  # without dependencies: not every index has what poetry asks
                    {"pyproject.toml": '[project]\nname = "greeting"\nversion = "1"\nrequires-python = ">=3.11"\n[build-system]\n'
                                       'requires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n',
                     "greeting.py": "WORD = 'hello'\n"}, ("python3",)),
    "npm from the registry": Piece("npm install --silent --no-audit --no-fund express@4.21.2 && ls node_modules | wc -l && "
                                   "node -e 'console.log(typeof require(\"express\"))'", {"package.json": "{}"}, ("npm",)),
    "pnpm": Piece("npm install --silent --no-audit --no-fund --prefix t pnpm@9 && t/node_modules/.bin/pnpm --silent add ms@2.1.3 "
                  "--store-dir ./store && node -e 'console.log(require(\"ms\")(\"2 days\"))'", {"package.json": "{}"}, ("npm",)),
    "yarn": Piece("npm install --silent --no-audit --no-fund --prefix t yarn@1 && t/node_modules/.bin/yarn --silent add ms@2.1.3 && "
                  "node -e 'console.log(require(\"ms\")(\"1h\"))'", {"package.json": "{}"}, ("npm",)),
    "playwright": Piece("npm install --silent --no-audit --no-fund playwright-core@1.48.2 && node p.js",
                        {"package.json": "{}", "p.js": BROWSER}, ("npm", "chromium"), ("--set", "browser=true")),
    "go": Piece("go build -o p . && ./p && go test ./... | cut -f1,2 && go vet ./...",
                {"go.mod": "module m\n\ngo 1.19\n\nrequire example.org/dep v1.0.0\n",
                 "vendor/modules.txt": "# example.org/dep v1.0.0\n## explicit\nexample.org/dep\n",
                 "vendor/example.org/dep/dep.go": 'package dep\n\nconst Word = "go, from what is vendored"\n',
                 "m.go": 'package main\n\nimport (\n\t"fmt"\n\n\t"example.org/dep"\n)\n\nfunc main() { fmt.Println(dep.Word) }\n',
                 "m_test.go": 'package main\n\nimport "testing"\n\nfunc TestIt(t *testing.T) {}\n'}, ("go",)),
    "cargo": Piece("cargo build --offline -q && ./target/debug/m && cargo test --offline -q 2>&1 | grep -c 'test result: ok'",
                   {"Cargo.toml": '[package]\nname = "m"\nversion = "1.0.0"\n[dependencies]\ndep = "1"\n',
                    ".cargo/config.toml": '[source.crates-io]\nreplace-with = "v"\n[source.v]\ndirectory = "vendor"\n',
                    "vendor/dep/Cargo.toml": '[package]\nname = "dep"\nversion = "1.0.0"\n',
                    "vendor/dep/src/lib.rs": "pub fn word() -> &'static str { \"rust, from what is vendored\" }\n",
                    "vendor/dep/.cargo-checksum.json": '{"files": {}, "package": null}',
                    "src/main.rs": 'fn main() { println!("{}", dep::word()) }\n#[test]\nfn it() {}\n'}, ("cargo",)),
    "cmake": Piece("cmake -S . -B b >/dev/null && cmake --build b >/dev/null && ctest --test-dir b 2>&1 | grep -c '100% tests'",
                   {"CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(p C)\nenable_testing()\n"
                    "add_executable(p main.c twice.c)\nadd_test(NAME t COMMAND p)\n", "main.c": C, "twice.c": LIBRARY},
                   ("cmake", "gcc")),
    "autoconf": Piece("autoreconf -i 2>/dev/null && ./configure -q && make -s && ./p",
                      {"configure.ac": "AC_INIT([p],[1])\nAM_INIT_AUTOMAKE([foreign])\nAC_PROG_CC\nAC_CONFIG_FILES([Makefile])\n"
                       "AC_OUTPUT\n", "Makefile.am": "bin_PROGRAMS = p\np_SOURCES = main.c twice.c\n", "main.c": C,
                       "twice.c": LIBRARY}, ("autoreconf", "automake", "gcc")),
    "gdb": Piece("gcc -g -o p main.c twice.c && gdb -batch -ex 'break twice' -ex run -ex 'print x' ./p 2>/dev/null | grep '^\\$1'",
                 {"main.c": C, "twice.c": LIBRARY}, ("gdb", "gcc")),
    "ccache": Piece("for i in 1 2; do ccache gcc -c twice.c; done; ccache -s | grep -ci hit", {"twice.c": LIBRARY}, ("ccache",)),
    "postgres": Piece("PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1); initdb -D d -A trust >/dev/null && "
                      "pg_ctl -D d -s -w -o \"-k $PWD -c listen_addresses=''\" -l log start && "
                      "psql -h $PWD -At -d postgres -c 'select sum(x) from generate_series(1,100) x'; pg_ctl -D d -s stop",
                      {}, ("psql",)),
    "redis": Piece("redis-server --port 0 --unixsocket $PWD/s --daemonize yes >/dev/null; sleep 0.5; "
                   "redis-cli -s s set a 1; redis-cli -s s incr a; redis-cli -s s shutdown nosave", {}, ("redis-server",)),
}  # fmt: skip
