/* Preloaded: now and then a worker that is in a burst of net_memif stays there for a while, as one does whose CPU is
 * taken away. If a connection that DPDK's own thread reads ends meanwhile, it stays LONG_US longer, and the file BURSTS
 * gets a line. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { EVERY_US = 10 * 1000, STAY_MS = 400 };

static int bursts = -1;
static long long_us;
/* Ends so far, and workers that stay. */
static atomic_uint ends, staying;

static void wait_us(long us)
{
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

static void interrupted(int sign, siginfo_t *info, void *context)
{
    (void)sign;
    (void)info;
    int error = errno;
    unsigned before = atomic_load(&ends);
    Dl_info where;
    void *at = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (dladdr(at, &where) != 0 && strstr(where.dli_fname, "net_memif") != NULL) {
        atomic_fetch_add(&staying, 1);
        for (int ms = 0; ms < STAY_MS && atomic_load(&ends) == before; ms++)
            wait_us(1000);
        if (atomic_load(&ends) != before) {
            (void)!write(bursts, "in a burst\n", 11);
            wait_us(long_us);
        }
        atomic_fetch_sub(&staying, 1);
    }
    errno = error;
}

static void interrupt_workers(void)
{
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        char path[300] = "/proc/self/task/", name[16] = "";
        int file = open(strcat(strcat(path, task->d_name), "/comm"), O_RDONLY | O_CLOEXEC);
        if (file >= 0 && read(file, name, sizeof name - 1) > 0 && strncmp(name, "worker", 6) == 0)
            syscall(SYS_tgkill, getpid(), atoi(task->d_name), SIGUSR2);
        if (file >= 0)
            close(file);
    }
    if (tasks != NULL)
        closedir(tasks);
}

static void *now_and_then(void *argument)
{
    for (;;) {
        wait_us(EVERY_US);
        /* A signal that waits for the end of a stay would begin the next. */
        if (atomic_load(&staying) == 0)
            interrupt_workers();
    }
    return argument;
}

__attribute__((constructor)) static void begin(void)
{
    long_us = atol(getenv("LONG_US"));
    bursts = open(getenv("BURSTS"), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
    sigaction(SIGUSR2, &(struct sigaction){.sa_sigaction = interrupted, .sa_flags = SA_SIGINFO | SA_RESTART}, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, now_and_then, NULL);
}

ssize_t recvmsg(int socket, struct msghdr *message, int flags)
{
    ssize_t (*next)(int, struct msghdr *, int) = dlsym(RTLD_NEXT, "recvmsg");
    ssize_t length = next(socket, message, flags);
    int error = errno;
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (length <= 0 && strncmp(name, "eal-intr", 8) == 0) {
        atomic_fetch_add(&ends, 1);
        /* Longer than it takes a worker to notice. */
        wait_us(5000);
    }
    errno = error;
    return length;
}
