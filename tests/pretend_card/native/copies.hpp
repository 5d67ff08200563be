// Copies on a card, between cards, and over the link.
#pragma once
#include "operators.hpp"

namespace {

enum class Way { on, in, out };
const char* name_of(Way way) {
  return way == Way::in ? "copy to the card" : way == Way::out ? "copy from the card" : "copy on the card";
}
const char* bytes_of(Way way) {
  return way == Way::in ? "bytes to the card" : way == Way::out ? "bytes from the card" : "bytes on the card";
}

// What the link does with one copy of dense memory, when stream `s` comes to it.
struct Transfer {
  Way way;
  int s;
  at::Tensor to, from;  // of the host, or places on the card
  char* pinned;         // where the host's side lies, if it is pinned
};

void account_copy(int s, Way way, double bytes) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  counts[bytes_of(way)] += static_cast<uint64_t>(bytes);
  if (way == Way::on) count_bytes(bytes, bytes);
  occupy(s, way == Way::on ? 2 * bytes / costs.memory : bytes / costs.link);
}

// Without waiting, out of pinned memory: it must not change until somebody knows that the copy is done.
void leaves(const Transfer& t) {
  t.to.copy_(t.from);
  if (!t.from.is_non_overlapping_and_dense()) return;
  std::lock_guard<std::recursive_mutex> lock(mu);
  size_t n = std::min<size_t>(t.from.nbytes(), 1 << 20);
  auto* p = static_cast<const char*>(t.from.const_data_ptr());
  leaving[t.s].push_back({t.from, std::vector<char>(p, p + n), now_[t.s]});
}

// Without waiting, into pinned memory: it holds 0xFF until somebody may look.
void arrives(const Transfer& t) {
  auto value = at::empty_like(t.to).copy_(t.from);
  if (t.to.is_non_overlapping_and_dense()) memset(t.to.mutable_data_ptr(), 0xFF, t.to.nbytes());
  std::lock_guard<std::recursive_mutex> lock(mu);
  arriving[t.s].push_back({t.to, value, now_[t.s]});
}

void check_pinned(const Transfer& t) {
  std::string wrong;
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    auto& a = pinned_access[t.pinned];
    wrong =
        t.way == Way::in ? check_read(a, t.s, "copy to the card") : check_write(a, t.s, "copy from the card");
    if (t.way == Way::in) settle(knows[t.s]);  // what this stream has waited for is there when it reads
  }
  if (!wrong.empty()) race(wrong, true);
}

void go(const Transfer& t) {
  if (t.way == Way::on) {
    t.to.copy_(t.from);
    return;
  }
  check_pinned(t);
  t.way == Way::in ? leaves(t) : arrives(t);
}

// In a graph: a copy of two places, which looks at its pinned side again in every replay.
Node copy_node(Way way, const at::Tensor& to, const at::Tensor& from, char* pinned, double bytes) {
  Node n{name_of(way), {ref_of(to, true), ref_of(from, false)}, 0, 0, nullptr, nullptr};
  if (way == Way::on) n.read = n.written = bytes;
  if (dry && to.numel() > dry_above) return n;
  n.again = [way, to = raw_alias(to), from = raw_alias(from), pinned, bytes](int s) {
    c10::InferenceMode quiet(true);
    if (way != Way::on) account_copy(s, way, bytes);
    go({way, s, to, from, pinned});
  };
  return n;
}

void capture_copy(int s, Way way, at::Tensor& self, const at::Tensor& src, char* pinned, double bytes) {
  if (way == Way::out) {
    add_node(s, copy_node(way, self, src, pinned, bytes));
    return;
  }
  save_for_capture(self);
  add_node(s, copy_node(way, self, src, pinned, bytes));
  if (!(dry && self.numel() > dry_above)) raw_alias(self).copy_(raw_alias(src));
}

// What torch and CUDA refuse of a copy while its stream is capturing (aten/src/ATen/native/cuda/Copy.cu).
void require_capturable(int s, Way way, char* pinned, bool non_blocking, bool across) {
  if (!captured(s)) return;
  if (across) capture_error(900, "a copy between cards");
  if (way == Way::on) return;
  TORCH_CHECK(
      pinned,
      "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
      "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True.");
  if (!non_blocking) capture_error(900, "a copy that the host waits for");
}

void wait_for_copy(int s, Way way) {
  host_waits_for(s);
  count_wait(way == Way::in ? "a copy to the card" : "a copy from the card");
  std::lock_guard<std::recursive_mutex> lock(mu);
  ++counts[way == Way::in ? "waiting copies to the card" : "waiting copies from the card"];
}

void count_unwaited(Way way, bool pinned) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  ++counts[way == Way::out ? "non_blocking copies from the card"
           : pinned        ? "pinned copies to the card"
                           : "unpinned non_blocking copies to the card"];
}

