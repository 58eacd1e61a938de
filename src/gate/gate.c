/* The gate: the last program of ours before bwrap, and the last before the payload.
 *
 *     start SIGNALS BLOCKED MEASURES PROGRAM NAME [ARGUMENT...]
 *
 * Under this name, outside: gives up what a process can only give up by itself, and becomes PROGRAM. The signals of
 * the mask SIGNALS (a decimal number, signal N is bit N) are ignored from here on, those of BLOCKED no longer blocked.
 * Of MEASURES, `c` means no core files, `k` a keyring of its own, `s` no abstract sockets and no signals of others.
 * The launcher does none of that in a copy of itself: copying its memory takes longer than all of this.
 *
 *     alone
 *
 * Under this name, outside: what descriptor 3 leads to is the mount namespace of a sandbox; no mount that the host makes
 * from now on appears there. bwrap takes such mounts along, as they are: writable, wherever it made something read-only.
 *
 *     gate SIGNALS PROGRAM [ARGUMENT...]
 *
 * Inside: gives the signals their default action back, which no shell can do, reports to the launcher, waits for its
 * word, and becomes the program. End of file is not that word: a launcher that was killed must leave nothing behind.
 *
 * It has no library, so that it runs on every machine. `scripts/gate` compiles it into src/claudebox/tables/gate.py.
 */

enum { LAUNCHER = 3, MESSAGES = 4 }; /* descriptors: GATE_DESCRIPTOR and STDERR_DESCRIPTOR of plan/bwrap_args.py */
enum { REFUSED = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127 };
enum { ENOENT = 2, EINTR = 4, ENOEXEC = 8, ENOTDIR = 20, ENAMETOOLONG = 36, NO_INTERPRETER = -1 };
enum { HERE = -100, LONGEST_PATH = 4096 };
enum { BY_DEFAULT = 0, IGNORED = 1, UNBLOCK = 1 };
enum { CORE = 4, JOIN_SESSION_KEYRING = 1, NO_NEW_PRIVS = 38, ABSTRACT_SOCKETS_AND_SIGNALS = 1 | 2 };
enum { GET_USER_NAMESPACE = 0xb701, MOUNT_NAMESPACE = 0x20000, USER_NAMESPACE = 0x10000000 };
enum { EVERYWHERE_PRIVATE = 0x4000 | 0x40000 };
enum { LANDLOCK_CREATE_RULESET = 444, LANDLOCK_RESTRICT_SELF = 446 }; /* the same on every machine */

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, CLOSE = 3, RT_SIGACTION = 13, RT_SIGPROCMASK = 14, EXECVE = 59, PRCTL = 157 };
enum { IOCTL = 16, MOUNT = 165, SETNS = 308 };
enum { EXIT = 231, KEYCTL = 250, OPENAT = 257, FACCESSAT = 269, DUP3 = 292, PRLIMIT64 = 302 };
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
enum { IOCTL = 29, MOUNT = 40, SETNS = 268 };
enum { EXIT = 94, KEYCTL = 219, OPENAT = 56, FACCESSAT = 48, DUP3 = 24, PRLIMIT64 = 261 };
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
    argv[0] = (char *)path; /* the mask stands before it, and is not needed any more */
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

__attribute__((noreturn)) static void start(char **argv, char **environ)
{
    static const unsigned long none[2];
    unsigned long blocked = number_of(argv[2]) >> 1; /* the kernel counts from 0 here */

    for (const char *measure = argv[3]; *measure; measure++) {
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

/* In the user namespace that the mounts belong to, whoever has made it may do everything. */
__attribute__((noreturn)) static void stay_alone(void)
{
    long user = call(IOCTL, LAUNCHER, GET_USER_NAMESPACE, 0, 0, 0);
    if (user < 0 || call(SETNS, user, USER_NAMESPACE, 0, 0, 0) != 0)
        end(REFUSED);
    if (call(SETNS, LAUNCHER, MOUNT_NAMESPACE, 0, 0, 0) != 0)
        end(REFUSED);
    end(call(MOUNT, 0, (long)"/", 0, EVERYWHERE_PRIVATE, 0) == 0 ? 0 : REFUSED);
}

static int is(const char *name, const char *other)
{
    while (*name && *name == *other)
        name++, other++;
    return *name == *other;
}

__attribute__((noreturn, used)) void run(long *stack)
{
    long count = stack[0];
    char **argv = (char **)(stack + 1);
    char **environ = argv + count + 1;
    const char *path = "/usr/local/bin:/usr/bin:/bin";

    if (count > 5 && is(argv[0], "start"))
        start(argv, environ);
    if (count == 1 && is(argv[0], "alone"))
        stay_alone();
    call(DUP3, MESSAGES, 2, 0, 0, 0);
    call(CLOSE, MESSAGES, 0, 0, 0, 0);
    if (count < 3)
        end(REFUSED);
    handle_signals(number_of(argv[1]), BY_DEFAULT);
    call(WRITE, LAUNCHER, (long)"ready\n", 6, 0, 0);
    if (!is_told_to_go())
        end(REFUSED);
    call(CLOSE, LAUNCHER, 0, 0, 0, 0);

    for (char **variable = environ; *variable; variable++) {
        const char *text = *variable;
        if (text[0] == 'P' && text[1] == 'A' && text[2] == 'T' && text[3] == 'H' && text[4] == '=')
            path = text + 5;
    }
    argv += 2;
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
