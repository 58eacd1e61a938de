/* The gate: the last program of ours before bwrap, and the last before the payload.
 *
 *     start SIGNALS BLOCKED MEASURES PROGRAM NAME [ARGUMENT...]
 *
 * Under this name, outside: gives up what a process can only give up by itself, and becomes PROGRAM. The signals of
 * the mask SIGNALS (a decimal number, signal N is bit N) are ignored from here on, those of BLOCKED no longer blocked.
 * Of MEASURES, `n` means a session of its own, `t` one at the terminal that is standard input, `c` no core files, `k` a
 * keyring of its own, `s` no abstract sockets and no signals of others.
 * The launcher does none of that in a copy of itself: copying its memory takes longer than all of this.
 *
 *     mount [STAGE]
 *
 * Under this name, outside: enters the mount namespace that descriptor 3 leads to, makes the mounts that standard input
 * lists, and takes the directory STAGE away, where bwrap has put what they show (a path from the root). No mount that the host makes from now on appears there: bwrap takes such mounts along as they are,
 * writable wherever it made something read-only. Nothing is mounted by name: an agent of another session may exchange
 * names at any moment. A target is opened once, through no link, and what is mounted there must be found by its name
 * afterwards. The first failure is written to standard error (CALL ERRNO PATH; errno 0: something was replaced).
 *
 *     gate SIGNALS PWD=DIRECTORY PROGRAM [ARGUMENT...]
 *
 * Inside: gives the signals their default action back, which no shell can do, reports to the launcher, waits for its
 * word, enters the directory, and becomes the program. End of file is not that word: a launcher that was killed must
 * leave nothing behind. Whoever stood in the directory before would stand beneath what was mounted since.
 *
 * It has no library, so that it runs on every machine. `scripts/gate` compiles it into src/claudebox/gate.
 */

enum { LAUNCHER = 3, MESSAGES = 4 }; /* descriptors: GATE_DESCRIPTOR and STDERR_DESCRIPTOR of plan/bwrap.py */
enum { REFUSED = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127 };
enum { ENOENT = 2, EINTR = 4, ENOEXEC = 8, ENOTDIR = 20, ENAMETOOLONG = 36, NO_INTERPRETER = -1 };
enum { HERE = -100, LONGEST_PATH = 4096 };
enum { BY_DEFAULT = 0, IGNORED = 1, UNBLOCK = 1 };
enum { CORE = 4, JOIN_SESSION_KEYRING = 1, NO_NEW_PRIVS = 38, ABSTRACT_SOCKETS_AND_SIGNALS = 1 | 2 };
enum { GET_USER_NAMESPACE = 0xb701, MOUNT_NAMESPACE = 0x20000, USER_NAMESPACE = 0x10000000 };
enum { EVERYWHERE_PRIVATE = 0x4000 | 0x40000 };
enum { OPEN_FILES = 7 }; /* a limit */
/* The same on every machine. */
enum { LANDLOCK_CREATE_RULESET = 444, LANDLOCK_RESTRICT_SELF = 446, CLOSE_RANGE = 436 };
enum { OPEN_TREE = 428, MOVE_MOUNT = 429, OPENAT2 = 437, MOUNT_SETATTR = 442 };
enum { SET_TERMINAL = 0x540e, SET_FOREGROUND = 0x5410, DIE_WITH_PARENT = 1, ALSO_STOPPED = 2 };
enum { SIGKILL = 9, SIGCHLD = 17, SIGCONT = 18, SIGSTOP = 19 };

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, CLOSE = 3, RT_SIGACTION = 13, RT_SIGPROCMASK = 14, EXECVE = 59, PRCTL = 157 };
enum { IOCTL = 16, CHDIR = 80, MOUNT = 165, UMOUNT2 = 166, SETNS = 308, STATX = 332 };
enum { EXIT = 231, KEYCTL = 250, OPENAT = 257, FACCESSAT = 269, DUP3 = 292, PRLIMIT64 = 302 };
enum { GETPID = 39, FORK = 56, WAIT4 = 61, KILL = 62, SETPGID = 109, SETSID = 112 }; /* FORK: clone */
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call run\n");

