/* Loaded before the C library: if the file $FAIL_NEXT_SYNC is there, a sync removes it and fails,
   else if $FAIL_SYNC_AFTER is there.
   What was written to a write-ahead log is put into $SYNCED_LOG by the next sync that succeeds; of
   what was written before one that failed nothing is, as on Linux. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRITES_MAX 100000

static struct { off_t start; size_t length; } written[WRITES_MAX];
static int writes;

static int is_log(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    return length > 4 && memcmp(path + length - 4, "-wal", 4) == 0;
}

static ssize_t noted(int fd, off_t start, ssize_t length)
{
    if (length > 0 && writes < WRITES_MAX && is_log(fd)) {
        written[writes].start = start;
        written[writes++].length = length;
    }
    return length;
}

ssize_t write(int fd, const void *data, size_t length)
{
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    off_t start = lseek(fd, 0, SEEK_CUR);
    return noted(fd, start, real(fd, data, length));
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t start)
{
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    return noted(fd, start, real(fd, data, length, start));
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t start)
{
    return pwrite64(fd, data, length, start);
}

static void put_into_synced(int fd)
{
    ssize_t (*put)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    int disk = open(getenv("SYNCED_LOG"), O_CREAT | O_WRONLY, 0600);
    for (int at = 0; at < writes; at++) {
        char *data = malloc(written[at].length);
        ssize_t length = pread(fd, data, written[at].length, written[at].start);
        if (length < 0 || put(disk, data, length, written[at].start) != length)
            abort();
        free(data);
    }
    close(disk);
}

static int sync_with(const char *name, int fd)
{
    int log = is_log(fd);
    if (unlink(getenv("FAIL_NEXT_SYNC")) == 0 || unlink(getenv("FAIL_SYNC_AFTER")) == 0) {
        if (log)
            writes = 0;
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real(fd);
    if (log && result == 0) {
        put_into_synced(fd);
        writes = 0;
    }
    return result;
}

int fdatasync(int fd) { return sync_with("fdatasync", fd); }
int fsync(int fd) { return sync_with("fsync", fd); }
