// Memory between two inaccessible pages. A buffer starts right behind the first one or ends right before the second;
// the slack on its other side is filled with a pattern that the destructor checks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "tests/support/pages.h"

namespace simdattn::test {

enum class Guard : uint8_t { kBefore, kAfter };

class Guarded {
 public:
  static constexpr unsigned char kCanary = 0xA5;

  Guarded() = default;
  Guarded(size_t bytes, Guard side) : size_(bytes), side_(side), pages_(1) {
    while (pages_ * page() < bytes + 1) pages_ *= 2;
    std::vector<unsigned char*>& unused = pool()[pages_];
    if (unused.empty()) {
      region_ = map(pages_ * page());
    } else {
      region_ = unused.back();
      unused.pop_back();
    }
    if (region_ == nullptr) return;
    data_ = side == Guard::kBefore ? region_ : region_ + pages_ * page() - bytes;
    std::memset(slack(), kCanary, slack_bytes());
  }
  Guarded(Guarded&& other) noexcept { *this = std::move(other); }
  Guarded& operator=(Guarded&& other) noexcept {
    std::swap(region_, other.region_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(side_, other.side_);
    std::swap(pages_, other.pages_);
    return *this;
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() {
    if (region_ == nullptr) return;
    writable();
    EXPECT_TRUE(is_canary(slack(), slack_bytes()))
        << "bytes " << (side_ == Guard::kBefore ? "behind" : "before") << " a buffer were written";
    pool()[pages_].push_back(region_);
  }

  /// True if every byte holds the pattern: the first does, and each is like the one before it.
  static bool is_canary(const unsigned char* bytes, size_t n) {
    return n == 0 || (bytes[0] == kCanary && std::memcmp(bytes, bytes + 1, n - 1) == 0);
  }
  unsigned char* data() const { return data_; }
  size_t size() const { return size_; }
  /// From here on a write to the buffer is a fault, until writable() or the end of its life.
  void read_only() {
    if (region_ != nullptr && protect_pages(region_, pages_ * page(), Access::kRead)) protected_ = true;
  }
  void writable() {
    if (protected_ && protect_pages(region_, pages_ * page(), Access::kWrite)) protected_ = false;
  }
  static size_t page() {
    static const size_t size = page_size();
    return size;
  }

 private:
  // Regions are used again: a system call per buffer would be most of the time of a test.
  static std::map<size_t, std::vector<unsigned char*>>& pool() {
    static auto* const pool = new std::map<size_t, std::vector<unsigned char*>>;
    return *pool;
  }
  static unsigned char* map(size_t bytes) {
    void* const p = map_pages(bytes + 2 * page(), guard_access());
    if (p == nullptr) {
      ADD_FAILURE() << "no memory for " << bytes << " bytes";
      return nullptr;
    }
    unsigned char* const region = static_cast<unsigned char*>(p) + page();
    if (!protect_pages(region, bytes, Access::kWrite)) {
      ADD_FAILURE() << "the access of pages cannot be changed";
      return nullptr;
    }
    return region;
  }
  // An emulator may read all bytes of a masked load, where a CPU reads only those that count.
  static Access guard_access() {
    return std::getenv("SIMDATTN_READABLE_GUARDS") != nullptr ? Access::kRead : Access::kNone;
  }
  size_t slack_bytes() const { return std::min<size_t>(256, pages_ * page() - size_); }
  unsigned char* slack() const { return side_ == Guard::kBefore ? data_ + size_ : data_ - slack_bytes(); }

  unsigned char* region_ = nullptr;
  unsigned char* data_ = nullptr;
  size_t size_ = 0;
  Guard side_ = Guard::kAfter;
  size_t pages_ = 0;
  bool protected_ = false;
};

}  // namespace simdattn::test
