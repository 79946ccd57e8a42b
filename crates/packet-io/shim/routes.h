/* DPDK's tables for the longest prefix, for the benchmark that sets them beside Natrix's own. Addresses are in host
 * byte order. */
#ifndef NATRIX_ROUTES_H
#define NATRIX_ROUTES_H

#include <stdint.h>

struct rte_lpm;
struct rte_fib;

/* Most addresses of one bulk call. */
#define NATRIX_ROUTES_BULK 64
/* Next hop of addresses without route. */
#define NATRIX_ROUTES_NONE UINT32_MAX

/* NULL when there is no memory; natrix_last_error() says more. groups: /24s with longer routes. */
struct rte_lpm *natrix_lpm_create(const char *name, uint32_t routes, uint32_t groups);
void natrix_lpm_free(struct rte_lpm *lpm);
/* 0, or a negative error. A next hop has 24 bits. */
int natrix_lpm_add(struct rte_lpm *lpm, uint32_t address, uint8_t length, uint32_t next_hop);
int natrix_lpm_delete(struct rte_lpm *lpm, uint32_t address, uint8_t length);
void natrix_lpm_lookup(const struct rte_lpm *lpm, const uint32_t *addresses, uint32_t count, uint32_t *next_hops);

/* DIR24-8 with next hops of 4 bytes, and the fastest lookup that the CPU has. */
struct rte_fib *natrix_fib_create(const char *name, uint32_t routes, uint32_t groups);
void natrix_fib_free(struct rte_fib *fib);
int natrix_fib_add(struct rte_fib *fib, uint32_t address, uint8_t length, uint32_t next_hop);
int natrix_fib_delete(struct rte_fib *fib, uint32_t address, uint8_t length);
void natrix_fib_lookup(struct rte_fib *fib, const uint32_t *addresses, uint32_t count, uint32_t *next_hops);

#endif
