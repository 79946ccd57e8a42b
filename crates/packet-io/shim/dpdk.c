#define _GNU_SOURCE
#include "dpdk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef NATRIX_XDP
#include <xdp/libxdp.h>
#include <xdp/xsk.h>
#endif

#include <rte_alarm.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_version.h>

#define POOL_NAME "natrix"
/* Ethernet header and checksum, as rte_ethdev counts them. */
#define OVERHEAD ((uint32_t)(RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN))

/* What src/dpdk/buffer.rs reads and writes without a call. */
_Static_assert(offsetof(struct rte_mbuf, buf_addr) == 0, "rte_mbuf.buf_addr");
_Static_assert(offsetof(struct rte_mbuf, data_off) == 16, "rte_mbuf.data_off");
_Static_assert(offsetof(struct rte_mbuf, nb_segs) == 20, "rte_mbuf.nb_segs");
_Static_assert(offsetof(struct rte_mbuf, ol_flags) == 24, "rte_mbuf.ol_flags");
_Static_assert(offsetof(struct rte_mbuf, pkt_len) == 36, "rte_mbuf.pkt_len");
_Static_assert(offsetof(struct rte_mbuf, data_len) == 40, "rte_mbuf.data_len");
_Static_assert(offsetof(struct rte_mbuf, buf_len) == 54, "rte_mbuf.buf_len");
_Static_assert(sizeof(struct rte_mbuf) == 128, "rte_mbuf");
_Static_assert(RTE_PKTMBUF_HEADROOM == 128, "head room");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_BAD == 1 << 3, "checksum flag");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_GOOD == 1 << 8, "checksum flag");

/* The last of what DPDK, libxdp and libbpf said. */
static struct {
    pthread_mutex_t lock;
    size_t length;
    char text[16 * 1024];
} messages = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep(const char *text, size_t length)
{
    pthread_mutex_lock(&messages.lock);
    size_t kept = RTE_MIN(length, sizeof messages.text);
    size_t free_bytes = sizeof messages.text - messages.length;
    if (kept > free_bytes) {
        memmove(messages.text, messages.text + (kept - free_bytes), messages.length - (kept - free_bytes));
        messages.length -= kept - free_bytes;
    }
    memcpy(messages.text + messages.length, text + (length - kept), kept);
    messages.length += kept;
    pthread_mutex_unlock(&messages.lock);
}

static ssize_t keep_message(void *cookie, const char *text, size_t length)
{
    (void)cookie;
    int level = rte_log_cur_msg_loglevel();
    /* DPDK ends the process behind some of these. */
    if (level >= (int)RTE_LOG_EMERG && level <= (int)RTE_LOG_CRIT)
        fwrite(text, 1, length, stderr);
    keep(text, length);
    return (ssize_t)length;
}

#ifdef NATRIX_XDP
/* Both libraries number their levels alike. The highest is for their developers. */
static int keep_xdp_message(int level, const char *format, va_list values)
{
    char text[1024];
    if (level > LIBXDP_INFO)
        return 0;
    int length = vsnprintf(text, sizeof text, format, values);
    if (length > 0)
        keep(text, RTE_MIN((size_t)length, sizeof text - 1));
    return length;
}

static int keep_libxdp_message(enum libxdp_print_level level, const char *format, va_list values)
{
    return keep_xdp_message((int)level, format, values);
}

static void keep_xdp_messages(void)
{
    libxdp_set_print(keep_libxdp_message);
    /* A library of libxdp, so it is there, but this program does not name it. */
    typedef int (*print)(int level, const char *format, va_list values);
    print (*set_print)(print) = NULL;
    *(void **)&set_print = dlsym(RTLD_DEFAULT, "libbpf_set_print");
    if (set_print != NULL)
        set_print(keep_xdp_message);
}
#endif

void natrix_keep_messages(void)
{
    static FILE *stream;
    if (stream == NULL)
        stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = keep_message});
    /* Without it DPDK writes to the terminal, as it does by itself. */
    if (stream != NULL)
        rte_openlog_stream(stream);
#ifdef NATRIX_XDP
    keep_xdp_messages();
#endif
}

void natrix_messages(char *text, size_t size)
{
    pthread_mutex_lock(&messages.lock);
    size_t length = RTE_MIN(messages.length, size - 1);
    memcpy(text, messages.text + (messages.length - length), length);
    text[length] = '\0';
    pthread_mutex_unlock(&messages.lock);
}

