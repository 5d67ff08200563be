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
  int pool = 0;       // of a graph's memory; 0 is everybody's
  uint64_t born = 0;  // tells an allocation from a later one at the same place
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
  size_t graphs = 0;  // what the driver keeps for graphs' nodes, outside of torch's allocator
  std::map<std::tuple<int, bool, int>, std::set<Block*, Before>> pools;
  int major = 8, minor = 9;
};
Card card[kCards];
uint64_t births = 0;
std::map<char*, Block*> in_use;     // by address
std::map<int, int> graphs_of_pool;  // how many graphs keep a pool's memory
std::map<int, Access> pool_access;  // replays of graphs of one pool must not overlap
int pools_made = 0;

size_t budget(const Card& c) {
  size_t gone = c.context + c.foreign + c.graphs;
  return c.total > gone ? c.total - gone : 0;
}

// Graphs, which ask nobody, and other programs may have taken more than was left.
size_t free_bytes(const Card& c) {
  size_t most = budget(c);
  return most > c.reserved ? most - c.reserved : 0;
}

bool new_segment(Card& c, size_t size) { return size <= free_bytes(c); }

Block* block_at(const void* p) {
  auto* c = static_cast<char*>(const_cast<void*>(p));
  auto it = in_use.upper_bound(c);
  if (it == in_use.begin()) return nullptr;
  Block* b = (--it)->second;
  return c < b->ptr + b->size ? b : nullptr;
}

void release_cached(Card& c) {
  for (auto& [key, pool] : c.pools) {
    if (graphs_of_pool.count(std::get<2>(key))) continue;  // its graphs have these addresses
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
}

int pool_for(int s, size_t bytes);
void forget_in_capture(Block* b);
bool under_capture();

Block* take(int device, size_t bytes) {
  Card& c = card[device];
  size_t size = bytes < kMin ? kMin : (bytes + kMin - 1) / kMin * kMin;
  bool small = size <= kSmall;
  int stream = here(device);
  int of = pool_for(stream, bytes);
  auto& pool = c.pools[{stream, small, of}];
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
    if (!new_segment(c, segment) && !under_capture()) release_cached(c);
    if (!new_segment(c, segment)) {
      ++c.ooms;
      throw c10::OutOfMemoryError(
          {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
          c10::str("CUDA out of memory. Tried to allocate ", bytes / double(1 << 20), " MiB. GPU ", device,
                   " has a total capacity of ", c.total / double(1 << 30), " GiB of which ",
                   free_bytes(c) / double(1 << 20), " MiB is free. ", c.allocated / double(1 << 20),
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
    b->pool = of;
  }
  size_t rest = b->size - size;
  if (small ? rest >= kMin : rest > kSmall) {
    Block* r = new Block{device, stream, rest, b->ptr + size, small};
    r->access = b->access;
    r->pool = of;
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
  b->born = ++births;
  in_use[b->ptr] = b;
  c.allocated += b->size;
  c.peak_allocated = std::max(c.peak_allocated, c.allocated);
  return b;
}

void give(Block* b) {
  Card& c = card[b->device];
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    in_use.erase(b->ptr);
    forget_in_capture(b);
    b->access.retire();
    for (int s : b->recorded) b->access.read.erase(s);  // the allocator itself waits for these
    b->access.read.erase(b->stream);
    c.allocated -= b->size;
    b->used = false;
    auto& pool = c.pools[{b->stream, b->small, b->pool}];
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

struct Pinned {
  size_t bytes;
  uint64_t born;
  bool registered = false;  // pinned where it was, by cudaHostRegister
};
std::map<char*, Pinned> pinned;
std::map<char*, Access> pinned_access;
std::multimap<size_t, char*> pinned_cache;  // given back, and kept
size_t pinned_bytes = 0, pinned_peak = 0, pinned_reserved = 0, pinned_reserved_peak = 0;

void hold_pinned(int64_t bytes) {
  pinned_bytes += static_cast<size_t>(bytes);
  pinned_peak = std::max(pinned_peak, pinned_bytes);
}
void reserve_pinned(int64_t bytes) {
  pinned_reserved += static_cast<size_t>(bytes);
  pinned_reserved_peak = std::max(pinned_reserved_peak, pinned_reserved);
}

// As torch's caching host allocator: sizes are powers of two (at/core/CachingHostAllocator.h), what is given
// back is kept for the next of its size.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &CardAllocator::none, c10::Device(c10::kCPU)};
    std::lock_guard<std::recursive_mutex> lock(mu);
    char* p = place(std::bit_ceil(n));
    pinned[p] = {n, ++births};
    hold_pinned(static_cast<int64_t>(std::bit_ceil(n)));
    ++counts["pinned allocations"];
    return {p, p, &deleter, c10::Device(c10::kCPU)};
  }
  static char* place(size_t size) {
    auto kept = pinned_cache.find(size);
    if (kept != pinned_cache.end()) {
      char* p = kept->second;
      pinned_cache.erase(kept);
      return p;
    }
    void* p = nullptr;
    if (posix_memalign(&p, 4096, size)) throw std::bad_alloc();
    reserve_pinned(static_cast<int64_t>(size));
    return static_cast<char*>(p);
  }
  static void deleter(void* p) {
    std::lock_guard<std::recursive_mutex> lock(mu);
    auto it = pinned.find(static_cast<char*>(p));
    size_t size = std::bit_ceil(it->second.bytes);
    hold_pinned(-static_cast<int64_t>(size));
    pinned_cache.emplace(size, it->first);
    pinned_access.erase(it->first);
    pinned.erase(it);
  }
  static void empty_cache() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    for (auto& [size, p] : pinned_cache) {
      free(p);
      reserve_pinned(-static_cast<int64_t>(size));
    }
    pinned_cache.clear();
  }
  void copy_data(void* dest, const void* src, size_t count) const override { memcpy(dest, src, count); }
};
PinnedAllocator pinned_allocator;

char* pinned_base(const void* p) {
  auto* c = static_cast<char*>(const_cast<void*>(p));
  auto it = pinned.upper_bound(c);
  if (it == pinned.begin()) return nullptr;
  --it;
  return c < it->first + it->second.bytes ? it->first : nullptr;
}

// cudaHostRegister: memory of the program, pinned where it lies. 0, or the number of the error.
int host_register(uint64_t pointer, size_t bytes) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  auto* p = reinterpret_cast<char*>(pointer);
  auto behind = pinned.lower_bound(p);
  if (!p || !bytes) return 1;  // cudaErrorInvalidValue
  if (pinned_base(p) || (behind != pinned.end() && behind->first < p + bytes))
    return 712;  // already registered
  pinned[p] = {bytes, ++births, true};
  hold_pinned(static_cast<int64_t>(bytes));
  reserve_pinned(static_cast<int64_t>(bytes));
  return 0;
}

Pinned* pinned_at(const void* p) {
  char* base = pinned_base(p);
  return base ? &pinned.at(base) : nullptr;
}

}  // namespace
