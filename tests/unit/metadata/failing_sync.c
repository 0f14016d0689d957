/* Loaded before the C library: if the file $FAIL_NEXT_SYNC is there, a sync removes it and fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int sync_with(const char *name, int fd)
{
    if (unlink(getenv("FAIL_NEXT_SYNC")) == 0) {
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fdatasync(int fd) { return sync_with("fdatasync", fd); }
int fsync(int fd) { return sync_with("fsync", fd); }