// Two dense tensors of one type, in one order.
void copy_dense(at::Tensor& self, const at::Tensor& src, Way way, bool non_blocking) {
  const int device = (self.is_cuda() ? self : src).device().index();
  DeviceHere h(device);
  char* pinned = nullptr;
  if (way != Way::on) {
    std::lock_guard<std::recursive_mutex> lock(mu);
    pinned = pinned_base((way == Way::in ? src : self).const_data_ptr());
  }
  require_capturable(here(device), way, pinned, non_blocking, false);
  const int s = launch(device, name_of(way));
  const double bytes = static_cast<double>(self.nbytes());
  if (src.is_cuda()) touch(src, s, false, "copy_");
  if (self.is_cuda()) touch(self, s, true, "copy_");
  if (captured(s)) return capture_copy(s, way, self, src, pinned, bytes);
  account_copy(s, way, bytes);
  // Into pageable memory the driver returns when it is there; out of it, when it has been staged.
  const bool waits = way != Way::on && (!non_blocking || (way == Way::out && !pinned));
  const bool skip = dry && self.numel() > dry_above;
  Shared shared;
  Transfer t{way, s, self.is_cuda() && !skip ? host_alias(self, shared) : self,
             src.is_cuda() && !skip ? host_alias(src, shared) : src, pinned};
  if (way != Way::on && !waits) count_unwaited(way, pinned);
  if (pinned && (waits || skip)) check_pinned(t);
  if (waits) wait_for_copy(s, way);
  if (skip) return;
  if (waits || !pinned)
    t.to.copy_(t.from);
  else
    go(t);
  if (way == Way::in && !pinned && !waits) {
    std::lock_guard<std::recursive_mutex> lock(mu);
    host_time = std::max(host_time, busy_until[s]);
  }
  tell_late();
}

// On the source's stream, which waits for the target's before, and is waited for by it behind.
void copy_between(at::Tensor& self, const at::Tensor& src) {
  const int device = src.device().index(), other = here(self.device().index());
  require_capturable(here(device), Way::on, nullptr, true, true);
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    knows[here(device)].merge(knows[other]);
    busy_until[here(device)] = std::max(busy_until[here(device)], busy_until[other]);
  }
  DeviceHere h(device);
  const int s = launch(device, name_of(Way::on));
  touch(src, s, false, "copy_");
  touch(self, s, true, "copy_");
  account_copy(s, Way::in, static_cast<double>(self.nbytes()));
  std::lock_guard<std::recursive_mutex> lock(mu);
  knows[other].merge(knows[s]);
  busy_until[other] = std::max(busy_until[other], busy_until[s]);
  ++counts["copies between cards"];
  if (dry && self.numel() > dry_above) return;
  Shared shared;
  host_alias(self, shared).copy_(host_alias(src, shared));
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.is_conj() == b.is_conj() &&
         a.is_neg() == b.is_neg() &&
         ((a.is_contiguous() && b.is_contiguous()) ||
          (a.strides() == b.strides() && a.is_non_overlapping_and_dense()));
}

// A kernel, so any layout and type.
void copy_on(at::Tensor& self, const at::Tensor& src) {
  DeviceHere h(self.device().index());
  const int s = launch(self.device().index(), name_of(Way::on));
  touch(src, s, false, "copy_");
  touch(self, s, true, "copy_");
  if (captured(s)) {
    save_for_capture(self);
    add_node(s, copy_node(Way::on, self, src, nullptr, moved_bytes(self)));
  } else {
    std::lock_guard<std::recursive_mutex> lock(mu);
    counts[bytes_of(Way::on)] += static_cast<uint64_t>(moved_bytes(self));
    count_bytes(moved_bytes(src), moved_bytes(self));
    occupy(s, (moved_bytes(src) + moved_bytes(self)) / costs.memory);
  }
  if (dry && self.numel() > dry_above) return;
  Shared shared;
  host_alias(self, shared).copy_(host_alias(src, shared));
}

// The link copies dense memory of one type. All else goes through temporaries: types are converted on the
// host on the way in and on the way out, and a temporary of the host is not pinned (Copy.cu,
// copy_kernel_cuda).
void copy_in(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  if (same_layout(self, src) || (dry && self.numel() > dry_above))
    return copy_dense(self, src, Way::in, non_blocking);
  auto near = src.to(self.scalar_type()).resolve_conj().resolve_neg().expand_as(self).contiguous();
  if (self.is_contiguous()) return copy_dense(self, near, Way::in, non_blocking);
  auto there = at::empty(self.sizes(), self.options());
  copy_dense(there, near, Way::in, non_blocking);
  copy_on(self, there);
}

void copy_out(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  if (same_layout(self, src) || (dry && self.numel() > dry_above))
    return copy_dense(self, src, Way::out, non_blocking);
  auto dense = src.expand_as(self);
  if (!dense.is_contiguous() || dense.is_conj() || dense.is_neg()) {
    auto made = at::empty(self.sizes(), src.options());
    copy_on(made, dense);
    dense = made;
  }
  if (self.is_contiguous() && self.scalar_type() == src.scalar_type())
    return copy_dense(self, dense, Way::out, non_blocking);
  auto near = at::empty(self.sizes(), self.options().dtype(src.scalar_type()).pinned_memory(false));
  copy_dense(near, dense, Way::out, non_blocking);
  self.copy_(near);
}

at::Tensor& copy_card_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  if (self.is_same(src) || self.numel() == 0) return self;
  if (self.is_cuda() && src.is_cuda()) {
    if (self.device() != src.device())
      copy_between(self, src.expand_as(self));
    else
      copy_on(self, src.expand_as(self));
    return self;
  }
  TORCH_CHECK((self.is_cuda() ? src : self).device().is_cpu() || dry, "pretend card: a copy with ",
              (self.is_cuda() ? src : self).device());
  if (!(self.is_cuda() ? src : self).device().is_cpu()) return self;
  self.is_cuda() ? copy_in(self, src, non_blocking) : copy_out(self, src, non_blocking);
  return self;
}

}  // namespace