int natrix_eal_init(int argc, char **argv)
{
    cpu_set_t before;
    int known = sched_getaffinity(0, sizeof before, &before) == 0;
    int result = rte_eal_init(argc, argv);
    /* EAL binds the calling thread to one CPU; threads started later would inherit that. */
    if (known)
        sched_setaffinity(0, sizeof before, &before);
    /* For end_of_bursts(), which does without where the kernel has no such call. */
    syscall(__NR_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    return result < 0 ? -rte_errno : 0;
}

const char *natrix_error_text(int error)
{
    return rte_strerror(error < 0 ? -error : error);
}

const char *natrix_version(void)
{
    return rte_version();
}

int natrix_find_port(const char *device, uint16_t *port)
{
    return rte_eth_dev_get_port_by_name(device, port);
}

int natrix_port_info(uint16_t port, struct natrix_port_info *info)
{
    struct rte_eth_dev_info device;
    struct rte_ether_addr mac;
    int result = rte_eth_dev_info_get(port, &device);
    if (result == 0)
        result = rte_eth_macaddr_get(port, &mac);
    if (result != 0)
        return result;
    info->rx_queues_max = device.max_rx_queues;
    info->tx_queues_max = device.max_tx_queues;
    info->mtu_min = device.min_mtu;
    info->mtu_max = device.max_mtu;
    /* Some drivers leave the MTU unlimited and limit the frame; then rte_eth_dev_configure refuses a larger MTU. */
    if (device.max_mtu == UINT16_MAX && device.max_rx_pktlen >= OVERHEAD + device.min_mtu &&
        device.max_rx_pktlen - OVERHEAD < device.max_mtu)
        info->mtu_max = (uint16_t)(device.max_rx_pktlen - OVERHEAD);
    memcpy(info->mac, mac.addr_bytes, sizeof info->mac);
    return 0;
}

struct rte_mempool *natrix_pool_create(uint32_t buffers, uint16_t data_room)
{
    /* By default no buffer may lie across two pages, and on 4 KiB pages each buffer takes a page of its own.
       net_af_xdp gives the kernel as much memory as the buffers would take without such gaps: those at the end
       would be of no use, and the port deaf once all others have been lost to them. Where devices see virtual
       addresses, buffers may lie across pages. */
    unsigned int flags = rte_eal_iova_mode() == RTE_IOVA_VA ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0;
    struct rte_pktmbuf_pool_private room = {.mbuf_data_room_size = data_room};
    struct rte_mempool *pool =
        rte_mempool_create_empty(POOL_NAME, buffers, sizeof(struct rte_mbuf) + data_room, 256, sizeof room,
                                 SOCKET_ID_ANY, flags);
    if (pool == NULL)
        return NULL;
    rte_errno = -rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
    if (rte_errno == 0) {
        rte_pktmbuf_pool_init(pool, &room);
        int populated = rte_mempool_populate_default(pool);
        rte_errno = populated < 0 ? -populated : 0;
    }
    if (rte_errno != 0) {
        rte_mempool_free(pool);
        return NULL;
    }
    rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
    return pool;
}

/* The files that packet memory is in: DPDK's number of each, and a copy that no driver knows of. */
static struct memory_file {
    int number;
    int copy;
} memory_files[RTE_MAX_MEMSEG_LISTS];
static unsigned int memory_file_count;

static int memory_file_keep(const struct rte_memseg_list *list, const struct rte_memseg *segment, void *unused)
{
    int number = rte_memseg_get_fd_thread_unsafe(segment);
    (void)list;
    (void)unused;
    for (unsigned int i = 0; i < memory_file_count; i++)
        if (memory_files[i].number == number)
            return 0;
    if (number >= 0 && memory_file_count < RTE_DIM(memory_files)) {
        int copy = fcntl(number, F_DUPFD_CLOEXEC, 0);
        if (copy >= 0)
            memory_files[memory_file_count++] = (struct memory_file){.number = number, .copy = copy};
    }
    return 0;
}

void natrix_memory_files_keep(void)
{
    rte_memseg_walk(memory_file_keep, NULL);
}

int natrix_memory_files_open(void)
{
    for (unsigned int i = 0; i < memory_file_count; i++) {
        const struct memory_file *file = &memory_files[i];
        struct stat ours, now;
        if (fstat(file->copy, &ours) != 0)
            return 0;
        if (fstat(file->number, &now) == 0) {
            if (now.st_dev != ours.st_dev || now.st_ino != ours.st_ino)
                return 0;
            continue;
        }
        /* The first free number from there on, so that no file of another thread is lost. */
        int number = fcntl(file->copy, F_DUPFD_CLOEXEC, file->number);
        if (number != file->number) {
            if (number >= 0)
                close(number);
            return 0;
        }
    }
    return 1;
}

int natrix_port_start(uint16_t port, uint16_t queues, uint16_t rx_descriptors, uint16_t tx_descriptors, uint16_t mtu,
                      struct rte_mempool *pool)
{
    struct rte_eth_dev_info device;
    struct rte_eth_conf configuration = {.rxmode = {.mtu = mtu}};
    int socket = rte_eth_dev_socket_id(port);
    int result = rte_eth_dev_info_get(port, &device);
    if (result != 0)
        return result;
    if (queues > 1 && (device.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP)) != 0) {
        configuration.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
        configuration.rx_adv_conf.rss_conf.rss_hf =
            device.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP);
    }
    if ((result = rte_eth_dev_configure(port, queues, queues, &configuration)) != 0)
        return result;
    if ((result = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx_descriptors, &tx_descriptors)) != 0)
        return result;
    for (uint16_t queue = 0; queue < queues; queue++) {
        if ((result = rte_eth_rx_queue_setup(port, queue, rx_descriptors, socket, NULL, pool)) != 0)
            return result;
        if ((result = rte_eth_tx_queue_setup(port, queue, tx_descriptors, socket, NULL)) != 0)
            return result;
    }
    return rte_eth_dev_start(port);
}

