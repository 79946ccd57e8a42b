/* Preloaded: whoever reads the end of a connection by recvmsg learns of it LATE_US later. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

ssize_t recvmsg(int socket, struct msghdr *message, int flags)
{
    ssize_t (*next)(int, struct msghdr *, int) = dlsym(RTLD_NEXT, "recvmsg");
    ssize_t length = next(socket, message, flags);
    int error = errno;
    if (length <= 0)
        usleep(atoi(getenv("LATE_US")));
    errno = error;
    return length;
}
