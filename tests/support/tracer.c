/* Runs a program, fails calls of the system that it asks to fail, and logs what they change.
 *
 *     tracer LOG PROGRAM ARGUMENTS...
 *
 * The program asks by access(2) of paths that there are not:
 *
 *     /@fail/N/ERRNO/FOLDER   the Nth call from now on that has to do with FOLDER fails
 *     /@full/N/FOLDER         at the Nth call that needs room in FOLDER the disk is full: a write is cut
 *                             short, and it and all that come after fail with ENOSPC
 *     /@failed                0 if one has; nothing fails any more
 *     /@refuse/CALL/ERRNO/FOLDER   each call with this number in FOLDER fails, as where a file system
 *                             lacks it: fsync of directories only, madvise everywhere; 0: none any more
 *     /@log/FOLDER            what changes FOLDER is logged from now on
 *     /@say/TEXT              a line of the log
 *
 * Calls are seen as the kernel sees them, whoever makes them. Linux on x86-64 only. A filter of
 * seccomp stops the program only at calls that have to do with files: most others would take a
 * hundred times as long.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4096
#define TEXT 4096

static struct thread {
    pid_t tid;
    long fails;          /* with this errno, though it is done, or 0 */
    struct user_regs_struct entry;
    char first[TEXT], second[TEXT];
    unsigned long inode; /* of the file that a descriptor is of, before the call */
    long long offset;
} threads[THREADS];

static FILE *out;
static char folder[TEXT], logged[TEXT];
static long countdown, error_number, has_failed;
static short refused[512]; /* with this errno, by the number of the call; of 0: whether any is */
static int fills; /* the disk becomes full, rather than that one call fails */

static struct thread *of(pid_t tid) {
    struct thread *free_one = NULL;
    for (int i = 0; i < THREADS; i++) {
        if (threads[i].tid == tid) return &threads[i];
        if (threads[i].tid <= 0 && !free_one) free_one = &threads[i];
        if (!threads[i].tid) break; /* none has been used after it */
    }
    if (!free_one) abort();
    free_one->tid = tid;
    return free_one;
}

static void text_at(pid_t tid, unsigned long at, char *to) {
    /* Up to the end of a page at a time: what is after it may not be there. */
    size_t have = 0;
    to[0] = 0;
    while (have < TEXT - 1) {
        size_t len = 4096 - (at + have) % 4096;
        if (len > TEXT - 1 - have) len = TEXT - 1 - have;
        struct iovec mine = {to + have, len}, theirs = {(void *)(at + have), len};
        ssize_t got = process_vm_readv(tid, &mine, 1, &theirs, 1, 0);
        if (got <= 0) break;
        if (memchr(to + have, 0, got)) return;
        have += got;
    }
    to[have] = 0;
}

static void path_of_fd(pid_t tid, long fd, char *to) {
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/fd/%ld", tid, fd);
    ssize_t len = readlink(name, to, TEXT - 1);
    to[len < 0 ? 0 : len] = 0;
}

/* A path as it was given, made whole with its directory. */
static void whole_path(pid_t tid, long at, unsigned long text, char *to) {
    char given[TEXT];
    text_at(tid, text, given);
    if (given[0] == '/' || !given[0]) { strcpy(to, given); return; }
    if ((int)at == AT_FDCWD) {
        char name[64];
        snprintf(name, sizeof name, "/proc/%d/cwd", tid);
        ssize_t len = readlink(name, to, TEXT - 1);
        to[len < 0 ? 0 : len] = 0;
    } else path_of_fd(tid, at, to);
    strncat(to, "/", TEXT - 1 - strlen(to));
    strncat(to, given, TEXT - 1 - strlen(to));
}

static unsigned long inode_of_fd(pid_t tid, long fd) {
    char name[64];
    struct stat found;
    snprintf(name, sizeof name, "/proc/%d/fd/%ld", tid, fd);
    return stat(name, &found) ? 0 : found.st_ino;
}

static long long offset_of_fd(pid_t tid, long fd) {
    char name[64], line[128] = "";
    long long offset = -1;
    snprintf(name, sizeof name, "/proc/%d/fdinfo/%ld", tid, fd);
    FILE *info = fopen(name, "r");
    if (!info) return -1;
    if (fgets(line, sizeof line, info)) sscanf(line, "pos: %lld", &offset);
    fclose(info);
    return offset;
}

