// Tries everything that a caged program must not be able to do, and says on standard error how each of it went.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <initializer_list>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;

static void say(const char *what, long result) {
    std::fprintf(stderr, "%s=%s\n", what, result >= 0 ? "done" : std::strerror(errno));
}

static void open_all(const char *paths) {
    char *copy = strdup(paths);
    for (char *path = std::strtok(copy, ":"); path; path = std::strtok(nullptr, ":")) {
        std::fprintf(stderr, "read ");
        say(path, open(path, O_RDONLY));
        std::fprintf(stderr, "write ");
        say(path, open(path, O_WRONLY | O_APPEND));
    }
}

static void connect_all() {
    for (int family : {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK, 40 /* vsock */, AF_PACKET}) {
        std::fprintf(stderr, "socket %d ", family);
        say("", socket(family, SOCK_STREAM, 0));
        std::fprintf(stderr, "datagrams %d ", family);
        say("", socket(family, SOCK_DGRAM, 0));
    }
}

int main(int, char **arguments) {
    for (int fd = 3; fd < 256; ++fd)
        if (fcntl(fd, F_GETFD) >= 0) std::fprintf(stderr, "open %d\n", fd);
    int parent = std::atoi(arguments[1]);
    open_all(arguments[2]);
    connect_all();
    say("fork", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    say("clone3", syscall(435, nullptr, 0));
    say("signal", kill(parent, 0));
    say("signal all", kill(-1, 0));
    say("trace", ptrace(PTRACE_ATTACH, parent, 0, 0));
    say("new user", unshare(CLONE_NEWUSER));
    say("mount", mount("tmpfs", "/", "tmpfs", 0, ""));
    say("root", chroot("/"));
    say("session", setsid());
    say("mode", chmod(arguments[0], 0777));
    say("other's limits", syscall(SYS_prlimit64, parent, RLIMIT_CPU, nullptr, nullptr));
    say("file in /", open("/x", O_CREAT | O_WRONLY, 0600));
    say("file here", open("here", O_CREAT | O_WRONLY, 0600));
    if (getuid() != 0) say("root again", setuid(0));
    void *much = mmap(nullptr, 3ull << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    say("memory", much == MAP_FAILED ? -1 : 0);
    rlimit core{1, 1};
    say("core", setrlimit(RLIMIT_CORE, &core));
    for (char **one = environ; *one; ++one) std::fprintf(stderr, "environment %s\n", *one);
    std::fprintf(stderr, "nice %d\n", getpriority(PRIO_PROCESS, 0));
    std::fprintf(stderr, "uid %d\n", getuid());
}
