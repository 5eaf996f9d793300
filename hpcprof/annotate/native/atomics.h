/* Reads and writes that other threads see in this order. */
#ifndef HPCPROF_ATOMICS_H
#define HPCPROF_ATOMICS_H

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)
#define COUNT(place) __atomic_add_fetch(&(place), 1, __ATOMIC_RELAXED)
/* what was there before; of a flag: 0 for the one who has set it */
#define TAKE(flag) __atomic_exchange_n(&(flag), 1, __ATOMIC_ACQUIRE)
/* true when ``expected`` was there and is replaced */
#define SWAP(place, expected, value) \
    __atomic_compare_exchange_n( \
        &(place), &(expected), (value), 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)

#endif
