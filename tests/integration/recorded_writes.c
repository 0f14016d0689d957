/* Loaded before the C library: records what is done to files below the directory $RECORDED, into the
 * file $RECORD, in the order in which it was done; nothing is while that is not set. A record is
 *     kind, inode, first number, second number, length of a path, length of data; the path; the data
 * A change is recorded when it has been made, a sync when it begins and when it has ended: so a sync
 * covers the changes of its file that are recorded before its beginning, and perhaps more.
 * The file $FAILING, where it is there, has two numbers, a pattern of paths, and perhaps what fails:
 * "sync" or "write", by EIO, or "full", where writes that lengthen a file fail by ENOSPC. So many
 * such calls are still to be let pass, and after them so many fail, without being made. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The C library's function; looked up once. */
#define REAL(name)                                            \
    ({                                                        \
        static __typeof__(&name) real;                        \
        if (!real)                                            \
            real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        real;                                                 \
    })
#define PIECES_MAX 1024

struct record {
    uint64_t kind, inode;
    int64_t first, second;
    uint64_t path_length, data_length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int record_fd = -1;

/* Whether a path is in the directory; it becomes absolute. */
static int within(const char *path, char *absolute)
{
    const char *directory = getenv("RECORDED");
    if (!directory || !path)
        return 0;
    if (path[0] == '/')
        snprintf(absolute, PATH_MAX, "%s", path);
    else {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here))
            return 0;
        if (snprintf(absolute, PATH_MAX, "%s/%s", here, path) >= PATH_MAX)
            return 0;
    }
    size_t length = strlen(directory);
    return strncmp(absolute, directory, length) == 0 &&
           (absolute[length] == '/' || absolute[length] == 0);
}

static int path_of(int fd, char *path)
{
    char link[64];
    if (!getenv("RECORDED"))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    char absolute[PATH_MAX];
    return within(path, absolute);
}

