#include "tests/support/pages.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace simdattn::test {

#if defined(_WIN32)

static DWORD rights(Access access) {
  return access == Access::kNone ? PAGE_NOACCESS : access == Access::kRead ? PAGE_READONLY : PAGE_READWRITE;
}

size_t page_size() {
  SYSTEM_INFO info;
  GetSystemInfo(&info);
  return info.dwPageSize;
}

void* map_pages(size_t bytes, Access access) {
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, rights(access));
}

bool protect_pages(void* p, size_t bytes, Access access) {
  DWORD before = 0;
  return VirtualProtect(p, bytes, rights(access), &before) != 0;
}

void unmap_pages(void* p, size_t) { VirtualFree(p, 0, MEM_RELEASE); }

#else

static int rights(Access access) {
  return access == Access::kNone ? PROT_NONE : access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
}

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

void* map_pages(size_t bytes, Access access) {
  void* const p = mmap(nullptr, bytes, rights(access), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

bool protect_pages(void* p, size_t bytes, Access access) { return mprotect(p, bytes, rights(access)) == 0; }

void unmap_pages(void* p, size_t bytes) { munmap(p, bytes); }

#endif

}  // namespace simdattn::test