enum kind { NONE, OF_FD, OF_PATH, OF_PATH_AT, TWO_PATHS, TWO_PATHS_AT };

/* Left out are lseek and ioctl, which ask for what the system has in memory. */
static enum kind kind_of(long call) {
    switch (call) {
    case SYS_write: case SYS_pwrite64: case SYS_writev: case SYS_pwritev: case SYS_read: case SYS_pread64:
    case SYS_preadv: case SYS_preadv2: case SYS_fadvise64: case SYS_fsync: case SYS_fdatasync:
    case SYS_ftruncate: case SYS_fallocate: case SYS_close:
    case SYS_fchmod: case SYS_fchown: case SYS_flock: case SYS_fstat: case SYS_getdents64:
    case SYS_sync_file_range: case SYS_copy_file_range: case SYS_fcntl: return OF_FD;
    case SYS_open: case SYS_creat: case SYS_unlink: case SYS_mkdir: case SYS_rmdir: case SYS_stat:
    case SYS_lstat: case SYS_readlink: case SYS_truncate: case SYS_chmod: case SYS_chown: return OF_PATH;
    case SYS_openat: case SYS_unlinkat: case SYS_mkdirat: case SYS_newfstatat: case SYS_statx:
    case SYS_readlinkat: case SYS_fchmodat: case SYS_fchownat: case SYS_utimensat: return OF_PATH_AT;
    case SYS_rename: case SYS_link: case SYS_symlink: return TWO_PATHS;
    case SYS_renameat: case SYS_renameat2: case SYS_linkat: return TWO_PATHS_AT;
    case SYS_mmap: return OF_FD;
    default: return NONE;
    }
}

/* Whether a call needs room on the disk. */
static int takes_room(long call, struct user_regs_struct *regs) {
    switch (call) {
    case SYS_write: case SYS_pwrite64: case SYS_writev: case SYS_pwritev: case SYS_fallocate: case SYS_ftruncate:
    case SYS_truncate: case SYS_copy_file_range: case SYS_mkdir: case SYS_mkdirat: case SYS_creat: case SYS_link:
    case SYS_linkat: case SYS_symlink: return 1;
    case SYS_open: return (regs->rsi & O_CREAT) != 0;
    case SYS_openat: return (regs->rdx & O_CREAT) != 0;
    default: return 0;
    }
}

static int is_in(const char *path, const char *where) {
    size_t len = strlen(where);
    return len && !strncmp(path, where, len) && (path[len] == '/' || !path[len]);
}

/* No call is made: its result is this one. */
static void answer(struct thread *it, struct user_regs_struct *regs, long result) {
    regs->orig_rax = -1;
    regs->rax = result;
    ptrace(PTRACE_SETREGS, it->tid, 0, regs);
}

static void asked(struct thread *it, const char *text, struct user_regs_struct *regs) {
    long number, error;
    int used = 0;
    long result = -ENOENT;
    if (sscanf(text, "/@fail/%ld/%ld%n", &number, &error, &used) == 2) {
        countdown = number, error_number = error, has_failed = fills = 0;
        strcpy(folder, text + used);
    } else if (sscanf(text, "/@full/%ld%n", &number, &used) == 1) {
        countdown = number, error_number = ENOSPC, has_failed = 0, fills = 1;
        strcpy(folder, text + used);
    } else if (sscanf(text, "/@refuse/%ld/%ld%n", &number, &error, &used) == 2 && number >= 0 && number < 512) {
        if (!number) memset(refused, 0, sizeof refused);
        refused[number] = error, refused[0] = number != 0;
        strcpy(folder, text + used);
    } else if (!strcmp(text, "/@failed")) {
        result = has_failed ? 0 : -ENOENT;
        countdown = 0;
    } else if (!strncmp(text, "/@log/", 6)) strcpy(logged, text + 5);
    else if (!strncmp(text, "/@say/", 6)) fprintf(out, "say %s\n", text + 6);
    else return;
    fflush(out);
    answer(it, regs, result);
}

