#pragma once

#include "baton/base/fd.hpp"
#include "baton/base/huge_pages.hpp"

namespace baton::cli {

/// Memory for a KV pool as a replica on the CPU has it: a memory file, on huge pages. `name` shows in the process' maps.
inline Expected<Mapping> make_bench_pool(const char* name, size_t bytes) {
    BATON_TRY_ASSIGN(const UniqueFd fd, make_memfd(name, bytes));
    BATON_TRY_ASSIGN(Mapping pool, Mapping::map_fd(fd.get(), bytes, true));
    gather_huge_pages(pool.mutable_bytes());
    return pool;
}

}  // namespace baton::cli
