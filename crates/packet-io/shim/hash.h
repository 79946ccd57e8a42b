/* DPDK's hash table, for the benchmark that sets it beside Natrix's own. Keys are 64-bit numbers. */
#ifndef NATRIX_HASH_H
#define NATRIX_HASH_H

#include <stdint.h>

struct rte_hash;

/* Most keys of one bulk call. */
#define NATRIX_HASH_BULK 64

/* NULL when there is no memory; natrix_last_error() says more. */
struct rte_hash *natrix_hash_create(const char *name, uint32_t entries);
void natrix_hash_free(struct rte_hash *hash);
/* The position of each key, entered when it is not there; negative where there is no room. */
void natrix_hash_find_or_add(struct rte_hash *hash, const uint64_t *keys, uint32_t count, int32_t *positions);
int natrix_last_error(void);
/* Bytes in use in DPDK's heaps. */
uint64_t natrix_heap_bytes(void);

#endif
