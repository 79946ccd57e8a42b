#include "hash.h"

#include <rte_errno.h>
#include <rte_hash.h>
#include <rte_hash_crc.h>
#include <rte_lcore.h>
#include <rte_malloc.h>

_Static_assert(NATRIX_HASH_BULK <= RTE_HASH_LOOKUP_BULK_MAX, "one bulk call");

struct rte_hash *natrix_hash_create(const char *name, uint32_t entries)
{
    struct rte_hash_parameters parameters = {
        .name = name,
        .entries = entries,
        .key_len = sizeof(uint64_t),
        .hash_func = rte_hash_crc,
        .socket_id = SOCKET_ID_ANY,
    };
    return rte_hash_create(&parameters);
}

void natrix_hash_free(struct rte_hash *hash)
{
    rte_hash_free(hash);
}

void natrix_hash_find_or_add(struct rte_hash *hash, const uint64_t *keys, uint32_t count, int32_t *positions)
{
    const void *pointers[NATRIX_HASH_BULK];
    if (count == 0 || count > NATRIX_HASH_BULK)
        return;
    for (uint32_t i = 0; i < count; i++)
        pointers[i] = &keys[i];
    /* Prefetches all buckets, then all keys. */
    rte_hash_lookup_bulk(hash, pointers, count, positions);
    /* Finds a key that another one of the same call has just entered, too. */
    for (uint32_t i = 0; i < count; i++)
        if (positions[i] < 0)
            positions[i] = rte_hash_add_key(hash, &keys[i]);
}

int natrix_last_error(void)
{
    return -rte_errno;
}

uint64_t natrix_heap_bytes(void)
{
    uint64_t bytes = 0;
    for (unsigned int i = 0; i < rte_socket_count(); i++) {
        struct rte_malloc_socket_stats heap;
        if (rte_malloc_get_socket_stats(rte_socket_id_by_idx(i), &heap) == 0)
            bytes += heap.heap_allocsz_bytes;
    }
    return bytes;
}
