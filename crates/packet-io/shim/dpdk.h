/* The few DPDK calls Natrix makes, as plain functions: most of DPDK's packet path is inline in its headers. */
#ifndef NATRIX_DPDK_H
#define NATRIX_DPDK_H

#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;

/* What a port can do, asked before it is configured. */
struct natrix_port_info {
    uint16_t rx_queues_max;
    uint16_t tx_queues_max;
    uint16_t mtu_min;
    uint16_t mtu_max;
    uint8_t mac[6];
};

struct natrix_port_statistics {
    uint64_t ipackets, ibytes, opackets, obytes, imissed, ierrors, rx_nombuf, oerrors;
};

/* From here on DPDK's messages are kept and not written to the terminal, but for those about the end of the process. */
void natrix_keep_messages(void);
/* Copies the last messages, with a zero byte behind them. */
void natrix_messages(char *text, size_t size);
int natrix_eal_init(int argc, char **argv);
const char *natrix_error_text(int error);
const char *natrix_version(void);
int natrix_find_port(const char *device, uint16_t *port);
int natrix_port_info(uint16_t port, struct natrix_port_info *info);
struct rte_mempool *natrix_pool_create(uint32_t buffers, uint16_t data_room);
int natrix_port_start(uint16_t port, uint16_t queues, uint16_t rx_descriptors, uint16_t tx_descriptors, uint16_t mtu,
                      struct rte_mempool *pool);
/* Lets a started port receive frames to all groups, else all frames. */
int natrix_port_receive_groups(uint16_t port);
void natrix_memory_files_keep(void);
int natrix_memory_files_open(void);
void natrix_port_pause(uint16_t port);
void natrix_port_stop(uint16_t port);
int natrix_port_link_up(uint16_t port);
void natrix_port_statistics(uint16_t port, struct natrix_port_statistics *statistics);
int natrix_thread_register(void);
void natrix_thread_unregister(void);
uint16_t natrix_receive(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t count);
uint16_t natrix_transmit(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t count);
/* The same for a port whose memory its peer may take away: of net_memif. */
uint16_t natrix_receive_shared(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t count);
uint16_t natrix_transmit_shared(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t count);
struct rte_mbuf *natrix_allocate(struct rte_mempool *pool);
void natrix_free(struct rte_mbuf *buffer);
void natrix_free_all(struct rte_mbuf **buffers, unsigned int count);

#endif