static int is_directory(const char *path) {
    struct stat found;
    return !stat(path, &found) && S_ISDIR(found.st_mode);
}

static int is_refused(long call, struct thread *it) {
    if (call <= 0 || call >= 512 || !refused[call]) return 0;
    if (call == SYS_madvise) return 1;
    return is_in(it->first, folder) && (call != SYS_fsync || is_directory(it->first));
}

/* Looks at a call before it is made; returns whether its end has to be seen as well. */
static int enter(struct thread *it) {
    struct user_regs_struct regs;
    ptrace(PTRACE_GETREGS, it->tid, 0, &regs);
    it->entry = regs;
    it->fails = 0;
    it->first[0] = it->second[0] = 0;
    long call = regs.orig_rax;
    if (call == SYS_access || call == SYS_faccessat || call == SYS_faccessat2) {
        char text[TEXT];
        text_at(it->tid, call == SYS_access ? regs.rdi : regs.rsi, text);
        if (text[0] == '/' && text[1] == '@') asked(it, text, &regs);
        return 0;
    }
    if (!countdown && !logged[0] && !refused[0]) return 0;
    switch (kind_of(call)) {
    case NONE: break;
    case OF_FD: {
        long fd = call == SYS_mmap ? (long)(int)regs.r8 : (long)(int)regs.rdi;
        if (fd < 0) return 0;
        path_of_fd(it->tid, fd, it->first);
        if (is_in(it->first, logged)) {
            it->inode = inode_of_fd(it->tid, fd);
            it->offset = call == SYS_pwrite64 ? (long long)regs.r10 : offset_of_fd(it->tid, fd);
        }
        break;
    }
    case OF_PATH: whole_path(it->tid, AT_FDCWD, regs.rdi, it->first); break;
    case OF_PATH_AT: whole_path(it->tid, regs.rdi, regs.rsi, it->first); break;
    case TWO_PATHS:
        whole_path(it->tid, AT_FDCWD, regs.rdi, it->first);
        whole_path(it->tid, AT_FDCWD, regs.rsi, it->second);
        break;
    case TWO_PATHS_AT:
        whole_path(it->tid, regs.rdi, regs.rsi, it->first);
        whole_path(it->tid, regs.rdx, regs.r10, it->second);
        break;
    }
    int is_logged = is_in(it->first, logged) || is_in(it->second, logged);
    if (is_refused(call, it)) {
        answer(it, &regs, -refused[call]);
        return 0;
    }
    if (!countdown || !is_in(it->first, folder)) return is_logged;
    if (fills && !takes_room(call, &regs)) return is_logged;
    if (--countdown == 0) {
        if (fills) countdown = 1; /* the next one, too */
        int is_cut = fills && !has_failed && (call == SYS_write || call == SYS_pwrite64) && regs.rdx > 1;
        has_failed = 1;
        if (is_cut) {
            regs.rdx /= 2;
            ptrace(PTRACE_SETREGS, it->tid, 0, &regs);
            return is_logged;
        }
        fprintf(out, "fails %ld %ld %s\n", call, error_number, it->first);
        fflush(out);
        /* A file that could not be closed is closed all the same. */
        if (call == SYS_close) it->fails = error_number;
        else {
            answer(it, &regs, -error_number);
            return 0;
        }
    }
    return is_logged || it->fails;
}

static void log_bytes(struct thread *it, unsigned long from, size_t len) {
    unsigned char *bytes = malloc(len + 1);
    struct iovec mine = {bytes, len}, theirs = {(void *)from, len};
    if (process_vm_readv(it->tid, &mine, 1, &theirs, 1, 0) != (ssize_t)len) abort();
    fprintf(out, "write %lu %lld ", it->inode, it->offset);
    for (size_t i = 0; i < len; i++) fprintf(out, "%02x", bytes[i]);
    fprintf(out, "\n");
    free(bytes);
}

