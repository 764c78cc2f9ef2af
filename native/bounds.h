/* Loops over whole arrays, and numbers that stay within their bounds. */
#pragma once
#include <stdint.h>

#define FOR_EACH(item, array)                                                                                          \
    for (__auto_type item = &(array)[0]; item < (array) + sizeof(array) / sizeof *(array); item++)

static inline uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static inline uint64_t greatest(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* Returns what `bytes` is more than `base`; 0 if it is less. */
static inline uint64_t above(uint64_t bytes, uint64_t base)
{
    return bytes > base ? bytes - base : 0;
}