int natrix_port_receive_groups(uint16_t port)
{
    if (rte_eth_allmulticast_enable(port) == 0)
        return 0;
    return rte_eth_promiscuous_enable(port);
}

/* Something to do with a port on the thread on which DPDK handles events. */
struct errand {
    void (*work)(uint16_t port);
    uint16_t port;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_over;
};

static void do_errand(void *argument)
{
    struct errand *errand = argument;
    errand->work(errand->port);
    pthread_mutex_lock(&errand->lock);
    errand->is_over = true;
    pthread_cond_signal(&errand->over);
    pthread_mutex_unlock(&errand->lock);
}

/* net_memif handles its peer's messages on DPDK's own thread, and looks at the device between
 * receiving one and taking a lock. Its peer's end may come at any time, so that thread does all that
 * takes a device from under it; for other drivers the caller does. */
static void between_events(void (*work)(uint16_t port), uint16_t port)
{
    struct errand errand = {
        .work = work, .port = port, .lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};
    struct rte_eth_dev_info device;
    if (rte_eth_dev_info_get(port, &device) != 0 || strcmp(device.driver_name, "net_memif") != 0 ||
        rte_eal_alarm_set(1, do_errand, &errand) != 0) {
        work(port);
        return;
    }
    pthread_mutex_lock(&errand.lock);
    while (!errand.is_over)
        pthread_cond_wait(&errand.over, &errand.lock);
    pthread_mutex_unlock(&errand.lock);
}

static void stop(uint16_t port)
{
    rte_eth_dev_stop(port);
}

static void stop_and_close(uint16_t port)
{
    rte_eth_dev_stop(port);
    rte_eth_dev_close(port);
}

void natrix_port_pause(uint16_t port)
{
    between_events(stop, port);
}

void natrix_port_stop(uint16_t port)
{
    between_events(stop_and_close, port);
}