static void leave(struct thread *it) {
    struct user_regs_struct regs;
    if (it->fails) {
        ptrace(PTRACE_GETREGS, it->tid, 0, &regs);
        regs.rax = -it->fails;
        ptrace(PTRACE_SETREGS, it->tid, 0, &regs);
        return;
    }
    ptrace(PTRACE_GETREGS, it->tid, 0, &regs);
    long result = regs.rax, call = it->entry.orig_rax;
    if (result < 0) return;
    struct stat found;
    switch (call) {
    case SYS_open: case SYS_openat: case SYS_creat:
        if (!stat(it->first, &found) && S_ISREG(found.st_mode)) {
            long flags = call == SYS_open ? it->entry.rsi : it->entry.rdx;
            if (call == SYS_creat) flags = O_CREAT | O_TRUNC | O_WRONLY;
            if (flags & O_CREAT) fprintf(out, "create %lu %s\n", (unsigned long)found.st_ino, it->first);
            if (flags & O_TRUNC) fprintf(out, "truncate %lu 0\n", (unsigned long)found.st_ino);
        }
        break;
    case SYS_write: case SYS_pwrite64: log_bytes(it, it->entry.rsi, result); break;
    case SYS_writev: case SYS_pwritev: case SYS_copy_file_range: case SYS_truncate:
        fprintf(out, "unknown %ld\n", call);
        break;
    case SYS_ftruncate: fprintf(out, "truncate %lu %lld\n", it->inode, (long long)it->entry.rsi); break;
    case SYS_fallocate: fprintf(out, "extend %lu %lld\n", it->inode, (long long)(it->entry.rdx + it->entry.r10)); break;
    case SYS_fsync: case SYS_fdatasync: fprintf(out, "sync %lu %s\n", it->inode, it->first); break;
    case SYS_rename: case SYS_renameat: case SYS_renameat2:
        fprintf(out, "rename %s\t%s\n", it->first, it->second);
        break;
    case SYS_link: case SYS_linkat: fprintf(out, "link %s\t%s\n", it->first, it->second); break;
    case SYS_unlink: fprintf(out, "unlink %s\n", it->first); break;
    case SYS_unlinkat:
        fprintf(out, "%s %s\n", it->entry.rdx & AT_REMOVEDIR ? "rmdir" : "unlink", it->first);
        break;
    case SYS_rmdir: fprintf(out, "rmdir %s\n", it->first); break;
    case SYS_mkdir: case SYS_mkdirat: fprintf(out, "mkdir %s\n", it->first); break;
    }
}

/* Stops this process, and those that it becomes, at calls that `enter` looks at. */
static int filter_calls(void) {
    static struct sock_filter program[600];
    int length = 0;
    program[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int call = 0; call < 512; call++) {
        int is_asked = call == SYS_access || call == SYS_faccessat || call == SYS_faccessat2;
        if (call == SYS_mmap || !(is_asked || call == SYS_madvise || kind_of(call))) continue;
        program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
        program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    /* Memory without a file is not looked at. */
    program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3);
    program[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4]));
    program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xFFFFFFFF, 1, 0);
    program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {length, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

int main(int count, char **arguments) {
    if (count < 3 || !(out = fopen(arguments[1], "w"))) return 2;
    pid_t child = fork();
    if (!child) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        if (!filter_calls()) execvp(arguments[2], arguments + 2);
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return 3;
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
        PTRACE_O_TRACEEXEC | PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SETOPTIONS, child, 0, options)) return 3;
    ptrace(PTRACE_CONT, child, 0, 0);
    int code = 1;
    for (;;) {
        pid_t tid = waitpid(-1, &status, __WALL);
        if (tid < 0) break;
        struct thread *it = of(tid);
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (tid == child) code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            it->tid = -1;
            continue;
        }
        int signal = 0, stopped = WSTOPSIG(status), until_end = 0;
        if (stopped == (SIGTRAP | 0x80)) {
            leave(it);
        } else if (stopped == SIGTRAP && status >> 16 == PTRACE_EVENT_SECCOMP) {
            until_end = enter(it);
        } else if (stopped == SIGTRAP && status >> 16) {
            /* a new thread, or a new program */
        } else if (stopped != SIGSTOP) signal = stopped;
        ptrace(until_end ? PTRACE_SYSCALL : PTRACE_CONT, tid, 0, signal);
    }
    fclose(out);
    return code;
}