static long call(long number, long a, long b, long c, long d, long e)
{
    long result;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
enum { READ = 63, WRITE = 64, CLOSE = 57, RT_SIGACTION = 134, RT_SIGPROCMASK = 135, EXECVE = 221, PRCTL = 167 };
enum { IOCTL = 29, UMOUNT2 = 39, MOUNT = 40, CHDIR = 49, SETNS = 268, STATX = 291 };
enum { EXIT = 94, KEYCTL = 219, OPENAT = 56, FACCESSAT = 48, DUP3 = 24, PRLIMIT64 = 261 };
enum { GETPID = 172, FORK = 220, WAIT4 = 260, KILL = 129, SETPGID = 154, SETSID = 157 }; /* FORK: clone */
__asm__(".globl _start\n_start: mov x0, sp\n bl run\n");

static long call(long number, long a, long b, long c, long d, long e)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#else
#error "claudebox protects x86_64 and aarch64"
#endif

static long length(const char *text)
{
    long count = 0;
    while (text[count])
        count++;
    return count;
}

static int has_slash(const char *text)
{
    for (; *text; text++)
        if (*text == '/')
            return 1;
    return 0;
}

static void say(const char *text)
{
    call(WRITE, 2, (long)text, length(text), 0, 0);
}

__attribute__((noreturn)) static void end(int status)
{
    for (;;)
        call(EXIT, status, 0, 0, 0, 0);
}

static unsigned long number_of(const char *digits)
{
    unsigned long number = 0;
    for (; *digits; digits++)
        number = number * 10 + (unsigned long)(*digits - '0');
    return number;
}

static void handle_signals(unsigned long mask, long handler)
{
    long action[4] = {handler, 0, 0, 0}; /* no flags, an empty mask */
    for (long number = 1; number < 64; number++)
        if (mask >> number & 1)
            call(RT_SIGACTION, number, (long)action, 0, 8, 0);
}

static int is_told_to_go(void)
{
    char word[3];
    long got = 0;
    while (got < 3) {
        long count = call(READ, LAUNCHER, (long)(word + got), 3 - got, 0, 0);
        if (count == -EINTR)
            continue;
        if (count <= 0)
            return 0;
        got += count;
    }
    return word[0] == 'g' && word[1] == 'o' && word[2] == '\n';
}

/* Return whether the first line of a file is one of a text: a program of another machine is not for the shell. */
static int is_text(const char *path)
{
    char start[128];
    long file = call(OPENAT, HERE, (long)path, 0, 0, 0);
    long count = file < 0 ? 0 : call(READ, file, (long)start, sizeof start, 0, 0);
    call(CLOSE, file, 0, 0, 0, 0);
    for (long index = 0; index < count && start[index] != '\n'; index++)
        if (!start[index])
            return 0;
    return 1;
}

static int is_missing(long error)
{
    return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG;
}

/* Become the program at `path`; a text without an interpreter is run by the shell, as everywhere. */
static long become(const char *path, char **argv, char **environ)
{
    long error = -call(EXECVE, (long)path, (long)argv, (long)environ, 0, 0);
    if (error == ENOENT && call(FACCESSAT, HERE, (long)path, 0, 0, 0) == 0)
        return NO_INTERPRETER;
    if (error != ENOEXEC || !is_text(path))
        return error;
    argv[0] = (char *)path; /* what stands before it is not needed any more */
    argv[-1] = "sh";
    return -call(EXECVE, (long)"/bin/sh", (long)(argv - 1), (long)environ, 0, 0);
}

static long search(const char *name, const char *path, char **argv, char **environ)
{
    long error = ENOENT, size = length(name) + 1;
    char place[LONGEST_PATH];
    while (*name && *path) {
        long used = 0;
        while (path[used] && path[used] != ':')
            used++;
        if (used && used + 1 + size <= LONGEST_PATH) {
            for (long index = 0; index < used; index++)
                place[index] = path[index];
            place[used] = '/';
            for (long index = 0; index < size; index++)
                place[used + 1 + index] = name[index];
            long failed = become(place, argv, environ);
            if (!is_missing(failed))
                error = failed;
        }
        path += used + (path[used] == ':');
    }
    return error;
}

/* Landlock that handles files would not let bwrap mount, so that it only restricts whom one can reach. */
static int restrict_scope(void)
{
    static const unsigned long attributes[3] = {0, 0, ABSTRACT_SOCKETS_AND_SIGNALS}; /* files, network, scopes */
    long rules = call(LANDLOCK_CREATE_RULESET, (long)attributes, sizeof attributes, 0, 0, 0);
    if (rules < 0 || call(PRCTL, NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return 0;
    long result = call(LANDLOCK_RESTRICT_SELF, rules, 0, 0, 0, 0);
    call(CLOSE, rules, 0, 0, 0, 0);
    return result == 0;
}

/* Stay as the leader of the session: without one in it, the kernel would not stop bwrap's process group. A stop of
 * bwrap is told to the launcher by stopping ourselves; whoever continues us continues bwrap. */
__attribute__((noreturn)) static void lead(long process)
{
    call(CLOSE_RANGE, LAUNCHER, -1U, 0, 0, 0);
    for (;;) {
        int status = 0;
        long ended = call(WAIT4, process, (long)&status, ALSO_STOPPED, 0, 0);
        if (ended == -EINTR)
            continue;
        if (ended < 0)
            end(REFUSED);
        if ((status & 0xff) != 0x7f)
            end(status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff);
        call(KILL, call(GETPID, 0, 0, 0, 0, 0), SIGSTOP, 0, 0, 0);
        call(KILL, process, SIGCONT, 0, 0, 0);
    }
}

/* Make a session with standard input as its terminal; returns in the process whose group has the terminal. */
static int take_terminal(void)
{
    static const unsigned long job_control = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 15 | 7 << 20; /* HUP INT QUIT TERM; stops */
    if (call(SETSID, 0, 0, 0, 0, 0) < 0 || call(IOCTL, 0, SET_TERMINAL, 0, 0, 0) != 0)
        return 0;
    call(PRCTL, DIE_WITH_PARENT, SIGKILL, 0, 0, 0); /* a launcher that has ended already: the gate inside sees to it */
    long process = call(FORK, SIGCHLD, 0, 0, 0, 0);
    if (process > 0) {
        int group = process;
        handle_signals(job_control, IGNORED);
        call(SETPGID, process, process, 0, 0, 0);
        call(IOCTL, 0, SET_FOREGROUND, (long)&group, 0, 0);
        lead(process);
    }
    return process == 0 && call(SETPGID, 0, 0, 0, 0, 0) == 0;
}

__attribute__((noreturn)) static void start(char **argv, char **environ)
{
    static const unsigned long none[2];
    unsigned long blocked = number_of(argv[2]) >> 1; /* the kernel counts from 0 here */

    for (const char *measure = argv[3]; *measure; measure++) {
        if ((*measure == 't' && !take_terminal()) || (*measure == 'n' && call(SETSID, 0, 0, 0, 0, 0) < 0)) {
            say("claudebox: the sandbox got no session of its own\n");
            end(REFUSED);
        }
        if (*measure == 'c' && call(PRLIMIT64, 0, CORE, (long)none, 0, 0) != 0) {
            say("claudebox: core files could not be forbidden\n");
            end(REFUSED);
        }
        if (*measure == 'k')
            call(KEYCTL, JOIN_SESSION_KEYRING, 0, 0, 0, 0); /* there are kernels without; seccomp is the first lock */
        if (*measure == 's' && !restrict_scope()) {
            say("claudebox: Landlock did not take the restriction of abstract sockets\n");
            end(REFUSED);
        }
    }
    handle_signals(3UL << 32, BY_DEFAULT); /* its own, which the C library ignores in what it starts */
    handle_signals(number_of(argv[1]), IGNORED);
    call(RT_SIGPROCMASK, UNBLOCK, (long)&blocked, 0, 8, 0);
    call(EXECVE, (long)argv[4], (long)(argv + 5), (long)environ, 0, 0);
    say("claudebox: ");
    say(argv[4]);
    say(": it cannot be executed\n");
    end(NOT_EXECUTABLE);
}

static int is(const char *name, const char *other)
{
    while (*name && *name == *other)
        name++, other++;
    return *name == *other;
}

/* ---- mounts by descriptor ---- */

enum { FIELDS = 5, LARGEST_TABLE = 4 << 20, MOST_ROWS = 1 << 15 }; /* MOST_ROWS and LARGEST_TABLE of run/mounts.py */
enum { PLACE = 010000000 | 02000000 };                             /* O_PATH, O_CLOEXEC */
enum { NO_MAGICLINKS = 2, NO_SYMLINKS = 4, BENEATH = 8 };
enum { EMPTY_PATH = 0x1000, RECURSIVE = 0x8000, CLONE = 1 | 02000000, ONTO = 4 | 0x40, DETACH = 2 };
enum { READ_ONLY = 1, NO_SUID = 2, NO_DEV = 4, MOUNT_NUMBER = 0x1000, EVERYTHING = 0x7ff };

struct status { /* of statx */
    unsigned words[7];
    unsigned short mode, pad;
    unsigned long inode, others[11];
    unsigned device_of_file[2], major, minor;
    unsigned long mount, spare[14];
};

static char table[LARGEST_TABLE];
static struct { long tree; unsigned long mount; } made[MOST_ROWS];

static void say_number(unsigned long number)
{
    char digits[24], *first = digits + sizeof digits - 1;
    *first = 0;
    do
        *--first = (char)('0' + number % 10);
    while (number /= 10);
    say(first);
}

__attribute__((noreturn)) static void give_up(const char *name, long error, const char *path)
{
    say(name);
    say(" ");
    say_number((unsigned long)error);
    say(" ");
    say(path);
    end(REFUSED);
}

static long must(long result, const char *name, const char *path)
{
    if (result < 0)
        give_up(name, -result, path);
    return result;
}

static long open_place(long directory, const char *path)
{
    unsigned long how[3] = {PLACE, 0, NO_MAGICLINKS | NO_SYMLINKS | BENEATH};
    return must(call(OPENAT2, directory, (long)path, (long)how, sizeof how, 0), "openat2", path);
}

/* See that an open file is the wanted one (MAJOR:MINOR:INODE, or nothing), and return the number of its mount. */
static unsigned long check(long file, const char *wanted, const char *path)
{
    struct status status;
    must(call(STATX, file, (long)"", EMPTY_PATH, MOUNT_NUMBER | EVERYTHING, (long)&status), "statx", path);
    unsigned long parts[3] = {status.major, status.minor, status.inode};
    for (int part = 0; *wanted && part < 3; part++) {
        unsigned long number = 0;
        for (; *wanted && *wanted != ':'; wanted++)
            number = number * 10 + (unsigned long)(*wanted - '0');
        wanted += *wanted == ':';
        if (number != parts[part])
            give_up("statx", 0, path);
    }
    return status.mount;
}

static long clone_of(long directory, const char *path, const char *wanted, const char *target)
{
    long source = open_place(directory, path);
    check(source, wanted, target);
    long tree = must(call(OPEN_TREE, source, (long)"", EMPTY_PATH | RECURSIVE | CLONE, 0, 0), "open_tree", target);
    call(CLOSE, source, 0, 0, 0, 0);
    return tree;
}

/* Rows of five fields: how, target, source, identity of the target, identity of the source. `how` is two letters:
 * R: what follows lies in the directory TARGET, a path from the root. Otherwise where the source is: `i` the target
 * itself, `s` in the stage, `n` /dev/null; and whether it is mounted `r`ead-only or `w`ritable. */
static void play(long top, long stage, long size, int round)
{
    long root = -1, number = 0;
    for (char *at = table; at < table + size; number++) {
        char *field[FIELDS];
        for (int index = 0; index < FIELDS; index++, at += length(at) + 1)
            field[index] = at;
        char kind = field[0][0], *target = field[1];
        if (kind == 'R') {
            call(CLOSE, root, 0, 0, 0, 0);
            root = *target ? open_place(top, target) : call(OPENAT, top, (long)".", PLACE, 0, 0);
            check(root, field[3], target);
        } else if (round == 0 && kind == 'i') { /* before anything covers it: a clone of what is read-only is so too */
            made[number].tree = clone_of(root, target, field[4], target);
        } else if (round == 1) {
            if (kind == 's')
                made[number].tree = clone_of(stage, field[2], field[4], target);
            if (kind == 'n')
                made[number].tree = clone_of(top, "dev/null", "", target);
            long tree = made[number].tree, place = open_place(root, target);
            check(place, field[3], target);
            unsigned long flags[4] = {READ_ONLY | NO_SUID | (kind == 'n' ? 0 : NO_DEV), 0, 0, 0};
            if (field[0][1] == 'r')
                must(call(MOUNT_SETATTR, tree, (long)"", EMPTY_PATH | RECURSIVE, (long)flags, sizeof flags),
                     "mount_setattr", target);
            must(call(MOVE_MOUNT, tree, (long)"", place, (long)"", ONTO), "move_mount", target);
            made[number].mount = check(tree, "", target);
            call(CLOSE, tree, 0, 0, 0, 0);
            call(CLOSE, place, 0, 0, 0, 0);
        } else if (round == 2) { /* the last look: by name, as everybody inside will find it */
            long place = open_place(root, target);
            if (check(place, "", target) != made[number].mount)
                give_up("statx", 0, target);
            call(CLOSE, place, 0, 0, 0, 0);
        }
    }
    call(CLOSE, root, 0, 0, 0, 0);
}

/* In the user namespace that the mounts belong to, whoever has made it may do everything. */
__attribute__((noreturn)) static void make_mounts(const char *stage_path)
{
    unsigned long files[2];
    long size = 0, got;
    while ((got = call(READ, 0, (long)(table + size), LARGEST_TABLE - size, 0, 0)) > 0)
        size += got;
    if (call(PRLIMIT64, 0, OPEN_FILES, 0, (long)files, 0) == 0) { /* each clone is one until it is mounted */
        files[0] = files[1];
        call(PRLIMIT64, 0, OPEN_FILES, (long)files, 0, 0);
    }
    long user = must(call(IOCTL, LAUNCHER, GET_USER_NAMESPACE, 0, 0, 0), "ioctl", "the sandbox");
    must(call(SETNS, user, USER_NAMESPACE, 0, 0, 0), "setns", "the sandbox");
    must(call(SETNS, LAUNCHER, MOUNT_NAMESPACE, 0, 0, 0), "setns", "the sandbox");
    must(call(MOUNT, 0, (long)"/", 0, EVERYWHERE_PRIVATE, 0), "mount", "/");
    long top = must(call(OPENAT, HERE, (long)"/", PLACE, 0, 0), "openat", "/");
    long stage = stage_path ? open_place(top, stage_path) : -1;
    for (int round = 0; round < 3; round++)
        play(top, stage, size, round);
    must(call(CHDIR, (long)"/", 0, 0, 0, 0), "chdir", "/");
    if (stage_path)
        must(call(UMOUNT2, (long)stage_path, DETACH, 0, 0, 0), "umount2", stage_path);
    end(0);
}

__attribute__((noreturn, used)) void run(long *stack)
{
    long count = stack[0];
    char **argv = (char **)(stack + 1);
    char **environ = argv + count + 1;
    const char *path = "/usr/local/bin:/usr/bin:/bin";

    if (count > 5 && is(argv[0], "start"))
        start(argv, environ);
    if (count <= 2 && is(argv[0], "mount"))
        make_mounts(argv[1]);
    call(DUP3, MESSAGES, 2, 0, 0, 0);
    call(CLOSE, MESSAGES, 0, 0, 0, 0);
    if (count < 4)
        end(REFUSED);
    handle_signals(number_of(argv[1]), BY_DEFAULT);
    call(WRITE, LAUNCHER, (long)"ready\n", 6, 0, 0);
    if (!is_told_to_go())
        end(REFUSED);
    call(CLOSE, LAUNCHER, 0, 0, 0, 0);
    const char *start = argv[2] + 4;
    if (call(CHDIR, (long)start, 0, 0, 0, 0) != 0) {
        say("claudebox: ");
        say(start);
        say(": it cannot be entered\n");
        end(REFUSED);
    }

    for (char **variable = environ; *variable; variable++) {
        const char *text = *variable;
        if (text[0] == 'P' && text[1] == 'W' && text[2] == 'D' && text[3] == '=')
            *variable = argv[2];
        if (text[0] == 'P' && text[1] == 'A' && text[2] == 'T' && text[3] == 'H' && text[4] == '=')
            path = text + 5;
    }
    argv += 3;
    const char *name = argv[0];
    long error = has_slash(name) ? become(name, argv, environ) : search(name, path, argv, environ);
    say("claudebox: ");
    say(name);
    if (is_missing(error) || error == NO_INTERPRETER) {
        say(error == NO_INTERPRETER ? ": its interpreter is not inside\n" : ": there is no such program inside\n");
        end(NOT_FOUND);
    }
    say(": it cannot be executed\n");
    end(NOT_EXECUTABLE);
}
