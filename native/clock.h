/* The clock that no setting of the date moves. */
#pragma once
#include <stdint.h>

uint64_t monotonic_ns(void);
