/* LD_PRELOAD: every write(2) to a regular file takes only part of what it is given, a different part each time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

ssize_t write(int fd, const void *data, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    static unsigned turn;
    struct stat info;
    if (!real) real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (count > 1 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) count = 1 + (count - 1) * (++turn % 7) / 7;
    return real(fd, data, count);
}
