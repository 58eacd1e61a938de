/*
 * Tries what the sandbox must deny, and what it must leave alone, and prints one line for each: the name and the
 * error number, 0 for success. It judges nothing: the test knows what to expect inside, and sees the same program
 * succeed outside.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIOCLINUX_ 0x541CUL
#define HIGH_BITS 0x100000000UL
#define ATTRIBUTES 128

static unsigned char attributes[ATTRIBUTES];

static void report(const char *name, long result)
{
    printf("%s %d\n", name, result < 0 ? errno : 0);
    fflush(stdout);
}

#define TRY(name, expression) do { errno = 0; report(name, (long)(expression)); } while (0)

/* Run in a child, because success would change what the next attempts are allowed. */
#define TRY_IN_CHILD(name, expression)                             \
    do {                                                           \
        int outcome = 0;                                           \
        pid_t child = fork();                                      \
        if (child == 0) {                                          \
            errno = 0;                                             \
            _exit((long)(expression) < 0 ? errno : 0);             \
        }                                                          \
        waitpid(child, &outcome, 0);                               \
        printf("%s %d\n", name, WEXITSTATUS(outcome));             \
        fflush(stdout);                                            \
    } while (0)

#if defined(__x86_64__)
static long through_i386(long number, long first, long second, long third)
{
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(first), "c"(second), "d"(third)
                     : "r8", "r9", "r10", "r11", "memory");
    if (result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
}
#endif

/* A terminal of our own, made the controlling one: typing into it harms nobody. */
static int own_terminal(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) || unlockpt(master))
        return -1;
    setsid();
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    if (terminal >= 0)
        ioctl(terminal, TIOCSCTTY, 0);
    return terminal;
}

static void try_terminal(void)
{
    int terminal = own_terminal();
    int discipline = 0;
    char *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
#if defined(__x86_64__)
                     | MAP_32BIT
#endif
                     , -1, 0);
    *low = 'x';
    TRY("terminal", terminal);
    TRY("tiocsti", syscall(SYS_ioctl, terminal, (unsigned long)TIOCSTI, low));
    TRY("tiocsti_high_bits", syscall(SYS_ioctl, terminal, HIGH_BITS | TIOCSTI, low));
    TRY("tioclinux", syscall(SYS_ioctl, terminal, TIOCLINUX_, low));
    TRY("tioclinux_high_bits", syscall(SYS_ioctl, terminal, HIGH_BITS | TIOCLINUX_, low));
    TRY("tiocsetd", syscall(SYS_ioctl, terminal, (unsigned long)TIOCSETD, &discipline));
    TRY("tiocgwinsz", syscall(SYS_ioctl, terminal, (unsigned long)TIOCGWINSZ, attributes));
#if defined(__x86_64__)
    TRY("i386_getpid", through_i386(20, 0, 0, 0));
    TRY("i386_tiocsti", through_i386(54, terminal, TIOCSTI, (long)(intptr_t)low));
    TRY("i386_keyctl", through_i386(288, 0, -3, 0));
    TRY("x32_getpid", syscall(0x40000000 + SYS_getpid));
#endif
}

static void try_keyrings(void)
{
    TRY("keyctl", syscall(SYS_keyctl, 0, -3, 0));
    TRY("add_key", syscall(SYS_add_key, "user", "claudebox-probe", "x", 1, -2));
    TRY("request_key", syscall(SYS_request_key, "user", "claudebox-probe", NULL, 0));
}

