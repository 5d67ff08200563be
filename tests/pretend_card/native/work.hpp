// What a launch does to the clocks, copies that are under way, who may read and write what, and failures on
// demand.
#pragma once
#include "memory.hpp"

namespace {

void require_alive(const char* what) {
  if (fail_at && launched >= fail_at && !lost) {
    if (fail_kind == "oom") {
      fail_at = 0;
      throw c10::OutOfMemoryError({__func__, __FILE__, 0},
                                  "CUDA out of memory. Tried to allocate 20.00 MiB (pretended).");
    }
    if (fail_kind == "cublas") {
      fail_at = 0;
      TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`");
    }
    lost = true;
  }
  if (lost)
    throw c10::AcceleratorError(
        {__func__, __FILE__, 0}, 700,
        c10::str("CUDA error: an illegal memory access was encountered (at ", what, ")"));
}

int launch(int device, const std::string& name) {
  int s = here(device);
  std::lock_guard<std::recursive_mutex> lock(mu);
  ++launched;
  require_alive(name.c_str());
  knows[s].merge(host);
  knows[s].t[s] = ++now_[s];
  ++counts["op " + name];
  ++counts["launches"];
  return s;
}

// Copies that are under way. Into pinned memory: it holds 0xFF until the host, or a stream that waited, may
// look. Out of pinned memory: what is there must not change until somebody knows that the copy is done.
struct Arriving {
  at::Tensor to, value;
  uint64_t when;
};
struct Leaving {
  at::Tensor from;
  std::vector<char> seen;
  uint64_t when;
};
std::vector<Arriving> arriving[kStreams];
std::vector<Leaving> leaving[kStreams];
std::vector<std::string> late;  // found where nothing may be raised
std::vector<at::Tensor>
    graves;  // tensors may need the interpreter's lock to go, so they go when ours is free

void bury() {
  std::vector<at::Tensor> gone;
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    gone.swap(graves);
  }
}

void settle(const Vec& known) {
  c10::InferenceMode quiet(true);
  for (int s = 0; s < kStreams; ++s) {
    auto& a = arriving[s];
    for (size_t i = 0; i < a.size();) {
      if (a[i].when <= known.t[s]) {
        Arriving one = std::move(a[i]);
        a.erase(a.begin() + static_cast<int64_t>(i));
        one.to.copy_(one.value);
        graves.push_back(std::move(one.to));
        graves.push_back(std::move(one.value));
      } else {
        ++i;
      }
    }
    auto& l = leaving[s];
    for (size_t i = 0; i < l.size();) {
      if (l[i].when <= known.t[s]) {
        if (memcmp(l[i].from.const_data_ptr(), l[i].seen.data(), l[i].seen.size()))
          late.push_back("pinned memory was changed before its copy to the card was known to be done");
        graves.push_back(std::move(l[i].from));
        l.erase(l.begin() + static_cast<int64_t>(i));
      } else {
        ++i;
      }
    }
  }
}

Block* block_of(const at::Tensor& t) {
  if (!t.has_storage()) return nullptr;
  return static_cast<Block*>(t.storage().data_ptr().get_context());
}

std::string check_read(Access& a, int s, const std::string& who) {
  if (a.writer >= 0 && a.writer != s && knows[s].t[a.writer] < a.written)
    return c10::str(who, " on stream ", s, " reads what stream ", a.writer,
                    " has written, and does not wait for it");
  a.read[s] = now_[s];
  return "";
}
std::string check_write(Access& a, int s, const std::string& who) {
  std::string wrong;
  if (a.writer >= 0 && a.writer != s && knows[s].t[a.writer] < a.written)
    wrong = c10::str(who, " on stream ", s, " writes over what stream ", a.writer,
                     " has written, and does not wait for it");
  for (auto& [r, when] : a.read)
    if (r != s && knows[s].t[r] < when)
      wrong = c10::str(who, " on stream ", s, " writes over what stream ", r, " may still be reading");
  a.writer = s;
  a.written = now_[s];
  a.read.clear();
  return wrong;
}

void touch(const at::Tensor& t, int s, bool write, const std::string& who) {
  Block* b = block_of(t);
  if (!b) return;
  std::string wrong;
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    wrong = write ? check_write(b->access, s, who) : check_read(b->access, s, who);
  }
  if (!wrong.empty()) race(wrong, true);
}

void host_knows(const Vec& v) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  host.merge(v);
  settle(host);
}
void host_waits_for(int s) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  Vec v = knows[s];
  v.t[s] = std::max(v.t[s], now_[s]);
  host_knows(v);
}
void tell_late() {
  bury();
  std::vector<std::string> found;
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    found.swap(late);
  }
  for (auto& one : found) race(one, true);
}

struct DeviceHere {
  int before;
  explicit DeviceHere(int device) : before(current_device) { current_device = device; }
  ~DeviceHere() { current_device = before; }
};

at::Tensor empty_on(int device, c10::IntArrayRef size, c10::IntArrayRef stride, at::ScalarType dtype) {
  DeviceHere h(device);
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype);
}

}  // namespace
