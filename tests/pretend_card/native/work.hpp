// What a launch does to the clocks, copies that are under way, who may read and write what, and failures on
// demand.
#pragma once
#include "costs.hpp"

namespace {

// What a card does once and then never again, and what stays (PRETEND_FAIL).
const std::map<std::string, const char*> fails_once = {
    {"oom", ""},
    {"cublas", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"},
    {"cudnn", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"},
};

// Once something is wrong with the context, every later call says so again, until the process ends.
const std::map<std::string, std::pair<int, const char*>> fails_forever = {
    {"lost", {700, "an illegal memory access was encountered"}},
    {"assert", {710, "device-side assert triggered"}},
    {"ecc", {214, "uncorrectable ECC error encountered"}},
    {"gone", {999, "unknown error"}},  // fallen off the bus, as torch tells it
};

void require_alive(const char* what) {
  if (fail_at && launched >= fail_at && !lost) {
    auto once = fails_once.find(fail_kind);
    if (once == fails_once.end()) {
      lost = true;
    } else {
      fail_at = 0;
      if (fail_kind == "oom")
        throw c10::OutOfMemoryError({__func__, __FILE__, 0},
                                    "CUDA out of memory. Tried to allocate 20.00 MiB (pretended).");
      TORCH_CHECK(false, once->second);
    }
  }
  if (!lost) return;
  auto [code, says] = fails_forever.at(fail_kind);
  throw c10::AcceleratorError({__func__, __FILE__, 0}, code,
                              c10::str("CUDA error: ", says, " (at ", what, ")"));
}

std::string layer;  // that launches are counted for, besides

void count_launch(const std::string& name) {
  ++counts["op " + name];
  ++counts["launches"];
  if (!layer.empty()) ++counts["layer " + layer + ": " + name];
}

int launch_on(int s, const std::string& name) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  require_joined(s, name);
  ++launched;
  require_alive(name.c_str());
  knows[s].merge(host);
  knows[s].t[s] = ++now_[s];
  if (captured(s)) {
    ++counts["captured nodes"];
  } else {
    count_launch(name);
    host_time += costs.launch;
  }
  return s;
}

int launch(int device, const std::string& name) { return launch_on(here(device), name); }

// Behind a launch, when its operands are known.
void account(int s, double read, double written) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  if (captured(s)) return;
  count_bytes(read, written);
  occupy(s, (read + written) / costs.memory);
}

const std::thread::id main_thread = std::this_thread::get_id();  // that loads this

bool keep_stacks = false;
std::map<std::string, uint64_t> wait_stacks;

// The host stands still for the card: counted, and remembered with where it happened if that is asked for.
void count_wait(const std::string& why, bool stands = true) {
  std::string stack = keep_stacks ? why + "\n" + python_stack() : "";
  std::lock_guard<std::recursive_mutex> lock(mu);
  ++counts["host waits: " + why];
  if (!stands) return;
  host_time += costs.wait;
  ++counts["host waits"];
  if (!layer.empty()) ++counts["layer " + layer + ": host waits"];
  if (keep_stacks) ++wait_stacks[stack];
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

// A copy that may be under way between the card and the host's memory from `p` on.
bool under_way(const char* p, size_t bytes) {
  auto meets = [&](const at::Tensor& t) {
    auto* q = static_cast<const char*>(t.const_data_ptr());
    return q < p + bytes && p < q + t.nbytes();
  };
  for (int s = 0; s < kStreams; ++s) {
    for (auto& one : arriving[s])
      if (meets(one.to)) return true;
    for (auto& one : leaving[s])
      if (meets(one.from)) return true;
  }
  return false;
}

int host_unregister(uint64_t pointer) {
  std::string wrong;
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    auto it = pinned.find(reinterpret_cast<char*>(pointer));
    if (it == pinned.end() || !it->second.registered) return 713;  // cudaErrorHostMemoryNotRegistered
    if (under_way(it->first, it->second.bytes))
      wrong = "memory was unregistered under a copy that nobody waited for";
    hold_pinned(-static_cast<int64_t>(it->second.bytes));
    reserve_pinned(-static_cast<int64_t>(it->second.bytes));
    pinned_access.erase(it->first);
    pinned.erase(it);
  }
  if (!wrong.empty()) race(wrong, true);
  return 0;
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

void touch(Block* b, int s, bool write, const std::string& who) {
  if (!b) return;
  std::string wrong;
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    if (captured(s) && capture->before.emplace(b, b->access).second) b->access = Access();
    wrong = write ? check_write(b->access, s, who) : check_read(b->access, s, who);
  }
  if (!wrong.empty()) race(wrong, true);
}
void touch(const at::Tensor& t, int s, bool write, const std::string& who) {
  touch(block_of(t), s, write, who);
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
  host_time = std::max(host_time, busy_until[s]);
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