static void try_attack_surface(void)
{
    memset(attributes, 0, sizeof attributes);
    TRY("io_uring_setup", syscall(SYS_io_uring_setup, 1, attributes));
    TRY("io_uring_enter", syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0));
    TRY("io_uring_register", syscall(SYS_io_uring_register, -1, 0, NULL, 0));
    TRY("bpf", syscall(SYS_bpf, 0, NULL, 0));
    memset(attributes, 0, sizeof attributes);
    attributes[0] = 1; /* PERF_TYPE_SOFTWARE */
    attributes[4] = 112; /* size */
    attributes[40] = 0x60; /* exclude_kernel, exclude_hv */
    TRY("perf_event_open", syscall(SYS_perf_event_open, attributes, 0, -1, -1, 0));
    TRY("userfaultfd", syscall(SYS_userfaultfd, 1 /* UFFD_USER_MODE_ONLY */));
    TRY("syslog", syscall(SYS_syslog, 10, NULL, 0));
    TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, -1, attributes, 0));
    TRY("quotactl", syscall(SYS_quotactl, 0, NULL, 0, NULL));
    TRY("kexec_load", syscall(SYS_kexec_load, 0, 0, NULL, 1UL << 30));
    TRY("init_module", syscall(SYS_init_module, NULL, 0, ""));
    TRY("swapon", syscall(SYS_swapon, "/nonexistent", 0));
}

static void try_sockets(void)
{
    TRY("af_unix", socket(AF_UNIX, SOCK_STREAM, 0));
    TRY("af_inet", socket(AF_INET, SOCK_STREAM, 0));
    TRY("af_inet6", socket(AF_INET6, SOCK_STREAM, 0));
    TRY("netlink_route", socket(AF_NETLINK, SOCK_RAW, 0));
    TRY("netlink_netfilter", socket(AF_NETLINK, SOCK_RAW, 12));
    TRY("netlink_audit", socket(AF_NETLINK, SOCK_RAW, 9));
    int pair[2];
    TRY("pair_unix", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    TRY("pair_inet", socketpair(AF_INET, SOCK_STREAM, 0, pair));
    TRY("af_vsock", socket(40, SOCK_STREAM, 0));
    TRY("af_packet", socket(AF_PACKET, SOCK_RAW, 0));
    TRY("af_alg", socket(38, SOCK_SEQPACKET, 0));
    TRY("af_bluetooth", socket(31, SOCK_RAW, 1));
    TRY("af_can", socket(29, SOCK_RAW, 1));
    TRY("raw_icmp", socket(AF_INET, SOCK_RAW, 1));
}

static long clone_user(void)
{
    long child = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(0);
    if (child > 0)
        waitpid((pid_t)child, NULL, 0);
    return child;
}

static long clone3(uint64_t flags)
{
    uint64_t arguments[11] = {flags, 0, 0, 0, SIGCHLD};
    long child = syscall(SYS_clone3, arguments, sizeof arguments);
    if (child == 0)
        _exit(0);
    if (child > 0)
        waitpid((pid_t)child, NULL, 0);
    return child;
}

static long mount_in_namespace(void)
{
    unshare(CLONE_NEWUSER | CLONE_NEWNS);
    return syscall(SYS_mount, "none", "/tmp", "tmpfs", 0UL, NULL);
}

static void try_namespaces(void)
{
    TRY_IN_CHILD("unshare_user", unshare(CLONE_NEWUSER));
    TRY_IN_CHILD("unshare_user_high_bits", syscall(SYS_unshare, HIGH_BITS | CLONE_NEWUSER));
    TRY_IN_CHILD("clone_user", clone_user());
    TRY_IN_CHILD("clone3_user", clone3(CLONE_NEWUSER));
    TRY_IN_CHILD("clone3_plain", clone3(0));
    TRY_IN_CHILD("mount", mount_in_namespace());
    TRY("setns", syscall(SYS_setns, -1, 0));
    TRY("umount2", syscall(SYS_umount2, "/nonexistent", 0));
    TRY("pivot_root", syscall(SYS_pivot_root, "/nonexistent", "/nonexistent"));
    TRY("fsopen", syscall(SYS_fsopen, "no-such-file-system", 0));
    TRY("open_tree", syscall(SYS_open_tree, -100, "/nonexistent", 0));
    TRY("move_mount", syscall(SYS_move_mount, -1, "", -1, "", 0));
}

int main(void)
{
    try_keyrings();
    try_attack_surface();
    try_sockets();
    try_namespaces();
    try_terminal();
    return 0;
}