int natrix_port_link_up(uint16_t port)
{
    struct rte_eth_link link;
    return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

void natrix_port_statistics(uint16_t port, struct natrix_port_statistics *statistics)
{
    struct rte_eth_stats device;
    memset(statistics, 0, sizeof *statistics);
    if (rte_eth_stats_get(port, &device) != 0)
        return;
    statistics->ipackets = device.ipackets;
    statistics->ibytes = device.ibytes;
    statistics->opackets = device.opackets;
    statistics->obytes = device.obytes;
    statistics->imissed = device.imissed;
    statistics->ierrors = device.ierrors;
    statistics->rx_nombuf = device.rx_nombuf;
    statistics->oerrors = device.oerrors;
}

int natrix_thread_register(void)
{
    return rte_thread_register() == 0 ? 0 : -rte_errno;
}

void natrix_thread_unregister(void)
{
    struct rte_mempool *pool = rte_mempool_lookup(POOL_NAME);
    struct rte_mempool_cache *cache = pool != NULL ? rte_mempool_default_cache(pool, rte_lcore_id()) : NULL;
    /* Unregistering leaves the cache as it is, for the next thread that gets the same number: there may be none. */
    if (cache != NULL)
        rte_mempool_cache_flush(cache, pool);
    rte_thread_unregister();
}

uint16_t natrix_receive(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t count)
{
    return rte_eth_rx_burst(port, queue, buffers, count);
}

uint16_t natrix_transmit(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t count)
{
    return rte_eth_tx_burst(port, queue, buffers, count);
}

/* When a peer of net_memif ends, DPDK's own thread marks the port as unconnected and unmaps what the
 * peer shared, without a look at who is in it: a worker in the middle of a burst crashes. So each
 * thread says when it is in a burst of such a port, and that thread waits until every burst that may
 * have begun before the mark is over. */
static struct {
    /* Odd while the thread is in a burst. Written by this thread only. */
    alignas(RTE_CACHE_LINE_SIZE) _Atomic uint32_t count;
} bursts[RTE_MAX_LCORE];
/* Threads in a burst that DPDK has no number for. */
static _Atomic uint32_t unnumbered;

static inline uint32_t enter_burst(unsigned thread)
{
    if (unlikely(thread >= RTE_MAX_LCORE)) {
        atomic_fetch_add(&unnumbered, 1);
        return 0;
    }
    uint32_t count = atomic_load_explicit(&bursts[thread].count, memory_order_relaxed);
    atomic_store_explicit(&bursts[thread].count, count + 1, memory_order_relaxed);
    /* The processor may still look at the port first: end_of_bursts() takes care of that. */
    atomic_signal_fence(memory_order_seq_cst);
    return count + 2;
}

static inline void leave_burst(unsigned thread, uint32_t count)
{
    if (unlikely(thread >= RTE_MAX_LCORE))
        atomic_fetch_sub(&unnumbered, 1);
    else
        atomic_store_explicit(&bursts[thread].count, count, memory_order_release);
}

uint16_t natrix_receive_shared(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t count)
{
    unsigned thread = rte_lcore_id();
    uint32_t after = enter_burst(thread);
    uint16_t received = rte_eth_rx_burst(port, queue, buffers, count);
    leave_burst(thread, after);
    return received;
}

uint16_t natrix_transmit_shared(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t count)
{
    unsigned thread = rte_lcore_id();
    uint32_t after = enter_burst(thread);
    uint16_t sent = rte_eth_tx_burst(port, queue, buffers, count);
    leave_burst(thread, after);
    return sent;
}

/* Waits until each burst of a shared port that had begun is over. */
static void end_of_bursts(void)
{
    /* Makes every other thread's processor finish its stores, so that those threads need no costly
     * fence for each burst. Where the kernel has no such call: a store is seen long before this. */
    if (syscall(__NR_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
        usleep(1000);
    for (unsigned thread = 0; thread < RTE_MAX_LCORE; thread++) {
        uint32_t count = atomic_load_explicit(&bursts[thread].count, memory_order_acquire);
        while (count % 2 == 1 && atomic_load_explicit(&bursts[thread].count, memory_order_acquire) == count)
            usleep(10);
    }
    while (atomic_load(&unnumbered) != 0)
        usleep(10);
}

/* net_memif calls this between marking its port as unconnected and unmapping. There is no other place
 * to wait for the workers: the linker takes this function in place of DPDK's, which does the work. */
int rte_intr_callback_unregister(const struct rte_intr_handle *handle, rte_intr_callback_fn callback, void *argument)
{
    static int (*_Atomic next)(const struct rte_intr_handle *, rte_intr_callback_fn, void *);
    if (atomic_load(&next) == NULL)
        atomic_store(&next, dlsym(RTLD_NEXT, "rte_intr_callback_unregister"));
    end_of_bursts();
    return atomic_load(&next)(handle, callback, argument);
}

struct rte_mbuf *natrix_allocate(struct rte_mempool *pool)
{
    return rte_pktmbuf_alloc(pool);
}

void natrix_free(struct rte_mbuf *buffer)
{
    rte_pktmbuf_free(buffer);
}

void natrix_free_all(struct rte_mbuf **buffers, unsigned int count)
{
    rte_pktmbuf_free_bulk(buffers, count);
}

#ifdef NATRIX_XDP
/* So long is a queue waited for, and so often it is tried. */
#define WAIT_US (10 * 1000 * 1000)
#define TRY_US (5 * 1000)

/* The kernel takes a queue from a socket that is closed in the background, some milliseconds later, or a second where
 * the machine is busy: who starts right after another has ended finds it taken. net_af_xdp says then that an argument
 * is invalid, forgets the buffers it had for the queue, and cannot try again. There is no other place to wait: the
 * linker takes this function in place of libxdp's, which does the work. The call of another one of libxdp makes it a
 * library of this program, or the linker would not show this function to the driver. */
int xsk_socket__create(struct xsk_socket **created, const char *interface, __u32 queue, struct xsk_umem *area,
                       struct xsk_ring_cons *rx, struct xsk_ring_prod *tx, const struct xsk_socket_config *config)
{
    static int (*_Atomic next)(struct xsk_socket **, const char *, __u32, struct xsk_umem *, struct xsk_ring_cons *,
                               struct xsk_ring_prod *, const struct xsk_socket_config *);
    if (atomic_load(&next) == NULL)
        atomic_store(&next, dlsym(RTLD_NEXT, "xsk_socket__create"));
    int result;
    for (unsigned int waited = 0;; waited += TRY_US) {
        result = atomic_load(&next)(created, interface, queue, area, rx, tx, config);
        if (result == 0)
            return xsk_socket__fd(*created) >= 0 ? 0 : -EBADF;
        if (result != -EBUSY || waited >= WAIT_US)
            return result;
        usleep(TRY_US);
    }
}
#endif
