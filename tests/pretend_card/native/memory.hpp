// The card's memory, by an allocator that works like torch's caching one (segments, splitting, a limit), and
// pinned host memory.
#pragma once
#include "clocks.hpp"

namespace {

constexpr size_t kMin = 512, kSmall = 1 << 20, kSmallBuffer = 2 << 20, kLargeBuffer = 20 << 20,
                 kMinLarge = 10 << 20, kRound = 2 << 20;

struct Block {
  int device;
  int stream;  // of the allocation
  size_t size;
  char* ptr;
  bool small;
  bool used = false;
  Block *prev = nullptr, *next = nullptr;
  size_t asked = 0;
  Access access;
  std::set<int> recorded;
};
struct Before {
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
  }
};
struct Card {
  size_t total = size_t(8) << 30, context = size_t(450) << 20, foreign = 0;
  size_t allocated = 0, reserved = 0, peak_allocated = 0, peak_reserved = 0;
  uint64_t mallocs = 0, frees = 0, ooms = 0;
  std::map<std::pair<int, bool>, std::set<Block*, Before>> pools;
  int major = 8, minor = 9;
};
Card card[kCards];

size_t budget(const Card& c) { return c.total > c.context + c.foreign ? c.total - c.context - c.foreign : 0; }

bool new_segment(Card& c, size_t size) { return c.reserved + size <= budget(c); }

void release_cached(Card& c) {
  for (auto& [key, pool] : c.pools)
    for (auto it = pool.begin(); it != pool.end();) {
      Block* b = *it;
      if (!b->prev && !b->next) {
        munmap(b->ptr, b->size);
        c.reserved -= b->size;
        ++c.frees;
        it = pool.erase(it);
        delete b;
      } else {
        ++it;
      }
    }
}

Block* take(int device, size_t bytes) {
  Card& c = card[device];
  size_t size = bytes < kMin ? kMin : (bytes + kMin - 1) / kMin * kMin;
  bool small = size <= kSmall;
  int stream = here(device);
  auto& pool = c.pools[{stream, small}];
  Block key{device, stream, size, nullptr, small};
  auto it = pool.lower_bound(&key);
  Block* b = nullptr;
  if (it != pool.end()) {
    b = *it;
    pool.erase(it);
  } else {
    size_t segment = small              ? kSmallBuffer
                     : size < kMinLarge ? kLargeBuffer
                                        : (size + kRound - 1) / kRound * kRound;
    if (!new_segment(c, segment)) release_cached(c);
    if (!new_segment(c, segment)) {
      ++c.ooms;
      size_t free = budget(c) - c.reserved;
      throw c10::OutOfMemoryError(
          {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
          c10::str("CUDA out of memory. Tried to allocate ", bytes / double(1 << 20), " MiB. GPU ", device,
                   " has a total capacity of ", c.total / double(1 << 30), " GiB of which ",
                   free / double(1 << 20), " MiB is free. ", c.allocated / double(1 << 20),
                   " MiB is allocated by PyTorch, and ", (c.reserved - c.allocated) / double(1 << 20),
                   " MiB is reserved by PyTorch but unallocated."));
    }
    void* p =
        mmap(nullptr, segment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    c.reserved += segment;
    c.peak_reserved = std::max(c.peak_reserved, c.reserved);
    ++c.mallocs;
    b = new Block{device, stream, segment, static_cast<char*>(p), small};
  }
  size_t rest = b->size - size;
  if (small ? rest >= kMin : rest > kSmall) {
    Block* r = new Block{device, stream, rest, b->ptr + size, small};
    r->access = b->access;
    r->prev = b;
    r->next = b->next;
    if (r->next) r->next->prev = r;
    b->next = r;
    b->size = size;
    pool.insert(r);
  }
  b->used = true;
  b->asked = bytes;
  b->recorded.clear();
  c.allocated += b->size;
  c.peak_allocated = std::max(c.peak_allocated, c.allocated);
  return b;
}

void give(Block* b) {
  Card& c = card[b->device];
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    b->access.retire();
    for (int s : b->recorded) b->access.read.erase(s);  // the allocator itself waits for these
    b->access.read.erase(b->stream);
    c.allocated -= b->size;
    b->used = false;
    auto& pool = c.pools[{b->stream, b->small}];
    for (Block* n : {b->prev, b->next}) {
      if (!n || n->used) continue;
      pool.erase(n);
      if (n == b->prev) {
        b->ptr = n->ptr;
        b->prev = n->prev;
        if (b->prev) b->prev->next = b;
      } else {
        b->next = n->next;
        if (b->next) b->next->prev = b;
      }
      b->size += n->size;
      b->access.merge(n->access);
      delete n;
    }
    pool.insert(b);
  }
}

struct CardAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    int device = current_device;
    if (n == 0) return {nullptr, nullptr, &none, c10::Device(c10::kCUDA, device)};
    Block* b;
    {
      std::lock_guard<std::recursive_mutex> lock(mu);
      b = take(device, n);
    }
    if (poison) memset(b->ptr, 0xFF, std::min<size_t>(n, 64 << 20));
    return {b->ptr, b, &deleter, c10::Device(c10::kCUDA, device)};
  }
  static void none(void*) {}
  static void deleter(void* p) { give(static_cast<Block*>(p)); }
  void copy_data(void* dest, const void* src, size_t count) const override { memcpy(dest, src, count); }
};
CardAllocator allocator;

std::map<char*, size_t> pinned;
std::map<char*, Access> pinned_access;
size_t pinned_bytes = 0, pinned_peak = 0;

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &CardAllocator::none, c10::Device(c10::kCPU)};
    void* p = nullptr;
    if (posix_memalign(&p, 4096, n)) throw std::bad_alloc();
    std::lock_guard<std::recursive_mutex> lock(mu);
    pinned[static_cast<char*>(p)] = n;
    pinned_bytes += n;
    pinned_peak = std::max(pinned_peak, pinned_bytes);
    ++counts["pinned allocations"];
    return {p, p, &deleter, c10::Device(c10::kCPU)};
  }
  static void deleter(void* p) {
    std::lock_guard<std::recursive_mutex> lock(mu);
    auto it = pinned.find(static_cast<char*>(p));
    pinned_bytes -= it->second;
    pinned_access.erase(it->first);
    pinned.erase(it);
    free(p);
  }
  void copy_data(void* dest, const void* src, size_t count) const override { memcpy(dest, src, count); }
};
PinnedAllocator pinned_allocator;

char* pinned_base(const void* p) {
  auto* c = static_cast<char*>(const_cast<void*>(p));
  auto it = pinned.upper_bound(c);
  if (it == pinned.begin()) return nullptr;
  --it;
  return c < it->first + it->second ? it->first : nullptr;
}

}  // namespace
