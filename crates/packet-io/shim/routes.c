#include "routes.h"

#include <rte_fib.h>
#include <rte_lpm.h>
#include <rte_memory.h>

/* What DIR24-8 returns where there is no route: the largest next hop of 4 bytes, less the bit that marks groups. */
#define FIB_NONE 0x7fffffff

struct rte_lpm *natrix_lpm_create(const char *name, uint32_t routes, uint32_t groups)
{
    struct rte_lpm_config config = { .max_rules = routes, .number_tbl8s = groups };
    return rte_lpm_create(name, SOCKET_ID_ANY, &config);
}

void natrix_lpm_free(struct rte_lpm *lpm)
{
    rte_lpm_free(lpm);
}

int natrix_lpm_add(struct rte_lpm *lpm, uint32_t address, uint8_t length, uint32_t next_hop)
{
    return rte_lpm_add(lpm, address, length, next_hop);
}

int natrix_lpm_delete(struct rte_lpm *lpm, uint32_t address, uint8_t length)
{
    return rte_lpm_delete(lpm, address, length);
}

void natrix_lpm_lookup(const struct rte_lpm *lpm, const uint32_t *addresses, uint32_t count, uint32_t *next_hops)
{
    if (count == 0 || count > NATRIX_ROUTES_BULK)
        return;
    rte_lpm_lookup_bulk(lpm, addresses, next_hops, count);
    for (uint32_t i = 0; i < count; i++)
        next_hops[i] = next_hops[i] & RTE_LPM_LOOKUP_SUCCESS ? next_hops[i] & 0x00ffffff : NATRIX_ROUTES_NONE;
}

struct rte_fib *natrix_fib_create(const char *name, uint32_t routes, uint32_t groups)
{
    struct rte_fib_conf config = {
        .type = RTE_FIB_DIR24_8,
        .default_nh = FIB_NONE,
        .max_routes = (int)routes,
        .dir24_8 = { .nh_sz = RTE_FIB_DIR24_8_4B, .num_tbl8 = groups },
    };
    struct rte_fib *fib = rte_fib_create(name, SOCKET_ID_ANY, &config);
    if (fib != NULL)
        rte_fib_select_lookup(fib, RTE_FIB_LOOKUP_DEFAULT);
    return fib;
}

void natrix_fib_free(struct rte_fib *fib)
{
    rte_fib_free(fib);
}

int natrix_fib_add(struct rte_fib *fib, uint32_t address, uint8_t length, uint32_t next_hop)
{
    return rte_fib_add(fib, address, length, next_hop);
}

int natrix_fib_delete(struct rte_fib *fib, uint32_t address, uint8_t length)
{
    return rte_fib_delete(fib, address, length);
}

void natrix_fib_lookup(struct rte_fib *fib, const uint32_t *addresses, uint32_t count, uint32_t *next_hops)
{
    uint32_t asked[NATRIX_ROUTES_BULK];
    uint64_t found[NATRIX_ROUTES_BULK];
    if (count == 0 || count > NATRIX_ROUTES_BULK)
        return;
    /* rte_fib does not promise to leave the addresses alone. */
    for (uint32_t i = 0; i < count; i++)
        asked[i] = addresses[i];
    rte_fib_lookup_bulk(fib, asked, found, (int)count);
    for (uint32_t i = 0; i < count; i++)
        next_hops[i] = found[i] == FIB_NONE ? NATRIX_ROUTES_NONE : (uint32_t)found[i];
}
