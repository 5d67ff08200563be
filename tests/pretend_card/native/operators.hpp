// Operators that a card does itself: new tensors, views, copies.
#pragma once
#include "fallback.hpp"

namespace {

int index_of(std::optional<c10::Device> device) {
  int d = device && device->has_index() ? device->index() : current_device;
  TORCH_CHECK(d < cards, "CUDA error: invalid device ordinal");
  return d;
}

at::Tensor empty_card(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                      std::optional<c10::Device> device, std::optional<bool> pin,
                      std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_alive("empty");
  }
  DeviceHere h(index_of(device));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided_card(c10::IntArrayRef size, c10::IntArrayRef stride,
                              std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                              std::optional<c10::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_alive("empty_strided");
  }
  return empty_on(index_of(device), size, stride, c10::dtype_or_default(dtype));
}

at::Tensor as_strided_card(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                           std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view_card(const at::Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias_card(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
at::Tensor unfold_card(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

at::Tensor& set_storage_card(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                             c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty())
    impl->set_sizes_contiguous(size);
  else
    impl->set_sizes_and_strides(size, stride, offset);
  return self;
}
at::Tensor& set_tensor_card(at::Tensor& self, const at::Tensor& source) {
  return set_storage_card(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& copy_card_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  if (self.is_same(src) || self.numel() == 0) return self;
  int device = self.is_cuda() ? self.device().index() : src.device().index();
  const bool across = self.is_cuda() && src.is_cuda() && self.device() != src.device();
  if (across) {  // on the source's stream, which waits for the target's before, and is waited for by it
                 // behind
    device = src.device().index();
    std::lock_guard<std::recursive_mutex> lock(mu);
    knows[here(device)].merge(knows[here(self.device().index())]);
  }
  const bool in = self.is_cuda() && !src.is_cuda(), out = !self.is_cuda() && src.is_cuda();
  DeviceHere h(device);
  const int s = launch(device, in ? "copy to the card" : out ? "copy from the card" : "copy on the card");
  size_t bytes = self.numel() * (in ? src.dtype().itemsize() : self.dtype().itemsize());
  if (src.is_cuda()) touch(src, s, false, "copy_");
  if (self.is_cuda()) touch(self, s, true, "copy_");
  if (across) {
    std::lock_guard<std::recursive_mutex> lock(mu);
    knows[here(self.device().index())].merge(knows[s]);
    ++counts["copies between cards"];
  }
  std::string wrong;
  bool waits = false, arrives = false, leaves = false;
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    counts[in ? "bytes to the card" : out ? "bytes from the card" : "bytes on the card"] += bytes;
    char* base = in ? pinned_base(src.const_data_ptr()) : out ? pinned_base(self.const_data_ptr()) : nullptr;
    if (in || out) {
      if (base) {
        auto& a = pinned_access[base];
        wrong = in ? check_read(a, s, "copy to the card") : check_write(a, s, "copy from the card");
        if (in) settle(knows[s]);  // what this stream has waited for is there when it reads
      }
      if (!non_blocking || (out && !base)) {  // into pageable memory the driver returns when it is there
        waits = true;
        ++counts[in ? "waiting copies to the card" : "waiting copies from the card"];
        ++counts["host waits"];
      } else {
        arrives = out;
        leaves = in && base;
        ++counts[in ? (base ? "pinned copies to the card" : "unpinned non_blocking copies to the card")
                    : "non_blocking copies from the card"];
      }
    }
  }
  if (!wrong.empty()) race(wrong, true);
  if (waits) host_waits_for(s);
  if (dry && self.numel() > dry_above) return self;
  Shared shared;
  auto to = self.is_cuda() ? host_alias(self, shared) : self;
  auto from = src.is_cuda() ? host_alias(src, shared) : src;
  at::Tensor near = from;
  if (!to.device().is_cpu()) return self;
  if (arrives) {
    auto value = at::empty_like(to).copy_(near);
    if (to.is_non_overlapping_and_dense()) memset(to.mutable_data_ptr(), 0xFF, to.nbytes());
    std::lock_guard<std::recursive_mutex> lock(mu);
    arriving[s].push_back({to, value, now_[s]});
    return self;
  }
  to.copy_(near);
  if (leaves && near.is_non_overlapping_and_dense()) {
    std::lock_guard<std::recursive_mutex> lock(mu);
    size_t n = std::min<size_t>(near.nbytes(), 1 << 20);
    auto* p = static_cast<const char*>(near.const_data_ptr());
    leaving[s].push_back({near, std::vector<char>(p, p + n), now_[s]});
  }
  if (waits) host_waits_for(s);
  tell_late();
  return self;
}

void record_stream_card(at::Tensor& self, c10::Stream stream) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  if (Block* b = block_of(self)) b->recorded.insert(stream_index(stream.device_index(), stream.id()));
  ++counts["record_stream"];
}

}  // namespace
