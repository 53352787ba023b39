/* Lets writes below a folder fail, for benchmarks/reliability/kills.py: preloaded, it stands between a
 * process and its C library. Counted are the calls that change the disk: opening for writing,
 * writing, flushing, renaming, making and removing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static atomic_long *count; /* shared with the parent: calls so far */
static long fails_at;      /* the call that fails, from 1; 0: none */
static int fault, lasting; /* its errno, 0: a kill of all; whether every later call fails as well */

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int disk_fails(const char *folder, const char *counter, long at, int error, int from_then_on) {
    int handle = REAL(open)(counter, O_RDWR);
    void *page = mmap(NULL, sizeof(atomic_long), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    REAL(close)(handle);
    if (page == MAP_FAILED) return -1;
    strncpy(root, folder, sizeof root - 1);
    fails_at = at, fault = error, lasting = from_then_on, count = page;
    return 0;
}

static int below(int folder, const char *path) {
    char whole[PATH_MAX] = "", link[64];
    if (!count) return 0;
    if (path && path[0] == '/') return strncmp(path, root, strlen(root)) == 0;
    if (folder == AT_FDCWD) return 0; /* jobs name files by their whole paths */
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, whole, sizeof whole - 1);
    return length > 0 && strncmp(whole, root, strlen(root)) == 0;
}

static int refused(int folder, const char *path) {
    if (!below(folder, path)) return 0;
    long number = atomic_fetch_add(count, 1) + 1;
    if (!fails_at || (lasting ? number < fails_at : number != fails_at)) return 0;
    if (!fault) kill(0, SIGKILL); /* the group: workers end with the job */
    errno = fault;
    return 1;
}

#define WRITES(flags) ((flags) & (O_CREAT | O_WRONLY | O_RDWR))
#define MODE(flags, mode)                       \
    mode_t mode = 0;                            \
    if ((flags) & (O_CREAT | O_TMPFILE)) {      \
        va_list more;                           \
        va_start(more, flags);                  \
        mode = va_arg(more, mode_t);            \
        va_end(more);                           \
    }
#define OPEN(name)                                                       \
    int name(const char *path, int flags, ...) {                         \
        MODE(flags, mode)                                                \
        if (WRITES(flags) && refused(AT_FDCWD, path)) return -1;         \
        return REAL(name)(path, flags, mode);                            \
    }
#define OPENAT(name)                                                     \
    int name(int folder, const char *path, int flags, ...) {             \
        MODE(flags, mode)                                                \
        if (WRITES(flags) && refused(folder, path)) return -1;           \
        return REAL(name)(folder, path, flags, mode);                    \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int handle, const void *data, size_t bytes) {
    static int is_full;
    if (!refused(handle, NULL)) return REAL(write)(handle, data, bytes);
    if (bytes < 2 || !lasting || is_full) return -1;
    is_full = 1; /* a full disk takes what still fits, once */
    return REAL(write)(handle, data, bytes / 2);
}
#define GUARDED(type, name, folder, path, declared, passed) \
    type name declared {                                    \
        if (refused(folder, path)) return -1;               \
        return REAL(name) passed;                           \
    }
GUARDED(ssize_t, pwrite, handle, NULL, (int handle, const void *data, size_t n, off_t at), (handle, data, n, at))
GUARDED(ssize_t, pwrite64, handle, NULL, (int handle, const void *data, size_t n, off64_t at), (handle, data, n, at))
GUARDED(ssize_t, writev, handle, NULL, (int handle, const struct iovec *parts, int n), (handle, parts, n))
GUARDED(int, fsync, handle, NULL, (int handle), (handle))
GUARDED(int, fdatasync, handle, NULL, (int handle), (handle))
GUARDED(int, ftruncate, handle, NULL, (int handle, off_t size), (handle, size))
GUARDED(int, ftruncate64, handle, NULL, (int handle, off64_t size), (handle, size))
GUARDED(int, rename, AT_FDCWD, old, (const char *old, const char *new), (old, new))
GUARDED(int, renameat, folder, old, (int folder, const char *old, int to, const char *new), (folder, old, to, new))
GUARDED(int, mkdir, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
GUARDED(int, mkdirat, folder, path, (int folder, const char *path, mode_t mode), (folder, path, mode))
GUARDED(int, unlink, AT_FDCWD, path, (const char *path), (path))
GUARDED(int, unlinkat, folder, path, (int folder, const char *path, int flags), (folder, path, flags))
GUARDED(int, rmdir, AT_FDCWD, path, (const char *path), (path))
