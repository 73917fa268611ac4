// Pages of memory with their own access rights, from POSIX or Windows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simdattn::test {

enum class Access : uint8_t { kNone, kRead, kWrite };

size_t page_size();
/// Null if there is no memory.
void* map_pages(size_t bytes, Access access);
/// Whether it was done.
bool protect_pages(void* p, size_t bytes, Access access);
void unmap_pages(void* p, size_t bytes);

}  // namespace simdattn::test