static void note(char kind, uint64_t inode, int64_t first, int64_t second, const char *path,
                 const struct iovec *data, int pieces, size_t data_length)
{
    if (!getenv("RECORD"))
        return;
    struct record record = {kind, inode, first, second, strlen(path), data_length};
    pthread_mutex_lock(&lock);
    if (record_fd < 0)
        record_fd = syscall(SYS_openat, AT_FDCWD, getenv("RECORD"),
                            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    struct iovec all[PIECES_MAX + 2] = {{&record, sizeof record}, {(void *)path, record.path_length}};
    size_t left = data_length;
    int count = 2;
    for (int index = 0; index < pieces && left; index++) {
        size_t length = data[index].iov_len < left ? data[index].iov_len : left;
        all[count].iov_base = data[index].iov_base;
        all[count++].iov_len = length;
        left -= length;
    }
    size_t total = sizeof record + record.path_length + data_length;
    if (syscall(SYS_writev, record_fd, all, count) != (ssize_t)total)
        abort();
    pthread_mutex_unlock(&lock);
}

static uint64_t inode_of(int fd)
{
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

static void wrote(int fd, const struct iovec *data, int pieces, off_t position, ssize_t length)
{
    char path[PATH_MAX];
    if (length <= 0 || fd < 0 || !getenv("RECORD") || !path_of(fd, path))
        return;
    if (position < 0)
        position = lseek(fd, 0, SEEK_CUR) - length;
    note('w', inode_of(fd), position, length, path, data, pieces, length);
}

/* Whether a call on a file is to fail; counts it. */
static int fails(const char *kind, const char *path)
{
    const char *failing = getenv("FAILING");
    char pattern[256], failing_kind[8] = "sync", text[320];
    long left, failures;
    int fd = failing ? syscall(SYS_openat, AT_FDCWD, failing, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    pthread_mutex_lock(&lock);
    ssize_t length = syscall(SYS_pread64, fd, text, sizeof text - 1, 0);
    text[length < 0 ? 0 : length] = 0;
    int fail = 0;
    if (sscanf(text, "%ld %ld %255s %7s", &left, &failures, pattern, failing_kind) >= 3 &&
        strcmp(kind, failing_kind) == 0 && fnmatch(pattern, path, 0) == 0) {
        if (left > 0)
            left--;
        else if (failures > 0) {
            failures--;
            fail = 1;
        }
        length = snprintf(text, sizeof text, "%ld %ld %s %s%20s\n", left, failures, pattern,
                          failing_kind, "");
        if (syscall(SYS_pwrite64, fd, text, length, 0) != length)
            abort();
    }
    pthread_mutex_unlock(&lock);
    syscall(SYS_close, fd);
    return fail;
}

/* Whether a write, up to some place of a file, is to fail. */
static int write_fails(int fd, off_t position, size_t length)
{
    char path[PATH_MAX];
    struct stat found;
    if (!getenv("FAILING") || !path_of(fd, path))
        return 0;
    if (position < 0)
        position = lseek(fd, 0, SEEK_CUR);
    if (fstat(fd, &found) == 0 && position + (off_t)length > found.st_size && fails("full", path)) {
        errno = ENOSPC;
        return 1;
    }
    if (fails("write", path)) {
        errno = EIO;
        return 1;
    }
    return 0;
}

static size_t size_of(const struct iovec *data, int pieces)
{
    size_t size = 0;
    for (int index = 0; index < pieces; index++)
        size += data[index].iov_len;
    return size;
}

ssize_t write(int fd, const void *data, size_t length)
{
    if (write_fails(fd, -1, length))
        return -1;
    ssize_t done = REAL(write)(fd, data, length);
    struct iovec piece = {(void *)data, length};
    wrote(fd, &piece, 1, -1, done);
    return done;
}

ssize_t writev(int fd, const struct iovec *data, int pieces)
{
    if (write_fails(fd, -1, size_of(data, pieces)))
        return -1;
    ssize_t done = REAL(writev)(fd, data, pieces);
    wrote(fd, data, pieces, -1, done);
    return done;
}

#define PWRITE(name, type)                                                        \
    ssize_t name(int fd, const void *data, size_t length, type position)          \
    {                                                                             \
        if (write_fails(fd, position, length))                                    \
            return -1;                                                            \
        ssize_t done = REAL(name)(fd, data, length, position);                    \
        struct iovec piece = {(void *)data, length};                              \
        wrote(fd, &piece, 1, position, done);                                     \
        return done;                                                              \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, type)                                                       \
    ssize_t name(int fd, const struct iovec *data, int pieces, type position)     \
    {                                                                             \
        if (write_fails(fd, position, size_of(data, pieces)))                     \
            return -1;                                                            \
        ssize_t done = REAL(name)(fd, data, pieces, position);                    \
        wrote(fd, data, pieces, position, done);                                  \
        return done;                                                              \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, type)                                                          \
    ssize_t name(int fd, const struct iovec *data, int pieces, type position, int flags) \
    {                                                                                 \
        if (write_fails(fd, position, size_of(data, pieces)))                         \
            return -1;                                                                \
        ssize_t done = REAL(name)(fd, data, pieces, position, flags);                 \
        wrote(fd, data, pieces, position, done);                                      \
        return done;                                                                  \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

#define FTRUNCATE(name, type)                                                     \
    int name(int fd, type length)                                                 \
    {                                                                             \
        int result = REAL(name)(fd, length);                                      \
        char path[PATH_MAX];                                                      \
        if (result == 0 && path_of(fd, path))                                     \
            note('t', inode_of(fd), length, 0, path, NULL, 0, 0);                 \
        return result;                                                            \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define SYNC(name)                                                                \
    int name(int fd)                                                              \
    {                                                                             \
        static int64_t number;                                                    \
        char path[PATH_MAX];                                                      \
        int recorded = path_of(fd, path);                                         \
        int64_t mine = __sync_add_and_fetch(&number, 1);                          \
        if (recorded)                                                             \
            note('b', inode_of(fd), mine, #name[1] == 'd', path, NULL, 0, 0);     \
        if (recorded && fails("sync", path)) {                                    \
            note('f', inode_of(fd), mine, #name[1] == 'd', path, NULL, 0, 0);     \
            errno = EIO;                                                          \
            return -1;                                                            \
        }                                                                         \
        int result = REAL(name)(fd);                                              \
        if (recorded && result == 0)                                              \
            note('e', inode_of(fd), mine, #name[1] == 'd', path, NULL, 0, 0);     \
        return result;                                                            \
    }
SYNC(fsync)
SYNC(fdatasync)

static int opened(int fd, const char *path, int flags, int was_there)
{
    char absolute[PATH_MAX];
    if (fd >= 0 && (flags & O_CREAT) && !was_there && within(path, absolute))
        note('c', inode_of(fd), 0, 0, absolute, NULL, 0, 0);
    if (fd >= 0 && (flags & O_TRUNC) && was_there && within(path, absolute))
        note('t', inode_of(fd), 0, 0, absolute, NULL, 0, 0);
    return fd;
}

#define OPEN(name)                                                                \
    int name(const char *path, int flags, ...)                                    \
    {                                                                             \
        va_list more;                                                             \
        va_start(more, flags);                                                    \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                             \
        int was_there = (flags & O_CREAT) ? faccessat(AT_FDCWD, path, F_OK, 0) == 0 : 1; \
        return opened(REAL(name)(path, flags, mode), path, flags, was_there);     \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                              \
    int name(int directory, const char *path, int flags, ...)                     \
    {                                                                             \
        va_list more;                                                             \
        va_start(more, flags);                                                    \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                             \
        int was_there = (flags & O_CREAT) ? faccessat(directory, path, F_OK, 0) == 0 : 1; \
        int fd = REAL(name)(directory, path, flags, mode);                        \
        return directory == AT_FDCWD ? opened(fd, path, flags, was_there) : fd;   \
    }
OPENAT(openat)
OPENAT(openat64)

static uint64_t inode_at(const char *path)
{
    struct stat found;
    return lstat(path, &found) ? 0 : found.st_ino;
}

/* Of two names: the data is the second one. */
static int moved(char kind, int result, const char *from, const char *to, uint64_t inode)
{
    char first[PATH_MAX], second[PATH_MAX];
    if (result == 0 && within(from, first) && within(to, second)) {
        struct iovec piece = {second, strlen(second)};
        note(kind, inode, 0, 0, first, &piece, 1, piece.iov_len);
    }
    return result;
}

int rename(const char *from, const char *to)
{
    uint64_t inode = inode_at(from);
    return moved('r', REAL(rename)(from, to), from, to, inode);
}

int link(const char *from, const char *to)
{
    uint64_t inode = inode_at(from);
    return moved('l', REAL(link)(from, to), from, to, inode);
}

int linkat(int there, const char *from, int here, const char *to, int flags)
{
    uint64_t inode = inode_at(from);
    return moved('l', REAL(linkat)(there, from, here, to, flags), from, to, inode);
}

static int removed(int result, const char *path, uint64_t inode)
{
    char absolute[PATH_MAX];
    if (result == 0 && within(path, absolute))
        note('u', inode, 0, 0, absolute, NULL, 0, 0);
    return result;
}

int unlink(const char *path)
{
    uint64_t inode = inode_at(path);
    return removed(REAL(unlink)(path), path, inode);
}

int unlinkat(int directory, const char *path, int flags)
{
    uint64_t inode = inode_at(path);
    return removed(REAL(unlinkat)(directory, path, flags), path, inode);
}

int rmdir(const char *path)
{
    uint64_t inode = inode_at(path);
    return removed(REAL(rmdir)(path), path, inode);
}

int mkdir(const char *path, mode_t mode)
{
    int result = REAL(mkdir)(path, mode);
    char absolute[PATH_MAX];
    if (result == 0 && within(path, absolute))
        note('d', inode_at(path), 0, 0, absolute, NULL, 0, 0);
    return result;
}
