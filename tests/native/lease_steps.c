/* One process's part in a lease (native/lease_turn.c), for tests that go through it step by step, at times of their own:
   linked with --wrap=monotonic_ns. */
#include <stdlib.h>
#include <string.h>

#include "lease_turn.h"

uint64_t steps_now;

uint64_t __wrap_monotonic_ns(void)
{
    return steps_now;
}

struct process_lease *steps_new(struct lease_table *table, unsigned account, unsigned share, unsigned limit,
                                bool best_effort)
{
    struct process_lease *lease = calloc(1, sizeof *lease);
    lease->gate.open = SHUT;
    lease->table = table;
    lease->account = account;
    lease->terms = (struct lease_terms){share, limit, best_effort};
    lease->patience = PATIENCE;
    return lease;
}

#define FIELDS(X)                                                                                                      \
    X(gate.open) X(gate.credits) X(turns) X(drains_requested) X(drains_done) X(drain_since) X(nudges) X(blocked)       \
    X(blocked_since) X(entered) X(leaving) X(leaving_drain) X(late_since) X(closing) X(closing_since) X(contended)     \
    X(contended_at) X(credits_given) X(launches_seen) X(idle_since) X(patience) X(rested_since) X(batch_launches)      \
    X(batch_credits) X(batch_since) X(launch_ns) X(batch_at)

/* Returns a field, and sets it before if `value` is not NULL. */
uint64_t steps_field(struct process_lease *lease, const char *name, const uint64_t *value)
{
#define FIELD(field)                                                                                                   \
    if (strcmp(name, #field) == 0) {                                                                                   \
        if (value != NULL)                                                                                             \
            lease->field = (__typeof__(lease->field + 0))*value;                                                       \
        return (uint64_t)lease->field;                                                                                 \
    }
    FIELDS(FIELD)
    abort();
}

int steps_member(const struct process_lease *lease)
{
    return lease->member != NULL ? (int)(lease->member - lease->table->members) : -1;
}
