/* A library that leaves a mark wherever it is loaded: in the file that MARK named when it was compiled. */
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void leave_mark(void)
{
    int file = open(MARK, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file >= 0) {
        char link[256];
        ssize_t length = readlink("/proc/self/exe", link, sizeof link);
        if (length > 0 && write(file, link, (size_t)length) == length)
            (void)!write(file, "\n", 1);
        close(file);
    }
}
